"""Text -> a token set: the whole story.

    list the files -> decide what validates -> plan units -> make those that are not made -> write the manifest

A unit is known before any file is opened, from names and sizes alone. Each is made by itself, on any machine, and
counts once its record is written. So a second run makes what is missing, parts need nothing but a shared destination,
and after a crash at any moment there are whole units only. Another tokenizer makes another folder.
"""

import contextlib
import functools
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tokenmill.addresses import has_scheme
from tokenmill.humanize import counted, in_bytes
from tokenmill.prepare import cluster
from tokenmill.prepare.choose_tokenizer import find_tokenizer
from tokenmill.prepare.config import PrepareConfig, available_cores
from tokenmill.prepare.destination import Destination
from tokenmill.prepare.estimate import estimate
from tokenmill.prepare.fetching import Fetching
from tokenmill.prepare.made import COUNTED, Work, column_types, made, shards_of
from tokenmill.prepare.make import Made, make
from tokenmill.prepare.pool import Failure, Pool
from tokenmill.prepare.progress import Bars, Meter
from tokenmill.prepare.validation import LAST, divide, find_rule
from tokenmill.prepare.worker import ENCODER, encoder_of, tell_server
from tokenmill.prepare.worker import __name__ as WORKER
from tokenmill.store.files import read_json, remove_temporary_files
from tokenmill.store.shards import ShardEntry, sources_of
from tokenmill.store.token_sets import write_manifest, write_token_bytes
from tokenmill.text.listing import list_sources
from tokenmill.text.plan import Unit, part_of, plan, shard_size
from tokenmill.text.source_file import SourceFile
from tokenmill.tokenize.encoder import require_engine
from tokenmill.tokenize.tokenizer import Tokenizer

LITTLE_TEXT = 1 << 20  # bytes; a faster engine takes a quarter of a second to be made and proven
SEPARATORS = ("<|endoftext|>", "\n\n", "\n")  # of which one is suggested for a file that is one document
READ_FOR_IT = 1 << 20  # bytes
MOST_AHEAD = 8  # files that are fetched before their units are made, with --no-keep-raw


class Prepared(NamedTuple):
    """A token set's folder or address, and how many of its units are not made: those of other parts."""

    folder: Path | str
    missing: int
    sentences: tuple[str, ...] = ()  # what is ahead, in a dry run; else what is new in a set that has grown


class PreparationError(Exception):
    """Some units could not be made; the others are done. `failures` says which; `folder` has what is done."""

    def __init__(self, failures: list[Failure], folder: Path | str):
        reasons = "; ".join(dict.fromkeys(failure.reason for failure in failures))
        super().__init__(f"{len(failures)} failed, all others are done: {reasons}")
        self.failures, self.folder = failures, folder


def prepare(config: PrepareConfig) -> Prepared:
    """Prepares a token set, or what is missing of it, or this part of it; writes the manifest once all units are made.

    Raises ValueError, FileNotFoundError, ConnectionError or OSError for what a user can get wrong before work starts,
    PreparationError for what went wrong with single units.
    """
    with Bars() as bars, Pool(config.workers) as pool, tempfile.TemporaryDirectory(prefix="tokenmill-") as server:
        if not config.dry_run and config.cluster is None:
            pool.start(WORKER, {ENCODER: f"{server}/encoder"})
        if config.workers > (cores := available_cores()) and config.cluster is None:
            bars.say(f"warning: {config.workers} workers for {cores} cores: more memory, and no more speed")
        files, config = _list(config, bars)
        divided, _ = divide(files, find_rule(config, files, None, config.dataset))
        tokenizer = find_tokenizer(config, divided, bars.say)
        if tokenizer is None:  # of a dry run
            units = plan(divided, config.options, config.shard_text_bytes or shard_size(divided))
            ahead = tuple(estimate(config, files, units, config.train_size or 1))
            return Prepared(Path(config.tokens_root) / f"{config.dataset}-bpe{config.train_size}", len(units), ahead)
        require_engine(config.engine, tokenizer)
        name = f"{config.dataset}-{tokenizer.name}-{tokenizer.fingerprint[:8]}"
        with Destination.of(config.tokens_root, name) as destination:
            destination.fetch()
            return _prepare(config, files, tokenizer, destination, pool, bars, Path(server) / "encoder")


