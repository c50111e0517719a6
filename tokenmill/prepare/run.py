"""Text -> a token set: the whole story.

    list the files -> decide what validates -> plan units -> make those that are not made -> write the manifest

A unit is known before any file is opened, from names and sizes alone. Each is made by itself, on any machine, and
counts once its record is written. So a second run makes what is missing, parts need nothing but a shared destination,
and after a crash at any moment there are whole units only. Another tokenizer makes another folder.
"""

import contextlib
import functools
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenmill.humanize import in_bytes
from tokenmill.prepare import cluster
from tokenmill.prepare.choose_tokenizer import find_tokenizer
from tokenmill.prepare.config import PrepareConfig
from tokenmill.prepare.destination import Destination
from tokenmill.prepare.estimate import estimate
from tokenmill.prepare.failures import Failure, PreparationError
from tokenmill.prepare.fetching import Fetching
from tokenmill.prepare.input_files import earlier_rule, hub_facts, list_files
from tokenmill.prepare.made import Work, column_types, difference, left_out, made, shards_of
from tokenmill.prepare.make import Made, make
from tokenmill.prepare.pool import Pool
from tokenmill.prepare.progress import Progress
from tokenmill.prepare.validation import Rule, divide, find_rule
from tokenmill.prepare.worker import ENCODER, encoder_of, tell_server
from tokenmill.prepare.worker import __name__ as WORKER
from tokenmill.store.files import remove_temporary_files
from tokenmill.store.shards import Split
from tokenmill.store.token_sets import write_manifest, write_token_bytes
from tokenmill.text.plan import Unit, part_of, plan, shard_size
from tokenmill.text.source_file import SourceFile
from tokenmill.tokenize.tokenizer import Tokenizer

LITTLE_TEXT = 1 << 20  # bytes; a faster engine takes a quarter of a second to be made and proven
MOST_AHEAD = 8  # files that are fetched before their units are made, with --no-keep-raw
Shards = list[tuple[dict[str, Any], Split]]


class Prepared(NamedTuple):
    """A token set's folder or address, and how many of its units are not made: those of other parts."""

    folder: Path | str
    missing: int
    sentences: tuple[str, ...] = ()  # what is ahead, in a dry run; else what is new in a set that has grown


def prepare(config: PrepareConfig) -> Prepared:
    """Prepares a token set, or what is missing of it, or this part of it; writes the manifest once all units are made.

    Raises ValueError, FileNotFoundError, ConnectionError or OSError for what a user can get wrong before work starts,
    PreparationError for what went wrong with single units.
    """
    with Progress() as progress, Pool(config.workers) as pool, tempfile.TemporaryDirectory(prefix="tokenmill-") as own:
        if not config.dry_run and config.cluster is None:
            pool.start(WORKER, {ENCODER: f"{os.getpid()} {own}/encoder"})
        files, config = list_files(config, progress.say)
        divided, sentences = divide(
            files, find_rule(config, files, None, config.dataset, earlier := earlier_rule(config)), bool(earlier)
        )
        tokenizer = find_tokenizer(config, divided, progress.say)
        if tokenizer is None:  # of a dry run
            units = plan(divided, config.options, config.shard_text_bytes or shard_size(divided))
            ahead = (*sentences, "trains a tokenizer first", *estimate(config, divided, units, config.train_size or 1))
            return Prepared(Path(config.tokens_root), len(units), ahead)
        name = f"{config.dataset}-{tokenizer.name}-{tokenizer.fingerprint[:8]}"
        with Destination.of(config.tokens_root, name) as destination:
            destination.fetch()
            return _prepare(config, files, earlier, tokenizer, destination, pool, progress, Path(own) / "encoder")


