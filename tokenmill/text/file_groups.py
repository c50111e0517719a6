"""Which files make shards together: a large file alone, small files that follow each other in one shard.

    a.txt 3 kB  b.txt 5 kB  c.jsonl 900 MB  d.txt 2 kB  e.txt 4 kB (val)   ->   (a b) (c) (d) (e)

A file is small if a shard has room for sixteen like it, judged by its size on disk, so no file is opened to find out.
Small files of one split that follow each other share a shard up to its size. Files whose shards exist stay grouped as
they are, and files added later share new shards: `known` says which files each file was grouped with.
"""

from collections.abc import Iterable, Mapping

from tokenmill.text.units import SourceFile

SMALL = 16  # a shard has room for so many small files
UNPACKED = 4  # bytes of text in a byte of a compressed file, about

FileGroup = tuple[SourceFile, ...]


def group_files(
    files: Iterable[SourceFile], known: Mapping[str, tuple[str, ...]], shard_text_bytes: int
) -> list[FileGroup]:
    """The files, in their order, as groups. ValueError if files that share a shard would be in two splits."""
    files = list(files)
    by_name = {file.name: file for file in files}
    groups: list[list[SourceFile]] = []
    growing: dict[str, tuple[list[SourceFile], int]] = {}  # by split: the group that the next small file joins, bytes
    grouped: set[str] = set()
    for file in files:
        together = known.get(file.name, ())
        if file.name in grouped:
            continue
        if together and all(name in by_name for name in together):
            group = [by_name[name] for name in together]
            _require_one_split(group)
            groups.append(group)
            grouped.update(together)
            growing.pop(file.split, None)  # no group spans shards that exist, whether they are made yet or not
            continue
        size = about_text_bytes(file)
        if size * SMALL > shard_text_bytes:
            growing.pop(file.split, None)
            groups.append([file])
            continue
        group, so_far = growing.get(file.split, ([], 0))
        if not group or so_far + size > shard_text_bytes:
            group, so_far = [], 0
            groups.append(group)
        group.append(file)
        growing[file.split] = group, so_far + size
    return [tuple(group) for group in groups]


def about_text_bytes(file: SourceFile) -> int:
    """How much text a file has, judged by its size alone; as much as a shard if that is not known."""
    if file.bytes is None:
        return 1 << 62
    return file.bytes * (UNPACKED if file.compression or file.format.is_packed else 1)


def _require_one_split(group: list[SourceFile]) -> None:
    if len({file.split for file in group}) > 1:
        val = next(file.name for file in group if file.split == "val")
        raise ValueError(
            f"{val}: is to validate, as the last file or by --val-file, and shares a shard with {len(group) - 1:,} "
            "other files, which train; name another --val-file, put back what was there, or give another --name"
        )
