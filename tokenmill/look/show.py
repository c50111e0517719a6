"""Shows what the model saw: a row, a batch, a training step or a document, decoded.

    tokenmill show data/tokens/NAME --row 12 --seq-len 2048
    tokenmill show data/tokens/NAME --step 12345 --batch-size 32 --world-size 8 --seq-len 2048
    tokenmill show data/tokens/NAME --step 12345 --checkpoint ckpt.pt
    tokenmill show mixture.toml --document web/7 --checkpoint ckpt.pt

Rows, batches and steps are counted from 0, from the beginning of training. Each bar is a row. Each span of letters in
one color is a document, or the part of it that is in this row; lowercase letters are filler.

A step is one call of `next` on all ranks: if you accumulate gradients over 4 calls, your step 5 is steps 20 to 23 here.

The content of a row depends on the loader's settings. A checkpoint of the run says all of them, and each change of
them. It is a file of torch.save, pickle or JSON, or a folder of torch.distributed.checkpoint, that contains a loader's
state_dict() or that of get_batch. Without a checkpoint, pass the settings of the run. The command prints them first.

For a document, the command prints which rows of an epoch have it: epoch 0, or --epoch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from tokenmill.feed.config import LoaderConfig, PackingName
from tokenmill.feed.mixture import ONE_SET
from tokenmill.feed.pieces import Piece, pieces_of
from tokenmill.look.checkpoint_files import position_of
from tokenmill.look.documents import SourceLocator
from tokenmill.look.steps import RunRows, ShownRow
from tokenmill.look.terminal import RowPrinter
from tokenmill.messages import counted, redact, sanitize
from tokenmill.rows.packing import LongDocuments
from tokenmill.rows.run import Run
from tokenmill.store.shards import ShardEntry, Split
from tokenmill.store.token_sets import TokenSet

OF_RUN = (
    "batch_size",
    "world_size",
    "seq_len",
    "view",
    "packing",
    "long_documents",
    "shuffle",
    "seed",
)
ASKED = ("row", "document", "batch", "step")


@dataclass(frozen=True)
class Show:
    """Show what the model saw: a row, a batch, a training step or a document, decoded."""

    # the token set's folder or address, or a mixture's TOML file
    tokens: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]
    # a row of the global order, from 0; or a place epoch:window:row, source/... in a mixture
    row: str | None = None
    # a document of the split, from 0 (source/... in a mixture), and which rows have it
    document: str | None = None
    batch: int | None = None  # what one rank got at this call, from 0
    step: int | None = None  # what all ranks got at this call, from 0
    # a checkpoint of the run, which says all settings: its file, or DCP's folder
    checkpoint: str | None = None
    rank: int | None = None  # the rank whose batch to show; by default the only one
    epoch: int = 0  # the epoch in which to look for a document
    # which split; by default that of a checkpoint with one position, or train
    split: Split | None = None
    batch_size: int | None = None  # as in training: rows of a rank at each call
    world_size: int | None = None  # as in training: the number of ranks
    seq_len: int | None = None  # as in training: tokens of an input
    view: str | None = None  # as in training: the name of a view of the set
    packing: PackingName | None = None  # as in training, by default best_fit
    # as in training, by default split, and error for chats
    long_documents: LongDocuments | None = None
    shuffle: bool | None = None  # as in training, by default shuffled
    seed: int | None = None  # as in training, by default 1337
    # also print a table of these columns of the rows' documents, as score,language; or all
    columns: str | None = None
    cache_dir: str | None = None  # where to cache parts of a remote set; by default TOKENMILL_CACHE
    ids: bool = False  # also print token ids
    full: bool = False  # print whole texts, even for many rows

    def __post_init__(self) -> None:
        given = [name for name in ASKED if getattr(self, name) is not None]
        if len(given) != 1:
            found = ", ".join(f"--{name}" for name in given) or "none"
            raise ValueError(
                f"expected one of --row, --document, --batch and --step, found {found}; --row 0 is the first row"
            )
        (flag,) = given
        if negative := [
            name for name in ("epoch", "batch", "step") if (getattr(self, name) or 0) < 0
        ]:
            raise ValueError(f"--{negative[0]} counts from 0, found {getattr(self, negative[0])}")
        if flag == "document" and not str(self.document).rpartition("/")[2].isdecimal():
            raise ValueError(
                f"--document must be a number from 0, or web/7 in a mixture, not {self.document!r}"
            )
        told = [name for name in OF_RUN if getattr(self, name) is not None]
        if self.checkpoint is not None and told:
            raise ValueError(f"--checkpoint says --{told[0].replace('_', '-')}; leave it out")
        if self.checkpoint is None:
            sizes = [
                "seq_len",
                *(["batch_size", "world_size"] if flag in ("batch", "step") else []),
            ]
            if self.packing == "nanochat" and flag == "row":
                raise ValueError(
                    "--row needs one order of all ranks, which nanochat's rows do not have; use --batch"
                )
            if missing := [
                f"--{name.replace('_', '-')}" for name in sizes if getattr(self, name) is None
            ]:
                raise ValueError(
                    f"--{flag} needs {' and '.join(missing)}, as in training, or a --checkpoint: which rows these are "
                    "depends on it"
                )

    @property
    def loader(self) -> LoaderConfig:
        """The settings of the training run, checked as a loader checks them."""
        given = {name: getattr(self, name) for name in OF_RUN if getattr(self, name) is not None}
        sizes = {"batch_size": 1, "world_size": 1, "seq_len": 1}
        if self.row is not None:
            given = given | {"batch_size": 1, "world_size": 1}  # the order depends on neither
        return LoaderConfig(
            tokens=self.tokens,
            split=self.split or "train",
            cache_dir=self.cache_dir,
            rank=0,
            **{**sizes, **given},
        )

    def place(self) -> tuple[str, list[int]]:
        """--row as a source, "" for none, and its numbers: one, or epoch, window and row."""
        source, _, place = str(self.row).rpartition("/")
        parts = place.replace(",", "").split(":")
        if (
            not all(part.isdecimal() for part in parts)
            or len(parts) not in (1, 3)
            or (source and len(parts) == 1)
        ):
            raise ValueError(
                f"--row must be a number, or a place as 0:12:100 (epoch:window:row), not {self.row!r}"
            )
        return source, [int(part) for part in parts]


MOST_ROWS = 20  # of a document, that are listed


def show(config: Show, console: Console) -> None:
    """Prints what the config asks for. Raises ValueError or FileNotFoundError if it does not exist."""
    loader = config.loader
    sets = loader.mixture.open(loader.cache)
    if config.checkpoint is None:
        run = RunRows.of_config(loader, sets)
    else:
        expected = "a checkpoint with a position in it"
        state = position_of("--checkpoint", Path(config.checkpoint), config.split, expected)
        run = RunRows.of_position(state, sets)
    printer = RowPrinter([*sets.values()], console, config.ids)
    if config.document is not None:
        _show_document(config, run, printer)
        return
    with console.status("counting the rows that come before"):
        rows, leg = _rows(config, run)
    printer.print(_settings(config, run, leg))
    printer.bars(rows)
    for row in rows:
        printer.row(row, config.full or len(rows) == 1)
    if config.columns is not None:
        console.print(metadata_table(rows, printer.locator, config.columns))


def _rows(config: Show, run: RunRows) -> tuple[list[ShownRow], Run]:
    """The rows to show, and the leg that they are of."""
    if config.row is not None:
        source, numbers = config.place()
        if len(numbers) == 1 and config.checkpoint is None:
            return [row._replace(rank=None) for row in run.step(numbers[0])], run.run
        if len(numbers) == 1:
            raise ValueError(
                "--row of a checkpoint must be a place, as 0:12:100 (epoch:window:row); or use --step, as its number "
                "depends on what changed in the run"
            )
        name = _source(run, source)
        return [run.at(name, *numbers)], run.leg_at(name, *numbers)
    step = config.step if config.batch is None else config.batch
    assert step is not None, "the command line names one"
    leg = run.leg_of(step)
    rows, ranks = run.step(step), leg.setting.world_size
    if config.batch is not None:
        if config.rank is None and ranks > 1:
            raise ValueError(f"--batch needs --rank: each of {ranks:,} ranks got other rows")
        if not 0 <= (config.rank or 0) < ranks:
            raise ValueError(f"--rank must be from 0 to {ranks - 1}, found {config.rank}")
        rows = [row for row in rows if row.rank == (config.rank or 0)]
        if not rows:
            raise ValueError(
                f"rank {config.rank or 0} got no row at this call, the last of its iteration"
            )
    return rows, leg


def _settings(config: Show, run: RunRows, leg: Run) -> str:
    """What the rows depend on."""
    setting, (name, long_documents, shuffle, _) = leg.setting, run.order.packing
    is_chat = any(one.is_chat for one in run.sets.values())
    long = run.order.long_chats if is_chat else long_documents
    said = [
        f"rows of {setting.seq_len:,} + 1 tokens, {name}"
        + f", {long} long documents" * (long != "split")
    ]
    said.append(f"seed {run.order.seed}" if shuffle else "no shuffling")
    if config.row is None:
        said.append(f"{setting.batch_size:,} rows on each of {counted(setting.world_size, 'rank')}")
    if len(run.run.legs) > 1:
        said.append(f"leg {len(leg.legs) - 1} of the run, from step {leg.legs[-1].begin.step:,} on")
    if (
        config.step is not None
        and config.step >= run.run.now.step
        and config.checkpoint is not None
    ):
        said.append(f"the checkpoint is after {run.run.now.step:,} steps, so this one is to come")
    for source, (manifest, view, _) in setting.sets.items():
        said.append(
            f"{source or run.sets[source].name} as of manifest {manifest}"
            + f", view {view}" * bool(view)
        )
    return f"{redact(config.tokens)}, {run.order.split}: {'; '.join(said)}"


def _show_document(config: Show, run: RunRows, printer: RowPrinter) -> None:
    name, _, number = str(config.document).rpartition("/")
    source = _source(run, name)
    token_set = run.sets[source]
    entry, document = find_document(int(number), token_set, run.order.split)
    shard = token_set.open(entry)
    begin, end = (int(shard.offsets[i]) for i in (document, document + 1))
    (piece,) = pieces_of(shard, begin, end - begin)
    printer.piece(piece, 0, full=True)
    for column, value in SourceLocator(token_set).metadata(entry, document).items():
        printer.print(f"{column}: {sanitize(str(value))}")
    if run.order.packing.name == "nanochat":
        printer.print(
            "which rows have it cannot be told for packing nanochat, whose ranks have orders of their own"
        )
        return
    with printer.console.status("looking for it in the windows that may have it"):
        rows = list(run.with_document(source, entry, document, config.epoch))
    is_out = token_set.view is not None and not token_set.repeats_of(entry)[document]
    printer.print(
        f"epoch {config.epoch}: {counted(len(rows), 'row')} with it{', as the view leaves it out' * is_out}"
    )
    for row in rows[:MOST_ROWS]:
        printer.print(f"  {row.place}" + " (only a copy, as filler)" * row.filler)
    printer.print("  and more" * (len(rows) > MOST_ROWS))


def metadata_table(
    rows: Sequence[ShownRow], locate: Callable[[Piece], SourceLocator], columns: str
) -> Table:
    """The table of these rows' documents. `columns` are names, separated by commas, or "all". `locate` returns what
    knows the metadata of a piece's document. ValueError if no document has one of them.
    """
    shown = [(row, one) for row in rows for one in row.pieces if not (one.filler or one.is_padding)]
    facts = [locate(piece).metadata(piece.shard.entry, piece.document) for _, piece in shown]
    known = list(dict.fromkeys(name for own in facts for name in own))
    names = known if columns == "all" else [name.strip() for name in columns.split(",")]
    if unknown := [
        name for name in names if name.partition(".")[0] not in known and name not in known
    ]:
        found = f"there are {', '.join(known) or 'none'}; prepare with --keep-columns to have more"
        raise ValueError(
            f"--columns {columns}: no document of these rows has {unknown[0]!r}; {found}"
        )
    table = Table("row", "document", "tokens", *map(sanitize, names))
    for (row, piece), own in zip(shown, facts, strict=True):
        place = sanitize(locate(piece).find(piece.shard.entry, piece.document))
        table.add_row(
            row.place, place, f"{piece.length:,}", *(sanitize(_cell(own, name)) for name in names)
        )
    return table


def _cell(facts: dict[str, Any], name: str) -> str:
    """A value, or a field of a struct; nothing for a null."""
    value: Any = facts
    for key in [name] if name in facts else name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return "" if value is None else str(value)


def _source(run: RunRows, name: str) -> str:
    """The source of this name; the only one if none is named."""
    if not name and ONE_SET not in run.sets:
        raise ValueError(
            f"a row or document of a mixture must name its source, as in {next(iter(run.sets))}/0:12:100"
        )
    if name not in run.sets:
        raise ValueError(
            f"{name!r} is not a source of the run, which has {', '.join(run.sets) or 'one token set'}"
        )
    return name


def find_document(number: int, token_set: TokenSet, split: str) -> tuple[ShardEntry, int]:
    """The shard of the split's document with this number, and the document's number in the shard."""
    entries, left = token_set.split(split), number
    for entry in entries:
        if left < entry.documents:
            return entry, left
        left -= entry.documents
    total = sum(entry.documents for entry in entries)
    raise ValueError(
        f"{token_set.display_name}: split {split!r} has {total:,} documents, 0 to {total - 1:,}"
    )


def main(arguments: list[str], prog: str) -> None:
    """Shows what these command-line arguments ask for."""
    show(
        tyro.cli(Show, prog=prog, args=arguments, description=__doc__),
        Console(soft_wrap=True, highlight=False, markup=False, emoji=False),
    )
