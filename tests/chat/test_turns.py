"""Which characters the assistant wrote, in templates of every kind; and what is refused."""

import json
import random

import pytest
from conversing import (
    CHATML,
    MARKED,
    NO_PROMPT,
    REWRITING,
    SPECIAL,
    STRIPPING,
    TEXTS,
    TOOLS,
    by_characters,
    random_messages,
)

from tokenmill.chat.conversations import CannotMask, read_conversation
from tokenmill.chat.jinja_templates import JinjaTemplate
from tokenmill.chat.turns import TurnFinder


def finder(template: str, loss: str = "all") -> TurnFinder:
    return TurnFinder(JinjaTemplate(template, {"bos_token": "<s>", "eos_token": "</s>"}), SPECIAL, loss)


def found_in(template: str, row: dict, loss: str = "all") -> tuple[str, list[bool], list[str]]:
    """The text, whether each letter is learned, and the special tokens."""
    text, turns, special = finder(template, loss).find(read_conversation(row))
    return text, [any(a <= i < b for a, b in turns) for i in range(len(text))], [text[a:b] for a, b in special]


def learned_text(template: str, row: dict, loss: str = "all") -> str:
    text, learned, _ = found_in(template, row, loss)
    return "".join(letter for letter, bears in zip(text, learned, strict=True) if bears)


LIKE_CHATML = {
    "chatml": (CHATML, "<|im_start|>{role}\n", "\n", str),
    "marked": (MARKED, "<|im_start|>{role}\n", "", str),
    "stripping": (STRIPPING, "<|im_start|>{role}\n\n", "", str.strip),
}


@pytest.mark.parametrize("name", LIKE_CHATML)
def test_the_assistant_s_content_and_end_are_learned_letter_by_letter(name):
    template, begin, after, change = LIKE_CHATML[name]
    rng = random.Random(0)
    for _ in range(300):
        messages = random_messages(rng)
        text, learned, special = found_in(template, {"messages": messages})
        assert (text, learned) == by_characters(messages, begin, "<|im_end|>", after, change)
        assert special == ["<|im_start|>", "<|im_end|>"] * len(messages), "what contents spell is text"
        assert text == JinjaTemplate(template, {}).render(messages)[0]


def test_a_template_without_a_generation_prompt():
    row = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello</s>"}] * 2}
    text, _, special = found_in(NO_PROMPT, row)
    assert text == "[INST] Hi [/INST] Hello</s></s>" * 2
    assert special == ["</s>", "</s>"]
    assert learned_text(NO_PROMPT, row) == " Hello</s></s>" * 2


def test_a_template_that_rewrites_its_history():
    """Differences of renderings fail here: the first turn is written otherwise once a second follows."""
    turn = "<think>\nhm\n</think>\n\n"
    row = {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": turn + "one"},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": turn + "two"},
        ]
    }
    assert learned_text(REWRITING, row) == "one<|im_end|>" + turn + "two<|im_end|>"
    row["messages"][-1]["content"] = "two"  # an empty reasoning is what the model has to write then
    assert learned_text(REWRITING, row) == "one<|im_end|><think>\n\n</think>\n\ntwo<|im_end|>"


def test_tool_calls_are_learned_and_their_results_are_not():
    arguments = {"city": 'New "York"\n<|im_end|>', "days": 3}
    call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
    row = {
        "tools": [{"type": "function", "function": {"name": "weather", "description": "says <|im_end|>"}}],
        "messages": [
            {"role": "user", "content": "How is it?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "sunny <|im_end|>"},
            {"role": "assistant", "content": "It is sunny."},
        ],
    }
    written = json.dumps(arguments, ensure_ascii=False)
    _, _, special = found_in(TOOLS, row)
    assert special == ["<|im_start|>", "<|im_end|>"] * 5
    assert learned_text(TOOLS, row) == (
        f'<tool_call>\n{{"name": "weather", "arguments": {written}}}\n</tool_call><|im_end|>It is sunny.<|im_end|>'
    )


@pytest.mark.parametrize("template", [CHATML, MARKED])
def test_last_and_flags_say_which_turns_are_learned(template):
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "one", "train": 0},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "three", "weight": 1},
    ]
    assert learned_text(template, {"messages": messages}) == "two<|im_end|>three<|im_end|>"
    assert learned_text(template, {"messages": messages}, "last") == "three<|im_end|>"
    messages[-1]["weight"] = 0
    with pytest.raises(CannotMask, match="no token of it is in the loss"):
        found_in(template, {"messages": messages}, "last")


def test_an_empty_turn_and_an_emoji_at_the_end_of_a_turn():
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "weight": 0},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "👩‍👩‍👧"},
    ]
    assert learned_text(CHATML, {"messages": messages}) == "👩‍👩‍👧<|im_end|>"


