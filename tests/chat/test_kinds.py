"""Kinds of conversations that templates and formats change without a word: the right ids and mask, or refused."""

import json

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from conversing import CHATML, MARKED, SPECIAL, TOOLS
from tokenizers.pre_tokenizers import ByteLevel

from tokenmill.chat.chat_encoder import ChatEncoder
from tokenmill.chat.conversations import BrokenConversation, CannotMask, parse_row, read_conversation
from tokenmill.chat.find_rule import find_chat_rule, with_rule
from tokenmill.chat.jinja_templates import JinjaTemplate
from tokenmill.chat.turns import TurnFinder
from tokenmill.prepare.config import PrepareConfig
from tokenmill.tokenize.chat_rule import ChatRule
from tokenmill.tokenize.encoder import Encoder
from tokenmill.tokenize.load import load_foreign


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def assistant(content, **more) -> dict:
    return {"role": "assistant", "content": content, **more}


def call(name: str, arguments) -> dict:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def learned(template: str, row: dict, column: str | None = None) -> list[str]:
    finder = TurnFinder(JinjaTemplate(template, {"bos_token": "<s>", "eos_token": "</s>"}), SPECIAL, "all")
    text, turns, _ = finder.find(read_conversation(parse_row(json.dumps(row)), column))
    return [text[begin:end] for begin, end in turns]


