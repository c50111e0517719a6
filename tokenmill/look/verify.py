"""Is a token set what was written? `tokenmill verify PATH`

Every byte of every shard is read: checksums, offsets that increase, BOS where each document begins and nowhere
else, ids below the vocabulary, counts that agree with the record and the manifest. A shard's record has the CRC-32
of each MiB; where one differs, the place of a single flipped bit follows from the difference alone:

    crc(damaged) ^ crc(whole) = the CRC register of one bit and the zero bytes after it

so the register is run backwards until one bit is left. Damage of more than a bit is named by its MiB.

    --quick       files, sizes, records and manifest only
    --drop-bad    takes bad shards out: the set goes on without them, and its former manifest is kept. Preparing from
                  the same source makes those, and only those, anew, in their places

Left out: whether the tokens are those of the text. Preparing proves that while it has the text.
"""

import contextlib
import io
import os
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from tokenmill.prepare.outcomes import Failure
from tokenmill.prepare.progress import Bars, Meter
from tokenmill.prepare.workers import run_tasks
from tokenmill.printed import printed
from tokenmill.remote.addresses import cache_root, is_address
from tokenmill.remote.sets import KEPT, Kept, RemoteTokenSet, open_set
from tokenmill.store.files import BLOCK_BYTES, Checksums, locked, read_bounded
from tokenmill.store.maps import map_file
from tokenmill.store.schema import MOST_IDS
from tokenmill.store.shards import COUNTS, OFFSET, ShardEntry, in_blocks, shard_path
from tokenmill.store.token_sets import TokenSet, write_manifest
from tokenmill.tokenize.tokenizer import Tokenizer

SUFFIXES = ("bin", "idx")
ONCE_BYTES = 1 << 29  # of the cache of a set that is read once


@dataclass(frozen=True)
class VerifyConfig:
    """Checks every byte of a token set. Exit status 0 where all is well, 1 where not."""

    path: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]  # the token set's folder or address
    quick: bool = False  # only files, sizes, records and manifest
    drop_bad: bool = False  # take bad shards out of the set; preparing again makes them anew
    workers: int = 2  # processes


def verify(path: str | os.PathLike[str], *, quick: bool = False, workers: int = 2) -> dict[str, list[str]]:
    """What is wrong with each bad shard, and with the set as a whole under "": empty where all is well.

    A set at an address is read from there, and nothing of it is kept. Raises FileNotFoundError or ValueError where
    there is no token set at all.
    """
    with _opened(path) as (token_set, kept):
        return _verify(token_set, kept, quick, workers)


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[TokenSet, Kept]]:
    """The set, and where others find it: at an address with a cache of its own, for what is read once."""
    if not is_address(path):
        yield TokenSet(path), KEPT
        return
    (root := cache_root()).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="verify-", dir=root) as folder:
        kept = Kept(folder, ONCE_BYTES)
        yield open_set(path, kept), kept


def _verify(token_set: TokenSet, kept: Kept, quick: bool, workers: int) -> dict[str, list[str]]:
    path = token_set.address
    problems = {"": _problems_of_the_set(token_set)}
    with contextlib.suppress(OSError, ValueError):  # which each shard tells of itself
        token_set.bring(token_set.entries)
    for entry in token_set.entries:
        problems[entry.name] = _problems_of_the_files(token_set, entry)
    readable = [entry for entry in token_set.entries if not quick and not problems[entry.name]]
    with Bars() as bars, Meter(bars, "verifying", sum(entry.tokens for entry in readable)) as meter:
        tasks = sorted(readable, key=lambda entry: -entry.tokens)
        outcomes = run_tasks(
            check_shard, tasks, partial(_open, path, kept), max(1, min(workers, len(tasks))), meter.add
        )
    for entry, outcome in zip(tasks, outcomes, strict=True):
        problems[entry.name] += [outcome.reason] if isinstance(outcome, Failure) else outcome
    return {name: found for name, found in problems.items() if found}


def _open(path: str | os.PathLike[str], kept: Kept, entry: ShardEntry) -> TokenSet:
    return open_set(path, kept)


