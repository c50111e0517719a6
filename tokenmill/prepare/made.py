"""Whether a unit is made: the one question that a second run asks, and the unit's record answers it.

    made(unit, work)    the record of its first shard, which is written last and names the unit's other shards; or None

A shard that the manifest lists is never made again: if its source has changed since, that is an error. Other shards,
of a run that was killed, are made again whenever anything about them differs.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tokenmill.messages import counted
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
    listed: frozenset[str] = frozenset()  # names of shards that a manifest has


def facts_of(unit: Unit, work: Work) -> dict[str, Any]:
    """What a unit's record says about how it was made."""
    return {"k": unit.k, "n": unit.n, "shard_text_bytes": work.shard_text_bytes, **work.options.facts()}


def made(unit: Unit, work: Work, is_last: bool = False) -> dict[str, Any] | None:
    """The unit's record if all its shards are there and are what would be made now; None otherwise.

    ValueError if they were made otherwise, and the manifest lists them, or they would be made no more: `is_last`.
    """
    read = work.destination.record
    some = read(unit.name, False) or read(f"{unit.name}-val", False)  # one alone is left in a set that was pulled
    names = list(some["unit"]["shards"]) if some and "unit" in some else []
    there = [one for name in names if (one := read(name, False))]
    problem = next((found for one in there if (found := difference(one, unit, work))), None)
    if problem and (is_last or not work.listed.isdisjoint(names)):
        raise ValueError(
            f"{work.destination.shown}: shard {unit.name} was made from other data, or by a run with other settings: "
            f"{problem}; put that back as it was (of the hub, name the commit in manifest.json as --revision; more "
            "text goes into a new file), prepare under another --name, or delete the folder"
        )
    return read(unit.name) if names and not problem and all(map(read, names)) else None


def shards_of(record: dict[str, Any], work: Work) -> list[tuple[dict[str, Any], Split]]:
    """(record, split) of each shard of a unit, by the unit's record; not those without documents and counts."""
    found = [(work.destination.record(name), split) for name, split in record["unit"]["shards"].items()]
    return [(one, split) for one, split in found if one and (one["documents"] or any(map(one.get, COUNTED)))]


Types = dict[str, tuple[str, str]]  # the type of each column that is kept, and a file that has it


def add_types(found: Types, new: Mapping[str, str], file: str) -> None:
    """Adds the types that a file's columns have; null goes with all. ValueError if a column has another one already."""
    for name, kind in new.items():
        other, where = found.get(name, ("null", file))
        if "null" not in (kind, other) and kind != other:
            raise ValueError(
                f"column {name!r} to keep is {other} in {where} and {kind} in {file}; make it one type, leave it out "
                "of --keep-columns, or name a field of it there, as column.field"
            )
        found[name] = (kind, file) if other == "null" else (other, where)


def left_out(shards: Iterable[tuple[dict[str, Any], str]]) -> list[str]:
    """What was left out of shards, or repaired, in sentences with the first file that it was in."""
    reasons, first = Counter[tuple[str, str]](), dict[tuple[str, str], str]()
    for record, _ in shards:
        file = next(one["file"] for one in sources_of(record))
        found = {(name.replace("_", " ")[:-1], ""): (record.get(name, 0), file) for name in COUNTED[:-1]}
        for reason, some in record.get("refused", {}).items():
            found["conversation", f": {reason}"] = some["count"], some["first"]
        for what, (many, where) in found.items():
            reasons[what] += many
            if many:
                first.setdefault(what, where)
    return [f"{counted(many, w[0])}{w[1]} (the first in {first[w]})" for w, many in reasons.most_common() if many]


def difference(record: dict[str, Any], unit: Unit, work: Work) -> str | None:
    """How a shard of a unit was made otherwise than it would be now."""
    was = _facts(record["fingerprint"], record.get("unit", {}), sources_of(record))
    now = _facts(work.fingerprint, facts_of(unit, work), [file.facts() for file in unit.files])
    for what in now | was:
        if was.get(what) != now.get(what):
            return f"{what} was {was.get(what)!r}, is {now.get(what)!r}"
    broken = record.get("broken_lines", 0) + record.get("broken_conversations", 0)
    if broken and not work.options.skip_broken:
        return f"{broken:,} broken lines or rows were left out, and --skip-broken is not given"
    return None


def _facts(fingerprint: str, unit: Mapping[str, Any], files: list[dict[str, Any]]) -> dict[str, Any]:
    facts = {f"{key} of {one['file']}": one.get(key) for one in files for key in ("bytes", "checksum", "validates")}
    return facts | {key: value for key, value in unit.items() if key != "shards"} | {"fingerprint": fingerprint}
