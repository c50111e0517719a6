"""Verifies that a token set is what was written: `tokenmill verify PATH`

Every byte of every shard is read. The checks are: checksums, offsets that increase, BOS at the
beginning of each document and nowhere else, ids below the vocabulary size, and counts that agree
with the record and the manifest. A shard's record has the CRC-32 of each MiB, so damage is named
where it is.

With --quick, no shard's bytes are read: sizes, records, the manifest, the tokenizer and views are
checked. A bad shard is made again if you delete its record and prepare again from the same source.

Left out: whether the tokens are those of the text, which preparing proves while it has the text;
and former manifests and views that were deleted, which a position that needs them names.
"""

import functools
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import tyro

from tokenmill.addresses import is_address
from tokenmill.look.set_checks import (
    of_block,
    of_bytes,
    of_mask,
    of_offsets,
    of_the_files,
    of_the_set,
)
from tokenmill.messages import counted, redact, sanitize
from tokenmill.prepare.failures import Failure
from tokenmill.prepare.pool import Pool
from tokenmill.prepare.progress import Progress
from tokenmill.store.columns import OFFSETS, TOKENS, columns_of
from tokenmill.store.files import BLOCK_BYTES, Checksums
from tokenmill.store.maps import map_file
from tokenmill.store.shards import OFFSET, ShardEntry, in_blocks, shard_path
from tokenmill.store.token_sets import TokenSet


@dataclass(frozen=True)
class VerifyConfig:
    """Check every byte of a token set. Exit status 0 if everything is right, else 1."""

    # the token set's folder
    path: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]
    # check only sizes of files, records, manifest, tokenizer and views
    quick: bool = False
    workers: int = 2  # number of processes; --quick needs none


def verify(
    path: str | os.PathLike[str], *, quick: bool = False, workers: int = 2
) -> dict[str, list[str]]:
    """What is wrong with each bad shard, by name, and under "" with the set as a whole.

    Empty if everything is right. Raises FileNotFoundError or ValueError if there is no token set at
    all, or one at an address.
    """
    if is_address(path):
        raise ValueError(
            f"{redact(str(path))}: verify reads sets on this disk; pull it, which compares every "
            "checksum"
        )
    token_set = TokenSet(path)
    problems = {"": of_the_set(token_set)}
    for entry in token_set.entries:
        problems[entry.name] = of_the_files(token_set, entry)
    readable = []
    if not quick:
        readable = [entry for entry in token_set.entries if not problems[entry.name]]
    with Progress() as progress, Pool(workers) as pool:
        progress.begin("verifying", sum(entry.tokens for entry in readable))
        tasks = sorted(readable, key=lambda entry: -entry.tokens)

        def settle(entry: ShardEntry, outcome: list[str] | Failure) -> None:
            if isinstance(outcome, Failure):
                outcome = [outcome.reason]
            problems[entry.name] += outcome

        pool.run(functools.partial(check_shard, token_set.address), tasks, progress.add, settle)
    return {name: sentences for name, sentences in problems.items() if sentences}


_open = functools.cache(TokenSet)  # once in a worker process


def check_shard(path: str, entry: ShardEntry, report: Callable[..., None]) -> list[str]:
    """What is wrong with the bytes of one shard. Runs in a worker process."""
    token_set = _open(path)
    record = token_set.record(entry)
    columns = columns_of(record)
    checksums = {suffix: Checksums() for suffix in columns}
    offsets = np.fromfile(shard_path(token_set.path, entry.name, OFFSETS.suffix), OFFSET)
    checksums[OFFSETS.suffix].update(offsets.data)
    tokens = map_file(shard_path(token_set.path, entry.name, TOKENS.suffix), token_set.numpy_dtype)
    in_tokens: list[str] = []
    first = 0
    for block in in_blocks(tokens, BLOCK_BYTES):
        checksums[TOKENS.suffix].update(block.data)
        in_tokens = in_tokens or of_block(token_set.tokenizer, block, offsets, first)
        num_documents = int((block == token_set.bos_id).sum())
        report(num_documents, len(block), block.nbytes, len(block))
        first += len(block)
    for suffix, column in columns.items():
        if column.optional:
            content = map_file(token_set.column_path(entry, suffix), np.dtype(np.uint8))
            for block in in_blocks(content, BLOCK_BYTES):
                checksums[suffix].update(block.data)
    in_bytes = []
    for suffix, checksum in checksums.items():
        in_bytes += of_bytes(checksum.facts(), record[suffix], suffix)
    problems = [*of_offsets(offsets, entry), *in_tokens, *in_bytes]
    return problems or of_mask(token_set, entry, offsets)


def main(arguments: list[str], prog: str) -> int:
    """Prints what is wrong, one problem a line. Returns the exit status."""
    config = tyro.cli(VerifyConfig, prog=prog, args=arguments)
    problems = verify(config.path, quick=config.quick, workers=config.workers)
    token_set = TokenSet(config.path)
    for name, sentences in problems.items():
        shown = name or "the set"
        for sentence in sentences:
            print(sanitize(f"{shown}: {sentence}"))
    bad = sorted(name for name in problems if name)
    num_shards = len(token_set.entries)
    set_problems = ""
    if "" in problems:
        set_problems = f", {counted(len(problems['']), 'problem')} of the set"
    depth = "" if config.quick else ", read in full"
    print(f"{token_set.display_name}: {num_shards:,} shards, {len(bad):,} bad{set_problems}{depth}")
    if bad:
        paths = [shard_path(token_set.path, name, "json") for name in bad]
        records = " ".join(shlex.quote(str(path)) for path in paths)
        print(
            "put the right files back; or run this, and prepare again with the same flags:\n"
            f"  rm -f {records}"
        )
    elif problems:
        print("put the files that these lines name back as they were when the set was made")
    return 1 if problems else 0
