"""nanochat's rendering of a conversation: `RustBPETokenizer.render_conversation` of nanochat/tokenizer.py.

    <|bos|><|user_start|>Hi<|user_end|><|assistant_start|>Hello<|assistant_end|>
                                                          ^^^^^^^^^^^^^^^^^^^^^ learned

A system message is put before the first user's, with a blank line between them. The assistant's content may be a list
of parts: text and python are learned, the output of python is not. Every text is tokenized alone.
"""

from typing import NamedTuple

from tokenmill.chat.conversations import (
    REASONING,
    BrokenConversation,
    CannotMask,
    Conversation,
    Tokenized,
)

KINDS = {
    "text": "",
    "python": "python",
    "python_output": "output",
}  # of parts, and how their tokens are called


class Segment(NamedTuple):
    """A special token, or text that is tokenized as a whole."""

    text: str
    is_special: bool
    # (begin, end) of the characters that are in the loss, ascending
    learned: tuple[tuple[int, int], ...]
    known: Tokenized | None = None  # its tokens, if they are known


def nanochat_segments(conversation: Conversation, bos_token: str, loss: str) -> list[Segment]:
    """The rendered conversation. Raises BrokenConversation where nanochat would fail."""
    messages, found = conversation.messages, [Segment(bos_token, True, ())]
    for what in ("tool_calls", "function_call", *REASONING):
        if conversation.tools or any(message.get(what) for message in messages):
            raise CannotMask(
                f"nanochat's rendering has no place for {'tools' if conversation.tools else what}"
            )
    if first := int(messages[0]["role"] == "system"):
        texts = [message.get("content") for message in messages[:2]]
        if [one["role"] for one in messages[1:2]] != ["user"] or not all(
            isinstance(text, str) for text in texts
        ):
            raise BrokenConversation(
                "expected texts of the system and then of the user, as nanochat does"
            )
        messages = [messages[1] | {"content": "\n\n".join(map(str, texts))}, *messages[2:]]
    last = max(
        (number for number, message in enumerate(messages) if message["role"] == "assistant"),
        default=-1,
    )

    def write(text: str, in_loss: bool = False, is_special: bool = True) -> None:
        if text:
            found.append(Segment(text, is_special, ((0, len(text)),) if in_loss else ()))

    for number, message in enumerate(messages):
        role, content = ("user", "assistant")[number % 2], message.get("content")
        if message["role"] != role:
            raise BrokenConversation(
                f"message {number} is from {message['role']}, and nanochat expects {role}"
            )
        if role == "user" and not isinstance(content, str):
            raise BrokenConversation(
                f"expected a user's message to be text, as nanochat does, found {content!r:.60}"
            )
        is_learned = number + first in conversation.learned and (loss == "all" or number == last)
        write(f"<|{role}_start|>")
        for part in (
            [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
        ):
            kind, text = (
                (part.get("type"), part.get("text")) if isinstance(part, dict) else (None, None)
            )
            if not isinstance(text, str) or kind not in KINDS:
                raise BrokenConversation(
                    f"a part of type {kind!r}; nanochat knows {', '.join(KINDS)}"
                )
            in_loss = is_learned and kind != "python_output"
            write(f"<|{KINDS[kind]}_start|>" if KINDS[kind] else "", in_loss)
            write(text, in_loss, is_special=False)
            write(f"<|{KINDS[kind]}_end|>" if KINDS[kind] else "", in_loss)
        write(f"<|{role}_end|>", is_learned)
    return found
