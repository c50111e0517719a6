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
    assistant,
    by_characters,
    call,
    random_messages,
    user,
)

from tokenmill.chat.conversations import CannotMask, read_conversation
from tokenmill.chat.message import BrokenConversation
from tokenmill.chat.templates import JinjaTemplate
from tokenmill.chat.turns import TurnFinder


def finder(template: str, loss: str = "all") -> TurnFinder:
    return TurnFinder(
        JinjaTemplate(template, {"bos_token": "<s>", "eos_token": "</s>"}), SPECIAL, loss
    )


def found_in(template: str, row: dict, loss: str = "all") -> tuple[str, list[bool], list[str]]:
    """The text, whether each letter is learned, and the special tokens."""
    text, turns, special = finder(template, loss).find(read_conversation(row))
    return (
        text,
        [any(a <= i < b for a, b in turns) for i in range(len(text))],
        [text[a:b] for a, b in special],
    )


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
    for _ in range(100):
        messages = random_messages(rng)
        text, learned, special = found_in(template, {"messages": messages})
        assert (text, learned) == by_characters(messages, begin, "<|im_end|>", after, change)
        assert special == ["<|im_start|>", "<|im_end|>"] * len(messages), (
            "what contents spell is text"
        )
        assert text == JinjaTemplate(template, {}).render(messages)[0]


def test_a_template_without_a_generation_prompt():
    row = {"messages": [user("Hi"), assistant("Hello</s>")] * 2}
    text, _, special = found_in(NO_PROMPT, row)
    assert text == "[INST] Hi [/INST] Hello</s></s>" * 2
    assert special == ["</s>", "</s>"]
    assert learned_text(NO_PROMPT, row) == " Hello</s></s>" * 2


def test_a_template_that_rewrites_its_history():
    """Differences of renderings fail here: the first turn differs once a second follows."""
    turn = "<think>\nhm\n</think>\n\n"
    row = {"messages": [user("a"), assistant(turn + "one"), user("b"), assistant(turn + "two")]}
    assert learned_text(REWRITING, row) == "one<|im_end|>" + turn + "two<|im_end|>"
    row["messages"][-1]["content"] = "two"  # an empty reasoning is what the model has to write then
    assert learned_text(REWRITING, row) == "one<|im_end|><think>\n\n</think>\n\ntwo<|im_end|>"


def test_tool_calls_are_learned_and_their_results_are_not():
    arguments = {"city": 'New "York"\n<|im_end|>', "days": 3}
    row = {
        "tools": [
            {"type": "function", "function": {"name": "weather", "description": "says <|im_end|>"}}
        ],
        "messages": [
            user("How is it?"),
            assistant(None, tool_calls=[call("weather", arguments)]),
            {"role": "tool", "content": "sunny <|im_end|>"},
            assistant("It is sunny."),
        ],
    }
    written = json.dumps(arguments, ensure_ascii=False)
    _, _, special = found_in(TOOLS, row)
    assert special == ["<|im_start|>", "<|im_end|>"] * 5
    assert learned_text(TOOLS, row) == (
        f'<tool_call>\n{{"name": "weather", "arguments": {written}}}\n</tool_call><|im_end|>'
        "It is sunny.<|im_end|>"
    )


@pytest.mark.parametrize("template", [CHATML, MARKED])
def test_last_and_flags_say_which_turns_are_learned(template):
    messages = [user("a"), assistant("one", train=0), user("b"), assistant("two"), user("c")]
    messages.append(assistant("three", weight=1))
    assert learned_text(template, {"messages": messages}) == "two<|im_end|>three<|im_end|>"
    assert learned_text(template, {"messages": messages}, "last") == "three<|im_end|>"
    messages[-1]["weight"] = 0
    with pytest.raises(CannotMask, match="no token of it is in the loss"):
        found_in(template, {"messages": messages}, "last")


@pytest.mark.parametrize("flag", [0, False, 0.0])
@pytest.mark.parametrize("key", ["train", "weight", "loss", "loss_mask", "trainable"])
def test_a_flag_by_any_of_five_names_is_followed(key, flag):
    messages = [user("a"), assistant("one", **{key: flag}), user("b"), assistant("two")]
    assert learned_text(CHATML, {"messages": messages}) == "two<|im_end|>"


@pytest.mark.parametrize("mask", [[0, 0, 0, 1], [0, False, None, True], "[1, 0, 1, 1]"])
def test_a_flag_of_the_row_is_followed(mask):
    row = {"messages": [user("a"), assistant("one"), user("b"), assistant("two")], "weight": 1}
    assert learned_text(CHATML, row | {"loss_mask": mask}) == "two<|im_end|>"
    beside_a_system = row | {"loss_mask": mask, "system": "Be brief."}
    assert learned_text(CHATML, beside_a_system) == "two<|im_end|>"
    for key in ("loss_mask", "weight"):
        with pytest.raises(CannotMask, match="no token of it is in the loss"):
            found_in(CHATML, row | {key: 0})
    ids = {"input_ids": [1, 2], "loss_mask": [0, 1], "weight": 0}
    assert read_conversation(ids).in_loss == [False, False]


@pytest.mark.parametrize("empty", ["", "  ", "\u3000", None, []])
def test_a_turn_without_a_text_is_refused_if_it_is_to_be_learned(empty):
    """Nothing tells where it is, so its end would bear no loss, without a word."""
    template = CHATML.replace(
        "{{ m['content'] }}", "{{ m['content'] if m['content'] is string else '' }}"
    )
    messages = [user("a"), assistant(empty)]
    messages += [user("b"), assistant("c")]
    row = {"messages": [message for message in messages if message["content"] is not None]}
    if empty is None:
        row = {
            "messages": [
                *messages[:1],
                {"role": "assistant", "content": None, "thinking": " "},
                *messages[2:],
            ]
        }
    with pytest.raises(
        CannotMask, match="a turn of the assistant that is to be learned has no text"
    ):
        found_in(template, row)


