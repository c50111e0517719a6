"""Is a token set what was written? `tokenmill verify PATH`

Every byte of every shard is read: checksums, offsets that increase, BOS where each document begins and nowhere
else, ids below the vocabulary, counts that agree with the record and the manifest. A shard's record has the CRC-32
of each MiB; where one differs, the place of a single flipped bit follows from the difference alone (flipped.py).
Damage of more than a bit is named by its MiB.

    --quick       files, sizes, records and manifest only
    --drop-bad    takes bad shards out: the set goes on without them, and its former manifest is kept. Preparing from
                  the same source makes those, and only those, anew, in their places

Left out: whether the tokens are those of the text. Preparing proves that while it has the text.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from tokenmill.look import problems
from tokenmill.look.problems import SUFFIXES
from tokenmill.prepare.outcomes import Failure
from tokenmill.prepare.progress import Bars, Meter
from tokenmill.prepare.workers import run_tasks
from tokenmill.printed import printed
from tokenmill.remote.addresses import cache_root, is_address
from tokenmill.remote.sets import KEPT, Kept, RemoteTokenSet, open_set
from tokenmill.store.files import BLOCK_BYTES, Checksums, locked, read_bounded
from tokenmill.store.maps import map_file
from tokenmill.store.shards import OFFSET, ShardEntry, in_blocks, shard_path
from tokenmill.store.token_sets import TokenSet, write_manifest

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
    wrong = {"": problems.of_the_set(token_set)}
    with contextlib.suppress(OSError, ValueError):  # which each shard tells of itself
        token_set.bring(token_set.entries)
    for entry in token_set.entries:
        wrong[entry.name] = problems.of_the_files(token_set, entry)
    readable = [entry for entry in token_set.entries if not quick and not wrong[entry.name]]
    with Bars() as bars, Meter(bars, "verifying", sum(entry.tokens for entry in readable)) as meter:
        tasks = sorted(readable, key=lambda entry: -entry.tokens)
        outcomes = run_tasks(
            check_shard, tasks, partial(_open, path, kept), max(1, min(workers, len(tasks))), meter.add
        )
    for entry, outcome in zip(tasks, outcomes, strict=True):
        wrong[entry.name] += [outcome.reason] if isinstance(outcome, Failure) else outcome
    return {name: found for name, found in wrong.items() if found}


def _open(path: str | os.PathLike[str], kept: Kept, entry: ShardEntry) -> TokenSet:
    return open_set(path, kept)


def check_shard(token_set: TokenSet, entry: ShardEntry, report) -> list[str]:
    """What is wrong with the bytes of one shard; runs in a worker."""
    record = token_set.record(entry)
    wrong: list[str] = []
    token_set.bring([entry])
    checksums = {suffix: Checksums() for suffix in SUFFIXES}
    offsets = np.fromfile(shard_path(token_set.path, entry.name, "idx"), OFFSET)
    checksums["idx"].update(offsets.data)
    starts, at, documents = offsets[:-1], 0, 0
    for first, block in zip(range(0, entry.tokens, BLOCK_BYTES), _blocks(token_set, entry), strict=True):
        checksums["bin"].update(block.data)
        if not wrong:
            wrong += problems.of_ids(token_set, block, first)
            begun = int(np.searchsorted(starts, first + len(block)))
            wrong += problems.of_starts(token_set, block, starts[at:begun], first, at)
            wrong += problems.of_ends(token_set, block, offsets, first)
            at = begun
        report(at - documents, len(block), block.nbytes, len(block))
        documents = at
    if "ids" in record:
        ids = checksums["ids"] = Checksums()
        ids.update(read_bounded(token_set.file(f"shards/{entry.name}.ids"), record["ids"]["bytes"], "its ids"))
    for suffix, found in checksums.items():
        wrong += problems.of_bytes(found.facts(), record[suffix], suffix)
    return [*problems.of_offsets(offsets, entry), *wrong]


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


def _blocks(token_set: TokenSet, entry: ShardEntry) -> Iterator[np.ndarray]:
    """The tokens of a shard whose files may be anything, some at a time."""
    if isinstance(token_set, RemoteTokenSet):
        yield from token_set.open(entry).in_blocks(BLOCK_BYTES)
    elif entry.tokens:
        numbers = map_file(shard_path(token_set.path, entry.name, "bin"), token_set.numpy_dtype)
        yield from in_blocks(numbers, BLOCK_BYTES)


def main(arguments: list[str], prog: str) -> int:
    """Prints what is wrong, a line each; the exit status."""
    config = tyro.cli(VerifyConfig, prog=prog, args=arguments)
    if config.drop_bad and is_address(config.path):
        raise ValueError(
            "--drop-bad is for a set on this disk; at an address `tokenmill push --again` sends what is bad"
        )
    with _opened(config.path) as (token_set, kept):
        wrong = _verify(token_set, kept, config.quick, config.workers)
    for name, found in wrong.items():
        for problem in found:
            print(printed(f"{name or 'the set'}: {problem}"))
    bad = sorted(name for name in wrong if name)
    shards = len(token_set.entries)
    print(f"{token_set.told}: {shards:,} shards, {len(bad):,} bad{', read in full' * (not config.quick)}")
    if bad and isinstance(token_set, RemoteTokenSet):
        print(f"send them again from where the set is whole: tokenmill push FOLDER {token_set.told} --again")
    elif bad and config.drop_bad:
        drop(config.path, bad)
        print(f"took out {', '.join(bad)}; preparing from the same source again makes them anew, in their places")
    elif bad:
        print("run again with --drop-bad to take them out; then prepare again to make them anew")
    return 1 if wrong else 0
