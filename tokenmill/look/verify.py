"""Verifies that a token set is what was written: `tokenmill verify PATH`

Every byte of every shard is read. The checks are: checksums, offsets that increase, BOS at the beginning of each
document and nowhere else, ids below the vocabulary size, and counts that agree with the record and the manifest. A
shard's record has the CRC-32 of each MiB, so damage is named where it is.

With --quick, only files, sizes, records and the manifest are checked. A bad shard is made again if you delete its
record and prepare again from the same source.

Left out: whether the tokens are those of the text. Preparing proves that while it has the text.
"""

import contextlib
import functools
import os
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import tyro

from tokenmill.addresses import cache_root, is_address
from tokenmill.look import verify_checks
from tokenmill.prepare.failures import Failure
from tokenmill.prepare.pool import Pool
from tokenmill.prepare.progress import Progress
from tokenmill.remote.token_set import DEFAULT_CACHE, CacheConfig, RemoteTokenSet, open_set
from tokenmill.sanitize import sanitize
from tokenmill.store.columns import OFFSETS, TOKENS, columns_of
from tokenmill.store.documents import ShardDocuments
from tokenmill.store.files import BLOCK_BYTES, Checksums
from tokenmill.store.maps import map_file
from tokenmill.store.shards import OFFSET, ShardEntry, in_blocks, shard_path
from tokenmill.store.token_sets import TokenSet

ONCE_BYTES = 1 << 29  # the cache size for a remote set, which is read once


@dataclass(frozen=True)
class VerifyConfig:
    """Check every byte of a token set. Exit status 0 if everything is right, else 1."""

    path: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]  # the token set's folder or address
    quick: bool = False  # check only files, sizes, records and manifest
    workers: int = 2  # number of processes


def verify(path: str | os.PathLike[str], *, quick: bool = False, workers: int = 2) -> dict[str, list[str]]:
    """What is wrong with each bad shard, by name, and under "" with the set as a whole. Empty if everything is right.

    A remote set is read from its address, and nothing is kept. Raises FileNotFoundError or ValueError if there is no
    token set at all.
    """
    with _opened(path) as (token_set, cache):
        return _verify(token_set, cache, quick, workers)


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[TokenSet, CacheConfig]]:
    """The set and its cache. A remote set has a temporary cache, because it is read once."""
    if not is_address(path):
        yield TokenSet(path), DEFAULT_CACHE
        return
    (root := cache_root()).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="verify-", dir=root) as folder:
        cache = CacheConfig(folder, ONCE_BYTES)
        yield open_set(path, cache), cache


def _verify(token_set: TokenSet, cache: CacheConfig, quick: bool, workers: int) -> dict[str, list[str]]:
    path = token_set.address
    wrong = {"": verify_checks.of_the_set(token_set)}
    with contextlib.suppress(OSError, ValueError):  # the check of each shard reports it
        token_set.bring(token_set.entries)
    for entry in token_set.entries:
        wrong[entry.name] = verify_checks.of_the_files(token_set, entry)
    readable = [entry for entry in token_set.entries if not quick and not wrong[entry.name]]
    with Progress() as progress:
        progress.begin("verifying", sum(entry.tokens for entry in readable))
        tasks = sorted(readable, key=lambda entry: -entry.tokens)

        def settle(entry: ShardEntry, outcome: list[str] | Failure) -> None:
            wrong[entry.name] += [outcome.reason] if isinstance(outcome, Failure) else outcome

        with Pool(workers) as pool:
            pool.run(functools.partial(check_shard, path, cache), tasks, progress.add, settle)
    return {name: found for name, found in wrong.items() if found}


_open = functools.cache(open_set)  # once in a worker process


def check_shard(path: str, cache: CacheConfig, entry: ShardEntry, report) -> list[str]:
    """What is wrong with the bytes of one shard. Runs in a worker process."""
    token_set = _open(path, cache)
    record = token_set.record(entry)
    wrong: list[str] = []
    token_set.bring([entry])
    checksums = {suffix: Checksums() for suffix in columns_of(record)}
    offsets = np.fromfile(shard_path(token_set.path, entry.name, OFFSETS.suffix), OFFSET)
    checksums[OFFSETS.suffix].update(offsets.data)
    for first, block in zip(range(0, entry.tokens, BLOCK_BYTES), _blocks(token_set, entry), strict=True):
        checksums[TOKENS.suffix].update(block.data)
        wrong = wrong or verify_checks.of_block(token_set.tokenizer, block, offsets, first)
        report(int((block == token_set.bos_id).sum()), len(block), block.nbytes, len(block))
    for suffix in (name for name, column in columns_of(record).items() if column.optional):
        for block in in_blocks(map_file(token_set.column_path(entry, suffix), np.dtype(np.uint8)), BLOCK_BYTES):
            checksums[suffix].update(block.data)
    for suffix, found in checksums.items():
        wrong += verify_checks.of_bytes(found.facts(), record[suffix], suffix)
    wrong = [*verify_checks.of_offsets(offsets, entry), *wrong]
    return wrong or verify_checks.of_mask(token_set, entry, offsets)


def _blocks(token_set: TokenSet, entry: ShardEntry) -> Iterator[np.ndarray]:
    """The tokens of a shard in blocks, even if its files are damaged."""
    if isinstance(token_set, RemoteTokenSet):
        yield from ShardDocuments(token_set.open(entry)).in_blocks(BLOCK_BYTES)
    elif entry.tokens:
        numbers = map_file(shard_path(token_set.path, entry.name, TOKENS.suffix), token_set.numpy_dtype)
        yield from in_blocks(numbers, BLOCK_BYTES)


def main(arguments: list[str], prog: str) -> int:
    """Prints what is wrong, one problem a line. Returns the exit status."""
    config = tyro.cli(VerifyConfig, prog=prog, args=arguments)
    with _opened(config.path) as (token_set, cache):
        wrong = _verify(token_set, cache, config.quick, config.workers)
    for name, found in wrong.items():
        for problem in found:
            print(sanitize(f"{name or 'the set'}: {problem}"))
    bad = sorted(name for name in wrong if name)
    shards = len(token_set.entries)
    print(f"{token_set.display_name}: {shards:,} shards, {len(bad):,} bad{', read in full' * (not config.quick)}")
    if bad and isinstance(token_set, RemoteTokenSet):
        print(f"if they are damaged, delete them there, and run: tokenmill push FOLDER {token_set.display_name}")
    elif bad:
        records = " ".join(shlex.quote(str(shard_path(token_set.path, name, "json"))) for name in bad)
        print(f"put the right files back; or run this, and prepare again with the same flags:\n  rm -f {records}")
    return 1 if wrong else 0
