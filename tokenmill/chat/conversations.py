"""A row of a source -> a conversation, whatever its columns are called.

    messages                        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    conversations                   ShareGPT's: [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    prompt, completion              two texts, or two lists of messages; only the completion is learned
    input_ids, and loss_mask,       tokenized already: loss_mask and assistant_masks have 1 where a token bears loss,
        assistant_masks or labels   labels have a negative number where it does not

A message may say whether it is learned, by `train` or `weight` of 0 or 1. Content is text, or a list of parts.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tokenmill.text.formats import MASK_COLUMNS, MESSAGES_COLUMNS

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython", "environment")
MEDIA = re.compile("image|video|audio|file")  # in the type of a part that is not text
SHAREGPT = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
}


class BrokenConversation(ValueError):
    """A row that is no conversation; the message says why."""


class Conversation(NamedTuple):
    """Messages as chat templates take them, and the tools that they may call."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    learned: tuple[bool, ...]  # of each message: whether it may be learned; only the assistant's are


class TokenizedConversation(NamedTuple):
    """Ids, and whether each bears loss."""

    ids: list[int]
    bears_loss: list[bool]


def read_conversation(row: Mapping[str, Any], column: str | None = None) -> Conversation | TokenizedConversation:
    """The conversation of a row; `column` names the one with its messages. Raises BrokenConversation."""
    if not isinstance(row, Mapping):
        raise BrokenConversation(f"expected an object with messages, found a {type(row).__name__}")
    if column is not None:
        if row.get(column) is None:
            raise BrokenConversation(f"expected messages under {column!r}, found {_keys(row)}")
        return _of_messages(row[column], row.get("tools"))
    if row.get("input_ids") is not None:
        return _tokenized(row)
    for name in MESSAGES_COLUMNS:
        if row.get(name) is not None:
            return _of_messages(_with_system(row[name], row.get("system")), row.get("tools"))
    if row.get("prompt") is not None and row.get("completion") is not None:
        return _of_pair(row["prompt"], row["completion"], row.get("tools"))
    raise BrokenConversation(
        f"expected messages, conversations, prompt and completion, or input_ids, found {_keys(row)}; name the key by "
        "--messages-column"
    )


def texts_of(conversation: Conversation | TokenizedConversation) -> list[str]:
    """The texts of its messages, to train a tokenizer on."""
    if isinstance(conversation, TokenizedConversation):
        return []
    contents = [message.get("content") for message in conversation.messages]
    parts = [part for content in contents for part in (content if isinstance(content, list) else [content])]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return [text for text in texts if isinstance(text, str) and text]


def _with_system(messages: Any, system: Any) -> Any:
    """Messages after a system message that stands beside them, as in LLaMA-Factory's form of ShareGPT."""
    if not isinstance(messages, list) or not (isinstance(system, str) and system):
        return messages
    return [{"role": "system", "content": system}, *messages]


def _keys(row: Mapping[str, Any]) -> str:
    return f"keys {', '.join(map(str, row))}" if row else "no keys"


def _of_messages(given: Any, tools: Any) -> Conversation:
    if not isinstance(given, list):
        raise BrokenConversation(f"expected a list of messages, found a {type(given).__name__}")
    messages, learned = [], []
    for number, one in enumerate(given):
        message, may_be_learned = _message(number, one)
        messages.append(message)
        learned.append(may_be_learned)
    if not messages:
        raise BrokenConversation("it is empty")
    if not any(message["role"] == "assistant" for message in messages):
        raise BrokenConversation("no turn of the assistant")
    if tools is not None and not isinstance(tools, list):
        raise BrokenConversation(f"expected a list of tools, found a {type(tools).__name__}")
    return Conversation(messages, tools or None, tuple(learned))


def _message(number: int, given: Any) -> tuple[dict[str, Any], bool]:
    if not isinstance(given, dict):
        raise BrokenConversation(f"message {number}: expected an object, found a {type(given).__name__}")
    flags = {key: given[key] for key in ("train", "weight") if given.get(key) is not None}
    for key, flag in flags.items():
        if flag not in (0, 1):
            raise BrokenConversation(f"message {number}: expected {key} of 0 or 1, found {flag!r}")
    message = {key: value for key, value in given.items() if key not in ("train", "weight")}
    if "role" not in message and "from" in message:
        message = _of_sharegpt(number, message)
    role = message.get("role")
    if role not in ROLES:
        raise BrokenConversation(f"message {number}: unknown role {role!r}; known are {', '.join(ROLES)}")
    content = message.get("content")
    has_more = any(message.get(key) for key in ("tool_calls", "reasoning_content", "thinking", "reasoning"))
    if content is None and not has_more:
        raise BrokenConversation(f"message {number} of role {role!r} has no content")
    if not (content is None or isinstance(content, str) or _are_parts(content)):
        raise BrokenConversation(f"message {number}: expected content of text or parts, found {content!r:.60}")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and MEDIA.search(str(part.get("type"))):
            raise BrokenConversation(f"message {number}: expected parts of text, found one of type {part['type']!r}")
    return message, role == "assistant" and all(flags.values())


def _of_sharegpt(number: int, message: dict[str, Any]) -> dict[str, Any]:
    role = SHAREGPT.get(message["from"])
    if role is None:
        raise BrokenConversation(f"message {number}: unknown role {message['from']!r}; known are {', '.join(SHAREGPT)}")
    others = {key: value for key, value in message.items() if key not in ("from", "value")}
    return {"role": role, "content": message.get("value")} | others


def _are_parts(content: Any) -> bool:
    return isinstance(content, list) and all(isinstance(part, dict | str) for part in content)


def _of_pair(prompt: Any, completion: Any, tools: Any) -> Conversation:
    both = []
    for value, role in ((prompt, "user"), (completion, "assistant")):
        both.append([{"role": role, "content": value}] if isinstance(value, str) else value)
    if not all(isinstance(part, list) for part in both):
        raise BrokenConversation("expected a prompt and a completion of text, or lists of messages")
    whole = _of_messages(both[0] + both[1], tools)
    learned = tuple(learned and number >= len(both[0]) for number, learned in enumerate(whole.learned))
    return whole._replace(learned=learned)


def _tokenized(row: Mapping[str, Any]) -> TokenizedConversation:
    found = [name for name in MASK_COLUMNS if row.get(name) is not None]
    if not found:
        raise BrokenConversation(f"expected {', '.join(MASK_COLUMNS)} beside input_ids, found {_keys(row)}")
    ids, values = row["input_ids"], row[found[0]]
    if not (_are_whole(ids) and _are_whole(values) and len(ids) == len(values)):
        raise BrokenConversation(f"expected input_ids and {found[0]}, two lists of numbers of one length")
    if found[0] != "labels" and not set(values) <= {0, 1}:
        raise BrokenConversation(f"expected {found[0]} of 0 and 1, found {min(values)} to {max(values)}")
    bears: Callable[[int], bool] = (lambda value: value >= 0) if found[0] == "labels" else bool
    if found[0] == "labels" and any(v >= 0 and v != id for v, id in zip(values, ids, strict=True)):
        raise BrokenConversation("expected labels that are input_ids or negative: they are not to be shifted")
    return TokenizedConversation(ids, [bears(value) for value in values])


def _are_whole(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) in (int, bool) for value in values)