def check_shard(token_set: TokenSet, entry: ShardEntry, report) -> list[str]:
    """What is wrong with the bytes of one shard; runs in a worker."""
    record = token_set.record(entry)
    problems: list[str] = []
    token_set.bring([entry])
    checksums = {suffix: Checksums() for suffix in SUFFIXES}
    offsets = np.fromfile(shard_path(token_set.path, entry.name, "idx"), OFFSET)
    checksums["idx"].update(offsets.data)
    starts, at, documents = offsets[:-1], 0, 0
    for first, block in zip(range(0, entry.tokens, BLOCK_BYTES), _blocks(token_set, entry), strict=True):
        checksums["bin"].update(block.data)
        if not problems:
            problems += _problems_of_ids(token_set, block, first)
            begun = int(np.searchsorted(starts, first + len(block)))
            problems += _problems_of_starts(token_set, block, starts[at:begun], first, at)
            problems += _problems_of_ends(token_set, block, offsets, first)
            at = begun
        report(at - documents, len(block), block.nbytes, len(block))
        documents = at
    if "ids" in record:
        ids = checksums["ids"] = Checksums()
        ids.update(read_bounded(token_set.file(f"shards/{entry.name}.ids"), record["ids"]["bytes"], "its ids"))
    for suffix, found in checksums.items():
        problems += _problems_of_bytes(found.facts(), record[suffix], suffix)
    return [*_problems_of_offsets(offsets, entry), *problems]


def drop(path: str | os.PathLike[str], names: list[str]) -> None:
    """Takes shards out of a set, which goes on without them; preparing again makes them anew in their places.

    ValueError where no shard would be left, or none of a split.
    """
    path = Path(path)
    with locked(path):
        token_set = TokenSet(path)
        kept = [entry for entry in token_set.entries if entry.name not in names]
        if gone := {entry.split for entry in token_set.entries} - {entry.split for entry in kept}:
            raise ValueError(
                f"{path}: all shards of split {' and '.join(sorted(gone))} are bad, and a set needs both; where its "
                f"source is there, delete {path}/shards/{names[0]}.* and prepare again; else put the files back"
            )
        everything = list(token_set.entries)
        for place, entry in token_set.dropped:
            everything.insert(place, entry)
        dropped = [(place, entry) for place, entry in enumerate(everything) if entry not in kept]
        records = [(token_set.record(entry), entry.split) for entry in kept]
        facts = token_set.manifest
        for name in names:  # first, so that no later preparation takes it for done, whenever this is killed
            shard_path(path, name, "json").unlink(missing_ok=True)
        write_manifest(path, facts["dataset"], token_set.tokenizer, records, token_set.origin, dropped)
        for name in names:
            for suffix in (*SUFFIXES, "ids"):
                shard_path(path, name, suffix).unlink(missing_ok=True)


# ---------------------------------------------------------------------------- what can be wrong


def _is_array(data: bytes, expected: np.ndarray) -> bool:
    """Whether the bytes of a .npy file are this array, of any type."""
    try:
        return np.array_equal(np.load(io.BytesIO(data), allow_pickle=False), expected)
    except Exception:  # whatever Python's own parser says of the header
        return False


def _problems_of_the_set(token_set: TokenSet) -> list[str]:
    problems, facts = [], token_set.tokenizer
    try:
        tokenizer = Tokenizer.load(token_set.file("tokenizer.json"))
        if tokenizer.facts() != facts:
            problems.append(f"tokenizer.json: expected {facts}, found {tokenizer.facts()}")
        data = read_bounded(token_set.file("token_bytes.npy"), 5 * MOST_IDS, "token_bytes.npy")
        if not _is_array(data, tokenizer.token_bytes()):
            problems.append("token_bytes.npy: expected the bytes of tokenizer.json's tokens, found others")
    except (OSError, ValueError, KeyError) as error:
        problems.append(str(error))
    shared = [entry for entry in token_set.entries if entry.more_sources]
    together = Counter(name for entry in shared for name in entry.sources)
    alone = {entry.source for entry in token_set.entries if not entry.more_sources}
    problems += [f"manifest.json: {name} is in two shards" for name, n in together.items() if n > 1 or name in alone]
    for count in ("documents", "tokens", "text_bytes"):
        total = sum(getattr(entry, count) for entry in token_set.entries)
        if token_set.manifest[count] != total:
            problems.append(f"manifest.json: {count} is {token_set.manifest[count]:,}, its shards have {total:,}")
    return problems


