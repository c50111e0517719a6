"""Shows what the model saw: a row, a batch, a training step or a document of a token set, decoded.

    tokenmill show data/tokens/NAME --row 12
    tokenmill show data/tokens/NAME --step 12345 --batch-size 32 --world-size 8 --seq-len 2048

Rows, batches and steps are counted from 0, from the beginning of training. A bar is a row; each stretch of
letters in one colour is a document, or the part of one that lies in this row, small letters a filler. What a
row is made of follows from the loader's settings, so give those of the training: they are printed first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.segment import Segment, Segments
from rich.text import Text

from tokenmill.batches.config import LoaderConfig, Packing
from tokenmill.batches.pieces import Piece, pieces_of
from tokenmill.look.trace import SourceRows, TracedRow, Tracer, trace_nanochat
from tokenmill.rows.packing import LongDocuments
from tokenmill.rows.skipped import format_skipped, parse_skipped
from tokenmill.rows.stream import Position
from tokenmill.store.shards import Split
from tokenmill.store.token_sets import TokenSet
from tokenmill.tokenize.tokenizer import Tokenizer

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# a text must not steer a terminal: U+2400 and what follows are pictures of the control characters
CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}


@dataclass(frozen=True)
class Show:
    """Shows what the model saw: a row, a batch, a training step or a document, decoded."""

    tokens: tyro.conf.Positional[Path]  # the token set's folder
    row: str | None = None  # a row of the global order, from 0; or its place, epoch:shard:row
    document: int | None = None  # a document of the split, from 0
    batch: int | None = None  # what one rank got at this call, the first being 0
    step: int | None = None  # what all ranks got at this call, the first being 0
    batch_size: int = 8  # rows of a rank at each call (of a step: times the passes that are accumulated)
    world_size: int = 1  # ranks
    rank: int = 0  # whose batch
    since: tuple[int, str] | None = None  # a checkpoint's step and place, epoch:shard:row, to count batches from
    split: Split = "train"  # of which split
    seq_len: int = 2048  # tokens of an input
    packing: Packing = LoaderConfig.packing  # as in the training
    long_documents: LongDocuments = LoaderConfig.long_documents  # as in the training
    shuffle: bool = LoaderConfig.shuffle  # as in the training
    seed: int = LoaderConfig.seed  # as in the training
    skip_rows: tuple[str, ...] = ()  # as in the training, from its beginning on
    ids: bool = False  # token ids too
    full: bool = False  # whole texts, also where there are many rows

    def __post_init__(self):
        asked = [name for name in ("row", "document", "batch", "step") if getattr(self, name) is not None]
        if len(asked) != 1:
            raise ValueError(f"expected one of --row, --document, --batch and --step, found {len(asked)} of them")
        if asked != ["row"] and getattr(self, asked[0]) < 0:
            raise ValueError(f"--{asked[0]} counts from 0, found {getattr(self, asked[0])}")
        if self.since is not None and (asked[0] not in ("batch", "step") or getattr(self, asked[0]) < self.since[0]):
            raise ValueError(f"--since {self.since[0]} is for a --step or --batch from {self.since[0]} on")
        if self.since is not None and self.packing == "nanochat":
            raise ValueError("--since needs places, which nanochat's rows have none of; leave it out")

    @property
    def loader(self) -> LoaderConfig:
        """The settings of the training, checked as the loader does."""
        names = ["batch_size", "seq_len", "split", "packing", "long_documents", "shuffle", "seed", "skip_rows"]
        names += ["rank", "world_size"]
        return LoaderConfig(**{name: getattr(self, name) for name in names})


# ---------------------------------------------------------------------------- which rows


def rows_of(config: Show, token_set: TokenSet) -> Iterator[tuple[int | None, TracedRow]]:
    """The rows that were asked for, each with the rank that got it where that was asked for."""
    loader = config.loader
    if config.packing == "nanochat":
        yield from _nanochat_rows(config, token_set)
        return
    tracer = Tracer(
        token_set,
        loader.split,
        loader.seq_len + 1,
        packing=loader.packing,
        order=loader.order,
        skipped=parse_skipped(loader.skip_rows),
    )
    yield from _row(config.row, tracer) if config.row is not None else _rows_of_a_call(config, tracer)


def _row(row: str, tracer: Tracer) -> Iterator[tuple[None, TracedRow]]:
    place = _place("--row", row, (1, 3))
    yield None, tracer.row_at(*place) if len(place) == 3 else next(tracer.rows(place[0], 1))


def _rows_of_a_call(config: Show, tracer: Tracer) -> Iterator[tuple[int, TracedRow]]:
    done, start = 0, None
    if config.since is not None:
        done, start = config.since[0], Position(*_place("--since", config.since[1], (3,)))
    rows_a_call = config.batch_size * config.world_size
    for index, traced in enumerate(tracer.rows((_call(config) - done) * rows_a_call, rows_a_call, start)):
        rank = index % config.world_size
        if config.batch is None or rank == config.rank:
            yield rank, traced


def _nanochat_rows(config: Show, token_set: TokenSet) -> Iterator[tuple[int | None, TracedRow]]:
    ranks = range(config.world_size) if config.step is not None else [config.rank]
    for rank in ranks:
        if config.row is None:
            first, count = _call(config) * config.batch_size, config.batch_size
        else:
            (first,), count = _place("--row", config.row, (1,)), 1
        where = {"rank": rank, "world_size": config.world_size, "first": first, "count": count}
        for traced in trace_nanochat(token_set, config.split, config.seq_len + 1, **where):
            yield rank, traced


def _call(config: Show) -> int:
    call = config.step if config.batch is None else config.batch
    assert call is not None, "a step or a batch was asked for"
    return call


def _place(flag: str, row: str, lengths: tuple[int, ...]) -> list[int]:
    """A row's number, alone, or its epoch, shard and row; of these the `lengths` that make sense."""
    parts = row.replace(",", "").split(":")
    if not all(part.isdecimal() for part in parts) or len(parts) not in lengths:
        what = {1: "a number", 3: "a place as 0:12:100 (epoch:shard:row)"}
        raise ValueError(f"{flag} must be {', or '.join(what[length] for length in lengths)}, not {row!r}")
    return [int(part) for part in parts]


