"""nanochat's rendering of a conversation: `RustBPETokenizer.render_conversation` of nanochat/tokenizer.py.

    <|bos|><|user_start|>Hi<|user_end|><|assistant_start|>Hello<|assistant_end|>
                                                          ^^^^^^^^^^^^^^^^^^^^^ learned

A system message is put before the first user's, with a blank line between them. The assistant's content may be a list
of parts: text and python are learned, the output of python is not. Every text is tokenized alone.
"""

from collections.abc import Iterator
from typing import Any

from tokenmill.chat.conversations import REASONING, BrokenConversation, CannotMask, Conversation, Segment

PARTS = {"python": ("<|python_start|>", "<|python_end|>"), "python_output": ("<|output_start|>", "<|output_end|>")}


def nanochat_segments(conversation: Conversation, bos_token: str, loss: str) -> list[Segment]:
    """The rendered conversation. Raises BrokenConversation where nanochat would fail."""
    if conversation.tools:
        raise CannotMask("nanochat's rendering has no place for tools")
    for what in ("tool_calls", "function_call", *REASONING):
        if any(message.get(what) for message in conversation.messages):
            raise CannotMask(f"nanochat's rendering has no place for {what}")
    messages = list(conversation.messages)
    learned = [number in conversation.learned for number in range(len(messages))]
    if messages[0]["role"] == "system":
        messages, learned = _merged(messages), learned[1:]
    last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    found = [Segment(bos_token, True, ())]
    for number, message in enumerate(messages):
        expected = ("user", "assistant")[number % 2]
        if message["role"] != expected:
            raise BrokenConversation(f"message {number} is from {message['role']}, and nanochat expects {expected}")
        is_learned = learned[number] and (loss == "all" or number == last)
        found += _user(message["content"]) if expected == "user" else _assistant(message["content"], is_learned)
    return found


def _merged(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    system, *others = messages
    if not others or others[0]["role"] != "user":
        raise BrokenConversation("a system message that no user's message follows, which nanochat expects")
    first, second = system.get("content"), others[0].get("content")
    if not (isinstance(first, str) and isinstance(second, str)):
        raise BrokenConversation("expected texts of the system and the user, as nanochat does")
    return [others[0] | {"content": f"{first}\n\n{second}"}, *others[1:]]


def _user(content: Any) -> Iterator[Segment]:
    if not isinstance(content, str):
        raise BrokenConversation(f"expected a user's message to be text, as nanochat does, found {content!r:.60}")
    yield Segment("<|user_start|>", True, ())
    yield from _text(content, False)
    yield Segment("<|user_end|>", True, ())


def _assistant(content: Any, is_learned: bool) -> Iterator[Segment]:
    yield Segment("<|assistant_start|>", True, ())
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for part in parts or []:
        kind, text = (part.get("type"), part.get("text")) if isinstance(part, dict) else (None, None)
        if not isinstance(text, str) or kind not in ("text", *PARTS):
            raise BrokenConversation(f"a part of type {kind!r}; nanochat knows text, {' and '.join(PARTS)}")
        bears = is_learned and kind != "python_output"
        if kind == "text":
            yield from _text(text, bears)
            continue
        begin, end = PARTS[kind]
        yield Segment(begin, True, _whole(begin, bears))
        yield from _text(text, bears)
        yield Segment(end, True, _whole(end, bears))
    yield Segment("<|assistant_end|>", True, _whole("<|assistant_end|>", is_learned))


def _text(text: str, in_loss: bool) -> Iterator[Segment]:
    if text:
        yield Segment(text, False, _whole(text, in_loss))


def _whole(text: str, in_loss: bool) -> tuple[tuple[int, int], ...]:
    return ((0, len(text)),) if in_loss else ()
