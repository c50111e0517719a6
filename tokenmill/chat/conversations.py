"""A row of a source -> a conversation, whatever its columns are called.

    messages                        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    conversations                   ShareGPT's: [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    prompt, completion              two texts, or two lists of messages; only the completion is learned
    input_ids, and loss_mask,       tokenized already: loss_mask and assistant_masks have 1 where a token is in the
        assistant_masks or labels   loss, labels have a negative number where it is not

A message may say whether it is learned, by `train` or `weight` of 0 or 1. Content is text, or a list of parts. JSON in
a string is decoded where a list or an object is expected: messages, tools, a tool, calls and their arguments.
"""

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from tokenmill.text.formats import MASK_COLUMNS, MESSAGES_COLUMNS, UNREADABLE

MEDIA = re.compile("image|video|audio|file")  # in the type of a part that is not text
ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
REASONING = ("reasoning_content", "thinking", "reasoning")  # names of a message's reasoning
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython", "environment")
SHAREGPT = dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model", "function_call"), "assistant")
SHAREGPT |= {"human": "user", "observation": "tool", "function": "tool"}


class BrokenConversation(ValueError):
    """A row that is no conversation; the message says why."""


class CannotMask(ValueError):
    """It cannot be verified which tokens the assistant wrote; the message is the reason, the same for all alike."""


class Conversation(NamedTuple):
    """Messages as chat templates take them, and the tools that they may call."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    learned: tuple[int, ...]  # the numbers of the assistant's messages that may be learned


class Tokenized(NamedTuple):
    """Ids, and whether each is in the loss."""

    ids: list[int]
    in_loss: list[bool]


def parse_row(row: str) -> Any:
    """The value of a row of JSON. Raises BrokenConversation."""
    with contextlib.suppress(
        ValueError
    ):  # NaN, and lone surrogates, which JSON can spell and UTF-8 cannot
        if b"0" * 19 not in row.encode().translate(
            ZEROS
        ):  # an integer over 64 bits, which orjson makes a float
            return orjson.loads(row)
    try:
        spelled = json.dumps(json.loads(row), ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise BrokenConversation(f"no JSON ({error})") from error
    return json.loads(spelled.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def read_conversation(
    row: str | Mapping[str, Any], column: str | None = None
) -> Conversation | Tokenized:
    """The conversation of a row or its JSON; `column` names the one with its messages. Raises BrokenConversation."""
    row = parse_row(row) if isinstance(row, str) else row
    _need(
        isinstance(row, Mapping), f"expected an object with messages, found a {type(row).__name__}"
    )
    _need(UNREADABLE not in row, str(row.get(UNREADABLE)))
    _need(
        not row.get("chat_template_kwargs"),
        "chat_template_kwargs would change the text; take them out of the data",
    )
    if column is None and row.get("input_ids") is not None:
        return _tokenized(row)
    names = MESSAGES_COLUMNS if column is None else (column,)
    name = next((name for name in names if row.get(name) is not None), None)
    given, first = [], 0
    if name is not None:
        given = _decoded(row[name], list)
        _need(
            isinstance(given, list),
            f"expected a list of messages under {name!r}, found a {type(given).__name__}",
        )
    elif column is None and row.get("prompt") is not None and row.get("completion") is not None:
        for key, role in (("prompt", "user"), ("completion", "assistant")):
            first, value = len(given), _decoded(row[key], list)
            value = (
                value if value and all(isinstance(one, dict) for one in value) else row[key]
            )  # a text such as "[]"
            _need(
                isinstance(value, str | list),
                "expected a prompt and a completion of text, or lists of messages",
            )
            given = given + (
                [{"role": role, "content": value}] if isinstance(value, str) else value
            )
    else:
        wanted = (
            repr(column)
            if column
            else "messages, conversations, prompt and completion, or input_ids"
        )
        found = (
            f"keys {', '.join(key for key in row if row[key] is not None)}"
            if any(row.values())
            else "no values"
        )
        raise BrokenConversation(
            f"expected {wanted}, found {found}; name the key by --messages-column"
        )
    if system := row.get("system"):  # beside them, as in LLaMA-Factory's form of ShareGPT
        given, first = [{"role": "system", "content": system}, *given], first + 1
    tools = _decoded(row.get("tools"), list)
    tools = [_decoded(tool, dict) for tool in tools] if isinstance(tools, list) else tools
    is_right = tools is None or (
        isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)
    )
    _need(is_right, "expected a list of tools that are objects")
    messages, learned = list[dict[str, Any]](), list[int]()
    for number, one in enumerate(given):
        try:
            message, may_be_learned = _message(one)
        except BrokenConversation as error:
            raise BrokenConversation(f"message {number}: {error}") from error
        messages.append(message)
        if message["role"] == "assistant" and may_be_learned and number >= first:
            learned.append(number)
    _need(any(message["role"] == "assistant" for message in messages), "no turn of the assistant")
    return Conversation(messages, tools, tuple(learned))


def texts_of_row(row: str, column: str | None = None) -> list[str]:
    """The texts of a row's messages, to train a tokenizer on; none of a row that is no conversation."""
    try:
        conversation = read_conversation(row, column)
    except BrokenConversation:
        return []
    contents = [one.get("content") for one in getattr(conversation, "messages", ())]
    parts = [part for some in contents for part in (some if isinstance(some, list) else [some])]
    return [
        text
        for part in parts
        if isinstance(text := part.get("text") if isinstance(part, dict) else part, str)
    ]


