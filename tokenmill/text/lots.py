"""Which files make shards together: a large file alone, small ones that follow each other in one.

    a.txt 3 kB  b.txt 5 kB  c.jsonl 900 MB  d.txt 2 kB  e.txt 4 kB (val)   ->   (a b) (c) (d) (e)

A file is small where a shard has room for sixteen such, by its size on disk: so nothing is opened to tell. Small
files of one split that follow each other share a shard up to its size. Files whose shards are there stay as they are,
and those that came since share new ones: `known` tells which files each file was made with.
"""

from collections.abc import Iterable, Mapping

from tokenmill.text.units import SourceFile

SMALL = 16  # of them a shard has room for
UNPACKED = 4  # bytes of text in a byte of a parquet or compressed file, about

Lot = tuple[SourceFile, ...]


def lots_of(files: Iterable[SourceFile], known: Mapping[str, tuple[str, ...]], shard_text_bytes: int) -> list[Lot]:
    """The files, in their order, as lots. ValueError where files that share a shard are to be in two splits."""
    files = list(files)
    by_name = {file.name: file for file in files}
    lots: list[list[SourceFile]] = []
    growing: dict[str, tuple[list[SourceFile], int]] = {}  # by split: the lot that the next small file joins, its bytes
    taken: set[str] = set()
    for file in files:
        together = known.get(file.name, ())
        if file.name in taken:
            continue
        if together and all(name in by_name for name in together):
            lot = [by_name[name] for name in together]
            _require_one_split(lot)
            lots.append(lot)
            taken.update(together)
            growing.pop(file.split, None)  # as in the plan that it is of: what is made already must not change the rest
            continue
        size = about_text_bytes(file)
        if size * SMALL > shard_text_bytes:
            growing.pop(file.split, None)
            lots.append([file])
            continue
        lot, so_far = growing.get(file.split, ([], 0))
        if not lot or so_far + size > shard_text_bytes:
            lot, so_far = [], 0
            lots.append(lot)
        lot.append(file)
        growing[file.split] = lot, so_far + size
    return [tuple(lot) for lot in lots]


def about_text_bytes(file: SourceFile) -> int:
    """How much text a file has, by its size alone; as much as a shard where that is not known."""
    if file.bytes is None:
        return 1 << 62
    return file.bytes * (UNPACKED if file.compression or file.format == "parquet" else 1)


def _require_one_split(lot: list[SourceFile]) -> None:
    if len({file.split for file in lot}) > 1:
        val = next(file.name for file in lot if file.split == "val")
        raise ValueError(
            f"{val}: is to validate, as the last file or by --val-file, and lies in one shard with {len(lot) - 1:,} "
            "other files, which train; name another --val-file, put back what was there, or give another --name"
        )
