"""Files -> units of work: a pure function of the files' names and sizes. No file is opened.

With shards of 8 MB of text:

    a.jsonl 20 MB                   Unit((a,), 0, 3)  ...          thirds of its bytes
    b.parquet 8 MB, 20 of text      Unit((b,), 0, 3)  ...          thirds of its row groups
    c.csv 90 MB, d.jsonl.zst        Unit((c,))  Unit((d,))         one worker, several shards
    e.txt f.txt g.txt, 1 kB each    Unit((e, f, g))                small files together

One worker makes a unit, and needs no other unit for it. So machines share a set by taking every
N-th unit each, and a second run makes the units that are not made.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tokenmill.text.formats import ReadOptions, stem_of
from tokenmill.text.source_file import SourceFile

SHARDS = 512  # of a corpus, about
SMALLEST = 8 << 20  # bytes of text in a shard
LARGEST = 256 << 20
SMALL = 16  # a file is small if a shard has room for this many of its size
# bytes of UTF-8: the name of a shard and the suffix of a temporary file must fit into 255
LONGEST_STEM = 200


class Unit(NamedTuple):
    """What one worker makes at a time: the k-th of n ranges of a file, or several small files."""

    files: tuple[SourceFile, ...]
    k: int = 0
    n: int = 1

    @property
    def stem(self) -> str:
        """Begins the names of its shards."""
        return stem_of(self.files[0].name).replace("/", "--")

    @property
    def name(self) -> str:
        """The name of its first shard."""
        return f"{self.stem}.{self.k:03d}"

    @property
    def bytes(self) -> int:
        """Bytes of its files, for progress."""
        total = 0
        for file in self.files:
            begin = file.bytes * self.k // self.n
            end = file.bytes * (self.k + 1) // self.n
            total += end - begin
        return total

    @property
    def text_bytes(self) -> float:
        """How much text it has, about."""
        first = self.files[0]
        return self.bytes * first.text_bytes / max(1, first.bytes)


def shard_size(files: Iterable[SourceFile]) -> int:
    """Bytes of text in a shard: about a 512th of the corpus, as a power of two, 8 to 256 MiB."""
    text_bytes = sum(file.text_bytes for file in files)
    size = SMALLEST
    # 7 / 5, so that it is the nearest power of two
    while size < LARGEST and text_bytes * 5 > size * SHARDS * 7:
        size *= 2
    return size


def plan(
    files: Iterable[SourceFile],
    options: ReadOptions,
    size: int,
    former: Iterable[Sequence[str]] = (),
) -> list[Unit]:
    """The units of all files, in order. `size` is `shard_size(files)`, or that of a growing set.

    `former` are the names of files that are together in a shard of that set: they stay together and
    come first. ValueError if two files would make shards of the same name, or one of them has too
    long a name.
    """
    by_name = {file.name: file for file in files}
    groups = []
    for names in dict.fromkeys(map(tuple, former)):
        groups.append([by_name.pop(name) for name in names])
    groups += _groups(by_name.values(), size)
    units = []
    for group in groups:
        units += _units_of(group, options, size)
    _require_own_names(groups)
    return units


def _require_own_names(groups: list[list[SourceFile]]) -> None:
    by_stem: dict[str, SourceFile] = {}
    for group in groups:
        for file in group:
            stem = Unit((file,)).stem
            if len(stem.encode()) > LONGEST_STEM:
                raise ValueError(
                    f"{file.shown}: a path of over {LONGEST_STEM} bytes in the source; shorten it"
                )
            first = by_stem.setdefault(stem, file)
            if first is not file:
                raise ValueError(
                    f"{file.shown} and {first.shown}: are these two copies of one text? Both would "
                    f"write shards named {stem}; take one of them out, or rename it"
                )


def part_of(units: Sequence[Unit], part: int, parts: int) -> list[Unit]:
    """What part 1, 2 ... of so many makes: every N-th unit.

    Of the hub's files it takes every N-th with all its units, so each machine fetches its own.
    """
    file_numbers: dict[tuple[SourceFile, ...], int] = {}
    chosen = []
    for number, unit in enumerate(units):
        file_number = file_numbers.setdefault(unit.files, len(file_numbers))
        turn = file_number if unit.files[0].hub else number
        if turn % parts == part - 1:
            chosen.append(unit)
    return chosen


def _groups(files: Iterable[SourceFile], size: int) -> list[list[SourceFile]]:
    """Small files that follow each other, and are in the same split, together; others alone."""
    groups: list[list[SourceFile]] = []
    room = -1.0  # bytes of text that may be added to the last group
    for file in files:
        is_small = file.text_bytes * SMALL <= size
        fits = is_small and file.text_bytes <= room
        if fits and file.val_share == groups[-1][0].val_share:
            groups[-1].append(file)
            room -= file.text_bytes
        else:
            groups.append([file])
            room = size - file.text_bytes if is_small else -1.0
    return groups


def _units_of(group: list[SourceFile], options: ReadOptions, size: int) -> list[Unit]:
    if len(group) > 1 or not _is_cut(group[0], options):
        return [Unit(tuple(group))]
    n = max(1, round(group[0].text_bytes / size))
    return [Unit((group[0],), k, n) for k in range(n)]


def _is_cut(file: SourceFile, options: ReadOptions) -> bool:
    """Whether several workers can each read a range of it.

    Not if only a file's beginning says where its documents are.
    """
    text_format = file.format
    if file.compression is not None:
        return False
    if text_format.is_text and options.document_separator is None:  # it is one document
        return False
    return text_format.is_cut and (file.is_local or text_format.is_cut_at_url)