def _problems_of_the_files(token_set: TokenSet, entry: ShardEntry) -> list[str]:
    try:
        record = token_set.record(entry)
        expected = {
            "bin": entry.tokens * token_set.numpy_dtype.itemsize,
            "idx": (entry.documents + 1) * OFFSET.itemsize,
        }
        problems = [
            f"record: {key} is {record[key]}, the manifest has {getattr(entry, key)}"
            for key in COUNTS
            if hasattr(entry, key) and record[key] != getattr(entry, key)
        ]
        if record["fingerprint"] != token_set.tokenizer["fingerprint"]:
            problems.append("record: its fingerprint is not the token set's")
        for suffix in SUFFIXES:
            if record[suffix]["sha256"] != getattr(entry, f"{suffix}_sha256"):
                problems.append(f"record: the SHA-256 of .{suffix} is not the manifest's")
            found = _size(token_set, entry, record, suffix)
            if not found == expected[suffix] == record[suffix]["bytes"]:
                problems.append(f".{suffix}: expected {expected[suffix]:,} bytes, found {found:,}")
        if "ids" in record:
            found = _size(token_set, entry, record, "ids")
            if found != record["ids"]["bytes"]:
                problems.append(f".ids: expected {record['ids']['bytes']:,} bytes, found {found:,}")
        return problems
    except (OSError, ValueError) as error:
        return [str(error)]
    except KeyError as error:
        return [f"record: {error} is missing"]


def _size(token_set: TokenSet, entry: ShardEntry, record: dict, suffix: str) -> int:
    """A file's size on this disk; elsewhere what its record says, as each of its blocks is compared when it comes."""
    if isinstance(token_set, RemoteTokenSet):
        return int(record[suffix]["bytes"])
    return shard_path(token_set.path, entry.name, suffix).stat().st_size


def _problems_of_offsets(offsets: np.ndarray, entry: ShardEntry) -> list[str]:
    if (offsets[0], offsets[-1]) != (0, entry.tokens):
        return [f".idx: expected offsets from 0 to {entry.tokens:,}, found {offsets[0]:,} to {offsets[-1]:,}"]
    wrong = np.flatnonzero(offsets[1:] <= offsets[:-1])
    return [f".idx: offset {wrong[0] + 1:,} is not above the one before it"] if len(wrong) else []


def _problems_of_ids(token_set: TokenSet, block: np.ndarray, first: int) -> list[str]:
    vocab_size = token_set.tokenizer["vocab_size"]
    if int(block.max()) < vocab_size:
        return []
    at = int(np.argmax(block >= vocab_size))
    return [f".bin: token {first + at:,} is {block[at]}, the vocabulary has {vocab_size:,}"]


def _problems_of_starts(
    token_set: TokenSet, block: np.ndarray, starts: np.ndarray, first: int, number: int
) -> list[str]:
    """BOS where documents begin and nowhere else; `number` is the first document that begins in the block."""
    found = np.flatnonzero(block == token_set.bos_id) + first
    if np.array_equal(found, starts):
        return []
    missing, extra = np.setdiff1d(starts, found), np.setdiff1d(found, starts)
    if len(missing):
        return [
            f".bin: document {number + int(np.searchsorted(starts, missing[0])):,} has no BOS at token {missing[0]:,}"
        ]
    return [f".bin: BOS at token {extra[0]:,}, where no document begins"] if len(extra) else []


