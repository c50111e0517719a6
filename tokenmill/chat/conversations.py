"""A row of a source -> a conversation, whatever its columns are called.

    messages                  [{"role": "user", "content": "Hi"}, ...]
    conversations             ShareGPT's: [{"from": "human", "value": "Hi"}, ...]
    prompt, completion        two texts, or two lists of messages; the completion is in the loss
    input_ids, and            tokenized already: a mask has 1 where a token is in the loss, labels
        a mask or labels      have a negative number where it is not

message.py reads a message. JSON in a string is decoded where a list or an object is expected:
messages, tools, a tool.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tokenmill.chat.message import (
    ROW_FLAGS,
    BrokenConversation,
    Message,
    decoded,
    follow_flags,
    parse_row,
    read_message,
    require,
)
from tokenmill.text.formats import IDS_COLUMN, MASK_COLUMNS, MESSAGES_COLUMNS, UNREADABLE


class CannotMask(ValueError):
    """It cannot be verified which tokens the assistant wrote.

    The message is the reason, the same for all alike.
    """


class Conversation(NamedTuple):
    """Messages as chat templates take them, and the tools that they may call."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    in_loss: tuple[int, ...]  # the numbers of the assistant's messages that may be in the loss


class Tokenized(NamedTuple):
    """Ids, and whether each is in the loss."""

    ids: list[int]
    in_loss: list[bool]


def read_conversation(
    row: str | Mapping[str, Any], column: str | None = None
) -> Conversation | Tokenized:
    """The conversation of a row or its JSON; `column` names the one with its messages.

    Raises BrokenConversation.
    """
    if isinstance(row, str):
        return read_conversation(_object_of(row), column)
    require(UNREADABLE not in row, str(row.get(UNREADABLE)))
    require(
        not row.get("chat_template_kwargs"),
        "chat_template_kwargs would change the text; take them out of the data",
    )
    if column is None and row.get(IDS_COLUMN) is not None:
        return _tokenized(row)
    values, first = _values_of_messages(row, column)
    _require_no_missing_fields(row, values)
    values = _with_flags(row, values)
    tools = _tools(row)
    messages: list[Message] = []
    in_loss: list[int] = []
    if row.get("system"):  # beside them, as in LLaMA-Factory's form of ShareGPT
        system = {"role": "system", "content": row["system"]}
        message, _ = _read("system", system)
        messages.append(message)
    for number, value in enumerate(values):
        message, may_be_in_loss = _read(f"message {number}", value)
        if message["role"] == "assistant" and may_be_in_loss and number >= first:
            in_loss.append(len(messages))
        messages.append(message)
    has_turn = any(message["role"] == "assistant" for message in messages)
    require(has_turn, "no turn of the assistant")
    return Conversation(messages, tools, tuple(in_loss))


def _read(where: str, value: Any) -> tuple[Message, bool]:
    """As read_message; errors say where in the row the message is."""
    try:
        return read_message(value)
    except BrokenConversation as error:
        raise BrokenConversation(f"{where}: {error}") from error


def _object_of(row: str) -> Mapping[str, Any]:
    value = parse_row(row)
    kind = type(value).__name__
    require(isinstance(value, Mapping), f"expected an object with messages, found a {kind}")
    return value


def _values_of_messages(row: Mapping[str, Any], column: str | None) -> tuple[list[Any], int]:
    """A row's messages, and the number of the first one that may be in the loss."""
    names = MESSAGES_COLUMNS if column is None else (column,)
    for name in names:
        if row.get(name) is None:
            continue
        values = decoded(row[name], list)
        kind = type(values).__name__
        is_list = isinstance(values, list)
        require(is_list, f"expected a list of messages under {name!r}, found a {kind}")
        return values, 0
    if column is None and row.get("prompt") is not None and row.get("completion") is not None:
        prompt = _side(row["prompt"], "user")
        return prompt + _side(row["completion"], "assistant"), len(prompt)
    wanted = "messages, conversations, prompt and completion, or input_ids"
    if column:
        wanted = repr(column)
    there = "no values"
    if any(row.values()):
        there = "keys " + ", ".join(key for key in row if row[key] is not None)
    raise BrokenConversation(f"expected {wanted}, found {there}; name the key by --messages-column")


def _require_no_missing_fields(row: Mapping[str, Any], values: list[Any]) -> None:
    """Arrow writes null for a field that only another row's call or tool has, also into jsonl.

    It also gives all messages the same keys, by which null arguments are known that are meant.
    """
    keys = [value.keys() for value in values if isinstance(value, dict)]
    is_arrow = len(keys) > 1 and all(each == keys[0] for each in keys)
    is_missing = is_arrow and _has_null(values, False)
    if is_missing or _has_null(row.get("tools"), False):
        raise BrokenConversation(
            "a field of arguments or tools is null, as Arrow writes one that is missing: store "
            "them as JSON text, or leave such fields out"
        )


