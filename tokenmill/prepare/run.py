"""Turns shards of text into token shards, once.

    source files -> units of work -> worker processes -> shards -> manifest.json

A unit is one shard's worth of a source file. Each worker streams its unit's documents, tokenizes,
writes, hashes and renames; tokens never cross a process boundary. The parent plans, watches and
shows progress. What is on disk already is not made again, so running the same command after a
crash, or with more source files, does only what is missing; another tokenizer is another folder.
"""

import contextlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from tokenmill.amounts import counted
from tokenmill.prepare.config import PrepareConfig
from tokenmill.prepare.cores import available_cores
from tokenmill.prepare.elsewhere import Elsewhere
from tokenmill.prepare.inventory import Inventory
from tokenmill.prepare.missing import make_missing
from tokenmill.prepare.origin import Source, find_source
from tokenmill.prepare.outcomes import PreparationError, Prepared
from tokenmill.prepare.plan import Missing, find_missing
from tokenmill.prepare.progress import Bars
from tokenmill.prepare.splits import (
    changes,
    former_entries,
    in_former_order,
    keep_splits,
    require_all_there,
    still_dropped,
)
from tokenmill.prepare.tokenizers import find_tokenizer, save_tokenizer, size_to_train
from tokenmill.remote.addresses import joined
from tokenmill.store.files import locked, remove_temporary_files
from tokenmill.store.schema import dtype_name
from tokenmill.store.shards import DTYPES, ShardEntry
from tokenmill.store.token_sets import write_manifest
from tokenmill.tokenize.encoder import require_engine
from tokenmill.tokenize.tokenizer import Tokenizer

SUBFOLDERS = ("shards", "manifests")


@dataclass(frozen=True)
class Run:
    """A preparation under way: what is read, with which tokenizer, and where it goes."""

    config: PrepareConfig
    source: Source
    tokenizer: Tokenizer
    bars: Bars

    @property
    def name(self) -> str:
        return f"{self.config.dataset}-{self.tokenizer.name}-{self.tokenizer.fingerprint[:8]}"

    @property
    def folder(self) -> Path:
        """Where it is made."""
        return self.config.here / self.name

    @property
    def address(self) -> str | None:
        """Where it goes, where that is no folder."""
        return self.config.elsewhere and joined(self.config.elsewhere, self.name)

    @property
    def is_alone(self) -> bool:
        """Whether this run makes all parts."""
        return self.config.part_of_all[1] == 1


def prepare(config: PrepareConfig) -> Prepared:
    """`prepare_and_tell`, without what became of the splits."""
    return prepare_and_tell(config)[0]


def prepare_and_tell(config: PrepareConfig) -> tuple[Prepared, list[str]]:
    """Prepares a token set, or what is missing of it, or this part of it; writes the manifest once all is there.

    And sentences: what became of the splits of a set that there was, none where nothing did. With `dry_run` it makes
    nothing, and the sentences are what is ahead.

    Raises ValueError, FileNotFoundError, ConnectionError or OSError for what a user can get wrong
    before work starts, PreparationError for what went wrong with single files or shards.
    """
    with Bars() as bars, contextlib.closing(find_source(config, bars)) as source:
        if config.workers > (cores := available_cores()) and config.cluster is None:
            bars.say(f"warning: {config.workers} workers for {cores} cores: more memory, and no more speed")
        size = size_to_train(config)
        if size and (config.dry_run or source.downloads is not None):  # some of which training fetches
            untrained = config.here / f"{config.dataset}-bpe{size}-not-trained-yet"
            stock = _inventory(config, untrained, "")
            missing = find_missing(stock, source, replace(config, dry_run=True), bars)
            ahead = _ahead(missing, size, source, config)
            if config.dry_run:
                return Prepared(untrained, len(missing)), ahead
            _say(ahead, bars)
        run = Run(config, source, find_tokenizer(config, source, bars.say), bars)
        require_engine(config.engine, run.tokenizer)
        if config.dry_run:
            return _foretell(run)
        is_new = not run.folder.exists()
        with locked(run.folder, shared=not run.is_alone):  # parts work side by side
            try:
                return _prepare(run)
            except BaseException as error:
                if is_new and run.is_alone:
                    _remove_if_nothing_is_done(run.folder)
                if isinstance(error, PreparationError) and any(run.folder.glob("shards/*.json")):
                    error.folder = run.folder
                raise


