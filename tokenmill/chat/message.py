"""A message of a row -> a message as chat templates take it, and whether it may be in the loss.

    {"from": "gpt", "value": "Hi"}           {"role": "assistant", "content": "Hi"}       ShareGPT's
    {"role": "user", "content": [...]}       content is text, or a list of parts of text
    {..., "train": 0}                        not in the loss; so too by the other FLAGS

JSON in a string is decoded where a list or an object is expected: calls and their arguments.
"""

import contextlib
import json
import re
from typing import Any

import orjson

from tokenmill.text.jsonl import has_long_number

MEDIA = re.compile("image|video|audio|file")  # in the type of a part that is not text
REASONING = ("reasoning_content", "thinking", "reasoning")  # names of a message's reasoning
NONE = ("", "null")  # how ShareGPT and `datasets` write a list that is not there
ROW_FLAGS = {"loss_mask": "loss_mask of the row", "weight": "weight of the row"}
# by which five trainers' data say whether a message is in the loss, and what its row says of it
FLAGS = ("train", "weight", "loss", "loss_mask", "trainable", *ROW_FLAGS.values())
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython", "environment")
SHAREGPT = dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model", "function_call"), "assistant")
SHAREGPT |= {"human": "user", "observation": "tool", "function": "tool"}

Message = dict[str, Any]


class BrokenConversation(ValueError):
    """A row that is no conversation; the message says why."""


def require(is_so: bool, why: str) -> None:
    if not is_so:
        raise BrokenConversation(why)


def parse_row(row: str) -> Any:
    """The value of a row of JSON. Raises BrokenConversation."""
    # orjson rejects NaN, and lone surrogates, which JSON can spell and UTF-8 cannot
    with contextlib.suppress(ValueError):
        if not has_long_number(row.encode()):
            return orjson.loads(row)
    try:
        spelled = json.dumps(json.loads(row), ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise BrokenConversation(f"no JSON ({error})") from error
    return json.loads(spelled.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def decoded(value: Any, kind: type) -> Any:
    """The list or object that a text of JSON is, where one is expected; others as they are."""
    if kind is list and isinstance(value, str) and value.strip() in NONE:
        return None
    opening = "[" if kind is list else "{"
    if isinstance(value, str) and value.lstrip().startswith(opening):
        with contextlib.suppress(BrokenConversation):
            return parse_row(value)
    return value


def read_message(value: Any) -> tuple[Message, bool]:
    """A message without keys that are null, as apply_chat_template takes it.

    And whether it may be in the loss. Raises BrokenConversation.
    """
    require(isinstance(value, dict), "expected an object")
    fields = _without_none(value)
    flags = {key: fields[key] for key in FLAGS if key in fields}
    may_be_in_loss = follow_flags(flags)
    message = {key: item for key, item in fields.items() if key not in flags}
    for key in ("tool_calls", "function_call"):
        if isinstance(message.get(key), str) and not decoded(message[key], list):
            del message[key]
    if "role" not in message and isinstance(message.get("from"), str):
        message = _of_sharegpt(message)
    role = message.get("role")
    if role not in ROLES:
        raise BrokenConversation(
            f"unknown role {role!r:.60}; known are {', '.join(ROLES)}, and ShareGPT's"
        )
    content = message.get("content")
    instead = ("tool_calls", "function_call", *REASONING)
    if content is None and not any(message.get(key) for key in instead):
        raise BrokenConversation(f"role {role!r} has no content")
    if isinstance(content, list):
        message["content"] = _parts(content)
    elif not isinstance(content, str | None):
        raise BrokenConversation(f"expected content of text or parts, found {content!r:.60}")
    texts = [message[key] for key in REASONING if key in message]
    require(all(isinstance(text, str) for text in texts), "expected reasoning of text")
    if texts:  # under both names that templates read, as in apply_chat_template
        message = {"thinking": texts[0], **message, "reasoning_content": texts[0]}
    if "tool_calls" in message:
        calls = decoded(message["tool_calls"], list)
        require(isinstance(calls, list), "expected a list of tool_calls")
        message["tool_calls"] = [_call(decoded(call, dict)) for call in calls]
    return message, may_be_in_loss


def follow_flags(flags: dict[str, Any]) -> bool:
    """Whether what has these flags may be in the loss. Raises BrokenConversation."""
    for key, flag in flags.items():
        require(flag in (0, 1), f"expected {key} of 0 or 1, found {flag!r:.40}")
    require(len(set(flags.values())) < 2, f"{' and '.join(flags)} disagree")
    return all(flags.values())


def _of_sharegpt(message: Message) -> Message:
    sender = message.pop("from")
    value = message.pop("value", None)
    require(value is None or "content" not in message, "has both value and content")
    return _without_none({"role": SHAREGPT.get(sender, sender), "content": value, **message})


def _parts(content: list[Any]) -> list[Any]:
    """The parts of a content of several."""
    for part in content:
        if isinstance(part, dict) and MEDIA.search(str(part.get("type"))):
            raise BrokenConversation(
                f"expected parts of text, found one of type {part['type']!r:.60}"
            )
    are_parts = all(isinstance(part, str | dict) for part in content)
    require(are_parts, "expected content of text or parts")
    return [_without_none(part) if isinstance(part, dict) else part for part in content]


def _call(call: Any) -> dict[str, Any]:
    require(isinstance(call, dict), "expected tool_calls that are objects")
    call = _without_none(call)
    function = call.get("function", call)
    has_name = isinstance(function, dict) and bool(function.get("name"))
    require(has_name, "expected the function of a call to have a name")
    if isinstance(function.get("arguments"), str):
        function = {**function, "arguments": decoded(function["arguments"], dict)}
    return {**call, "function": function} if "function" in call else function


def _without_none(value: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if item is not None}