# ---------------------------------------------------------------------------- drawing


class Drawing:
    """Draws rows on a console: bars, and the text of their pieces."""

    def __init__(self, config: Show, token_set: TokenSet, console: Console):
        self.config, self.console, self.token_set = config, console, token_set
        self.tokenizer = Tokenizer.load(token_set.path / "tokenizer.json")
        self.sources = SourceRows(token_set)

    def settings(self, rows: list[tuple[int | None, TracedRow]]) -> None:
        """What the rows follow from, and how to leave them out."""
        loader = self.config.loader
        order = f"seed {loader.seed}" if loader.order["shuffle"] else "no shuffling"
        long = f", {loader.long_documents} long documents" if loader.packing == "best_fit" else ""
        ranks = f", {loader.batch_size} rows a rank, {loader.world_size} ranks" if self.config.row is None else ""
        self.print(
            f"{self.token_set.path.name}, {loader.split}: rows of {loader.seq_len:,} + 1 tokens, "
            f"{loader.packing}{long}, {order}{ranks}"
        )
        if places := format_skipped(parse_skipped(row.place for _, row in rows if row.place is not None)):
            self.print(f"to leave out what is shown: skip_rows={places!r}")

    def bars(self, rows: list[tuple[int | None, TracedRow]]) -> None:
        """Each row as a line of letters."""
        names = [_name(rank, row) for rank, row in rows]
        widest = max(map(len, names))
        for name, (_, row) in zip(names, rows, strict=True):
            self.console.print(f"{name:{widest}}  ", bar(row.pieces, max(40, self.console.width - widest - 3)), sep="")

    def row(self, rank: int | None, row: TracedRow, full: bool) -> None:
        """A row's pieces, each with where it is from, and its text: all of it, or beginning and end."""
        self.print(f"\n{_name(rank, row)}")
        for index, piece in enumerate(row.pieces):
            self.piece(piece, index, full)

    def piece(self, piece: Piece, index: int, full: bool) -> None:
        style, letter = COLOURS[index % len(COLOURS)], LETTERS[index % len(LETTERS)]
        self.print(f"  {letter} {self._facts(piece)}", style=f"bold {style}")
        ids = piece.tokens(self.tokenizer.bos_id)
        text = self.tokenizer.decode(ids)
        self.print(text if full else f"    {shortened(text, max(40, self.console.width - 4))}", style=style)
        if self.config.ids:
            self.print(" ".join(map(str, ids.tolist())), style="dim")

    def print(self, text: str, style: str = "none") -> None:
        segment = Segment(text.translate(CONTROLS) + "\n", self.console.get_style(style))  # tabs as they are
        self.console.print(Segments([segment]), end="")

    def _facts(self, piece: Piece) -> str:
        whole = int(piece.shard.offsets[piece.document + 1] - piece.shard.offsets[piece.document])
        part = "whole" if piece.length == whole else f"its tokens {piece.start:,} to {piece.start + piece.length - 1:,}"
        notes = ", after an inserted BOS" * piece.bos + ", filler" * piece.filler
        return (
            f"{piece.length:,} of {whole:,} tokens, {part}{notes}: document {piece.document:,} of shard "
            f"{piece.shard.entry.name}, {self.sources.find(piece.shard.entry, piece.document)}"
        )


def bar(pieces: list[Piece], width: int) -> Text:
    """A row as letters: each piece as wide as its share of the tokens."""
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


def _name(rank: int | None, row: TracedRow) -> str:
    parts = [] if row.number is None else [f"row {row.number:,}"]
    parts += [] if row.place is None else [f"at {row.place}"]
    parts += [] if rank is None else [f"rank {rank}"]
    return ", ".join(parts)


# ---------------------------------------------------------------------------- the command


def show(config: Show, console: Console) -> None:
    """Prints what was asked for. ValueError or FileNotFoundError where it is not there."""
    token_set = TokenSet(config.tokens)
    if config.document is not None:
        _show_document(config.document, config, token_set, console)
        return
    rows = list(rows_of(config, token_set))
    drawing = Drawing(config, token_set, console)
    drawing.settings(rows)
    drawing.bars(rows)
    for rank, row in rows:
        drawing.row(rank, row, config.full or len(rows) == 1)


def _show_document(number: int, config: Show, token_set: TokenSet, console: Console) -> None:
    entries = token_set.split(config.split)
    for entry in entries:
        if number < entry.documents:
            shard = token_set.open(entry)
            begin, end = (int(shard.offsets[i]) for i in (number, number + 1))
            (piece,) = pieces_of(shard, begin, end - begin)
            Drawing(config, token_set, console).piece(piece, 0, full=True)
            return
        number -= entry.documents
    total = sum(entry.documents for entry in entries)
    raise ValueError(f"{token_set.path}: split {config.split!r} has {total:,} documents, 0 to {total - 1:,}")


def main(arguments: list[str], prog: str) -> None:
    """Shows what the command line asks for."""
    show(tyro.cli(Show, prog=prog, args=arguments, description=__doc__), Console(soft_wrap=True, highlight=False))
