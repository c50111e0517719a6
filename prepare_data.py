"""Turns shards of text into token shards, once: `python prepare_data.py --help`.

    source files -> units of work -> worker processes -> shards -> manifest.json

A unit is one shard's worth of a source file. Each worker streams its unit's documents, tokenizes,
writes, hashes and renames; tokens never cross a process boundary. The parent plans, watches and
shows progress. What is on disk already is not made again, so running the same command after a
crash, or with more source files, does only what is missing; another tokenizer is another folder.
"""

import contextlib
import functools
import io
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from config import PRESETS, PrepareConfig
from tokenmill import cluster, hub, workers
from tokenmill.engines import hard_texts, require_engine
from tokenmill.files import locked, read_json, remove_temporary_files, write_file
from tokenmill.foreign import is_foreign, load_foreign
from tokenmill.inventory import Inventory
from tokenmill.make import Made, load_encoder, make_shard
from tokenmill.progress import Bars, Meter
from tokenmill.shards import SPLITS, TokenSet, write_manifest
from tokenmill.sources import local_files, plan_units, read_documents, split_files
from tokenmill.stdlib import write_stdlib
from tokenmill.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from tokenmill.units import SourceFile, Unit
from tokenmill.workers import Failure, Feed, failure_of

PROOF_DOCUMENTS = 64  # of the source, that a foreign tokenizer is checked on


class PreparationError(Exception):
    """Some shards could not be made; the others are done. Holds (what, Failure) for each."""

    def __init__(self, failures: list[tuple[str, Failure]]):
        super().__init__(f"{len(failures)} failed")
        self.failures = failures


class Prepared(NamedTuple):
    """A token set's folder, and how many of its shards other parts have yet to make."""

    folder: Path
    missing: int


@dataclass(frozen=True)
class Source:
    """The source's files in their order; those of a hub repository may still have to be fetched."""

    files: list[SourceFile]
    downloads: hub.Downloads | None = None

    def close(self) -> None:
        if self.downloads is not None:
            self.downloads.close()

    def fetch(self, files: list[SourceFile]) -> dict[Future, SourceFile]:
        """Begins to fetch what is the hub's of these files; a Future for each."""
        return {self.downloads.start(file.name): file for file in files if self.is_fetched(file)}

    def is_fetched(self, file: SourceFile) -> bool:
        """Whether the file is the hub's, and not the user's own."""
        return self.downloads is not None and self.downloads.has(file.name)

    def is_there(self, file: SourceFile) -> bool:
        return not self.is_fetched(file) or file.path.exists()


def prepare(config: PrepareConfig) -> Prepared:
    """Prepares a token set, or what is missing of it, or this part of it; writes the manifest once all is there.

    Raises ValueError, FileNotFoundError, ConnectionError or OSError for what a user can get wrong
    before work starts, PreparationError for what went wrong with single files or shards.
    """
    with Bars() as bars, contextlib.closing(_source(config, bars)) as source:
        tokenizer = _tokenizer(config, source)
        require_engine(config.engine, tokenizer)
        folder = config.tokens_root / f"{config.dataset}-{tokenizer.name}-{tokenizer.fingerprint[:8]}"
        alone = config.part_of_all[1] == 1
        with locked(folder, shared=not alone):  # parts work side by side
            if alone:
                remove_temporary_files(folder, folder / "shards")
            _save_tokenizer(folder, tokenizer)
            stock = Inventory(folder, tokenizer.fingerprint, config.reading, config.shard_text_bytes)
            failures = _make_missing(stock, source, config, bars)
            if alone:
                remove_temporary_files(folder, folder / "shards")
            if failures:
                raise PreparationError(failures)
            _look_again(stock, source)
            missing = stock.missing(source.files)
            if missing and config.finish:
                raise ValueError(f"{folder}: {len(missing)} shards are not there, as {missing[0]}; run their parts")
            if not missing:
                entries = stock.entries(source.files)
                write_manifest(folder, config.dataset, tokenizer.facts(), entries, _origin(source))
    return Prepared(folder, len(missing))


# ---------------------------------------------------------------------------- what to prepare