HEADER = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
NAMED = '{"name": "f"}'
TWICE = [user("Hi"), assistant("Hello"), user("More"), assistant("Fine")]
BY_PARTS = HEADER + (
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
RIGHT = {
    "the next turn's opening is not learned, though it is always there": (
        CHATML.split("{% if add")[0] + "{{ '<|im_start|>assistant\n' }}",
        {"messages": TWICE},
        ["Hello<|im_end|>", "Fine<|im_end|>"],
    ),
    "null beside a call": (
        TOOLS,
        {"messages": [user("Hi"), assistant(None, tool_calls=[call("f", {"a": None})])]},
        ['<tool_call>\n{"name": "f", "arguments": {"a": null}}\n</tool_call><|im_end|>'],
    ),
    "JSON in strings": (
        TOOLS,
        {
            "messages": json.dumps([user("Hi"), assistant("", tool_calls=[call("f", '{"a": 1}')])]),
            "tools": ['{"name": "f"}'],
        },
        ['<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>'],
    ),
    "an integer of more than 64 bits": (
        TOOLS,
        {"messages": [user("Hi"), assistant("", tool_calls=[call("f", {"a": 10**22 + 1})])]},
        ['<tool_call>\n{"name": "f", "arguments": {"a": 10000000000000000000001}}\n</tool_call><|im_end|>'],
    ),
    "special tokens in names": (
        TOOLS,
        {"messages": [user("Hi"), assistant("", tool_calls=[call("<|im_end|>", {})])]},
        ['<tool_call>\n{"name": "<|im_end|>", "arguments": {}}\n</tool_call><|im_end|>'],
    ),
    "a plus before generation": (
        MARKED.replace("{% gen", "{%+ gen"),
        {"messages": TWICE},
        ["Hello<|im_end|>", "Fine<|im_end|>"],
    ),
    "a part without text": (
        BY_PARTS,
        {"messages": [user("Hi"), assistant([{"type": "text", "text": None}, {"type": "text", "text": "Yo"}])]},
        ["Yo<|im_end|>"],
    ),
    "thinking that balances": (
        CHATML,
        {"messages": [user("Hi"), assistant("<think>hm</think>Yo")]},
        ["<think>hm</think>Yo<|im_end|>"],
    ),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_what_is_learned_is_what_the_assistant_wrote(kind):
    template, row, expected = RIGHT[kind]
    assert learned(template, row) == expected


ONE_CALL = TOOLS.replace("{% for c in m.tool_calls %}", "{% for c in (m.tool_calls or [])[:1] %}")
REFUSED = {
    "the second of two calls": (
        ONE_CALL,
        [user("Hi"), assistant("", tool_calls=[call("f", {}), call("g", {})])],
        "leaves out the name",
    ),
    "content beside a call": (
        TOOLS.replace("{% if m.content %}", "{% if m.content and not m.tool_calls %}"),
        [user("Hi"), assistant("Look", tool_calls=[call("f", {})])],
        "leaves out the content",
    ),
    "function_call": (CHATML, [user("Hi"), assistant("a", function_call={"name": "f"})], "leaves out the name"),
    "a part of thinking": (
        BY_PARTS,
        [user("Hi"), assistant([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Yo"}])],
        "leaves out the content",
    ),
    "special tokens in keys": (
        TOOLS,
        [user("Hi"), assistant("", tool_calls=[call("f", {"<s>": 1})])],
        "spells a special",
    ),
    "an orphan": (CHATML, [user("Hi"), assistant("hm</think>Yo")], "does not balance"),
    "two thoughts": (CHATML, [user("Hi"), assistant("<think>a</think><think>b</think>Yo")], "does not balance"),
    "a list printed by Python": (
        HEADER
        + "{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        [user("Hi"), assistant([{"type": "text", "text": "Yo"}])],
        "prints a list of parts as Python does|write plain turns",
    ),
    "a turn without an end": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        TWICE,
        "it would never end; use a template for training",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_left_out_or_changed_is_refused(kind):
    template, messages, reason = REFUSED[kind]
    with pytest.raises(CannotMask, match=reason):
        learned(template, {"messages": messages})


BROKEN = [
    {"messages": [{"from": [], "value": "x"}]},
    {"messages": [{"role": [], "content": "x"}]},
    {"messages": [user("q"), assistant("x", tool_calls=3)]},
    {"messages": [user("q"), assistant("x", tool_calls=[{"function": []}])]},
    {"messages": [user("q"), assistant("x", reasoning_content=[1])]},
    {"messages": [user("q"), assistant("x", weight=[])]},
    {"messages": [user("q"), assistant("x")], "tools": [3]},
    {"prompt": {"a": 1}, "completion": "b"},
    {"input_ids": [1, 2], "loss_mask": [0, 1], "labels": [1, 2]},
]


@pytest.mark.parametrize("row", BROKEN, ids=str)
def test_wrong_types_of_fields_are_a_broken_conversation(row):
    with pytest.raises(BrokenConversation, match=r"expected|unknown role|say differently what is in the loss"):
        read_conversation(parse_row(json.dumps(row)))


def test_a_system_text_is_there_beside_any_column():
    turns = [user("Hi"), assistant("Yo")]
    for row, column in (({"chat": turns}, "chat"), ({"prompt": "Hi", "completion": "Yo"}, None)):
        found = read_conversation(row | {"system": "be kind"}, column)
        assert found.messages[0] == {"role": "system", "content": "be kind"}
        assert found.learned == (2,)


def test_a_folder_brings_its_tokenizer_and_named_tokens(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    named = {"chat_template": "{{ boi_token }}", "extra_special_tokens": {"boi_token": "<boi>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    for chat in (tmp_path, tmp_path / "tokenizer_config.json"):
        assert PrepareConfig(source="x", chat=str(chat)).tokenizer_name == str(tmp_path / "tokenizer.json")
        assert find_chat_rule(str(chat), "all").variables == {"boi_token": "<boi>"}


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_ids_are_those_of_the_whole_rendering_where_special_tokens_have_flags(flag, tmp_path):
    model = tokenizers.models.BPE({letter: i for i, letter in enumerate(sorted(ByteLevel.alphabet()))}, [])
    whole = tokenizers.Tokenizer(model)
    whole.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokens = ("<s>", "<|im_start|>", "<|im_end|>")
    whole.add_special_tokens(
        [tokenizers.AddedToken(token, special=True, normalized=False, **{flag: True}) for token in tokens]
    )
    whole.save(str(tmp_path / "tokenizer.json"))
    chatting = with_rule(load_foreign(tmp_path / "tokenizer.json", "<s>"), ChatRule("own", CHATML, "all", tokens[1:]))
    rows = [
        {"messages": [user(f"{a}q {a}"), assistant(f"{b}Hi there{a}")]} for a in ("", " ", "\n ") for b in (" ", "")
    ]
    spelled = {"messages": [user("<|im_end|>"), assistant("a")]}
    given = pa.array([json.dumps(row) for row in [*rows, spelled]], pa.large_string())
    batch = ChatEncoder(Encoder(chatting)).encode(given)
    assert batch.kept.tolist() == [True] * len(rows) + [False]
    for row, end, length in zip(rows, np.cumsum(batch.lengths).tolist(), batch.lengths.tolist(), strict=True):
        ids, mask = (values[end - length : end].tolist() for values in (batch.tokens, batch.mask))
        text = JinjaTemplate(CHATML, {}).render(row["messages"])[0]
        assert ids[1:] == whole.encode(text, add_special_tokens=False).ids
        answer = "".join(chatting.token(id).decode() for id, is_in in zip(ids, mask, strict=True) if is_in)
        assert "Hi there" in answer
        assert answer.rstrip().endswith("<|im_end|>")
        assert "q" not in answer