def _problems_of_ends(token_set: TokenSet, block: np.ndarray, offsets: np.ndarray, first: int) -> list[str]:
    """EOT where documents end in a block, where the set has one."""
    eot_id = token_set.tokenizer.get("eot_id")
    if eot_id is None or (offsets[1:] <= offsets[:-1]).any():
        return []
    begin, end = np.searchsorted(offsets[1:], np.array([first, first + len(block)], OFFSET), side="right").tolist()
    wrong = np.flatnonzero(block[offsets[1 + begin : 1 + end].astype(np.int64) - 1 - first] != eot_id)
    eot_token = token_set.tokenizer.get("eot_token")
    return [f".bin: document {begin + wrong[0]:,} does not end with {eot_token}"] if len(wrong) else []


def _blocks(token_set: TokenSet, entry: ShardEntry) -> Iterator[np.ndarray]:
    """The tokens of a shard whose files may be anything, some at a time."""
    if isinstance(token_set, RemoteTokenSet):
        yield from token_set.open(entry).in_blocks(BLOCK_BYTES)
    elif entry.tokens:
        numbers = map_file(shard_path(token_set.path, entry.name, "bin"), token_set.numpy_dtype)
        yield from in_blocks(numbers, BLOCK_BYTES)


def _problems_of_bytes(found: dict, expected: dict, suffix: str) -> list[str]:
    if found["sha256"] == expected["sha256"]:
        return []
    problems = []
    for number, (crc, right) in enumerate(zip(found["crc32"], expected.get("crc32", []), strict=False)):
        if crc != right:
            first = number * BLOCK_BYTES
            length = min(BLOCK_BYTES, found["bytes"] - first)
            place = flipped_bit(crc ^ right, length)
            where = (
                f"bytes {first:,} to {first + length - 1:,} are not what was written"
                if place is None
                else f"bit {place % 8} of byte {first + place // 8:,} is flipped"
            )
            problems.append(f".{suffix}: {where}")
    return problems or [f".{suffix}: its SHA-256 is not the one in its record"]


# ---------------------------------------------------------------------------- the place of a flipped bit


def _crc_table() -> list[int]:
    """The CRC-32 register after one byte, from 0: zlib's, without its inversion at both ends."""
    return [zlib.crc32(bytes([byte]), 0xFFFFFFFF) ^ 0xFFFFFFFF for byte in range(256)]


def flipped_bit(difference: int, length: int) -> int | None:
    """The one bit whose flip in `length` bytes changes their CRC-32 by `difference`: 8 * byte + bit; or None."""
    table = _crc_table()
    by_top_byte = {entry >> 24: byte for byte, entry in enumerate(table)}  # each byte's is another
    single = {table[1 << bit]: bit for bit in range(8)}
    for byte in range(length - 1, -1, -1):
        if difference in single:
            return 8 * byte + single[difference]
        index = by_top_byte[difference >> 24]  # undo one zero byte
        difference = ((difference ^ table[index]) << 8 | index) & 0xFFFFFFFF
    return None


def main(arguments: list[str], prog: str) -> int:
    """Prints what is wrong, a line each; the exit status."""
    config = tyro.cli(VerifyConfig, prog=prog, args=arguments)
    if config.drop_bad and is_address(config.path):
        raise ValueError(
            "--drop-bad is for a set on this disk; at an address `tokenmill push --again` sends what is bad"
        )
    with _opened(config.path) as (token_set, kept):
        problems = _verify(token_set, kept, config.quick, config.workers)
    for name, found in problems.items():
        for problem in found:
            print(printed(f"{name or 'the set'}: {problem}"))
    bad = sorted(name for name in problems if name)
    shards = len(token_set.entries)
    print(f"{token_set.told}: {shards:,} shards, {len(bad):,} bad{', read in full' * (not config.quick)}")
    if bad and isinstance(token_set, RemoteTokenSet):
        print(f"send them again from where the set is whole: tokenmill push FOLDER {token_set.told} --again")
    elif bad and config.drop_bad:
        drop(config.path, bad)
        print(f"took out {', '.join(bad)}; preparing from the same source again makes them anew, in their places")
    elif bad:
        print("run again with --drop-bad to take them out; then prepare again to make them anew")
    return 1 if problems else 0
