"""Turns files of text into token shards, once.

    source files -> units of work -> worker processes -> shards -> manifest.json

A unit makes one shard. Each worker streams its unit's documents, tokenizes, writes, hashes and renames;
tokens never cross a process boundary. The parent lists the files, plans, watches and shows progress.
What is on disk already is not made again: the same command after a crash, or with more source files,
makes only what is missing. Another tokenizer makes another folder.

The configuration flows one way: list, plan, make, finish.
"""

import contextlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tokenmill.addresses import joined
from tokenmill.humanize import counted
from tokenmill.prepare.choose_tokenizer import find_tokenizer, must_train, save_tokenizer
from tokenmill.prepare.cores import available_cores
from tokenmill.prepare.estimate import estimate, split_line
from tokenmill.prepare.execute import make_missing
from tokenmill.prepare.fork_server import ForkServer
from tokenmill.prepare.input_files import InputFiles, list_input_files
from tokenmill.prepare.inventory import Inventory, any_record
from tokenmill.prepare.outcomes import PreparationError, Prepared
from tokenmill.prepare.plan import Missing, find_missing
from tokenmill.prepare.prepare_config import PrepareConfig
from tokenmill.prepare.progress import Bars
from tokenmill.prepare.splits import (
    changes,
    divide_as_before,
    former_entries,
    in_former_order,
    keep_splits,
    require_all_there,
)
from tokenmill.store.files import remove_temporary_files
from tokenmill.store.locked import locked
from tokenmill.store.schema import dtype_name
from tokenmill.store.shards import DTYPES, ShardEntry
from tokenmill.store.token_sets import SMALL_FILES, write_manifest
from tokenmill.text.document_split import require_documents
from tokenmill.tokenize.encoder import require_engine
from tokenmill.tokenize.tokenizer import Tokenizer

SUBFOLDERS = ("shards", "manifests")

if TYPE_CHECKING:
    from tokenmill.prepare.upload import BucketUpload

PRELOAD = ("tokenmill.prepare.make", "tiktoken", "gigatoken")  # what workers import, while files are listed


def prepare(config: PrepareConfig) -> Prepared:
    """`prepare_and_describe`, without the sentences."""
    return prepare_and_describe(config)[0]


def prepare_and_describe(config: PrepareConfig) -> tuple[Prepared, list[str]]:
    """Prepares a token set, or what is missing of it, or this part of it; writes the manifest once all shards are made.

    The sentences say how the splits of an existing set have changed. With `dry_run` nothing is made, and they say what
    is ahead.

    Raises ValueError, FileNotFoundError, ConnectionError or OSError for what a user can get wrong
    before work starts, PreparationError for what went wrong with single files or shards.
    """
    with contextlib.ExitStack() as stack:
        server = None if config.cluster or config.dry_run else ForkServer(PRELOAD)
        if server is not None:
            stack.callback(server.kill)
        bars = stack.enter_context(Bars())
        inputs = stack.enter_context(contextlib.closing(list_input_files(config, bars)))
        if config.workers > (cores := available_cores()) and config.cluster is None:
            bars.say(f"warning: {config.workers} workers for {cores} cores: more memory, and no more speed")
        if must_train(config) and (config.dry_run or inputs.downloads is not None):
            prepared, ahead = _describe_before_training(config, inputs, bars)
            if config.dry_run:
                return prepared, ahead
            _say(ahead, bars)  # before training fetches some of the files
        tokenizer = find_tokenizer(config, inputs, bars.say)
        require_engine(config.engine, tokenizer)
        job = _Job(config, inputs, tokenizer, bars, server)
        if config.dry_run:
            return _dry_run(job)
        is_new = not job.folder.exists()
        with locked(job.folder, shared=job.shares_its_folder):
            try:
                return _prepare(job)
            except BaseException as error:
                if is_new and job.makes_all:
                    _remove_if_nothing_is_done(job.folder)
                if isinstance(error, PreparationError) and any(job.folder.glob("shards/*.json")):
                    error.folder = job.folder
                raise


@dataclass(frozen=True)
class _Job:
    """One preparation: what it reads, with which tokenizer, and where it writes."""

    config: PrepareConfig
    inputs: InputFiles
    tokenizer: Tokenizer
    bars: Bars
    server: ForkServer | None  # which starts workers

    @property
    def name(self) -> str:
        return f"{self.config.dataset}-{self.tokenizer.name}-{self.tokenizer.fingerprint[:8]}"

    @property
    def folder(self) -> Path:
        """The local folder that the set is made in."""
        return self.config.root / self.name

    @property
    def address(self) -> str | None:
        """Where the set is uploaded to; None if it stays in its folder."""
        address = self.config.address
        return address and joined(address, self.name)

    @property
    def shares_its_folder(self) -> bool:
        """Whether runs of other parts may be in the folder, too. Each part of a set in a bucket has its own."""
        return not self.makes_all and self.address is None

    @property
    def makes_all(self) -> bool:
        """Whether this run makes all parts."""
        return self.config.parts == 1


