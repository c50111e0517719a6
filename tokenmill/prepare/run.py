"""Text -> a token set: the whole story.

    list the files -> decide what validates -> plan units -> make those that are not made -> write the manifest

A unit is known before any file is opened, from names and sizes alone. Each is made by itself, on any machine, and
counts once its record is written. So a second run makes what is missing, parts need nothing but a shared destination,
and after a crash at any moment there are whole units only. Another tokenizer makes another folder.
"""

import functools
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenmill.addresses import has_scheme
from tokenmill.messages import counted, in_bytes
from tokenmill.prepare import cluster
from tokenmill.prepare.choose_tokenizer import find_tokenizer
from tokenmill.prepare.config import PreparationError, PrepareConfig
from tokenmill.prepare.destination import Destination
from tokenmill.prepare.input_files import Fetching, list_files
from tokenmill.prepare.made import Types, Work, add_types, left_out, made, shards_of
from tokenmill.prepare.make import make
from tokenmill.prepare.pool import Failure, Pool
from tokenmill.prepare.progress import Progress
from tokenmill.prepare.validation import divide, find_rule
from tokenmill.store.schema import dtype_name
from tokenmill.store.shards import DTYPES, sources_of
from tokenmill.store.token_sets import write_manifest
from tokenmill.text.plan import Unit, part_of, plan, shard_size
from tokenmill.text.source_file import SourceFile
from tokenmill.tokenize.tokenizer import Tokenizer

LITTLE_TEXT = 1 << 20  # bytes; a faster engine takes a quarter of a second to be made and proven
TEXT_IN_TOKEN = 4  # bytes of text that a token stands for, about
MOST_AHEAD = 8  # files that are fetched before their units are made, with --no-keep-raw


class Prepared(NamedTuple):
    """A token set's folder or address, and how many of its units are not made: those of other parts."""

    folder: Path | str
    missing: int
    sentences: tuple[str, ...] = ()  # what is ahead, in a dry run; else what is new in a set that has grown


def prepare(config: PrepareConfig) -> Prepared:
    """As `tokenmill.prepare` says, which needs no package before it is called."""
    with Progress() as progress, Pool(config.workers) as pool:
        if not config.dry_run and config.cluster is None:
            pool.start(make.__module__)
        files, config = list_files(config, progress.say)
        divided, sentences = divide(files, find_rule(config, files), config.train_size is None)  # else see _prepare
        tokenizer = find_tokenizer(config, divided, progress.say)
        if tokenizer is None:  # of a dry run
            units = plan(divided, config.options, config.shard_text_bytes or shard_size(divided))
            ahead = estimate(config, divided, units, config.train_size or 1)
            return Prepared(Path(config.tokens_root), len(units), (*sentences, "trains a tokenizer first", *ahead))
        name = f"{config.dataset}-{tokenizer.name}-{tokenizer.fingerprint[:8]}"
        with Destination.of(config.tokens_root, name) as destination:
            destination.fetch()
            return _prepare(config, files, tokenizer, destination, pool, progress)


def _prepare(
    config: PrepareConfig,
    files: Sequence[SourceFile],
    tokenizer: Tokenizer,
    destination: Destination,
    pool: Pool,
    progress: Progress,
) -> Prepared:
    former, shown = destination.manifest() or {}, destination.shown
    kept, listed = former.get("prepared", {}), [shard["name"] for shard in former.get("shards", ())]
    folder: Path | str = shown if destination.address else Path(shown)
    rule = find_rule(config, files, kept.get("validation"), shown)
    files, sentences = divide(files, rule, "prepared" in former)
    size = kept.get("shard_text_bytes") or config.shard_text_bytes or shard_size(files)
    if config.shard_text_bytes not in (None, size):
        raise ValueError(f"{shown}: has shards of {size:,} bytes of text; leave out --shard-text-bytes, or give --name")
    units = plan(files, config.options, size, _former_groups(former, files, shown))
    is_little = config.engine == "auto" and sum(file.text_bytes for file in files) < LITTLE_TEXT
    engine = "tiktoken" if is_little else config.engine
    work = Work(destination, config.options, tokenizer.fingerprint, engine, size, frozenset(listed))
    missing = [unit for unit in part_of(units, *config.part_of) if made(unit, work) is None]
    missing.sort(key=lambda unit: -unit.bytes)  # the longest first, so that all workers end together
    sentences += estimate(config, files, missing, tokenizer.vocab_size)
    if config.dry_run:
        return Prepared(folder, len(missing), tuple(sentences))
    for sentence in sentences:
        progress.say(sentence)

    destination.begin(tokenizer)
    if missing and (failures := _make(missing, work, config, pool, progress)):
        raise PreparationError(failures, folder)
    destination.fetch()  # what other parts have made
    records = [made(unit, work, is_last=True) for unit in units]
    if None in records:
        return Prepared(folder, records.count(None))
    shards = [shard for record in records if record is not None for shard in shards_of(record, work)]
    types: Types = {}
    for record, _ in shards:
        add_types(types, record.get("metadata", {}), sources_of(record)[0]["file"])
    for column in (column for column, (kind, _) in types.items() if kind == "null"):
        progress.say(f"warning: column {column!r} of --keep-columns has no value in any document")
    if file := destination.file_of_others({record["name"] for record, _ in shards} | {unit.name for unit in units}):
        progress.say(f"warning: {shown} has shards of {file}, which is not in the source: another part may have it")
    if not any(record["documents"] for record, split in shards if split == "train"):
        why = "; ".join(left_out(shards)) or ("the files are empty" if not shards else "all of them validate")
        raise ValueError(f"{', '.join(config.source)}: found no document to train on: {why}")
    shards.sort(key=lambda shard: shard[0]["name"] not in listed)  # those of a set that grows stay first
    origin: dict[str, Any] = {"prepared": {"validation": rule, "shard_text_bytes": size}}
    if hub := files[0].hub:
        origin["hub"] = {"repository": hub.repository, "revision": config.revision, "commit": hub.commit}
    write_manifest(destination.folder, config.dataset, tokenizer.facts(), shards, origin)
    destination.finish()
    new = [record for record, _ in shards if listed and record["name"] not in listed]
    said = f"new in this set: {in_bytes(sum(one['text_bytes'] for one in new))} of text in {counted(len(new), 'shard')}"
    return Prepared(folder, 0, (said,) * bool(new))


