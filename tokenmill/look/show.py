"""Shows what the model saw: a row, a batch, a training step or a document, decoded.

    tokenmill show data/tokens/NAME --row 12 --seq-len 2048
    tokenmill show data/tokens/NAME --step 12345 --batch-size 32 --world-size 8 --seq-len 2048
    tokenmill show data/tokens/NAME --step 12345 --checkpoint ckpt.pt
    tokenmill show mixture.toml --document web/7 --checkpoint ckpt.pt
    tokenmill show data/tokens/NAME --where "id = 'a7'" --seq-len 2048

Rows, batches and steps are counted from 0, from the beginning of training. Each bar is a row. Each
span of letters in one color is a document, or the part of it that is in this row; lowercase letters
are filler.

A step is one call of `next` on all ranks: if you accumulate gradients over 4 calls, your step 5 is
steps 20 to 23 here.

The content of a row depends on the loader's settings. A checkpoint of the run says all of them, and
each change of them. It is a file of torch.save, pickle or JSON, or a folder of
torch.distributed.checkpoint, that contains a loader's state_dict() or that of get_batch. Without a
checkpoint, pass the settings of the run. The command prints them first.

For a document, the command prints which rows of an epoch have it: epoch 0, or --epoch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from tokenmill.feed.config import LoaderConfig, PackingName
from tokenmill.look.checkpoint_files import position_of
from tokenmill.look.metadata_table import metadata_table
from tokenmill.look.show_document import find_where, show_document
from tokenmill.look.steps import RunRows, ShownRow
from tokenmill.look.terminal import RowPrinter
from tokenmill.messages import counted, redact
from tokenmill.rows.packing import LongDocuments
from tokenmill.rows.run import Run
from tokenmill.store.shards import Split

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
ASKED = ("row", "document", "where", "batch", "step")
IDLE = {  # beside others of these, a flag would do nothing
    "epoch": ("document", "where"),
    "rank": ("batch",),
    "columns": ("row", "batch", "step"),
}


@dataclass(frozen=True)
class Show:
    """Show what the model saw: a row, a batch, a training step or a document, decoded."""

    # the token set's folder or address, or a mixture's TOML file
    tokens: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]
    # a row of the global order, from 0; or a place epoch:window:row, source/... in a mixture
    row: str | None = None
    # a document of the split, from 0 (source/... in a mixture), and which rows have it
    document: str | None = None
    # the document for which this rule of views is true, as "id = 'a7'", and which rows have it
    where: str | None = None
    batch: int | None = None  # what one rank got at this call, from 0
    step: int | None = None  # what all ranks got at this call, from 0
    # a checkpoint of the run, which says all settings: its file, or DCP's folder
    checkpoint: str | None = None
    rank: int | None = None  # with --batch, the rank whose batch to show; by default the only one
    epoch: int | None = None  # the epoch in which to look for a document; by default 0
    # which split; by default that of a checkpoint with one position, or train
    split: Split | None = None
    # as in training: rows of a rank at each call; rows and documents do not depend on it,
    batch_size: int | None = None
    world_size: int | None = None  # nor on this, as in training: the number of ranks
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
    full: bool = False  # print whole texts, even for many rows: those of one are always whole

    def __post_init__(self) -> None:
        asked = [name for name in ASKED if getattr(self, name) is not None]
        if len(asked) != 1:
            flags = ", ".join(map(_flag, asked)) or "none"
            raise ValueError(
                f"expected one of --row, --document, --where, --batch and --step, found {flags}; "
                "--row 0 is the first row"
            )
        for name, of in IDLE.items():
            if getattr(self, name) is not None and asked[0] not in of:
                flags = ", ".join(map(_flag, of))
                raise ValueError(f"{_flag(name)} is for {flags}, not --{asked[0]}; leave it out")
        for name in ("epoch", "batch", "step"):
            number = getattr(self, name) or 0
            if number < 0:
                raise ValueError(f"--{name} counts from 0, found {number}")
        number = str(self.document).rpartition("/")[2]
        if self.document is not None and not number.isdecimal():
            raise ValueError(
                f"--document must be a number from 0, or web/7 in a mixture, not {self.document!r}"
            )
        if self.checkpoint is None:
            self._require_settings(asked[0])
        elif self._of_run:
            first = next(iter(self._of_run))
            raise ValueError(f"--checkpoint says {_flag(first)}; leave it out")

    @property
    def _of_run(self) -> dict[str, Any]:
        """The settings of the run that the command line names."""
        settings = {name: getattr(self, name) for name in OF_RUN}
        return {name: value for name, value in settings.items() if value is not None}

    def _require_settings(self, asked: str) -> None:
        """ValueError without a setting on which the rows depend."""
        if self.packing == "nanochat" and asked == "row":
            raise ValueError(
                "--row needs one order of all ranks, which nanochat's rows do not have; use --batch"
            )
        needed = ["seq_len"]
        if asked in ("batch", "step"):
            needed += ["batch_size", "world_size"]
        missing = [_flag(name) for name in needed if name not in self._of_run]
        if missing:
            flags = " and ".join(missing)
            raise ValueError(
                f"--{asked} needs {flags}, as in training, or a --checkpoint: which rows these are "
                "depends on it"
            )

    @property
    def loader(self) -> LoaderConfig:
        """The settings of the training run, checked as a loader checks them."""
        settings = {"batch_size": 1, "world_size": 1, "seq_len": 1} | self._of_run
        if self.row is not None:  # the order depends on neither
            settings |= {"batch_size": 1, "world_size": 1}
        return LoaderConfig(
            tokens=self.tokens,
            split=self.split or "train",
            cache_dir=self.cache_dir,
            rank=0,
            **settings,
        )

    def place(self) -> tuple[str, list[int]]:
        """--row as a source, "" for none, and its numbers: one, or epoch, window and row."""
        source, _, place = str(self.row).rpartition("/")
        parts = place.replace(",", "").split(":")
        has_right_length = len(parts) == 3 or (len(parts) == 1 and not source)
        if not has_right_length or not all(part.isdecimal() for part in parts):
            raise ValueError(
                "--row must be a number, or a place as 0:12:100 (epoch:window:row), not "
                f"{self.row!r}"
            )
        return source, [int(part) for part in parts]


def _flag(name: str) -> str:
    """The flag of a field."""
    dashed = name.replace("_", "-")
    return f"--{dashed}"


def show(config: Show, console: Console) -> None:
    """Prints what the config asks for.

    Raises ValueError or FileNotFoundError if it does not exist.
    """
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
        name, _, number = config.document.rpartition("/")
        show_document(run, _source(run, name), int(number), config.epoch or 0, printer)
        return
    if config.where is not None:
        show_document(run, *find_where(run, config.where), config.epoch or 0, printer)
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
        return _rows_of_place(config, run)
    step = config.step if config.batch is None else config.batch
    assert step is not None, "the command line names one"
    leg = run.leg_of(step)
    rows = run.step(step)
    if config.batch is None:
        return rows, leg
    ranks = leg.setting.world_size
    rank = config.rank or 0
    if config.rank is None and ranks > 1:
        raise ValueError(f"--batch needs --rank: each of {ranks:,} ranks got other rows")
    if not 0 <= rank < ranks:
        last = ranks - 1
        raise ValueError(f"--rank must be from 0 to {last}, found {config.rank}")
    rows = [row for row in rows if row.rank == rank]
    if not rows:
        raise ValueError(f"rank {rank} got no row at this call, the last of its iteration")
    return rows, leg


def _rows_of_place(config: Show, run: RunRows) -> tuple[list[ShownRow], Run]:
    """The row of --row, and the leg that it is of."""
    source, numbers = config.place()
    if len(numbers) == 3:
        name = _source(run, source)
        return [run.at(name, *numbers)], run.leg_at(name, *numbers)
    if config.checkpoint is not None:
        raise ValueError(
            "--row of a checkpoint must be a place, as 0:12:100 (epoch:window:row); or use --step, "
            "as its number depends on what changed in the run"
        )
    return [row._replace(rank=None) for row in run.step(numbers[0])], run.run


def _settings(config: Show, run: RunRows, leg: Run) -> str:
    """What the rows depend on."""
    setting = leg.setting
    packing = run.order.packing
    is_chat = any(token_set.is_chat for token_set in run.sets.values())
    long_documents = run.order.long_chats if is_chat else packing.long_documents
    rows = f"rows of {setting.seq_len:,} + 1 tokens, {packing.name}"
    if long_documents != "split":
        rows += f", {long_documents} long documents"
    if run.order.loss != "all":
        rows += f", loss {run.order.loss}"
    facts = [rows, f"seed {run.order.seed}" if packing.shuffle else "no shuffling"]
    if config.row is None:
        ranks = counted(setting.world_size, "rank")
        facts.append(f"{setting.batch_size:,} rows on each of {ranks}")
    if len(run.run.legs) > 1:
        number = len(leg.legs) - 1
        first_step = leg.legs[-1].begin.step
        facts.append(f"leg {number} of the run, from step {first_step:,} on")
    steps = run.run.now.step
    is_to_come = config.step is not None and config.step >= steps
    if is_to_come and config.checkpoint is not None:
        facts.append(f"the checkpoint is after {steps:,} steps, so this one is to come")
    for source, documents in setting.sets.items():
        name = source or run.sets[source].name
        fact = f"{name} as of manifest {documents.manifest}"
        if documents.view:
            fact += f", view {documents.view}"
        facts.append(fact)
    joined = "; ".join(facts)
    return f"{redact(config.tokens)}, {run.order.split}: {joined}"


def _source(run: RunRows, name: str) -> str:
    """The source of this name; the only one if none is named."""
    if name in run.sets:
        return name
    if name == "":
        first = next(iter(run.sets))
        raise ValueError(
            f"a row or document of a mixture must name its source, as in {first}/0:12:100"
        )
    known = ", ".join(run.sets) or "one token set"
    raise ValueError(f"{name!r} is not a source of the run, which has {known}")


def main(arguments: list[str], prog: str) -> None:
    """Shows what these command-line arguments ask for."""
    config = tyro.cli(Show, prog=prog, args=arguments, description=__doc__)
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    show(config, console)
