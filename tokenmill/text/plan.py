"""Files -> units of work: a pure function of the files' names and sizes. No file is opened.

With shards of 8 MB of text:

    a.jsonl 20 MB                   Unit((a,), 0, 3)  Unit((a,), 1, 3)  Unit((a,), 2, 3)     thirds of its bytes
    b.parquet 8 MB, 20 of text      Unit((b,), 0, 3)  ...                                    thirds of its row groups
    c.csv 90 MB, d.jsonl.zst        Unit((c,), 0, 1)  Unit((d,), 0, 1)     one worker reads it, into several shards
    e.txt f.txt g.txt, 1 kB each    Unit((e, f, g), 0, 1)                                    small files together

One worker makes a unit, and needs no other unit for it. So the parts of a set are every N-th unit, and a second
run makes the units that are not made.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tokenmill.text.formats import ReadOptions, stem_of
from tokenmill.text.source_file import SourceFile

SHARDS = 512  # of a corpus, about
SMALLEST, LARGEST = 8 << 20, 256 << 20  # bytes of text in a shard
SMALL = 16  # a file is small if a shard has room for this many of its size
LONGEST_STEM = (
    200  # bytes of UTF-8: the name of a shard and the suffix of a temporary file must fit into 255
)


class Unit(NamedTuple):
    """What one worker makes at a time: part k of n of a file, or several small files whole."""

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
        return sum(
            file.bytes * (self.k + 1) // self.n - file.bytes * self.k // self.n
            for file in self.files
        )

    @property
    def text_bytes(self) -> float:
        """How much text it has, about."""
        return self.bytes * self.files[0].text_bytes / max(1, self.files[0].bytes)


def shard_size(files: Iterable[SourceFile]) -> int:
    """Bytes of text in a shard: about a 512th of the corpus, as a power of two from 8 to 256 MiB."""
    size, text_bytes = SMALLEST, sum(file.text_bytes for file in files)
    while (
        size < LARGEST and text_bytes * 5 > size * SHARDS * 7
    ):  # 1.4, so that it is the nearest power of two
        size *= 2
    return size


def plan(
    files: Iterable[SourceFile],
    options: ReadOptions,
    size: int,
    former: Iterable[Sequence[str]] = (),
) -> list[Unit]:
    """The units of all files, in order. `size` is `shard_size(files)`, or that of a set that grows.

    `former` are the names of files that are together in a shard of that set: they stay together and come first.
    ValueError if two files would make shards of the same name, or one of them has too long a name.
    """
    by_name, stems = {file.name: file for file in files}, dict[str, SourceFile]()
    groups = [[by_name.pop(name) for name in names] for names in dict.fromkeys(map(tuple, former))]
    groups += _groups(by_name.values(), size)
    units = [unit for group in groups for unit in _units_of(group, options, size)]
    for file in (file for group in groups for file in group):
        if len((stem := Unit((file,)).stem).encode()) > LONGEST_STEM:
            raise ValueError(
                f"{file.shown}: a path of over {LONGEST_STEM} bytes in the source; shorten it"
            )
        if (other := stems.setdefault(stem, file)) is not file:
            raise ValueError(
                f"{file.shown} and {other.shown}: are these two copies of one text? Both would write shards named "
                f"{stem}; take one of them out, or rename it"
            )
    return units


def part_of(units: Sequence[Unit], part: int, parts: int) -> list[Unit]:
    """What part 1, 2 ... of so many makes. Of the hub's files it takes every N-th with all its units, so each machine
    fetches its own.
    """
    places: dict[tuple[SourceFile, ...], int] = {}
    for unit in units:
        places.setdefault(unit.files, len(places))
    chosen = (
        places[unit.files] if unit.files[0].hub else number for number, unit in enumerate(units)
    )
    return [unit for unit, number in zip(units, chosen, strict=True) if number % parts == part - 1]


def _groups(files: Iterable[SourceFile], size: int) -> list[list[SourceFile]]:
    """Small files that follow each other and are in the same split together, every other file alone."""
    groups: list[list[SourceFile]] = []
    room = -1.0  # bytes of text that may be added to the last group
    for file in files:
        is_small = file.text_bytes * SMALL <= size
        if is_small and file.text_bytes <= room and file.validates == groups[-1][0].validates:
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
    """Whether several workers can each read a part: not if only a file's beginning says where its documents are."""
    is_stream = file.compression is not None or (file.format.name == "arrow" and not file.is_local)
    is_one_document = file.format.is_text and options.document_separator is None
    return file.format.is_cut and not is_stream and not is_one_document
