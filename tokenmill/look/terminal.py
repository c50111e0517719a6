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
        self.console = console
        self._ids = ids
        self._sets = {token_set.path: token_set for token_set in token_sets}
        self._sources = {token_set.path: SourceLocator(token_set) for token_set in token_sets}
        # by fingerprint: a chat set's has more special tokens
        self._tokenizers: dict[str, Tokenizer] = {}

    def bars(self, rows: Sequence[ShownRow]) -> None:
        """Prints each row as a line of letters."""
        widest = max(len(_name(row)) for row in rows)
        for row in rows:
            width = max(40, self.console.width - widest - 3)
            self.console.print(f"{_name(row):{widest}}  ", bar(row.pieces, width), sep="")

    def row(self, row: ShownRow, full: bool) -> None:
        """Prints a row's pieces, each with where it is from and its text.

        A text is printed in full, or only its beginning and end.
        """
        self.print(f"\n{_name(row)}")
        for index, piece in enumerate(row.pieces):
            self.piece(piece, index, full)

    def piece(self, piece: Piece, index: int, full: bool) -> None:
        style = COLOURS[index % len(COLOURS)]
        letter = LETTERS[index % len(LETTERS)]
        if piece.is_padding:
            padding = f"{piece.length:,} tokens of padding, which are not in the loss"
            self.print(f"  {letter.lower()} {padding}", style="dim")
            return
        self.print(f"  {letter} {self._facts(piece)}", style=f"bold {style}")
        tokenizer = self._tokenizer(piece)
        ids = piece.tokens(tokenizer.bos_id)
        in_loss = piece.in_loss()
        if full and in_loss is not None:
            self._masked(tokenizer, ids, in_loss, style)
        elif full:
            self.print(tokenizer.decode(ids), style=style)
        else:
            text = shortened(tokenizer.decode(ids), max(40, self.console.width - 4))
            self.print(f"    {text}", style=style)
        if self._ids:
            self.print(" ".join(map(str, ids.tolist())), style="dim")

    def _tokenizer(self, piece: Piece) -> Tokenizer:
        token_set = self._sets[piece.shard.path.parents[1]]
        fingerprint = token_set.tokenizer["fingerprint"]
        if fingerprint not in self._tokenizers:
            self._tokenizers[fingerprint] = Tokenizer.of_set(token_set)
        return self._tokenizers[fingerprint]

    def _masked(
        self, tokenizer: Tokenizer, ids: np.ndarray, in_loss: np.ndarray, style: str
    ) -> None:
        """Prints a conversation.

        What is in the loss is underlined, and in brackets where that cannot be seen.
        """
        segments = []
        changes = np.flatnonzero(np.diff(in_loss)) + 1
        begin = 0
        for stretch in np.split(ids, changes):
            text = escape_controls(tokenizer.decode(stretch))
            is_in_loss = in_loss[begin]
            begin += len(stretch)
            if is_in_loss and not self.console.is_terminal:
                text = f"[[{text}]]"
            text_style = f"{style} underline" if is_in_loss else "dim"
            segments.append(Segment(text, self.console.get_style(text_style)))
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
        """How much of which document a piece is."""
        shard = piece.shard
        begin, end = shard.bounds(piece.document)
        document_length = end - begin
        span = "whole"
        if piece.length != document_length:
            last = piece.start + piece.length - 1
            span = f"its tokens {piece.start:,} to {last:,}"
        if piece.bos:
            span += ", after an inserted BOS"
        if piece.filler:
            span += ", filler"
        in_loss = piece.in_loss()
        if in_loss is not None:
            targets = int(in_loss.sum())
            span += f", {targets:,} tokens are in the loss"
        identity = self.locator(piece).kept_id(shard.entry, piece.document)
        named = "" if identity is None else f"id {identity}, "
        return (
            f"{piece.length:,} of {document_length:,} tokens, {span}: {named}document "
            f"{piece.document:,} of shard {shard.entry.name}, {self._source(piece)}"
        )


def bar(pieces: list[Piece], width: int) -> Text:
    """A row as letters; the width of each piece is about its share of the tokens."""
    text = Text()
    ends = np.cumsum([piece.length + piece.bos for piece in pieces])
    room = max(0, width - len(pieces))  # as each has a letter at least
    columns = np.round(np.concatenate([[0], ends]) / ends[-1] * room).astype(int)
    for index, (piece, count) in enumerate(zip(pieces, 1 + np.diff(columns), strict=True)):
        letter = LETTERS[index % len(LETTERS)]
        colour = COLOURS[index % len(COLOURS)]
        if piece.filler:
            letter = letter.lower()
        text.append(letter * count, style=f"black on {colour}")
    return text


def shortened(text: str, room: int) -> str:
    """A text as one line: its beginning and its end."""
    shown = text.replace("\n", "⏎").replace("\t", "→")
    if len(shown) <= room:
        return shown
    beginning = shown[: room * 2 // 3 - 5]
    end = shown[len(shown) - room // 3 :]
    return f"{beginning} ... {end}"


def _name(row: ShownRow) -> str:
    name = f"row {row.place}"
    if row.rank is not None:
        name += f", rank {row.rank}"
    return name