def _source(config: PrepareConfig, bars: Bars) -> Source:
    val_file = None if config.val_file == "last" else config.val_file
    if config.source == "stdlib":
        return Source(split_files(local_files(str(write_stdlib(config.raw_dir, bars.say))), val_file))
    if Path(config.source).exists() or not hub.is_repository(config.source):
        return Source(split_files(local_files(config.source), val_file))
    return _hub_source(config, bars)


def _hub_source(config: PrepareConfig, bars: Bars) -> Source:
    """The first num_shards files of a repository, and its validation file."""
    folder = config.raw_dir / config.source.replace("/", "--")
    listing = hub.list_files(config.source, config.revision, folder, _commit_of_an_earlier_set(config))
    names = [file.name for file in listing.files]
    if len(names) < config.num_shards:
        raise ValueError(
            f"{config.source}: expected {config.num_shards} files, found {len(names)} at commit {listing.commit[:8]}; "
            "lower --num-shards"
        )
    taken = names[: config.num_shards]
    val_file = names[-1] if config.val_file == "last" else config.val_file
    if val_file in names and val_file not in taken:
        taken.append(val_file)
    files = split_files({name: folder / name for name in taken}, val_file)
    return Source(files, hub.Downloads(listing, folder, config.download_workers, bars))


def _commit_of_an_earlier_set(config: PrepareConfig) -> str | None:
    """The commit that a set of this data set was made from, so that another one means the same files."""
    for path in sorted(config.tokens_root.glob(f"{config.dataset}-*/manifest.json")):
        origin = read_json(path, "tokens").get("hub", {})
        if (origin.get("repository"), origin.get("revision")) == (config.source, config.revision):
            return origin["commit"]
    return None


def _origin(source: Source) -> dict:
    """What the manifest says of a hub's files."""
    if source.downloads is None:
        return {}
    return {"hub": source.downloads.listing.facts({file.name for file in source.files})}


def _tokenizer(config: PrepareConfig, source: Source) -> Tokenizer:
    if is_foreign(Path(config.tokenizer)):
        texts = [*hard_texts(()), *islice(_training_texts(config, source), PROOF_DOCUMENTS)]
        return load_foreign(Path(config.tokenizer), config.bos_token, texts)
    tokenizer = _own_tokenizer(config, source)
    if config.bos_token in (None, tokenizer.bos_token):
        return tokenizer
    if config.bos_token not in tokenizer.special_tokens:
        known = ", ".join(tokenizer.special_tokens)
        raise ValueError(f"--bos-token {config.bos_token!r}: the special tokens of {tokenizer.name} are {known}")
    return replace(tokenizer, bos_token=config.bos_token)


def _own_tokenizer(config: PrepareConfig, source: Source) -> Tokenizer:
    if not config.tokenizer.startswith("train:"):
        return load_tokenizer(config.tokenizer)
    size = config.tokenizer.removeprefix("train:")
    if not size.isdigit():
        raise ValueError(f"tokenizer {config.tokenizer!r}: expected train:N with a number of tokens, like train:32768")
    path = config.tokenizers_dir / f"{config.dataset}-bpe{size}.json"
    if path.exists():
        _say(f"using the tokenizer trained before: {path} (delete it to train anew)")
        return Tokenizer.load(path)
    if config.part_of_all[1] > 1:
        raise ValueError(f"{path}: no tokenizer yet, and parts must share one; train it by a run without --part first")
    _say(f"training a tokenizer of {int(size):,} tokens on {config.source}")
    started = time.monotonic()
    tokenizer = train_tokenizer(_training_texts(config, source), int(size), f"bpe{size}")
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(path)
    _say(f"trained in {time.monotonic() - started:.0f} s: {path}")
    return tokenizer


def _training_texts(config: PrepareConfig, source: Source) -> Iterator[str]:
    """Texts of the training files in order, up to train_text_bytes; fetches no more files than that takes."""
    left = config.train_text_bytes
    files = [file for file in source.files if file.split == "train"]
    for number, file in enumerate(files):
        for future, fetched in source.fetch(files[number : number + config.download_workers]).items():
            if fetched is file:
                future.result()
        for unit in plan_units(file, config.reading, config.shard_text_bytes):
            for documents in read_documents(unit):
                yield from documents.texts.to_pylist()
                left -= documents.text_bytes
                if left <= 0:
                    return