def _message(given: Any) -> tuple[dict[str, Any], bool]:
    """A message without keys that are null, as apply_chat_template takes it; and whether it may be learned."""
    _need(isinstance(given, dict), "expected an object")
    message = _without_none(given)
    flags = [message.pop(key) for key in ("train", "weight") if key in message]
    _need(all(flag in (0, 1) for flag in flags), "expected train or weight of 0 or 1")
    if "role" not in message and isinstance(message.get("from"), str):
        sender, value = message.pop("from"), message.pop("value", None)
        _need(value is None or "content" not in message, "has both value and content")
        message = _without_none({"role": SHAREGPT.get(sender, sender), "content": value, **message})
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise BrokenConversation(
            f"unknown role {role!r:.60}; known are {', '.join(ROLES)}, and ShareGPT's"
        )
    if content is None and not any(
        message.get(key) for key in ("tool_calls", "function_call", *REASONING)
    ):
        raise BrokenConversation(f"role {role!r} has no content")
    if isinstance(content, list):
        media = [
            part
            for part in content
            if isinstance(part, dict) and MEDIA.search(str(part.get("type")))
        ]
        _need(
            not media,
            f"expected parts of text, found one of type {media and media[0]['type']!r:.60}",
        )
        _need(
            all(isinstance(part, str | dict) for part in content),
            "expected content of text or parts",
        )
        message["content"] = [
            _without_none(part) if isinstance(part, dict) else part for part in content
        ]
    elif not isinstance(content, str | None):
        raise BrokenConversation(f"expected content of text or parts, found {content!r:.60}")
    _need(
        all(isinstance(message.get(key, ""), str) for key in REASONING),
        "expected reasoning of text",
    )
    reasoning = next((message[key] for key in REASONING if key in message), None)
    if reasoning is not None:  # under both names that templates read, as in apply_chat_template
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    if "tool_calls" in message:
        calls = _decoded(message["tool_calls"], list)
        _need(isinstance(calls, list), "expected a list of tool_calls")
        message["tool_calls"] = [_call(_decoded(call, dict)) for call in calls]
    return message, all(flags)


def _call(call: Any) -> dict[str, Any]:
    _need(isinstance(call, dict), "expected tool_calls that are objects")
    call = _without_none(call)
    inner = call.get("function", call)
    _need(
        isinstance(inner, dict) and bool(inner.get("name")),
        "expected the function of a call to have a name",
    )
    if isinstance(inner.get("arguments"), str):
        inner = {**inner, "arguments": _decoded(inner["arguments"], dict)}
    return {**call, "function": inner} if "function" in call else inner


def _tokenized(row: Mapping[str, Any]) -> Tokenized:
    ids, given = (
        row["input_ids"],
        {name: row[name] for name in MASK_COLUMNS if row.get(name) is not None},
    )
    _need(
        bool(given),
        f"expected {' or '.join(MASK_COLUMNS)} beside input_ids, found keys {', '.join(map(str, row))}",
    )
    _need(
        0 not in (row.get("attention_mask") or ()),
        "attention_mask has zeros, so input_ids has padding, no text",
    )
    for name, values in given.items():
        are_ids = all(
            isinstance(some, list) and {int, bool} >= set(map(type, some)) for some in (ids, values)
        )
        _need(
            are_ids and len(ids) == len(values),
            f"expected input_ids and {name}, two lists of numbers of one length",
        )
        if name == "labels":
            is_same = all(value < 0 or value == id for value, id in zip(values, ids, strict=True))
            _need(
                is_same,
                "expected labels that are input_ids or negative: they are not to be shifted",
            )
        else:
            _need(
                set(values) <= {0, 1}, f"expected {name} of 0 and 1, found {max(values, default=0)}"
            )
    masks = [
        [value >= 0 if name == "labels" else value == 1 for value in values]
        for name, values in given.items()
    ]
    _need(
        all(mask == masks[0] for mask in masks),
        f"{' and '.join(given)} say differently what is in the loss",
    )
    return Tokenized(ids, masks[0])


def _decoded(value: Any, kind: type) -> Any:
    """The list or object that a text of JSON is, where one is expected; any other value as it is."""
    if isinstance(value, str) and value.lstrip()[:1] == ("[" if kind is list else "{"):
        with contextlib.suppress(BrokenConversation):
            return parse_row(value)
    return value


def _without_none(value: dict[str, Any]) -> dict[str, Any]:
    return {key: one for key, one in value.items() if one is not None}


def _need(is_so: bool, why: str) -> None:
    if not is_so:
        raise BrokenConversation(why)