def _prepare(
    config: PrepareConfig,
    files: Sequence[SourceFile],
    earlier: Rule,
    tokenizer: Tokenizer,
    destination: Destination,
    pool: Pool,
    progress: Progress,
    server: Path,
) -> Prepared:
    former = destination.manifest() or {}
    kept, shown = former.get("prepared", {}), destination.shown
    folder: Path | str = shown if destination.address else Path(shown)
    files, sentences = divide(
        files,
        rule := find_rule(config, files, kept.get("validation"), shown, earlier_rule(config)),
        "prepared" in former,
    )
    size = kept.get("shard_text_bytes") or config.shard_text_bytes or shard_size(files)
    if config.shard_text_bytes not in (None, size):
        raise ValueError(f"{shown}: has shards of {size:,} bytes of text; leave out --shard-text-bytes, or give --name")
    units = plan(files, config.options, size, _former_groups(former, files, shown))
    is_little = config.engine == "auto" and sum(file.text_bytes for file in files) < LITTLE_TEXT
    engine, listed = "tiktoken" if is_little else config.engine, [shard["name"] for shard in former.get("shards", ())]
    stamp = destination.stamp()
    work = Work(destination, config.options, tokenizer.fingerprint, engine, size, stamp, frozenset(listed))
    missing = [unit for unit in part_of(units, *config.part_of) if made(unit, work) is None]
    missing.sort(key=lambda unit: -unit.bytes)  # the longest first, so that all workers end together
    sentences += estimate(config, files, missing, tokenizer.vocab_size)
    if config.dry_run:
        return Prepared(folder, len(missing), tuple(sentences))
    for sentence in sentences:
        progress.say(sentence)

    with _removed_if_unused(destination.folder):
        tokenizer.save(destination.folder / "tokenizer.json")
        write_token_bytes(destination.folder, tokenizer.token_bytes())
        tell_server(server, destination.folder / "tokenizer.json", engine)
        destination.begin()
        if missing and (failures := _make(missing, files, work, config, pool, progress)):
            raise PreparationError(failures, folder)
    destination.fetch()  # what other parts have made
    records = {unit.name: made(unit, work) for unit in units}
    if left := [unit for unit in units if records[unit.name] is None]:
        for unit in left:
            record = destination.record(unit.name)
            if record is not None and (problem := difference(record, unit, work)):
                raise ValueError(
                    f"{shown}: another run made {unit.name} with other settings: {problem}; run this again"
                )
        return Prepared(folder, len(left))
    shards = [shard for record in records.values() if record is not None for shard in shards_of(record, work)]
    column_types(record for record, _ in shards)
    if file := destination.file_of_others({record["name"] for record, _ in shards} | records.keys()):
        progress.say(f"warning: {shown} has shards of {file}, which is not in the source: another part may have it")
    if not any(record["documents"] for record, split in shards if split == "train"):
        if not former:
            shutil.rmtree(destination.folder)
        why = "; ".join(left_out(shards)) or ("the files are empty" if not shards else "all of them validate")
        raise ValueError(f"{', '.join(config.source)}: found no document to train on: {why}")
    places = {name: place for place, name in enumerate(listed)}
    shards.sort(key=lambda shard: places.get(shard[0]["name"], len(places)))  # those of a set that grows stay first
    origin = {"prepared": {"validation": rule, "shard_text_bytes": size}, **hub_facts(files, config)}
    write_manifest(destination.folder, config.dataset, tokenizer.facts(), shards, origin)
    destination.finish()
    return Prepared(folder, 0, tuple(_new(shards, listed)))


def _former_groups(former: dict[str, Any], files: Sequence[SourceFile], shown: str) -> list[tuple[str, ...]]:
    """The files that are together in the shards of a set that grows. ValueError if one of them is gone."""
    groups = list(dict.fromkeys(tuple(shard["sources"]) for shard in former.get("shards", ())))
    here = {file.name for file in files}
    if gone := [name for group in groups for name in group if name not in here]:
        raise ValueError(
            f"{shown}: was made of {gone[0]}{f' and {len(gone) - 1:,} more' * (len(gone) > 1)} too, not in the source "
            "any more; put back what is missing, or, if this is another corpus, give it another --name"
        )
    return groups


def _make(
    units: list[Unit],
    files: Sequence[SourceFile],
    work: Work,
    config: PrepareConfig,
    pool: Pool,
    progress: Progress,
) -> list[Failure]:
    """Makes the units here or on a cluster, with progress; what failed."""
    left = Counter(file for unit in units for file in unit.files)
    engines, columns = set[tuple[str, str]](), dict[str, tuple[str, str]]()
    to_fetch = [file for file in left if not file.is_there and config.cluster is None]
    most = max(MOST_AHEAD, *(len(unit.files) for unit in units))
    fetching = Fetching(to_fetch, progress.say, len(to_fetch) if config.keep_raw else most)

    def tell(engine: tuple[str, str]) -> None:
        name, why = engine
        if engine not in engines:
            progress.say(f"tokenizing with {name}" + f", which is slower and gives the same ids: {why}" * bool(why))
        engines.add(engine)

    def settle(unit: Unit, outcome: Made | Failure) -> None:
        left.subtract(unit.files)
        done = [file for file in unit.files if file.hub is not None and not left[file]]
        for _ in done:
            fetching.forget()
        if isinstance(outcome, Made):
            column_types([outcome.record], columns)
            _delete(done if not config.keep_raw else ())

    progress.begin("preparing", sum(unit.bytes for unit in units))
    if config.cluster is None:
        setup = functools.partial(encoder_of, work.destination.folder / "tokenizer.json", work.engine)
        function = functools.partial(make, work)
        failures = pool.run(function, units, setup, progress.add, settle, tell, fetching.state_of)
    else:
        failures = cluster.run(units, work, progress.add, settle, tell)
    progress.end()
    _delete([file for file in files if file.hub and not left[file]] if not config.keep_raw else ())
    return failures


def _delete(files: Iterable[SourceFile]) -> None:
    """Deletes files of the hub from this disk; if they are needed again, they are fetched again."""
    for file in files:
        Path(file.path).unlink(missing_ok=True)


@contextlib.contextmanager
def _removed_if_unused(folder: Path) -> Iterator[None]:
    """Removes the folder of a set that begins here, if an error comes before anything of it is made."""
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        remove_temporary_files(folder / "shards")
        if is_new and not any(folder.glob("shards/*")):  # nor is another run at work in it
            shutil.rmtree(folder)
        raise


def _new(shards: Shards, listed: list[str]) -> Iterator[str]:
    """What is new in a set that has grown, in sentences."""
    new = [record for record, _ in shards if record["name"] not in listed]
    if listed and new:
        size = in_bytes(sum(record["text_bytes"] for record in new))
        yield f"new in this set: {size} of text, in shards {', '.join(record['name'] for record in new[:5])}"
        yield "positions of before continue over the files that they know, and take new ones in with the next epoch"