def _former_groups(former: dict[str, Any], files: Sequence[SourceFile], shown: str) -> list[tuple[str, ...]]:
    """The files that are together in the shards of a set that grows. ValueError if one of them is gone."""
    groups = list(dict.fromkeys(tuple(shard["sources"]) for shard in former.get("shards", ())))
    here = {file.name for file in files}
    if gone := [name for group in groups for name in group if name not in here]:
        raise ValueError(
            f"{shown}: was made of {gone[0]}{f' and {len(gone) - 1:,} more' * (len(gone) > 1)} too, which the "
            "source has no more, or under another name; put back what is missing, or give another corpus another --name"
        )
    return groups


def _make(units: list[Unit], work: Work, config: PrepareConfig, pool: Pool, progress: Progress) -> list[Failure]:
    """Makes the units here or on a cluster, with progress; what failed."""
    left = Counter(file for unit in units for file in unit.files)
    said, types = set[str](), Types()
    to_fetch = [file for file in left if not file.is_there and config.cluster is None]
    most = max(MOST_AHEAD, *(len(unit.files) for unit in units))
    fetching = Fetching(to_fetch, progress.say, len(to_fetch) if config.keep_raw else most)

    def say(text: str) -> None:  # once: every worker says it
        if text not in said:
            progress.say(text)
        said.add(text)

    def settle(unit: Unit, outcome: dict[str, Any] | Failure) -> None:
        left.subtract(unit.files)
        for file in unit.files:
            if file.hub is not None and not left[file]:
                fetching.forget()
                if isinstance(outcome, dict) and not config.keep_raw:  # if it is needed again, it is fetched again
                    Path(file.path).unlink(missing_ok=True)
        if isinstance(outcome, dict):
            add_types(types, outcome.get("metadata", {}), unit.files[0].name)

    progress.begin("preparing", sum(unit.bytes for unit in units))
    if config.cluster is None:
        failures = pool.run(functools.partial(make, work), units, progress.add, settle, say, fetching.state_of)
    else:
        failures = cluster.run(units, work, progress.add, settle, say)
    progress.end()
    return failures


def estimate(
    config: PrepareConfig, files: Sequence[SourceFile], units: Sequence[Unit], vocab_size: int
) -> Iterator[str]:
    """What is ahead to make these units, in sentences."""
    to_fetch = dict.fromkeys(file for unit in units for file in unit.files if not file.is_there)
    fetched = sum(file.bytes for file in to_fetch)
    ahead = f", {len(to_fetch):,} of them to fetch: {in_bytes(fetched)}" if to_fetch else ""
    yield counted(len(files), "file") + (ahead if units else "; all shards are made")
    text = sum(unit.text_bytes for unit in units)
    tokens = text / TEXT_IN_TOKEN * DTYPES[dtype_name(vocab_size)].itemsize
    if units:
        yield f"about {in_bytes(text)} of text to tokenize, about {in_bytes(tokens)} of token files"
    for folder, needed in ((config.raw_dir, fetched * config.keep_raw), (config.tokens_root, tokens)):
        if needed and not has_scheme(folder):
            path = Path(folder).absolute()
            free = shutil.disk_usage(next(one for one in (path, *path.parents) if one.exists())).free
            if needed > free:
                yield f"warning: about {in_bytes(needed)} are written into {folder}, where {in_bytes(free)} are free"