# ---------------------------------------------------------------------------- making shards


def _make_missing(stock: Inventory, source: Source, config: PrepareConfig, bars: Bars) -> list[tuple[str, Failure]]:
    """Makes what is missing of this part: (what, why) of each file and shard that failed.

    ValueError where no file at all can be read.
    """
    there = [file for file in source.files if source.is_there(file)]
    absent = [file for file in source.files if file not in there and not _is_done_without(stock, source, file)]
    units, failures = _plan(stock, there, config)
    if failures and not units and not absent:
        raise ValueError(failures[0][1].reason)
    units, absent = _of_this_part(source, units, absent, config)
    units = sorted((unit for unit in units if unit.name not in stock.records), key=lambda unit: -unit.text_bytes)
    planned = sum(map(len, stock.shards.values()))
    fetching = f", and {len(absent)} files to fetch first" if absent else ""
    bars.say(f"{len(stock.records)} of {planned} shards are there, {len(units)} to make{fetching}: {stock.folder}")
    if units or absent:
        failures += _make(stock, source, units, absent, config, bars)
    if not config.keep_raw:
        _delete_done(stock, source, source.files)
    return failures


def _plan(
    stock: Inventory, files: list[SourceFile], config: PrepareConfig
) -> tuple[list[Unit], list[tuple[str, Failure]]]:
    """The units of files that are there, and the files that cannot be planned."""
    units, failures = [], []
    with ThreadPoolExecutor(config.workers) as pool:  # a compressed file is read whole
        planned = [(file, pool.submit(plan_units, file, config.reading, config.shard_text_bytes)) for file in files]
    for file, future in planned:
        try:
            found = future.result()
        except ValueError as error:
            failures.append((file.name, failure_of(error)))
        else:
            stock.take(file, found)
            units += found
    return units, failures


def _is_done_without(stock: Inventory, source: Source, file: SourceFile) -> bool:
    return stock.note_without_file(file, source.downloads.size(file.name))


def _look_again(stock: Inventory, source: Source) -> None:
    """Takes note of what other parts have made since, of files too that are only there for them."""
    stock.look_again()
    for file in source.files:
        if source.is_fetched(file) and file.name not in stock.shards:
            _is_done_without(stock, source, file)


def _of_this_part(source: Source, units: list[Unit], absent: list[SourceFile], config: PrepareConfig):
    """Every N-th of the units; of a hub's, those of every N-th file, so that each part fetches its own."""
    part, parts = config.part_of_all
    if config.finish:
        return [], []
    if source.downloads is None:
        return units[part - 1 :: parts], []
    files = source.files[part - 1 :: parts]
    return [unit for unit in units if unit.file in files], [file for file in absent if file in files]


def _make(
    stock: Inventory, source: Source, units: list[Unit], absent: list[SourceFile], config: PrepareConfig, bars: Bars
) -> list[tuple[str, Failure]]:
    """Makes shards in worker processes, those of absent files as they arrive. (what, why) of what failed."""
    failures, made = [], []

    def settle(unit: Unit, outcome: Made | Failure) -> None:
        if isinstance(outcome, Failure):
            failures.append((f"shard {unit.name}", outcome))
            return
        made.append(outcome)
        stock.note(unit)
        if not config.keep_raw:
            _delete_done(stock, source, [unit.file])

    feed = Feed()
    feed.add(units)  # the longest first, so that all end together
    with Meter(bars, "preparing", sum(unit.text_bytes for unit in units)) as meter:
        feeding = (feed, stock, source, absent, meter, failures)
        threading.Thread(target=_feed, args=feeding, daemon=True, name="tokenmill-feed").start()
        folder = stock.folder.absolute()
        make, setup = functools.partial(make_shard, folder), functools.partial(load_encoder, folder, config.engine)
        run_tasks = cluster.run_tasks if config.cluster else workers.run_tasks
        run_tasks(make, feed, setup, config.workers, meter.add, settle)
    makers = "Ray" if config.cluster else f"{min(config.workers, len(feed.tasks))} workers"
    engines = " and ".join(sorted({shard.engine for shard in made}))
    bars.say(f"made {meter.rates()} in {meter.seconds:.1f} s with {makers} and {engines}")
    for shard in {(shard.engine, shard.why): shard for shard in made if shard.why}.values():
        bars.say(f"tokenized with {shard.engine}: {shard.why}")
    if referred := sum(shard.referred for shard in made):
        bars.say(f"{referred:,} documents have characters that {engines} classes otherwise; tiktoken encoded them")
    return failures