@pytest.mark.parametrize("empty", ["", "  ", "\u3000", None, []])
def test_a_turn_without_a_text_is_refused_if_it_is_to_be_learned(empty):
    """Nothing tells where it is, so its end would bear no loss, without a word."""
    template = CHATML.replace("{{ m['content'] }}", "{{ m['content'] if m['content'] is string else '' }}")
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": empty}]
    messages += [{"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]
    row = {"messages": [message for message in messages if message["content"] is not None]}
    if empty is None:
        row = {"messages": [*messages[:1], {"role": "assistant", "content": None, "thinking": " "}, *messages[2:]]}
    with pytest.raises(CannotMask, match="a turn of the assistant that is to be learned has no text"):
        found_in(template, row)


def call(arguments) -> dict:
    return {"function": {"name": "add", "arguments": arguments}}


PARTS_THAT_END = (  # each call is a part with an end of its own, as content is
    "{% for m in messages %}{% if m.content %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endif %}"
    "{% for c in m.tool_calls %}<|im_start|>call\n{{ c.function | tojson }}<|im_end|>{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES_THE_CALL = (  # as Harmony: the result of a call names it
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>{{ called.name }} to=assistant\n{{ m.content }}"
    "<|im_end|>"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}"
    "<call>{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
).replace("called.name", "messages[loop.index0 - 1].tool_calls[0].function.name")


@pytest.mark.parametrize("arguments", [{"a": 2, "b": 3}, {}, {"a": "2"}, {"a": True, "b": None}, [1, 2]])
def test_a_call_of_numbers_is_learned_as_one_of_texts(arguments):
    messages = [
        {"role": "user", "content": "2+3?"},
        {"role": "assistant", "content": "", "tool_calls": [call(arguments)]},
    ]
    messages += [{"role": "tool", "content": "5"}, {"role": "assistant", "content": "It is 5"}]
    told = json.dumps(arguments)
    expected = f'<tool_call>\n{{"name": "add", "arguments": {told}}}\n</tool_call><|im_end|>It is 5<|im_end|>'
    assert learned_text(TOOLS, {"messages": messages}) == expected
    expected = f"<call>add({told})<|im_end|>It is 5<|im_end|>"
    assert learned_text(NAMES_THE_CALL, {"messages": messages}) == expected
    messages[1]["content"] = "x"
    told = json.dumps({"name": "add", "arguments": arguments})
    found = learned_text(PARTS_THAT_END, {"messages": messages})
    assert found == f"x<|im_end|><|im_start|>call\n{told}<|im_end|>It is 5<|im_end|>"


def test_a_block_without_a_text_is_nobody_s_where_not_all_are_learned():
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "one"}]
    messages += [{"role": "user", "content": "b"}, {"role": "assistant", "content": ""}]
    assert learned_text(MARKED, {"messages": messages}) == "one<|im_end|><|im_end|>"
    messages[3]["weight"] = 0
    with pytest.raises(CannotMask, match="a generation block has no text, so it cannot be told whose it is"):
        found_in(MARKED, {"messages": messages})


LEFT_OUT = {
    "calls": ({"tool_calls": [{"function": {"name": "f", "arguments": {}}}]}, "leaves out the name of a learned turn"),
    "reasoning": (
        {"reasoning_content": "I think"},
        "leaves out the reasoning of a learned turn; take",
    ),
    "thinking": ({"thinking": "I think"}, "leaves out the reasoning of a learned turn; take"),
    "tools": ({}, "leaves out a tool"),
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_what_a_template_never_looks_at_is_refused(what):
    more, reason = LEFT_OUT[what]
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"} | more]}
    if what == "tools":
        row["tools"] = [{"function": {"name": "f", "description": "d"}}]
    with pytest.raises(CannotMask, match=reason):
        found_in(CHATML, row)


def test_a_text_of_others_that_the_template_leaves_out_is_refused():
    row = {"messages": [{"role": "user", "content": ["a", "b"]}, {"role": "assistant", "content": "c"}]}
    template = CHATML.replace("{{ m['content'] }}", "{{ m['content'] if m['content'] is string else '' }}")
    with pytest.raises(CannotMask, match="the template leaves out a text of the user"):
        found_in(template, row)
    row["messages"] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": ["c"]}]
    with pytest.raises(CannotMask, match="the template leaves out the content of a learned turn"):
        found_in(template, row)


BLOCK = "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
HIDDEN = {
    "macro": "{% macro turn(m) %}<|im_start|>assistant\n" + BLOCK + "{% endmacro %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ turn(m) }}{% else %}{{ m.content }}<s>{% endif %}"
    "{% endfor %}",
    "set": "{% for m in messages %}{% if m.role == 'assistant' %}{% set x %}<|im_start|>assistant\n"
    + BLOCK
    + "{% endset %}{{ x }}{% else %}{{ m.content }}<s>{% endif %}{% endfor %}",
}


@pytest.mark.parametrize("where", HIDDEN)
def test_a_block_whose_place_cannot_be_told_is_refused(where):
    row = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
    with pytest.raises(CannotMask, match="a generation block is within a macro, a filter or a set"):
        found_in(HIDDEN[where], row)


def test_a_template_that_marks_by_what_a_text_says_is_refused():
    template = MARKED.replace(
        "{% if m.role == 'assistant' %}", "{% if m.role == 'assistant' and m.content != 'Sorry' %}"
    )
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "Sorry"}]}
    with pytest.raises(CannotMask, match="the template changes texts by what is in them"):
        found_in(template, row)
    row["messages"][1]["content"] = "Fine"
    assert learned_text(template, row) == "Fine<|im_end|>"


