"""Encodes a text on which tiktoken's regex engine gives up, in stretches that it can match."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tokenmill.extras import naming_the_extra
from tokenmill.tokenize.patterns import OF_ANY_LENGTH

if TYPE_CHECKING:
    import tiktoken

LONG_PIECE = 10_000  # characters; far below what overflows the regex engine, far above any word


def encode_in_stretches(encoding: "tiktoken.Encoding", pattern: str, text: str) -> np.ndarray:
    """Encodes a text on which tiktoken's regex engine gives up.

    A piece is one match of the split pattern; merges happen within a piece. Long pieces are merged
    one by one, and tiktoken encodes the stretches of text between them as a whole. The pattern looks
    beyond a match's end only from whitespace, `\\s+(?!\\S)`, so a stretch must not end in whitespace:
    if its last pieces are whitespace, they are merged one by one too.
    """
    parts: list[Sequence[int] | np.ndarray] = []
    stretch: list[str] = []

    def close_stretch() -> None:
        tail = len(stretch)
        while tail and stretch[tail - 1].isspace():
            tail -= 1
        parts.append(encoding.encode_to_numpy("".join(stretch[:tail]), disallowed_special=()))
        parts.extend(encoding._encode_single_piece(piece) for piece in stretch[tail:])
        stretch.clear()

    if pattern not in OF_ANY_LENGTH:  # which may look ahead from anywhere, or mean something else to `regex`
        raise ValueError(
            f"it gave up on a text of {len(text):,} characters that begins {text[:40]!r}; leave such long ones out by "
            "--max-document-bytes, or use another tokenizer"
        )
    with naming_the_extra():
        import regex
    for match in regex.finditer(pattern, text):
        piece = match.group()
        if len(piece) < LONG_PIECE:
            stretch.append(piece)
        else:
            close_stretch()
            parts.append(encoding._encode_single_piece(piece))
    close_stretch()
    return np.concatenate([np.asarray(part, dtype=np.uint32) for part in parts])
