"""Whether a unit is made: the one question that a second run asks, and the unit's record answers it.

    made(unit, work)    the record of its first shard, which is written last and names the unit's other shards; or None

A shard that the manifest lists is never made again: if its source has changed since, that is an error. Other shards,
of a run that was killed, are made again whenever anything about them differs.
"""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa

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
    stamp: int | None = None  # of the manifest that was there at the start
    listed: frozenset[str] = frozenset()  # names of its shards


def facts_of(unit: Unit, work: Work) -> dict[str, Any]:
    """What a unit's record says about how it was made."""
    return {"k": unit.k, "n": unit.n, "shard_text_bytes": work.shard_text_bytes, **work.options.facts()}


def made(unit: Unit, work: Work) -> dict[str, Any] | None:
    """The unit's record if all its shards are there and are what would be made now; None otherwise.

    ValueError if the manifest lists them and they were made from something else.
    """
    record = work.destination.record(unit.name)
    names = list(record["unit"]["shards"]) if record and "unit" in record else []
    records = [record if name == unit.name else work.destination.record(name) for name in names]
    problem = next((found for one in records if one and (found := difference(one, unit, work))), None)
    if problem and not work.listed.isdisjoint(names):
        raise ValueError(
            f"{work.destination.shown}: shard {unit.name} was made from other data: {problem}; put that back as it was "
            "(more text goes into a new file), prepare under another --name, or delete the folder"
        )
    return record if names and not problem and all(records) else None


def shards_of(record: dict[str, Any], work: Work) -> list[tuple[dict[str, Any], Split]]:
    """(record, split) of each shard of a unit, by the unit's record; not those without documents and counts."""
    found = [(work.destination.record(name), split) for name, split in record["unit"]["shards"].items()]
    return [(one, split) for one, split in found if one and (one["documents"] or any(map(one.get, COUNTED)))]


def column_types(records: Iterable[dict[str, Any]], found: dict[str, tuple[Any, str]] | None = None) -> None:
    """ValueError if a column that shards keep has two types. `found` are those of before: (type, file) by name."""
    found = {} if found is None else found
    for record in records:
        for name, kind in record.get("metadata", {}).items():
            add_type(found, name, kind, sources_of(record)[0]["file"])


def add_type(found: dict[str, tuple[Any, str]], name: str, kind: Any, file: str) -> None:
    """Adds the type of a column in a file to those found so far. ValueError if it is another one."""
    other, where = found.get(name, ("null", file))
    try:
        found[name] = (_merged(other, kind), file if other == "null" else where)
    except TypeError:
        raise ValueError(
            f"column {name!r} to keep is {_told(other)} in {where} and {_told(kind)} in {file}; make it one type, or "
            "leave it out of --keep-columns"
        ) from None


def kind_of(kind: pa.DataType) -> Any:
    """What a column has: null, number, text, or another type's name; {field: ...} of a struct, [...] of a list."""
    if pa.types.is_dictionary(kind):
        return kind_of(kind.value_type)
    if pa.types.is_struct(kind):
        return {field.name: kind_of(field.type) for field in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [kind_of(kind.value_type)]
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    return "text" if "string" in str(kind) else str(kind)


def _merged(one: Any, other: Any) -> Any:
    """The type of a column that has both; null goes with all. TypeError if there is none."""
    if "null" in (one, other):
        return other if one == "null" else one
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _merged(one.get(name, "null"), other.get(name, "null")) for name in one | other}
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0])]
    if one != other:
        raise TypeError
    return one


def _told(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)


def left_out(shards: Iterable[tuple[dict[str, Any], str]]) -> list[str]:
    """What was left out of shards, or repaired, in sentences with the first file that it was in."""
    reasons, first = Counter[str](), dict[str, str]()
    for record, _ in shards:
        counts = {name.replace("_", " "): record.get(name, 0) for name in COUNTED if name != "refused_conversations"}
        counts |= {f"conversations: {reason}": many for reason, many in record.get("refused", {}).items()}
        reasons.update(counts)
        for reason in +Counter(counts):
            first.setdefault(reason, next(one["file"] for one in sources_of(record)))
    return [f"{many:,} {reason} (the first in {first[reason]})" for reason, many in reasons.most_common() if many]


def difference(record: dict[str, Any], unit: Unit, work: Work) -> str | None:
    """How a shard of a unit was made otherwise than it would be now."""
    if "unit" not in record or record["fingerprint"] != work.fingerprint:
        return f"fingerprint was {record['fingerprint']}, is {work.fingerprint}"
    sources = sources_of(record)
    if [source["file"] for source in sources] != [file.name for file in unit.files]:
        return f"{len(sources):,} files from {sources[0]['file']} on then, {len(unit.files):,} now"
    was = {key: value for key, value in record["unit"].items() if key != "shards"}
    pairs = [(was, facts_of(unit, work), unit.name)]
    pairs += [(then, file.facts(), file.name) for then, file in zip(sources, unit.files, strict=True)]
    for then, now, what in pairs:
        keys = [*now, *(key for key in was if key in then and key not in now)]
        for key in keys:
            if then.get(key) != now.get(key):
                return f"{key} of {what} was {then.get(key)!r}, is {now.get(key)!r}"
    broken = record.get("broken_lines", 0) + record.get("broken_conversations", 0)
    if broken and not work.options.skip_broken:
        return f"{broken:,} broken lines or rows were left out, and --skip-broken is not given"
    return None
