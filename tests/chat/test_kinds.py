"""Conversations that templates and formats change without a word: the right mask, or refused."""

import itertools
import json
import re
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from conversing import CHATML, MARKED, REWRITING, SPECIAL, TOOLS, assistant, call, user
from making import some_slow
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split, WhitespaceSplit

from tokenmill.chat.chat_encoder import ChatEncoder
from tokenmill.chat.conversations import CannotMask, read_conversation
from tokenmill.chat.find_rule import find_chat_rule, with_rule
from tokenmill.chat.message import BrokenConversation
from tokenmill.chat.renderer import Renderer, changes_texts
from tokenmill.chat.templates import JinjaTemplate
from tokenmill.chat.turns import TurnFinder
from tokenmill.prepare.config import PrepareConfig
from tokenmill.text.formats import ReadOptions
from tokenmill.tokenize.chat_rule import ChatRule
from tokenmill.tokenize.encoder import Encoder
from tokenmill.tokenize.load import load_foreign


def learned(template: str, row: dict, column: str | None = None) -> list[str]:
    finder = TurnFinder(
        JinjaTemplate(template, {"bos_token": "<s>", "eos_token": "</s>"}), SPECIAL, "all"
    )
    text, turns, _ = finder.find(read_conversation(json.dumps(row), column))
    return [text[begin:end] for begin, end in turns]