def _feed(feed: Feed, stock: Inventory, source: Source, absent: list[SourceFile], meter: Meter, failures: list) -> None:
    """Fetches the absent files, and gives the units of each to the workers as soon as it is there."""
    try:
        futures = source.fetch(absent)
        left = sum(source.downloads.size(file.name) for file in absent)
        fetched = known = 0
        for future in as_completed(futures):
            file = futures[future]
            try:
                future.result()
                units = stock.plan(file)
            except Exception as error:
                failures.append((file.name, failure_of(error)))
                continue
            left, fetched = left - source.downloads.size(file.name), fetched + source.downloads.size(file.name)
            known += sum(unit.text_bytes for unit in units)
            meter.total = known + known * left / fetched  # the files that are to come have as much text in a byte
            feed.add([unit for unit in units if unit.name not in stock.records])
    finally:
        feed.close()


def _delete_done(stock: Inventory, source: Source, files: list[SourceFile]) -> None:
    """Deletes the hub's files whose shards are all there."""
    for file in files:
        if source.is_fetched(file) and not stock.missing([file]):
            file.path.unlink(missing_ok=True)


def _save_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(folder / "tokenizer.json")
    path = folder / "token_bytes.npy"
    if not path.exists():
        data = io.BytesIO()
        np.save(data, tokenizer.token_bytes())
        write_file(path, data.getvalue())


# ---------------------------------------------------------------------------- the command


def main(arguments: list[str] | None = None) -> int:
    """Prepares as the command line says; prints a summary, and last the token set's path. The exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # stops the workers on the way out
    try:
        folder, missing = prepare(_parse(arguments))
    except PreparationError as error:
        _report(error.failures)
        return 1
    except (ValueError, OSError) as error:
        _say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        _say("interrupted; run the same command to go on from here")
        return 128 + signal.SIGINT
    if missing:
        _say(f"this part is done; {missing:,} shards of other parts are not there yet")
    else:
        _summarize(folder)
    print(folder)
    return 0


def _parse(arguments: list[str]) -> PrepareConfig:
    preset = PRESETS.get(arguments[0]) if arguments else None
    flags = arguments[1:] if preset else arguments
    import tyro  # here, as workers import this module too

    return tyro.cli(PrepareConfig, args=flags, default=preset or PrepareConfig(), prog="prepare_data.py")


def _report(failures: list[tuple[str, Failure]]) -> None:
    for what, failure in failures:
        _say(f"failed: {what}: {failure.reason}")
        if failure.traceback:
            _say(failure.traceback)
    _say(f"error: {len(failures)} failed, all others are done; mend the cause and run the same command again")


def _summarize(folder: Path) -> None:
    token_set = TokenSet(folder)
    facts, itemsize = token_set.manifest, token_set.numpy_dtype.itemsize
    print(
        f"{facts['dataset']}, tokenizer {token_set.tokenizer['name']} of {token_set.tokenizer['vocab_size']:,} tokens"
    )
    for split in SPLITS:
        entries = token_set.split(split)
        documents, tokens = sum(entry.documents for entry in entries), sum(entry.tokens for entry in entries)
        size = f"{tokens * itemsize / 1e6:10,.1f} MB"
        print(f"  {split:5} {len(entries):6,} shards {documents:12,} documents {tokens:16,} tokens {size}")
    print(f"  {facts['text_bytes'] / max(1, facts['tokens']):.2f} bytes of text a token")
    print(f"  left out: {facts['null_documents']:,} null and {facts['empty_documents']:,} empty documents")
    if facts["broken_lines"]:
        print(f"  left out: {facts['broken_lines']:,} broken lines")
    if facts["repaired_documents"]:
        print(f"  mended: {facts['repaired_documents']:,} documents that were not UTF-8 (bad bytes became U+FFFD)")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    import prepare_data  # by its name, so that workers find make_shard in a module that they can import

    sys.exit(prepare_data.main())
