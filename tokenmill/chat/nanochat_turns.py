"""nanochat's rendering of a conversation: `render_conversation` of nanochat/tokenizer.py.

    <|bos|><|user_start|>Hi<|user_end|><|assistant_start|>Hello<|assistant_end|>
                                                          ^^^^^^^^^^^^^^^^^^^^^^ in the loss

A system message is put before the first user's, with a blank line between them. The assistant's
content may be a list of parts: text and python are in the loss, the output of python is not. Every
text is tokenized alone.
"""

from collections.abc import Iterator
from typing import Any

from tokenmill.chat.conversations import CannotMask, Conversation
from tokenmill.chat.message import REASONING, BrokenConversation, Message
from tokenmill.chat.segments import Segment

# of parts, and how their special tokens are called
KINDS = {"text": "", "python": "python", "python_output": "output"}
ROLES = ("user", "assistant")  # that take turns


def nanochat_segments(conversation: Conversation, bos_token: str, loss: str) -> list[Segment]:
    """The rendered conversation. Raises BrokenConversation where nanochat would fail."""
    _require_no_calls(conversation)
    messages = conversation.messages
    in_loss = set(conversation.in_loss)
    if messages[0]["role"] == "system":
        messages = _with_system_first(messages)
        in_loss = {number - 1 for number in in_loss}
    if loss == "last":
        answers = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        in_loss.intersection_update(answers[-1:])
    segments = [Segment(bos_token, is_special=True)]
    for number, message in enumerate(messages):
        segments += _turn(message, number, number in in_loss)
    return segments


def _require_no_calls(conversation: Conversation) -> None:
    if conversation.tools:
        raise CannotMask("nanochat's rendering has no place for tools")
    for key in ("tool_calls", "function_call", *REASONING):
        if any(message.get(key) for message in conversation.messages):
            raise CannotMask(f"nanochat's rendering has no place for {key}")


def _with_system_first(messages: list[Message]) -> list[Message]:
    """The messages, with that of the system put before the first user's."""
    system, *rest = messages
    texts = [message.get("content") for message in messages[:2]]
    is_before_user = len(rest) > 0 and rest[0]["role"] == "user"
    if not is_before_user or not all(isinstance(text, str) for text in texts):
        raise BrokenConversation(
            "expected texts of the system and then of the user, as nanochat does"
        )
    return [rest[0] | {"content": "\n\n".join(map(str, texts))}, *rest[1:]]


def _turn(message: Message, number: int, is_in_loss: bool) -> Iterator[Segment]:
    role = ROLES[number % 2]
    if message["role"] != role:
        raise BrokenConversation(
            f"message {number}, not counting the system's, is from {message['role']}, and nanochat "
            f"expects {role}"
        )
    content = message.get("content")
    if role == "user" and not isinstance(content, str):
        raise BrokenConversation(
            f"expected a user's message to be text, as nanochat does, found {content!r:.60}"
        )
    yield Segment(f"<|{role}_start|>", is_special=True)
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for part in parts or ():
        yield from _part(part, is_in_loss)
    yield _segment(f"<|{role}_end|>", True, is_in_loss)


def _part(part: Any, is_in_loss: bool) -> Iterator[Segment]:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str) or kind not in KINDS:
        raise BrokenConversation(f"a part of type {kind!r}; nanochat knows {', '.join(KINDS)}")
    is_in_loss &= kind != "python_output"
    name = KINDS[kind]
    if name:
        yield _segment(f"<|{name}_start|>", True, is_in_loss)
    if text:
        yield _segment(text, False, is_in_loss)
    if name:
        yield _segment(f"<|{name}_end|>", True, is_in_loss)


def _segment(text: str, is_special: bool, is_in_loss: bool) -> Segment:
    spans = ((0, len(text)),) if is_in_loss else ()
    return Segment(text, is_special, spans)
