"""How much text a shard has: about a 512th of the corpus, from 8 to 256 MiB.

    40 MB of text -> 8 MiB a shard      20 GB -> 32 MiB      1 TB -> 256 MiB

A shard is what one worker makes, so a small corpus becomes enough shards for many cores, and a large one not too many
files. The size is a power of two, chosen from the sizes of the files before any of them is opened. Each shard's record
has it, and a token set keeps it when it grows.
"""

from collections.abc import Iterable

from tokenmill.text.file_groups import about_text_bytes
from tokenmill.text.units import SourceFile

SHARDS = 512  # of a corpus, about
SMALLEST, LARGEST = 8 << 20, 256 << 20
BEFORE_RECORDED = 256 << 20  # of sets whose records do not say it, unless the user named another


def default_shard_text_bytes(text_bytes: int) -> int:
    """Bytes of text in a shard of a corpus with so much text."""
    size = SMALLEST
    while size < LARGEST and text_bytes * 5 > size * SHARDS * 7:  # 1.4, so that it is the nearest power of two
        size *= 2
    return size


def find_shard_text_bytes(records: Iterable[dict], named: int | None, files: Iterable[SourceFile]) -> int:
    """Bytes of text in a shard of a token set: its own if it has shards; else as `named`, or as the files say.

    ValueError if another size is named than the set has, or if its shards have several.
    """
    shards = {record.get("shard_text_bytes"): record["name"] for record in records}
    if not shards:
        known = [about_text_bytes(file) * file.fraction for file in files if file.bytes is not None]
        return named or (default_shard_text_bytes(round(sum(known))) if known else LARGEST)
    recorded: list[int] = sorted(size for size in shards if size is not None)
    if not recorded:
        return named or BEFORE_RECORDED
    if len(recorded) > 1:
        said = " and ".join(f"{shards[size]} up to {size:,}" for size in recorded[:2])
        raise ValueError(
            f"expected shards of one size, found {said} bytes of text; two parts that found other files made them: "
            "delete one part's shards, or prepare under another --name with --shard-text-bytes"
        )
    (size,) = recorded
    if named is not None and named != size:
        raise ValueError(
            f"shards of this token set have up to {size:,} bytes of text, not {named:,}; leave out "
            "--shard-text-bytes, or prepare under another --name"
        )
    return size
