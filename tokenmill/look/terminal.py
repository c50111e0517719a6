"""Prints rows in a terminal: a bar of letters for each row, and the text of its pieces."""

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.segment import Segment, Segments
from rich.text import Text

from tokenmill.feed.pieces import Piece
from tokenmill.look.documents import SourceLocator
from tokenmill.look.steps import ShownRow
from tokenmill.messages import escape_controls
from tokenmill.store.token_sets import TokenSet
from tokenmill.tokenize.tokenizer import Tokenizer

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class RowPrinter:
    """Prints rows of token sets that share a tokenizer: bars, and the text of their pieces."""

    def __init__(self, token_sets: Sequence[TokenSet], console: Console, ids: bool):
        self.console, self._ids = console, ids
        self._sets = {token_set.path: token_set for token_set in token_sets}
        self._sources = {token_set.path: SourceLocator(token_set) for token_set in token_sets}
        self._tokenizers: dict[
            str, Tokenizer
        ] = {}  # by fingerprint: a chat set's has more special tokens

    def bars(self, rows: Sequence[ShownRow]) -> None:
        """Prints each row as a line of letters."""
        widest = max(len(_name(row)) for row in rows)
        for row in rows:
            width = max(40, self.console.width - widest - 3)
            self.console.print(f"{_name(row):{widest}}  ", bar(row.pieces, width), sep="")

    def row(self, row: ShownRow, full: bool) -> None:
        """Prints a row's pieces, each with where it is from and its text, in full or only its beginning and end."""
        self.print(f"\n{_name(row)}")
        for index, piece in enumerate(row.pieces):
            self.piece(piece, index, full)

    def piece(self, piece: Piece, index: int, full: bool) -> None:
        style, letter = COLOURS[index % len(COLOURS)], LETTERS[index % len(LETTERS)]
        if piece.is_padding:
            self.print(
                f"  {letter.lower()} {piece.length:,} tokens of padding, which are not in the loss",
                style="dim",
            )
            return
        self.print(f"  {letter} {self._facts(piece)}", style=f"bold {style}")
        token_set = self._sets[piece.shard.path.parents[1]]
        fingerprint = token_set.tokenizer["fingerprint"]
        if fingerprint not in self._tokenizers:
            self._tokenizers[fingerprint] = Tokenizer.of_set(token_set)
        tokenizer = self._tokenizers[fingerprint]
        ids, learned = piece.tokens(tokenizer.bos_id), piece.in_loss()
        if learned is None or not full:
            text = tokenizer.decode(ids)
            self.print(
                text if full else f"    {shortened(text, max(40, self.console.width - 4))}",
                style=style,
            )
        else:
            self._masked(tokenizer, ids, learned, style)
        if self._ids:
            self.print(" ".join(map(str, ids.tolist())), style="dim")

    def _masked(
        self, tokenizer: Tokenizer, ids: np.ndarray, learned: np.ndarray, style: str
    ) -> None:
        """Prints a conversation; what is in the loss is underlined, and in brackets where that cannot be seen."""
        parts, segments = np.split(np.arange(len(ids)), np.flatnonzero(np.diff(learned)) + 1), []
        for part in parts:
            text, is_in = escape_controls(tokenizer.decode(ids[part])), learned[part[0]]
            text = f"[[{text}]]" if is_in and not self.console.is_terminal else text
            segments.append(
                Segment(text, self.console.get_style(f"{style} underline" if is_in else "dim"))
            )
        self.console.print(Segments([*segments, Segment("\n")]), end="")

    def print(self, text: str, style: str = "none") -> None:
        segment = Segment(escape_controls(text) + "\n", self.console.get_style(style))  # keeps tabs
        self.console.print(Segments([segment]), end="")

    def locator(self, piece: Piece) -> SourceLocator:
        """What knows where the documents of a piece's token set are from."""
        return self._sources[piece.shard.path.parents[1]]

    def _source(self, piece: Piece) -> str:
        return self.locator(piece).find(piece.shard.entry, piece.document)

    def _facts(self, piece: Piece) -> str:
        whole = int(piece.shard.offsets[piece.document + 1] - piece.shard.offsets[piece.document])
        part = (
            "whole"
            if piece.length == whole
            else f"its tokens {piece.start:,} to {piece.start + piece.length - 1:,}"
        )
        notes = ", after an inserted BOS" * piece.bos + ", filler" * piece.filler
        if (learned := piece.in_loss()) is not None:
            notes += f", {int(learned.sum()):,} tokens are in the loss"
        return (
            f"{piece.length:,} of {whole:,} tokens, {part}{notes}: document {piece.document:,} of shard "
            f"{piece.shard.entry.name}, {self._source(piece)}"
        )


def bar(pieces: list[Piece], width: int) -> Text:
    """A row as letters; the width of each piece is its share of the tokens."""
    text, ends = Text(), np.cumsum([piece.length + piece.bos for piece in pieces])
    columns = np.round(np.concatenate([[0], ends]) / ends[-1] * width).astype(int)
    for index, (piece, count) in enumerate(zip(pieces, np.diff(columns), strict=True)):
        letter = LETTERS[index % len(LETTERS)]
        style = f"black on {COLOURS[index % len(COLOURS)]}"
        text.append((letter.lower() if piece.filler else letter) * count, style=style)
    return text


def shortened(text: str, room: int) -> str:
    """A text as one line: its beginning and its end."""
    shown = text.replace("\n", "⏎").replace("\t", "→")
    if len(shown) <= room:
        return shown
    return f"{shown[: room * 2 // 3 - 5]} ... {shown[len(shown) - room // 3 :]}"


def _name(row: ShownRow) -> str:
    return f"row {row.place}" + (f", rank {row.rank}" if row.rank is not None else "")