def _prepare(
    config: PrepareConfig,
    files: list[SourceFile],
    tokenizer: Tokenizer,
    destination: Destination,
    pool: Pool,
    bars: Bars,
    server: Path,
) -> Prepared:
    shown = destination.shown if destination.address else Path(destination.shown)
    former = destination.manifest() or {}
    kept = former.get("prepared", {})
    files, sentences = divide(files, rule := find_rule(config, files, kept.get("validation"), destination.shown))
    size = kept.get("shard_text_bytes") or config.shard_text_bytes or shard_size(files)
    if config.shard_text_bytes not in (None, size):
        raise ValueError(f"{shown}: has shards of {size:,} bytes of text; leave out --shard-text-bytes, or give --name")
    units = plan(files, config.options, size, _former_groups(former, files, shown))
    is_little = config.engine == "auto" and sum(file.text_bytes for file in files) < LITTLE_TEXT
    listed = frozenset(shard["name"] for shard in former.get("shards", ()))
    engine = "tiktoken" if is_little else config.engine
    work = Work(destination, config.options, tokenizer.fingerprint, engine, size, listed)

    missing = [unit for unit in part_of(units, *config.part_of) if made(unit, work) is None]
    missing.sort(key=lambda unit: -unit.bytes)  # the longest first, so that all workers end together
    ahead = [*sentences, *estimate(config, files, missing, tokenizer.vocab_size)]
    if config.dry_run:
        return Prepared(shown, len(missing), tuple(ahead))
    for sentence in ahead:
        bars.say(sentence)
    with _removed_if_unused(destination.folder):
        tokenizer.save(destination.folder / "tokenizer.json")
        write_token_bytes(destination.folder, tokenizer.token_bytes())
        tell_server(server, destination.folder / "tokenizer.json", engine)
        destination.begin()
        if missing and (failures := _make(missing, files, work, config, pool, bars)):
            raise PreparationError(failures, shown)
    destination.fetch()  # what other parts have made
    records = [made(unit, work) for unit in units]
    if left := records.count(None):
        if config.part is None:
            unit = units[records.index(None)]
            raise ValueError(f"{shown}: {unit.name} was made by another run with other settings; run this one again")
        return Prepared(shown, left)
    shards = [shard for record in records if record is not None for shard in shards_of(record, work)]
    column_types(record for record, _ in shards)
    if not any(record["documents"] for record, split in shards if split == "train"):
        if not former:
            shutil.rmtree(destination.folder)
        raise ValueError(f"{', '.join(config.source)}: found no document to train on{_why(shards)}")
    places = {name: place for place, name in enumerate(shard["name"] for shard in former.get("shards", ()))}
    shards.sort(key=lambda shard: places.get(shard[0]["name"], len(places)))  # those of a set that grows stay first
    origin = {"prepared": {"validation": rule, "shard_text_bytes": size}, **_hub_facts(files, config)}
    write_manifest(destination.folder, config.dataset, tokenizer.facts(), shards, origin)
    destination.finish()
    return Prepared(shown, 0, tuple(_new(shards, former)))


def _list(config: PrepareConfig, bars: Bars) -> tuple[list[SourceFile], PrepareConfig]:
    """The files to read, with a file from elsewhere that validates; --val-file then has its name among them."""
    listing = list_sources(config.source, Path(config.raw_dir), config.revision, _commit_of_earlier_set(config))
    for line in listing.left_out:
        bars.say(f"left out {line}")
    files, names = listing.files, [file.name for file in listing.files]
    if config.num_shards is not None:
        if config.num_shards > len(files):
            raise ValueError(f"expected {config.num_shards} files, found {len(files)}; give a smaller --num-shards")
        taken = files[: config.num_shards]
        last = files[-1:] if config.val_file == LAST else [file for file in files if file.name == config.val_file]
        files = taken + [file for file in last if file not in taken]
    if (val := config.val_file) not in (None, LAST, *names) and (has_scheme(val or "") or Path(val or "").is_file()):
        (other,) = list_sources([val or ""]).files
        same = [file.name for file in files if file.path == other.path]
        name = same[0] if same else f"val/{other.name}" if other.name in names else other.name
        files = files if same else [*files, replace(other, name=name)]
        config = replace(config, val_file=name)
    _require_documents(files, config)
    return files, config


def _require_documents(files: list[SourceFile], config: PrepareConfig) -> None:
    """ValueError if the only file is one document, which cannot be split."""
    file = files[0]
    if len(files) > 1 or not file.format.is_text or config.document_separator is not None:
        return
    with file.open_text()[0] as stream:
        start = stream.read(READ_FOR_IT).decode("utf-8", "replace")
    found = [repr(separator) for separator in SEPARATORS if separator in start]
    advice = f", as --document-separator {found[0]}" if found else " by --document-separator"
    raise ValueError(
        f"{file.shown}: found this one file, which is one document, so nothing would be left to validate with; say "
        f"what separates its documents{advice}, or add files"
    )


def _commit_of_earlier_set(config: PrepareConfig) -> str | None:
    """The commit that a set of this data set was made from, so that another set is made from the same files."""
    root = Path(config.tokens_root)
    for path in [] if has_scheme(config.tokens_root) else sorted(root.glob(f"{config.dataset}-*/manifest.json")):
        made_from = read_json(path, "tokens").get("hub", {})
        if made_from.get("revision") == config.revision and made_from["repository"] in config.source[0]:
            return str(made_from["commit"])
    return None