def _has_null(value: Any, is_free: bool) -> bool:
    """Whether a field is null where any may be missing: of arguments, or a tool's properties."""
    if isinstance(value, list):
        return any(_has_null(item, is_free) for item in value)
    if not isinstance(value, dict):
        return False
    for key, item in value.items():
        if is_free and item is None and key != "default":  # which may be null in a schema
            return True
        if _has_null(item, is_free or key in ("arguments", "properties")):
            return True
    return False


def _with_flags(row: Mapping[str, Any], values: list[Any]) -> list[Any]:
    """The messages with what the row says of each, or of all: a list of flags, or 0."""
    for key, name in ROW_FLAGS.items():
        flags = decoded(row.get(key), list)
        if flags is None or flags == 1:
            continue
        if not isinstance(flags, list):
            flags = [flags] * len(values)
        counts = f"found {len(flags):,} for {len(values):,}"
        require(len(flags) == len(values), f"expected {key} of a number for each message, {counts}")
        are_objects = all(isinstance(value, dict) for value in values)
        require(are_objects, "expected messages that are objects")
        values = [value | {name: flag} for value, flag in zip(values, flags, strict=True)]
    return values


def _side(value: Any, role: str) -> list[Any]:
    """The messages of a prompt or a completion."""
    messages = decoded(value, list)
    is_list = isinstance(messages, list) and len(messages) > 0
    if is_list and all(isinstance(message, dict) for message in messages):
        return messages
    if isinstance(value, str):  # also one such as "[]"
        return [{"role": role, "content": value}]
    is_list = isinstance(value, list)
    require(is_list, "expected a prompt and a completion of text, or lists of messages")
    return value


def _tools(row: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    tools = decoded(row.get("tools"), list)
    if tools is None:
        return None
    require(isinstance(tools, list), "expected a list of tools that are objects")
    tools = [decoded(tool, dict) for tool in tools]
    are_objects = all(isinstance(tool, dict) for tool in tools)
    require(are_objects, "expected a list of tools that are objects")
    return tools


def texts_of_row(row: str, column: str | None = None) -> list[str]:
    """The texts of a row's messages, to train a tokenizer on; none of one that is broken."""
    try:
        conversation = read_conversation(row, column)
    except BrokenConversation:
        return []
    if isinstance(conversation, Tokenized):
        return []
    texts = []
    for message in conversation.messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else [content]
        for part in parts:
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                texts.append(text)
    return texts


# ---------------------------------------------------------------------------- tokenized already


def _tokenized(row: Mapping[str, Any]) -> Tokenized:
    ids = row[IDS_COLUMN]
    columns = {name: row[name] for name in MASK_COLUMNS if row.get(name) is not None}
    keys = ", ".join(map(str, row))
    require(
        bool(columns), f"expected {' or '.join(MASK_COLUMNS)} beside input_ids, found keys {keys}"
    )
    attention = row.get("attention_mask") or []
    require(isinstance(attention, list), "expected attention_mask, a list of numbers")
    require(0 not in attention, "attention_mask has zeros, so input_ids has padding, no text")
    masks = [_mask(name, values, ids) for name, values in columns.items()]
    are_equal = all(mask == masks[0] for mask in masks)
    require(are_equal, f"{' and '.join(columns)} say differently what is in the loss")
    weight = row.get("weight")
    if weight is not None and not follow_flags({"weight": weight}):
        return Tokenized(ids, [False] * len(ids))
    return Tokenized(ids, masks[0])


def _mask(name: str, values: Any, ids: Any) -> list[bool]:
    """Whether each of the ids is in the loss, by one of MASK_COLUMNS."""
    are_ids = _are_whole_numbers(ids) and _are_whole_numbers(values)
    require(
        are_ids and len(ids) == len(values),
        f"expected input_ids and {name}, two lists of numbers of one length",
    )
    if name == "labels":
        are_same = all(value < 0 or value == id for value, id in zip(values, ids, strict=True))
        require(
            are_same, "expected labels that are input_ids or negative: they are not to be shifted"
        )
        return [value >= 0 for value in values]
    for value in values:
        require(value in (0, 1), f"expected {name} of 0 and 1, found {value}")
    return [value == 1 for value in values]


def _are_whole_numbers(values: Any) -> bool:
    return isinstance(values, list) and {int, bool}.issuperset(map(type, values))
