"""Which files validate, and what became of the splits: a file stays in the split that it was prepared in.

    first run     a b c        trains on a and b, validates with c, the last
    with d        a b c d      d trains; c still validates, and checkpoints go on
    --val-file d               d validates and c trains, as was asked

Shards keep their order, and new ones come after them.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tokenmill.store.shards import SPLITS, ShardEntry, Split
from tokenmill.store.token_sets import TokenSet
from tokenmill.text.units import SourceFile

Records = list[tuple[dict, Split]]


def former_entries(folder: Path) -> list[ShardEntry]:
    """The shards that a token set has by now; none where it is not one yet."""
    return TokenSet(folder).entries if (folder / "manifest.json").exists() else []


def keep_splits(files: list[SourceFile], former: list[ShardEntry], named: bool) -> list[SourceFile]:
    """The files in the splits that they were in before, new ones to train on, unless a validation file was `named`.

    ValueError where none of the files that validated is there any more.
    """
    before: dict[str, Split] = {entry.source: entry.split for entry in former}
    if named or not before:
        return files
    kept = [replace(file, split=before.get(file.name, "train")) for file in files]
    if not any(file.split == "val" for file in kept):
        gone = ", ".join(sorted(name for name, split in before.items() if split == "val"))
        raise ValueError(
            f"{gone} validates in this token set, and is not in the source any more; put it back, or name another "
            "file with --val-file: that one will no longer be trained on"
        )
    return kept


def in_former_order(records: Records, former: list[ShardEntry]) -> Records:
    """The shards that there were in their order, then the others."""
    place = {entry.name: number for number, entry in enumerate(former)}
    return sorted(records, key=lambda entry: place.get(entry[0]["name"], len(place)))


def changes(records: Records, former: list[ShardEntry]) -> list[str]:
    """What became of the splits of a set that there was, a line each; none where nothing did."""
    if not former:
        return []
    before = {entry.source: entry.split for entry in former}
    now = {record["source"]["file"]: split for record, split in records}
    lines = []
    for split in SPLITS:
        new = [name for name, there in now.items() if name not in before and there == split]
        moved = [name for name, there in now.items() if before.get(name, split) != split == there]
        lines += [f"new in {split}: {_named(new)}"] * bool(new)
        lines += [f"moved to {split}, as --val-file says: {_named(moved)}"] * bool(moved)
        gone = [name for name, there in before.items() if name not in now and there == split]
        lines += [f"no longer in {split}, as the source does not have it: {_named(gone)}"] * bool(gone)
    if lines and not any("val" in line for line in lines):
        lines.append(f"val is as it was: {_named([name for name, split in now.items() if split == 'val'])}")
    if lines:
        lines.append(
            "positions of before go on over the files that they know, and take new ones in with the next epoch"
        )
    return lines


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5:,} more" if len(listed) > 5 else "")