class _Plan(NamedTuple):
    """What is known before anything is made."""

    former: list[ShardEntry]
    inputs: InputFiles  # with the files in the splits that they stay in
    inventory: Inventory
    missing: Missing


def _upload(address: str | None, folder: Path) -> "BucketUpload | None":
    if address is None:
        return None
    from tokenmill.prepare.upload import BucketUpload  # and urllib, ssl: a twentieth of a second

    return BucketUpload(address, folder)


def _plan(job: _Job, upload: "BucketUpload | None", folder: Path) -> _Plan:
    """Plans the set whose records are in a folder. ValueError if files that it was made of are gone."""
    config = job.config
    former = former_entries(folder)
    named = (config.val_file, config.val_fraction) != (None, None)
    files = divide_as_before(job.inputs.files, former, any_record(folder), named, folder)
    require_documents(files, config.options)
    require_all_there(folder, files)
    files = keep_splits(files, former, named)
    inputs = replace(job.inputs, files=files)
    fingerprint = job.tokenizer.fingerprint
    inventory = Inventory(folder, fingerprint, config.options, files, config.shard_text_bytes, upload)
    missing = find_missing(inventory, inputs, config, config.dry_run, job.bars.say)
    return _Plan(former, inputs, inventory, missing)


def _describe_before_training(config: PrepareConfig, inputs: InputFiles, bars: Bars) -> tuple[Prepared, list[str]]:
    """What is ahead of a set whose tokenizer is not trained yet."""
    size = config.train_size
    assert size is not None, "another tokenizer is not trained"
    folder = config.root / f"{config.dataset}-bpe{size}-not-trained-yet"
    inventory = Inventory(folder, "", config.options, inputs.files, config.shard_text_bytes)
    missing = find_missing(inventory, inputs, config, True, bars.say)
    return Prepared(folder, len(missing)), _ahead(missing, inputs, config, size)


def _dry_run(job: _Job) -> tuple[Prepared, list[str]]:
    """What is ahead. The records of a set in a bucket are fetched into a folder that does not stay."""
    with tempfile.TemporaryDirectory() as folder:
        upload = _upload(job.address, Path(folder))
        if upload is not None:
            upload.fetch_records()
        plan = _plan(job, upload, Path(folder) if upload else job.folder)
    ahead = _ahead(plan.missing, plan.inputs, job.config, job.tokenizer.vocab_size)
    return Prepared(job.address or job.folder, len(plan.missing)), ahead


def _prepare(job: _Job) -> tuple[Prepared, list[str]]:
    """Makes what is missing, in a folder that is locked."""
    folder, config = job.folder, job.config
    written = (folder, *(folder / name for name in SUBFOLDERS))
    if job.makes_all:
        remove_temporary_files(*written)
    upload = _upload(job.address, folder)
    if upload is not None:
        upload.fetch_records()
    former, inputs, inventory, missing = _plan(job, upload, folder)
    save_tokenizer(folder, job.tokenizer)
    if missing:
        _say(_ahead(missing, inputs, config, job.tokenizer.vocab_size), job.bars)
    failures = make_missing(inventory, inputs, missing, job.tokenizer, config, job.bars, job.server)
    if job.makes_all:
        remove_temporary_files(*written)
    if failures:
        raise PreparationError(failures)
    inventory.look_again()
    if left := inventory.missing(inputs.files):
        if job.makes_all:
            raise ValueError(f"{folder}: {counted(len(left), 'shard')} not made, as {left[0]}; run it again")
        return Prepared(job.address or folder, len(left)), []
    records = in_former_order(inventory.entries(inputs.files), former)
    write_manifest(folder, config.dataset, job.tokenizer.facts(), records, inputs.facts())
    if upload is not None:
        upload.finish()
    return Prepared(job.address or folder, 0), changes(records, former)


def _ahead(missing: Missing, inputs: InputFiles, config: PrepareConfig, vocab_size: int) -> list[str]:
    """What is ahead, in sentences. ValueError if it cannot be fetched or written.

    PreparationError if this is a dry run, and files cannot be planned.
    """
    kept_in = config.root if config.address is None else None
    itemsize = DTYPES[dtype_name(vocab_size)].itemsize
    found = estimate(missing, inputs, Path(config.raw_dir), kept_in, itemsize)
    found.require_folders()
    found.require_room()
    if config.dry_run and missing.failures:
        raise PreparationError(missing.failures)
    split = [split_line(inputs.files)] if config.dry_run else []  # later, the summary says it
    return [*found.lines(), *split, *found.warnings()]


def _say(lines: list[str], bars: Bars) -> None:
    for line in lines:
        bars.say(line)


def _remove_if_nothing_is_done(folder: Path) -> None:
    """Removes the folder of a preparation that made nothing."""
    done = [path for name in (*SUBFOLDERS, "planned") for path in folder.glob(f"{name}/*")]
    if done or (folder / "manifest.json").exists():
        return
    for name in SMALL_FILES:
        (folder / name).unlink(missing_ok=True)
    for path in (*(folder / name for name in SUBFOLDERS), folder):
        with contextlib.suppress(OSError):  # it does not exist, or has something else in it
            path.rmdir()
