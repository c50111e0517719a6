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

from pathlib import Path

import tyro
from rich.console import Console

from tokenmill.feed.mixture import ONE_SET
from tokenmill.feed.pieces import pieces_of
from tokenmill.humanize import counted
from tokenmill.look.checkpoint_files import position_of
from tokenmill.look.metadata_table import metadata_table
from tokenmill.look.show_config import Show
from tokenmill.look.source_places import SourceLocator
from tokenmill.look.steps import RunRows, ShownRow
from tokenmill.look.terminal import RowPrinter
from tokenmill.rows.run import Run
from tokenmill.sanitize import redact, sanitize
from tokenmill.store.shards import ShardEntry
from tokenmill.store.token_sets import TokenSet

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
        return [run.at(_source(run, source), *numbers)], run.run
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
            raise ValueError(f"rank {config.rank or 0} got no row at this call, the last of its iteration")
    return rows, leg


def _settings(config: Show, run: RunRows, leg: Run) -> str:
    """What the rows depend on."""
    setting, (name, long_documents, shuffle, _) = leg.setting, run.order.packing
    is_chat = any(one.is_chat for one in run.sets.values())
    long = run.order.long_chats if is_chat else long_documents
    said = [f"rows of {setting.seq_len:,} + 1 tokens, {name}" + f", {long} long documents" * (long != "split")]
    said.append(f"seed {run.order.seed}" if shuffle else "no shuffling")
    if config.row is None:
        said.append(f"{setting.batch_size:,} rows on each of {counted(setting.world_size, 'rank')}")
    if len(run.run.legs) > 1:
        said.append(f"leg {len(leg.legs) - 1} of the run, from step {leg.legs[-1].begin.step:,} on")
    if config.step is not None and config.step >= run.run.now.step and config.checkpoint is not None:
        said.append(f"the checkpoint is after {run.run.now.step:,} steps, so this one is to come")
    for source, (manifest, view, _) in setting.sets.items():
        said.append(f"{source or run.sets[source].name} as of manifest {manifest}" + f", view {view}" * bool(view))
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
        printer.print("which rows have it cannot be told for packing nanochat, whose ranks have orders of their own")
        return
    with printer.console.status("looking for it in the windows that may have it"):
        rows = list(run.with_document(source, entry, document, config.epoch))
    printer.print(f"epoch {config.epoch}: {counted(len(rows), 'row')} with it")
    for row in rows[:MOST_ROWS]:
        printer.print(f"  {row.place}" + " (only a copy, as filler)" * row.filler)
    printer.print("  and more" * (len(rows) > MOST_ROWS))


def _source(run: RunRows, name: str) -> str:
    """The source of this name; the only one if none is named."""
    if not name and ONE_SET not in run.sets:
        raise ValueError(f"a row or document of a mixture must name its source, as in {next(iter(run.sets))}/0:12:100")
    if name not in run.sets:
        raise ValueError(f"{name!r} is not a source of the run, which has {', '.join(run.sets) or 'one token set'}")
    return name


def find_document(number: int, token_set: TokenSet, split: str) -> tuple[ShardEntry, int]:
    """The shard of the split's document with this number, and the document's number in the shard."""
    entries, left = token_set.split(split), number
    for entry in entries:
        if left < entry.documents:
            return entry, left
        left -= entry.documents
    total = sum(entry.documents for entry in entries)
    raise ValueError(f"{token_set.display_name}: split {split!r} has {total:,} documents, 0 to {total - 1:,}")


def main(arguments: list[str], prog: str) -> None:
    """Shows what these command-line arguments ask for."""
    show(
        tyro.cli(Show, prog=prog, args=arguments, description=__doc__),
        Console(soft_wrap=True, highlight=False, markup=False, emoji=False),
    )