def _hub_facts(files: list[SourceFile], config: PrepareConfig) -> dict[str, Any]:
    """What a manifest says about where its text is from: files of a hub."""
    named = [(file, file.hub) for file in files if file.hub is not None]
    if not named:
        return {}
    listed = [
        {"name": file.name, "bytes": file.bytes, "sha256": hub.sha256, "git_sha1": hub.git_sha1} for file, hub in named
    ]
    hub = named[0][1]
    where = {"repository": hub.repository, "revision": config.revision, "commit": hub.commit}
    return {"hub": where | {"files": listed}}


def _former_groups(former: dict[str, Any], files: list[SourceFile], shown: Path | str) -> list[tuple[str, ...]]:
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
    units: list[Unit], files: list[SourceFile], work: Work, config: PrepareConfig, pool: Pool, bars: Bars
) -> list[Failure]:
    """Makes the units here or on a cluster, with progress; what failed."""
    left = Counter(file for unit in units for file in unit.files)
    engines, made_of, columns = set[tuple[str, str]](), list[Made](), dict[str, str]()
    to_fetch = [file for file in left if not file.is_there and config.cluster is None]
    most = max(MOST_AHEAD, *(len(unit.files) for unit in units))
    fetching = Fetching(to_fetch, bars, len(to_fetch) if config.keep_raw else most)

    def tell(engine: tuple[str, str]) -> None:
        name, why = engine
        if engine not in engines:
            bars.say(f"tokenizing with {name}" + f", which is slower and gives the same ids: {why}" * bool(why))
        engines.add(engine)

    def settle(unit: Unit, outcome: Made | Failure) -> None:
        left.subtract(unit.files)
        for file in unit.files:
            if file.hub is not None and not left[file]:
                fetching.forget(file)
        if isinstance(outcome, Failure):
            return
        made_of.append(outcome)
        for name, kind in outcome.columns.items():
            if "null" not in (kind, columns.setdefault(name, kind)) and kind != columns[name]:
                column_types(record for other in units for record, _ in _shards_made(other, work))  # which raises
            columns[name] = kind if columns[name] == "null" else columns[name]
        if not config.keep_raw:
            _delete([file for file in unit.files if not left[file]])

    with Meter(bars, "preparing", sum(unit.bytes for unit in units)) as meter:
        if config.cluster is None:
            setup = functools.partial(encoder_of, work.destination.folder / "tokenizer.json", work.engine)
            function = functools.partial(make, work)
            failures = pool.run(function, units, setup, meter.add, settle, tell, fetching.state_of)
        else:
            failures = cluster.run(units, work, meter.add, settle, tell)
        if made_of:
            bars.say(f"made {meter.rates()} in {meter.seconds:.1f} s")
    if referred := sum(one.referred for one in made_of):
        bars.say(f"{counted(referred, 'document')} encoded by the slower reference, for the characters in them")
    if not config.keep_raw:
        _delete([file for file in files if not left[file]])
    return failures


def _delete(files: Iterable[SourceFile]) -> None:
    """Deletes files of the hub from this disk; if they are needed again, they are fetched again."""
    for file in files:
        if file.hub is not None:
            Path(file.path).unlink(missing_ok=True)


def _shards_made(unit: Unit, work: Work) -> list[tuple[dict[str, Any], Any]]:
    record = made(unit, work)
    return shards_of(record, work) if record is not None else []


@contextlib.contextmanager
def _removed_if_unused(folder: Path) -> Iterator[None]:
    """Removes the folder of a set that begins here, if an error comes before anything of it is made."""
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if is_new and not any(folder.glob("shards/*.json")):
            for path in (folder / "shards", folder / "manifests"):
                remove_temporary_files(path)
                with contextlib.suppress(OSError):  # another run is at work in it
                    path.rmdir()
            if not (folder / "shards").exists():
                shutil.rmtree(folder)
        raise


def _why(shards: list[tuple[dict[str, Any], Any]]) -> str:
    """What was left out of a set without documents."""
    reasons, first = Counter[str](), dict[str, str]()
    for record, _ in shards:
        names = [name for name in COUNTED if record.get(name) and name != "refused_conversations"]
        found = {name.replace("_", " "): record[name] for name in names}
        found |= {f"conversations: {reason}": many for reason, many in record.get("refused", {}).items()}
        reasons.update(found)
        for reason in found:
            first.setdefault(reason, sources_of(record)[0]["file"])
    told = [f"; {many:,} {reason} (the first in {first[reason]})" for reason, many in reasons.most_common(5)]
    return "".join(told) or "; the files are empty"


def _new(shards: list[tuple[dict[str, Any], Any]], former: dict[str, Any]) -> Iterator[str]:
    """What is new in a set that has grown, in sentences."""
    before = {name for shard in former.get("shards", ()) for name in shard["sources"]}
    entries = [ShardEntry.of_record(record, split) for record, split in shards]
    new = dict.fromkeys(name for entry in entries for name in entry.sources if name not in before)
    if before and new:
        size = in_bytes(sum(e.text_bytes for e in entries if set(e.sources) & new.keys()))
        yield f"new in this set: {size} of text, from {', '.join([*new][:5])}{' ...' * (len(new) > 5)}"
        yield "positions of before continue over the files that they know, and take new ones in with the next epoch"
