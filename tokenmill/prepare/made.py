"""Whether a unit is made: the one question that a second run asks, and the unit's record answers it.

    made(unit, work)    the record of its first shard, which is written last and names the unit's other shards; or None

A shard that the manifest lists is never made again: if its source has changed since, that is an error. Other shards,
of a run that was killed, are made again whenever anything about them differs.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from tokenmill.prepare.destination import Destination
from tokenmill.store.schema import LEFT_OUT_COUNTS
from tokenmill.store.shards import Split, sources_of
from tokenmill.text.formats import ReadOptions
from tokenmill.text.plan import Unit

COUNTED = (*LEFT_OUT_COUNTS, "broken_conversations", "refused_conversations")


class Work(NamedTuple):
    """What all units of a set share. It travels to workers."""

    destination: Destination
    options: ReadOptions
    fingerprint: str
    engine: str
    shard_text_bytes: int
    listed: frozenset[str] = frozenset()  # names of the shards in the manifest


def facts_of(unit: Unit, work: Work) -> dict[str, Any]:
    """What a unit's record says about how it was made."""
    return {"k": unit.k, "n": unit.n, "shard_text_bytes": work.shard_text_bytes, **work.options.facts()}


def made(unit: Unit, work: Work) -> dict[str, Any] | None:
    """The unit's record if all its shards are there and are what would be made now; None otherwise.

    ValueError if the manifest lists them and they were made from something else.
    """
    record = work.destination.record(unit.name)
    if record is None or "unit" not in record:
        return None
    names = list(record["unit"]["shards"])
    if (problem := _difference(record, unit, work)) is None:
        is_whole = all(name == unit.name or work.destination.record(name) is not None for name in names)
        return record if is_whole else None
    if not work.listed.isdisjoint(names):
        raise ValueError(
            f"{work.destination.shown}: shard {unit.name} was made from other data: {problem}; put that back as it was "
            "(more text goes into a new file), prepare under another --name, or delete the folder"
        )
    return None


def shards_of(record: dict[str, Any], work: Work) -> list[tuple[dict[str, Any], Split]]:
    """(record, split) of each shard of a unit, by the unit's record; not those without documents and counts."""
    found = [(work.destination.record(name), split) for name, split in record["unit"]["shards"].items()]
    return [(one, split) for one, split in found if one and (one["documents"] or any(map(one.get, COUNTED)))]


def column_types(records: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The types of the columns that shards keep beside their tokens, by name. ValueError if one has two types."""
    found: dict[str, tuple[str, str]] = {}
    for record in records:
        for name, kind in record.get("metadata", {}).items():
            require_one_type(found, name, kind, sources_of(record)[0]["file"])
    return {name: kind for name, (kind, _) in found.items()}


def require_one_type(found: dict[str, tuple[str, str]], name: str, kind: str, file: str) -> None:
    """Adds the type of a column in a file to those found so far. ValueError if it is another one; null fits all."""
    other, where = found.setdefault(name, (kind, file))
    if "null" in (kind, other):
        found[name] = (other, where) if kind == "null" else (kind, file)
    elif kind != other:
        raise ValueError(
            f"column {name!r} to keep is a {other} in {where} and a {kind} in {file}; make it one type, or leave it "
            "out of --keep-columns"
        )


def _difference(record: dict[str, Any], unit: Unit, work: Work) -> str | None:
    """How a unit was made otherwise than it would be now."""
    if record["fingerprint"] != work.fingerprint:
        return f"fingerprint was {record['fingerprint']}, is {work.fingerprint}"
    sources = sources_of(record)
    if [source["file"] for source in sources] != [file.name for file in unit.files]:
        return f"{len(sources):,} files from {sources[0]['file']} on then, {len(unit.files):,} now"
    was = {key: value for key, value in record["unit"].items() if key != "shards"}
    pairs = [(was, facts_of(unit, work), unit.name)]
    pairs += [(then, file.facts(), file.name) for then, file in zip(sources, unit.files, strict=True)]
    for then, now, what in pairs:
        keys = [*now, *(key for key in ("val_fraction", *was) if key in then and key not in now)]
        for key in keys:
            if then.get(key) != now.get(key):
                return f"{key} of {what} was {then.get(key)!r}, is {now.get(key)!r}"
    broken = record.get("broken_lines", 0) + record.get("broken_conversations", 0)
    if broken and not work.options.skip_broken:
        return f"{broken:,} broken lines or rows were left out, and --skip-broken is not given"
    return None