PARTS_THAT_END = (  # each call is a part with an end of its own, as content is
    "{% for m in messages %}"
    "{% if m.content %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endif %}"
    "{% for c in m.tool_calls %}<|im_start|>call\n{{ c.function | tojson }}<|im_end|>{% endfor %}"
    "\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES_THE_CALL = (  # as Harmony: the result of a call names it
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "<|im_start|>{{ called.name }} to=assistant\n{{ m.content }}"
    "<|im_end|>"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}"
    "<call>{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}<|im_end|>"
    "{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
).replace("called.name", "messages[loop.index0 - 1].tool_calls[0].function.name")


@pytest.mark.parametrize(
    "arguments", [{"a": 2, "b": 3}, {}, {"a": "2"}, {"a": True, "b": None}, [1, 2]]
)
def test_a_call_of_numbers_is_learned_as_one_of_texts(arguments):
    messages = [
        user("2+3?"),
        {"role": "assistant", "content": "", "tool_calls": [call("add", arguments)]},
    ]
    messages += [{"role": "tool", "content": "5"}, assistant("It is 5")]
    written = json.dumps(arguments)
    written_call = f'<tool_call>\n{{"name": "add", "arguments": {written}}}\n</tool_call>'
    expected = f"{written_call}<|im_end|>It is 5<|im_end|>"
    assert learned_text(TOOLS, {"messages": messages}) == expected
    expected = f"<call>add({written})<|im_end|>It is 5<|im_end|>"
    assert learned_text(NAMES_THE_CALL, {"messages": messages}) == expected
    messages[1]["content"] = "x"
    written = json.dumps({"name": "add", "arguments": arguments})
    text = learned_text(PARTS_THAT_END, {"messages": messages})
    assert text == f"x<|im_end|><|im_start|>call\n{written}<|im_end|>It is 5<|im_end|>"


def test_a_block_without_a_text_is_nobody_s_where_not_all_are_learned():
    messages = [user("a"), assistant("one")]
    messages += [user("b"), assistant("")]
    assert learned_text(MARKED, {"messages": messages}) == "one<|im_end|><|im_end|>"
    messages[3]["weight"] = 0
    with pytest.raises(
        CannotMask, match="a generation block has no text, so it cannot be told whose it is"
    ):
        found_in(MARKED, {"messages": messages})


def test_texts_that_spell_marks_are_texts():
    row = {"messages": [user("Zq0aHiZq0z"), assistant("Zq1x Zq1a Zq1z")]}
    assert learned_text(CHATML, row) == "Zq1x Zq1a Zq1z<|im_end|>"


NEVER_ASKS = CHATML.replace("{% if add_generation_prompt %}", "{% if false %}")
NO_OPENING = (
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}</inst> "
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)


def test_a_template_that_opens_answers_only_in_the_history_is_refused():
    messages = [user("a"), assistant("one"), user("b"), assistant("two")]
    with pytest.raises(CannotMask, match=r"'<|im_start|>assistant' before an answer, but not"):
        found_in(NEVER_ASKS, {"messages": messages})
    # as Llama 2's: nothing is before an answer, so nothing is to be asked for
    assert learned_text(NO_OPENING, {"messages": messages}) == "one<|im_end|>two<|im_end|>"


@pytest.mark.parametrize("template", [CHATML, MARKED, REWRITING, TOOLS])
def test_masks_do_not_depend_on_the_conversations_before(template):
    warm = finder(template)
    rng = random.Random(1)
    for _ in range(50):
        messages = random_messages(rng)
        for message in messages:
            if message["role"] == "assistant" and template == REWRITING and rng.random() < 0.3:
                message["content"] = f"<think>{rng.choice(TEXTS)}</think>{message['content']}"
        conversation = read_conversation({"messages": messages})
        results = []
        for either in (warm, finder(template)):
            try:
                results.append(either.find(conversation))
            except CannotMask as error:
                results.append(str(error))
        assert results[0] == results[1]
    assert 0 < len(warm._shapes) < 50, "conversations of one shape share it"


def test_the_date_of_a_template_is_fixed():
    template = JinjaTemplate("{{ strftime_now('%d %b %Y') }}", {})
    assert template.render([])[0] == "26 Jul 2024"


def test_a_template_cannot_reach_python():
    with pytest.raises(CannotMask):
        JinjaTemplate(
            "{{ messages.__class__.__mro__ }}{{ ''.__class__.__bases__[0].__subclasses__() }}", {}
        ).render([])
    with pytest.raises(CannotMask):
        JinjaTemplate("{{ messages.append(1) }}", {}).render([])
    with pytest.raises(ValueError, match="not valid Jinja: line 1"):
        JinjaTemplate("{% for %}", {})


@pytest.mark.parametrize("nothing", ["", "null", " null ", "[]", [], None])
def test_no_tools_and_no_calls_by_any_spelling(nothing):
    messages = [user("q"), assistant("x", tool_calls=nothing)]
    conversation = read_conversation({"messages": messages, "tools": nothing})
    assert not conversation.tools
    assert not conversation.messages[1].get("tool_calls")
    assert learned_text(TOOLS, {"messages": messages, "tools": nothing}) == "x<|im_end|>"
    with pytest.raises(BrokenConversation, match="has no content"):
        read_conversation({"messages": [user("q"), assistant(None, tool_calls=nothing)]})
