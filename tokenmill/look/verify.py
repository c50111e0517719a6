"""Verifies that a token set is what was written: `tokenmill verify PATH`

Every byte of every shard is read. The checks are: checksums, offsets that increase, BOS at the beginning of each
document and nowhere else, ids below the vocabulary size, and counts that agree with the record and the manifest. A
shard's record has the CRC-32 of each MiB, so damage is named where it is.

With --quick, only files, sizes, records and the manifest are checked. A bad shard is made again if you delete its
record and prepare again from the same source.

Left out: whether the tokens are those of the text. Preparing proves that while it has the text.
"""

import functools
import os
import shlex
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import tyro

from tokenmill.addresses import is_address
from tokenmill.look import verify_checks
from tokenmill.prepare.failures import Failure
from tokenmill.prepare.pool import Pool
from tokenmill.prepare.progress import Progress
from tokenmill.sanitize import redact, sanitize
from tokenmill.store.columns import OFFSETS, TOKENS, columns_of
from tokenmill.store.files import BLOCK_BYTES, Checksums
from tokenmill.store.maps import map_file
from tokenmill.store.shards import OFFSET, ShardEntry, in_blocks, shard_path
from tokenmill.store.token_sets import TokenSet


@dataclass(frozen=True)
class VerifyConfig:
    """Check every byte of a token set. Exit status 0 if everything is right, else 1."""

    path: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]  # the token set's folder
    quick: bool = False  # check only files, sizes, records and manifest
    workers: int = 2  # number of processes


def verify(path: str | os.PathLike[str], *, quick: bool = False, workers: int = 2) -> dict[str, list[str]]:
    """What is wrong with each bad shard, by name, and under "" with the set as a whole. Empty if everything is right.

    Raises FileNotFoundError or ValueError if there is no token set at all, or one at an address.
    """
    if is_address(path):
        raise ValueError(f"{redact(str(path))}: verify reads sets on this disk; pull it, which compares every checksum")
    token_set = TokenSet(path)
    wrong = {"": verify_checks.of_the_set(token_set)}
    wrong |= {entry.name: verify_checks.of_the_files(token_set, entry) for entry in token_set.entries}
    readable = [entry for entry in token_set.entries if not quick and not wrong[entry.name]]
    with Progress() as progress, Pool(workers) as pool:
        progress.begin("verifying", sum(entry.tokens for entry in readable))
        tasks = sorted(readable, key=lambda entry: -entry.tokens)

        def settle(entry: ShardEntry, outcome: list[str] | Failure) -> None:
            wrong[entry.name] += [outcome.reason] if isinstance(outcome, Failure) else outcome

        pool.run(functools.partial(check_shard, token_set.address), tasks, progress.add, settle)
    return {name: found for name, found in wrong.items() if found}


_open = functools.cache(TokenSet)  # once in a worker process


def check_shard(path: str, entry: ShardEntry, report) -> list[str]:
    """What is wrong with the bytes of one shard. Runs in a worker process."""
    token_set = _open(path)
    record, wrong = token_set.record(entry), list[str]()
    checksums = {suffix: Checksums() for suffix in columns_of(record)}
    offsets = np.fromfile(shard_path(token_set.path, entry.name, OFFSETS.suffix), OFFSET)
    checksums[OFFSETS.suffix].update(offsets.data)
    tokens = map_file(shard_path(token_set.path, entry.name, TOKENS.suffix), token_set.numpy_dtype)
    for first, block in zip(range(0, entry.tokens, BLOCK_BYTES), in_blocks(tokens, BLOCK_BYTES), strict=True):
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


def main(arguments: list[str], prog: str) -> int:
    """Prints what is wrong, one problem a line. Returns the exit status."""
    config = tyro.cli(VerifyConfig, prog=prog, args=arguments)
    wrong, token_set = verify(config.path, quick=config.quick, workers=config.workers), TokenSet(config.path)
    for name, found in wrong.items():
        for problem in found:
            print(sanitize(f"{name or 'the set'}: {problem}"))
    bad, shards = sorted(name for name in wrong if name), len(token_set.entries)
    print(f"{token_set.display_name}: {shards:,} shards, {len(bad):,} bad{', read in full' * (not config.quick)}")
    if bad:
        records = " ".join(shlex.quote(str(shard_path(token_set.path, name, "json"))) for name in bad)
        print(f"put the right files back; or run this, and prepare again with the same flags:\n  rm -f {records}")
    return 1 if wrong else 0