def _foretell(run: Run) -> tuple[Prepared, list[str]]:
    """What is ahead; of a set that lies elsewhere by its records there, which do not stay."""
    with tempfile.TemporaryDirectory() as folder:
        elsewhere = Elsewhere(run.address, Path(folder)) if run.address else None
        if elsewhere is not None:
            elsewhere.bring()
        planned = _plan(run, elsewhere, Path(folder) if elsewhere else run.folder)
    if run.config.finish:
        _require_all_made(run, planned.stock, planned.source)
    ahead = _ahead(planned.missing, run.tokenizer.vocab_size, planned.source, run.config)
    return Prepared(run.address or run.folder, len(planned.missing)), ahead


def _prepare(run: Run) -> tuple[Prepared, list[str]]:
    """Makes what is missing, in a folder that is locked."""
    folder, config, bars = run.folder, run.config, run.bars
    written = (folder, *(folder / name for name in SUBFOLDERS))
    if run.is_alone:
        remove_temporary_files(*written)
    elsewhere = Elsewhere(run.address, folder) if run.address else None
    if elsewhere is not None:
        elsewhere.bring()
    former, source, stock, missing = _plan(run, elsewhere, folder)
    save_tokenizer(folder, run.tokenizer)
    if missing:
        _say(_ahead(missing, run.tokenizer.vocab_size, source, config), bars)
    failures = make_missing(stock, source, missing, config, bars)
    if run.is_alone:
        remove_temporary_files(*written)
    if failures:
        raise PreparationError(failures)
    stock.look_again()
    if config.finish or run.is_alone:
        _require_all_made(run, stock, source)
    if left := stock.missing(source.files):
        return Prepared(run.address or folder, len(left)), []
    records = in_former_order(stock.entries(source.files), former)
    dropped = still_dropped(folder, records)
    write_manifest(folder, config.dataset, run.tokenizer.facts(), records, source.facts(), dropped)
    if elsewhere is not None:
        elsewhere.close()
    return Prepared(run.address or folder, 0), changes(records, former)


def _require_all_made(run: Run, stock: Inventory, source: Source) -> None:
    if left := stock.missing(source.files):
        many = f"{counted(len(left), 'shard')} {'is' if len(left) == 1 else 'are'} not there"
        raise ValueError(f"{run.folder}: {many}, as {left[0]}; run their parts")


class _Planned(NamedTuple):
    """What was found before anything is made."""

    former: list[ShardEntry]
    source: Source  # its files in the splits that they stay in
    stock: Inventory
    missing: Missing


def _plan(run: Run, elsewhere: Elsewhere | None, folder: Path) -> _Planned:
    """Plans the set whose records are in a folder. ValueError where files that it was made of are gone."""
    former = former_entries(folder)
    require_all_there(folder, run.source.files)
    files = keep_splits(run.source.files, former, run.config.val_file is not None)
    source = replace(run.source, files=files)
    stock = _inventory(run.config, folder, run.tokenizer.fingerprint, elsewhere)
    return _Planned(former, source, stock, find_missing(stock, source, run.config, run.bars))


def _inventory(config: PrepareConfig, folder: Path, fingerprint: str, elsewhere: Elsewhere | None = None) -> Inventory:
    return Inventory(folder, fingerprint, config.reading, config.shard_text_bytes, elsewhere)


def _ahead(missing: Missing, vocab_size: int, source: Source, config: PrepareConfig) -> list[str]:
    """What is ahead, in sentences. ValueError where it cannot be fetched or written: the disk, or what lies there.

    PreparationError where nothing is made, and files cannot be planned.
    """
    outlook = missing.outlook(source, config, DTYPES[dtype_name(vocab_size)].itemsize)
    outlook.require_places()
    outlook.require_room()
    if config.dry_run and missing.failures:
        raise PreparationError(missing.failures)
    return [*outlook.lines(), *outlook.warnings()]


def _say(lines: list[str], bars: Bars) -> None:
    for line in lines:
        bars.say(line)


def _remove_if_nothing_is_done(folder: Path) -> None:
    """Leaves no folder behind that a preparation made, and made nothing in."""
    done = [path for name in (*SUBFOLDERS, "planned") for path in folder.glob(f"{name}/*")]
    if done or (folder / "manifest.json").exists():
        return
    for name in ("tokenizer.json", "token_bytes.npy"):
        (folder / name).unlink(missing_ok=True)
    for path in (*(folder / name for name in SUBFOLDERS), folder):
        with contextlib.suppress(OSError):  # not there; or something else is in it, which is not ours
            path.rmdir()
