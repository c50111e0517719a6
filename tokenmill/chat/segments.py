"""Segments: a rendered conversation in pieces, each of them a special token or a text.

<|im_start|>   user\nHi   <|im_end|>   \n   <|im_start|>   assistant\nHello   <|im_end|>   \n
"""

from collections.abc import Iterator
from typing import NamedTuple

from tokenmill.chat.conversations import Tokenized

Span = tuple[int, int]  # (begin, end) of characters


class Segment(NamedTuple):
    """A special token, or text that is tokenized as a whole."""

    text: str
    is_special: bool = False
    in_loss: tuple[Span, ...] = ()  # of its characters, ascending
    known: Tokenized | None = None  # its tokens, if they are known

    @property
    def is_text(self) -> bool:
        """Whether it is to be tokenized."""
        return not self.is_special and self.known is None


def cut_at_special(text: str, in_loss: list[Span], special: list[Span]) -> Iterator[Segment]:
    """A rendering, cut at the special tokens that the template wrote."""
    done = 0
    for begin, end in [*special, (len(text), len(text))]:
        if done < begin:
            yield Segment(text[done:begin], False, _within(in_loss, done, begin))
        if begin < end:
            yield Segment(text[begin:end], True, _within(in_loss, begin, end))
        done = end


def _within(spans: list[Span], begin: int, end: int) -> tuple[Span, ...]:
    """What of the spans is between two characters, counted from the first one."""
    inside = []
    for first, last in spans:
        if first < end and begin < last:
            inside.append((max(first, begin) - begin, min(last, end) - begin))
    return tuple(inside)
