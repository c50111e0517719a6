"""Which files validate: a file stays in the split that it was prepared in.

    first run     a b c        trains on a and b, validates with c, the last
    with d        a b c d      d trains, unless its name says that it validates; c still does, and checkpoints continue
    --val-file d               d validates and c trains, as requested
    one file a                 1% of its documents validate; so they do when b and c come (text/document_split.py)

Shards keep their order, and new ones come after them. A set keeps what it has: if a file of it is no longer in the
source, the source is refused, because it may be another corpus in a folder of the same name.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tokenmill.store.shards import SPLITS, ShardEntry, Split, sources_of
from tokenmill.store.token_sets import TokenSet
from tokenmill.text.document_split import split_by_document, whole_files
from tokenmill.text.sources import VALIDATES
from tokenmill.text.units import SourceFile

Records = list[tuple[dict, Split]]


def former_entries(folder: Path) -> list[ShardEntry]:
    """The shards of a token set; none if there is no set yet."""
    return TokenSet(folder).entries if (folder / "manifest.json").exists() else []


def require_all_there(folder: Path, files: list[SourceFile]) -> None:
    """ValueError if files of the set's shards are not in the source."""
    if not (folder / "manifest.json").exists():
        return
    names = {file.name for file in files}
    listed = [name for entry in TokenSet(folder).entries for name in entry.sources]
    if gone := [name for name in dict.fromkeys(listed) if name not in names]:
        raise ValueError(
            f"{folder}: has been prepared from {_named(gone)} too, and the source does not have {_it(gone)} any more; "
            "put back what is missing, or, where this is another corpus or is to be another set, give it another --name"
        )


def divide_as_before(
    files: list[SourceFile], former: list[ShardEntry], record: dict | None, named: bool, folder: Path
) -> list[SourceFile]:
    """The files, split by document or file by file, as the shard was made that has this record.

    ValueError if the user `named` another split, or if the set's validation file was named and is not now.
    """
    now = files[0].val_fraction
    if record is not None:
        was = sources_of(record)[0].get("val_fraction")
    else:  # no shard is there; a manifest may be
        by_file = bool(former) and not any(name.startswith(SourceFile.VAL_OF) for e in former for name in e.sources)
        was = None if by_file else now
    if was == now:
        return files
    if named:
        before = "by file" if was is None else f"by --val-fraction {was}"
        raise ValueError(f"{folder}: has been split {before}; leave that as it was, or prepare under another --name")
    whole = whole_files(files)
    if was is not None:
        return split_by_document(whole, was)
    if len(whole) == 1:
        raise ValueError(f"{folder}: another file validates in this token set; name it with --val-file")
    return [*whole[:-1], replace(whole[-1], split="val")]


def keep_splits(files: list[SourceFile], former: list[ShardEntry], named: bool) -> list[SourceFile]:
    """The files in the splits that they were in before, new ones in train, unless a validation file was `named`.

    ValueError if none of the files that validated exists any more.
    """
    before = _splits_of(former)
    if named or not before or files[0].val_fraction is not None:
        return files
    kept = [
        replace(file, split=before.get(file.name, "val" if VALIDATES.search(file.name) else "train")) for file in files
    ]
    if not any(file.split == "val" for file in kept):
        gone = ", ".join(sorted(name for name, split in before.items() if split == "val"))
        raise ValueError(
            f"{gone} validates in this token set, and is not in the source any more; put it back, or name another "
            "file with --val-file: that one will no longer be trained on"
        )
    return kept


def in_former_order(records: Records, former: list[ShardEntry]) -> Records:
    """The former shards in their order, then the others."""
    place = {entry.name: number for number, entry in enumerate(former)}
    return sorted(records, key=lambda entry: place.get(entry[0]["name"], len(place)))


def changes(records: Records, former: list[ShardEntry]) -> list[str]:
    """How the splits of an existing set have changed, a line each; none if they have not."""
    if not former:
        return []
    before = _splits_of(former)
    now = {source["file"]: split for record, split in records for source in sources_of(record)}
    lines = []
    for split in SPLITS:
        new = [name for name, there in now.items() if name not in before and there == split]
        moved = [name for name, there in now.items() if before.get(name, split) != split == there]
        lines += [f"new in {split}: {_named(new)}"] * bool(new)
        lines += [f"moved to {split}, as --val-file says: {_named(moved)}"] * bool(moved)
    if lines and not any("val" in line for line in lines):
        lines.append(f"val is as it was: {_named([name for name, split in now.items() if split == 'val'])}")
    if lines:
        lines.append(
            "positions of before continue over the files that they know, and take new ones in with the next epoch"
        )
    return lines


def _splits_of(entries: list[ShardEntry]) -> dict[str, Split]:
    """The split of each source file."""
    return {name: entry.split for entry in entries for name in entry.sources}


def _it(names: list[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5:,} more" if len(listed) > 5 else "")