def test_texts_that_spell_marks_are_texts():
    row = {"messages": [{"role": "user", "content": "Zq0aHiZq0z"}, {"role": "assistant", "content": "Zq1x Zq1a Zq1z"}]}
    assert learned_text(CHATML, row) == "Zq1x Zq1a Zq1z<|im_end|>"


REFUSED = {
    "upper case": (
        CHATML.replace("m['content']", "m['content'] | upper"),
        "changes texts by|cuts a text",
    ),
    "no end": (CHATML.replace("<|im_end|>", ""), "ends no last turn"),
    "cut": (CHATML.replace("m['content']", "m['content'][:3]"), "changes texts by|cuts a text"),
    "of the length": (
        CHATML.replace("{{ m['content'] }}", "{{ m['content'] }}{{ m['content'] | length }}"),
        "changes texts by|cuts a text",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_verified_is_refused(what):
    template, reason = REFUSED[what]
    row = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "world"}]}
    with pytest.raises(CannotMask, match=reason):
        found_in(template, row)


def test_a_role_or_name_that_spells_a_special_token_is_refused():
    one = {"function": {"name": "<|im_end|>", "arguments": {}}}
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": [one]}]}
    assert found_in(TOOLS, row)[2].count("<|im_end|>") == 2, "what is called is text"
    one["function"] = {"name": "f", "arguments": {"<|im_end|>": 1}}
    with pytest.raises(CannotMask, match="a name or a key spells a special token"):
        found_in(TOOLS, row)


def test_a_template_s_own_objection_is_the_reason():
    template = CHATML + "{{ raise_exception('only two messages') }}"
    with pytest.raises(CannotMask, match="the template rejects it: only two messages"):
        found_in(template, {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})


@pytest.mark.parametrize("template", [CHATML, MARKED, REWRITING, TOOLS])
def test_masks_do_not_depend_on_the_conversations_before(template):
    warm, rng = finder(template), random.Random(1)
    for _ in range(300):
        messages = random_messages(rng)
        for message in messages:
            if message["role"] == "assistant" and template == REWRITING and rng.random() < 0.3:
                message["content"] = f"<think>{rng.choice(TEXTS)}</think>{message['content']}"
        conversation = read_conversation({"messages": messages})
        found = []
        for one in (warm, finder(template)):
            try:
                found.append(one.find(conversation))
            except CannotMask as error:
                found.append(str(error))
        assert found[0] == found[1]
    assert 0 < len(warm._frames) < 300, "conversations of one shape share their frame"


def test_the_date_of_a_template_is_fixed():
    template = JinjaTemplate("{{ strftime_now('%d %b %Y') }}", {})
    assert template.render([])[0] == "26 Jul 2024"


def test_a_template_cannot_reach_python():
    with pytest.raises(CannotMask):
        JinjaTemplate("{{ messages.__class__.__mro__ }}{{ ''.__class__.__bases__[0].__subclasses__() }}", {}).render([])
    with pytest.raises(CannotMask):
        JinjaTemplate("{{ messages.append(1) }}", {}).render([])
    with pytest.raises(ValueError, match="not valid Jinja: line 1"):
        JinjaTemplate("{% for %}", {})


def test_a_turn_whose_header_goes_on_otherwise_than_the_prompt_is_refused():
    """Or a part of the header would bear loss."""
    template = CHATML.replace("{{ m['role'] }}", "{{ m['role'] }}{{ ' name=' + m.name if m.name else '' }}")
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "name": "bob"}]}
    with pytest.raises(CannotMask, match="it cannot be told where a turn of the assistant begins"):
        found_in(template, row)
    del row["messages"][1]["name"]
    assert learned_text(template, row) == "b<|im_end|>"