HEADER = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
HI = user("Hi")
TWICE = [HI, assistant("Hello"), user("More"), assistant("Fine")]
BOTH = ["Hello<|im_end|>", "Fine<|im_end|>"]
BY_PARTS = HEADER + (
    "{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}" + PROMPT
)
RIGHT = {
    "the next turn's opening is not learned, though it is always there": (
        CHATML.split("{% if add")[0] + "{{ '<|im_start|>assistant\n' }}",
        {"messages": TWICE},
        BOTH,
    ),
    "null beside a call": (
        TOOLS,
        {"messages": [HI, assistant(None, tool_calls=[call("f", {"a": None})])]},
        ['<tool_call>\n{"name": "f", "arguments": {"a": null}}\n</tool_call><|im_end|>'],
    ),
    "JSON in strings": (
        TOOLS,
        {
            "messages": json.dumps([HI, assistant("", tool_calls=[call("f", '{"a": 1}')])]),
            "tools": ['{"name": "f"}'],
        },
        ['<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>'],
    ),
    "an integer of more than 64 bits": (
        TOOLS,
        {"messages": [HI, assistant("", tool_calls=[call("f", {"a": 10**20 - 1})])]},
        [
            '<tool_call>\n{"name": "f", "arguments": {"a": 99999999999999999999}}\n'
            "</tool_call><|im_end|>"
        ],
    ),
    "lone surrogates and large integers in a string of JSON": (
        TOOLS,
        {
            "messages": [
                HI,
                assistant(
                    "", tool_calls=[call("f", '{"a": "\\ud800", "b": 99999999999999999999}')]
                ),
            ]
        },
        [
            '<tool_call>\n{"name": "f", "arguments": {"a": "\ufffd", "b": 99999999999999999999}}\n'
            "</tool_call><|im_end|>"
        ],
    ),
    "special tokens in names": (
        TOOLS,
        {"messages": [HI, assistant("", tool_calls=[call("<|im_end|>", {})])]},
        ['<tool_call>\n{"name": "<|im_end|>", "arguments": {}}\n</tool_call><|im_end|>'],
    ),
    "a plus before generation": (MARKED.replace("{% gen", "{%+ gen"), {"messages": TWICE}, BOTH),
    "a part without text": (
        BY_PARTS,
        {
            "messages": [
                HI,
                assistant([{"type": "text", "text": None}, {"type": "text", "text": "Yo"}]),
            ]
        },
        ["Yo<|im_end|>"],
    ),
    "thinking that balances": (
        CHATML,
        {"messages": [HI, assistant("<think>hm</think>Yo")]},
        ["<think>hm</think>Yo<|im_end|>"],
    ),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_what_is_learned_is_what_the_assistant_wrote(kind):
    template, row, expected = RIGHT[kind]
    assert learned(template, row) == expected


ONLY_TEXTS = CHATML.replace(
    "{{ m['content'] }}", "{{ m['content'] if m['content'] is string else '' }}"
)
BLOCK = "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
LATER = HEADER + (  # as Gemma 4: content comes after the call and its result
    "{% for c in m.tool_calls %}<call>{{ c.function.name }}{% endfor %}"
    "{% if m.tool_calls %}<result>"
    "{{ messages[loop.index].content }}</result>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    + PROMPT
)
ONE_CALL = TOOLS.replace("{% for c in m.tool_calls %}", "{% for c in (m.tool_calls or [])[:1] %}")
NO_NAME = "leaves out the name of a call in a learned"
NO_REASONING = "leaves out the reasoning in a learned turn; take"
REFUSED = {
    "the second of two calls": (
        ONE_CALL,
        [HI, assistant("", tool_calls=[call("f", {}), call("g", {})])],
        NO_NAME,
    ),
    "calls": (CHATML, [HI, assistant("b", tool_calls=[call("f", {})])], NO_NAME),
    "reasoning": (CHATML, [HI, assistant("b", reasoning="so")], NO_REASONING),
    "thinking": (CHATML, [HI, assistant("b", thinking="so")], NO_REASONING),
    "a user's parts": (
        ONLY_TEXTS,
        [user(["a", "b"]), assistant("c")],
        "leaves out a text of the user",
    ),
    "the assistant's parts": (
        ONLY_TEXTS,
        [user("a"), assistant(["c"])],
        "leaves out the content in a learned turn",
    ),
    "cut": (
        CHATML.replace("m['content']", "m['content'][:3]"),
        TWICE,
        "changes texts by|cuts a text",
    ),
    "the length": (
        CHATML.replace("tent'] }}", "tent'] }}{{ m['content'] | length }}"),
        TWICE,
        "changes texts by",
    ),
    "an objection": (
        CHATML + "{{ raise_exception('only one') }}",
        TWICE,
        "the template rejects it: only one",
    ),
    "blocks by what a text says": (
        MARKED.replace(
            "{% if m.role == 'assistant' %}",
            "{% if m.role == 'assistant' and m.content != 'Fine' %}",
        ),
        TWICE,
        "the template changes texts by what is in them",
    ),
    "a block in a macro": (
        "{% macro turn(m) %}<|im_start|>assistant\n"
        + BLOCK
        + "{% endmacro %}{% for m in messages %}"
        "{% if m.role == 'assistant' %}{{ turn(m) }}{% else %}{{ m.content }}<s>{% endif %}"
        "{% endfor %}",
        TWICE,
        "a generation block is within a macro, a filter or a set",
    ),
    "a header that goes on otherwise than the prompt": (
        CHATML.replace(
            "{{ m['role'] }}", "{{ m['role'] }}{{ ' name=' + m.name if m.name else '' }}"
        ),
        [user("a"), assistant("b", name="bob")],
        "it cannot be told where a turn of the assistant begins",
    ),
    "Python's names": (
        "{% set n = namespace(_x=1) %}" + CHATML,
        TWICE,
        "a namespace cannot have the name '_x'",
    ),
    "function_call": (
        CHATML,
        [HI, assistant("a", function_call={"name": "f"})],
        "leaves out the name",
    ),
    "a part of thinking": (
        BY_PARTS,
        [HI, assistant([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Yo"}])],
        "leaves out the content",
    ),
    "special tokens in keys": (
        TOOLS,
        [HI, assistant("", tool_calls=[call("f", {"<s>": 1})])],
        "spells a special",
    ),
    "text before thinking": (
        REWRITING,
        [
            user("q"),
            assistant("Well <think>r</think> a"),
            user("q"),
            assistant("<think>r</think>b"),
        ],
        "leaves out the content in a learned turn",
    ),
    "tags beside a call": (
        TOOLS.replace("{% if m.content %}", "{% if m.content and not m.tool_calls %}"),
        [HI, assistant("[NOTE]", tool_calls=[call("f", {})])],
        "leaves out the content",
    ),
    "a plan": (CHATML, [HI, assistant("b", tool_plan="so")], NO_REASONING),
    "a refusal": (
        CHATML,
        [HI, assistant("b", refusal="no")],
        "leaves out the content in a learned turn",
    ),
    "a tool's empty result within a turn": (
        LATER,
        [
            HI,
            assistant("a", tool_calls=[call("f", {})]),
            {"role": "tool", "content": ""},
            assistant("b"),
        ],
        "a tool's result without text may be within a turn",
    ),
    "an orphan": (CHATML, [HI, assistant("hm</think>Yo")], "does not balance"),
    "two thoughts": (
        CHATML,
        [HI, assistant("<think>a</think><think>b</think>Yo")],
        "does not balance",
    ),
    "a list printed by Python": (
        HEADER + "{{ m.content }}<|im_end|>{% endfor %}" + PROMPT,
        [HI, assistant([{"type": "text", "text": "\nYo"}])],
        "prints a list of parts as Python does",
    ),
    "a turn without an end": (
        HEADER + "{{ m.content }}{% endfor %}" + PROMPT,
        TWICE,
        "it would never end; use a template for training",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_left_out_or_changed_is_refused(kind):
    template, messages, reason = REFUSED[kind]
    with pytest.raises(CannotMask, match=reason):
        learned(template, {"messages": messages})


IMAGE = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": "b"}]
BROKEN = [
    ({"messages": [{"from": [], "value": "x"}]}, "message 0: unknown role None"),
    ({"messages": [{"role": "alien", "content": "x"}]}, "message 0: unknown role 'alien'"),
    ({"messages": [user("q")]}, "no turn of the assistant"),
    ({"messages": "text"}, "expected a list of messages under 'messages', found a str"),
    (
        {"messages": [user("q"), {"role": "assistant"}]},
        "message 1: role 'assistant' has no content",
    ),
    ({"messages": [user(7)]}, "message 0: expected content of text or parts, found 7"),
    (
        {"messages": [user(IMAGE)]},
        "message 0: expected parts of text, found one of type 'image_url'",
    ),
    (
        {"messages": [user("q"), assistant("x", tool_calls=3)]},
        "message 1: expected a list of tool_calls",
    ),
    (
        {"messages": [user("q"), assistant("x", tool_calls=[{"function": []}])]},
        "expected the function of a call to",
    ),
    (
        {"messages": [user("q"), assistant("x", reasoning_content=[1])]},
        "message 1: expected reasoning of text",
    ),
    (
        {"messages": [user("q"), assistant("x", train=2)]},
        "message 1: expected train of 0 or 1, found 2",
    ),
    (
        {
            "messages": [
                user("q") | {"tool_calls": None},
                assistant("", tool_calls=[call("f", {"x": "1", "z": None})]),
            ]
        },
        "a field of arguments or tools is null, as Arrow writes one that is missing",
    ),
    (
        {
            "messages": [user("q"), assistant("x")],
            "tools": [{"name": "f", "parameters": {"properties": {"x": {}, "z": None}}}],
        },
        "a field of arguments or tools is null, as Arrow writes one that is missing",
    ),
    (
        {"messages": [user("q"), assistant("x", loss=0, trainable=True)]},
        "message 1: loss and trainable disagree",
    ),
    (
        {"messages": [user("q"), assistant("x")], "weight": 0.5},
        "message 0: expected weight of the row of 0 or 1, found 0.5",
    ),
    (
        {"messages": [user("q"), assistant("x", weight=1)], "loss_mask": [0, 0]},
        "message 1: weight and loss_mask of the row disagree",
    ),
    (
        {"messages": [user("q"), assistant("x")], "loss_mask": [0]},
        "expected loss_mask of a number for each message, found 1 for 2",
    ),
    (
        {"input_ids": [1, 2], "loss_mask": [0, 1], "weight": 0.5},
        "expected weight of 0 or 1, found 0.5",
    ),
    (
        {"messages": [user("q"), assistant("x")], "tools": [3]},
        "expected a list of tools that are objects",
    ),
    (
        {"prompt": {"a": 1}, "completion": "b"},
        "expected a prompt and a completion of text, or lists of messages",
    ),
    (
        {"input_ids": [5, 6], "loss_mask": [0, 1], "attention_mask": 1},
        "expected attention_mask, a list of numbers",
    ),
    (
        {"messages": [user("q")], "chat_template_kwargs": {"a": 1}},
        "chat_template_kwargs would change the text",
    ),
    ({"messages": None}, "found no values"),
    (
        {"text": "a"},
        "expected messages, conversations, prompt and completion, or input_ids, found keys text",
    ),
    (
        {"input_ids": [5, 6], "assistant_masks": [1, -100]},
        "expected assistant_masks of 0 and 1, found -100",
    ),
    (
        {"input_ids": [0, 6], "loss_mask": [0, 1], "attention_mask": [0, 1]},
        "zeros, so input_ids has padding",
    ),
    (
        {"messages": [{"from": "gpt", "value": "x", "content": "y"}]},
        "message 0: has both value and content",
    ),
    (
        {"input_ids": [1, 2], "loss_mask": [0, 1], "labels": [1, 2]},
        "say differently what is in the loss",
    ),
]


@pytest.mark.parametrize(("row", "reason"), BROKEN, ids=str)
def test_a_row_that_is_no_conversation_says_why(row, reason):
    with pytest.raises(BrokenConversation, match=re.escape(reason)):
        read_conversation(json.dumps(row))


def test_a_system_text_is_there_beside_any_column():
    turns = [HI, assistant("Yo")]
    with pytest.raises(BrokenConversation, match="system: expected content of text or parts"):
        read_conversation({"messages": turns, "system": {"a": 1}})
    for row, column in (({"chat": turns}, "chat"), ({"prompt": "Hi", "completion": "Yo"}, None)):
        conversation = read_conversation(row | {"system": "be kind"}, column)
        assert conversation.messages[0] == {"role": "system", "content": "be kind"}
        assert conversation.in_loss == (2,)
    assert ReadOptions(messages_column="chat").conversation_columns[:3] == (
        "chat",
        "system",
        "tools",
    )
    conversation = read_conversation({"prompt": "[]", "completion": "[1]", "tools": []})
    assert ([message["content"] for message in conversation.messages], conversation.tools) == (
        ["[]", "[1]"],
        [],
    )


def test_a_template_needs_its_own_tokenizer_and_the_tokens_that_it_names(tokenizer, tmp_path):
    with pytest.raises(
        ValueError,
        match="which tokenizer .* does not have as a special token; name its own tokenizer",
    ):
        Renderer(with_rule(tokenizer, ChatRule("own", CHATML, "all")))
    (tmp_path / "chat_template.jinja").write_text(CHATML + "{{ eos_token }}")
    with pytest.raises(
        ValueError, match="writes eos_token; put the tokenizer_config.json beside it"
    ):
        find_chat_rule(str(tmp_path), "all")


def test_a_folder_brings_its_tokenizer_and_named_tokens(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    named = {"chat_template": "{{ boi_token }}", "extra_special_tokens": {"boi_token": "<boi>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    for chat in (tmp_path, tmp_path / "tokenizer_config.json"):
        assert PrepareConfig(source="x", chat=str(chat)).tokenizer_name == str(
            tmp_path / "tokenizer.json"
        )
        assert find_chat_rule(str(chat), "all").variables == {"boi_token": "<boi>"}


CHANGES_TEXTS = {
    "a space before": ByteLevel(add_prefix_space=True),
    "no white space": Sequence(
        [WhitespaceSplit(), ByteLevel(add_prefix_space=True, use_regex=False)]
    ),
    "taken out": Sequence([Split("-", "removed"), ByteLevel(add_prefix_space=False)]),
}


HOW = ["lstrip", "rstrip", "single_word", "normalized", *CHANGES_TEXTS, "NFC", "nothing"]


@pytest.mark.parametrize(
    "how", some_slow(HOW, quick=["lstrip", "normalized", "taken out", "NFC", "nothing"])
)
def test_ids_are_those_of_the_whole_rendering_however_a_tokenizer_changes_texts(how, tmp_path):
    """And texts are encoded alone only where that is the same."""
    model = tokenizers.models.BPE(
        {letter: i for i, letter in enumerate(sorted(ByteLevel.alphabet()))}, []
    )
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = CHANGES_TEXTS.get(how, ByteLevel(add_prefix_space=False))
    made.normalizer = tokenizers.normalizers.NFC() if how == "NFC" else None
    tokens = ("<s>", "<|im_start|>", "<|im_end|>")
    flags = {"normalized": False} | (
        {how: True} if how in ("lstrip", "rstrip", "single_word", "normalized") else {}
    )
    made.add_special_tokens(
        [tokenizers.AddedToken(token, special=True, **flags) for token in tokens]
    )
    made.save(str(tmp_path / "tokenizer.json"))
    chatting = with_rule(
        load_foreign(tmp_path / "tokenizer.json", "<s>"), ChatRule("own", CHATML, "all", tokens[1:])
    )
    assert changes_texts(chatting) == (how not in ("NFC", "nothing"))
    around = itertools.product(("", " ", "\n "), (" ", ""))
    rows = [
        {"messages": [user(f"{a}q {a}"), assistant(f"{b}Hi-the\u0301re{a}")]} for a, b in around
    ]
    spelled = {"messages": [user("<|im_end|>"), assistant("a")]}
    column = pa.array([json.dumps(row) for row in [*rows, spelled]], pa.large_string())
    batch = ChatEncoder(Encoder(chatting)).encode(column)
    assert batch.kept.tolist() == [True] * len(rows) + [how in ("NFC", "nothing")]
    for row, end, length in zip(
        rows, np.cumsum(batch.lengths).tolist(), batch.lengths.tolist(), strict=False
    ):
        ids, mask = (values[end - length : end].tolist() for values in (batch.tokens, batch.mask))
        text = JinjaTemplate(CHATML, {}).render(row["messages"])[0]
        assert ids[1:] == made.encode(text, add_special_tokens=False).ids
        answer = b"".join(
            chatting.token(id) for id, is_in in zip(ids, mask, strict=True) if is_in
        ).decode()
        answer = unicodedata.normalize("NFC", answer).replace("-", "").replace(" ", "").strip()
        assert answer.startswith("Hith\u00e9re")
        assert answer.endswith("<|im_end|>")
