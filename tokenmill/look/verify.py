"""Verifies that a token set is what was written: `tokenmill verify PATH`

Every byte of every shard is read. The checks are: checksums, offsets that increase, BOS at the beginning of each
document and nowhere else, ids below the vocabulary size, and counts that agree with the record and the manifest. A
shard's record has the CRC-32 of each MiB, so damage is named where it is.

With --quick, only files, sizes, records and the manifest are checked. A bad shard is made again if you delete its
record and prepare again from the same source.

Each check returns a sentence for every problem. Left out: whether the tokens are those of the text. Preparing proves
that while it has the text.
"""

import functools
import os
import shlex
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import tyro

from tokenmill.addresses import is_address
from tokenmill.messages import redact, sanitize
from tokenmill.prepare.pool import Failure, Pool
from tokenmill.prepare.progress import Progress
from tokenmill.store.columns import MASK, OFFSETS, TARGETS, TOKENS, columns_of
from tokenmill.store.files import BLOCK_BYTES, Checksums, read_json, sha256_of_file
from tokenmill.store.maps import map_file
from tokenmill.store.shards import OFFSET, ShardEntry, in_blocks, shard_path
from tokenmill.store.token_sets import (
    SMALL_FILES,
    TokenSet,
    checksums_of_files,
    kept_manifest,
    require_kept_manifests,
)
from tokenmill.store.views import FOLDER, VIEW_ARRAYS
from tokenmill.tokenize.tokenizer import Tokenizer

MASKED_DOCUMENTS = 100_000  # whose masks are compared at a time


def of_the_set(token_set: TokenSet) -> list[str]:
    """The small files, the tokenizer, former manifests and views."""
    problems, facts = [], token_set.tokenizer
    try:
        found = Tokenizer.load(token_set.file("tokenizer.json")).facts()
        others = [key for key in {**facts, **found} if facts.get(key) != found.get(key)]
        problems += [
            f"tokenizer.json: expected {key} {facts.get(key)!r}, found {found.get(key)!r}"
            for key in others
        ]
        listed, sums = token_set.manifest["files"], checksums_of_files(token_set.path)
        changed = [name for name in SMALL_FILES if sums.get(name) != listed.get(name)]
        problems += [
            f"{name}: it is missing, or its SHA-256 is not the manifest's" for name in changed
        ]
        require_kept_manifests(token_set.path)
        if not kept_manifest(token_set.path, token_set.digest).exists():
            told = f"expected its copy manifests/{token_set.digest}.json, found none"
            problems.append(
                f"manifest.json: {told}: one of the two was changed or deleted; put it back"
            )
    except (OSError, ValueError) as error:
        problems.append(str(error))
    for stem in token_set.view_stems():
        try:
            view = read_json(token_set.view_file(f"{stem}.json"), "view")
            same = read_json(token_set.view_file(f"{view['digest']}.json"), "view")
            if others := [
                key for key in view if view[key] != same[key] and key not in ("name", "rule")
            ]:
                problems.append(
                    f"{FOLDER}/{stem}: {', '.join(others)} changed since it was made; make the view again"
                )
            for kind in VIEW_ARRAYS:
                if (
                    sha256_of_file(token_set.view_file(f"{view['digest']}.{kind}", view[kind]))
                    != view[kind]["sha256"]
                ):
                    problems.append(
                        f"{FOLDER}/{stem}: {kind}: its SHA-256 is not the view's; make the view again"
                    )
        except (OSError, ValueError) as error:
            problems.append(f"{FOLDER}/{stem}: {error}")
    return problems


def of_the_files(token_set: TokenSet, entry: ShardEntry) -> list[str]:
    """A shard's record, and the sizes of its files."""
    try:
        record, problems = token_set.record(entry), list[str]()
        if (
            sha256_of_file(shard_path(token_set.path, entry.name, "json"))
            != token_set.records[entry.name]
        ):
            problems.append("record: its SHA-256 is not the manifest's")
        if record["fingerprint"] != token_set.tokenizer["fingerprint"]:
            problems.append("record: its fingerprint is not the token set's")
        for suffix, column in columns_of(record).items():
            found, recorded = (
                shard_path(token_set.path, entry.name, suffix).stat().st_size,
                record[suffix]["bytes"],
            )
            size = column.size(entry.documents, entry.tokens)
            if not found == recorded == (recorded if size is None else size):
                problems.append(
                    f".{suffix}: expected {recorded if size is None else size:,} bytes, found {found:,}"
                )
        return problems
    except (OSError, ValueError) as error:
        return [str(error)]


def of_offsets(offsets: np.ndarray, entry: ShardEntry) -> list[str]:
    if (offsets[0], offsets[-1]) != (0, entry.tokens):
        return [
            f".idx: expected offsets from 0 to {entry.tokens:,}, found {offsets[0]:,} to {offsets[-1]:,}"
        ]
    wrong = np.flatnonzero(offsets[1:] <= offsets[:-1])
    return [f".idx: offset {wrong[0] + 1:,} is not above the one before it"] if len(wrong) else []


def of_block(
    facts: dict[str, Any], block: np.ndarray, offsets: np.ndarray, first: int
) -> list[str]:
    """A block of tokens that begins at token `first`: ids are below the vocabulary size; BOS is where documents begin
    and nowhere else; EOT, if the set has one, is where they end.
    """
    if int(block.max()) >= facts["vocab_size"]:
        at = int(np.argmax(block >= facts["vocab_size"]))
        return [
            f".bin: token {first + at:,} is {block[at]}, the vocabulary has {facts['vocab_size']:,}"
        ]
    found = np.flatnonzero(block == facts["bos_id"]) + first
    begin, end = np.searchsorted(
        offsets[:-1], np.array([first, first + len(block)], OFFSET)
    ).tolist()
    missing, extra = (
        np.setdiff1d(offsets[begin:end], found),
        np.setdiff1d(found, offsets[begin:end]),
    )
    if len(missing):
        number = begin + int(np.searchsorted(offsets[begin:end], missing[0]))
        return [f".bin: document {number:,} has no BOS at token {missing[0]:,}"]
    if len(extra):
        return [f".bin: BOS at token {extra[0]:,}, where no document begins"]
    if "eot_id" not in facts or (offsets[1:] <= offsets[:-1]).any():
        return []
    begin, end = np.searchsorted(
        offsets[1:], np.array([first, first + len(block)], OFFSET), side="right"
    ).tolist()
    wrong = np.flatnonzero(
        block[offsets[1 + begin : 1 + end].astype(np.int64) - 1 - first] != facts["eot_id"]
    )
    return (
        [f".bin: document {begin + wrong[0]:,} does not end with {facts['eot_token']}"]
        if len(wrong)
        else []
    )


def of_mask(token_set: TokenSet, entry: ShardEntry, offsets: np.ndarray) -> list[str]:
    """Each document of a chat set must have as many tokens that bear loss as `targets` says, and no BOS may be one."""
    if not token_set.is_chat:
        return []
    if lacking := {MASK.suffix, TARGETS.suffix} - {*token_set.record(entry)}:
        return [f"record: a chat set's shard lacks {' and '.join(sorted(lacking))}"]
    mask, targets = (
        map_file(token_set.column_path(entry, one.suffix), one.numpy_dtype)
        for one in (MASK, TARGETS)
    )
    for first in range(0, entry.documents, MASKED_DOCUMENTS):
        some = offsets[first : first + MASKED_DOCUMENTS + 1].astype(np.int64)
        bits = np.unpackbits(mask[some[0] >> 3 : (some[-1] + 7) >> 3], bitorder="little")[
            some[0] & 7 :
        ]
        done, at = np.concatenate([[0], np.cumsum(bits, dtype=np.int64)]), some - some[0]
        wrong = np.flatnonzero(
            done[at[1:]] - done[at[:-1]] != targets[first : first + len(some) - 1]
        )
        if len(wrong):
            return [
                f".targets: document {first + wrong[0]:,} has another number of tokens that bear loss in .mask"
            ]
        if (bos := np.flatnonzero(bits[at[:-1]])).size:
            return [f".mask: BOS of document {first + int(bos[0]):,} bears loss"]
    return []


def of_bytes(found: dict[str, Any], expected: dict[str, Any], suffix: str) -> list[str]:
    """Which MiB of a file are not what was written, by their CRC-32."""
    if found["sha256"] == expected["sha256"]:
        return []
    numbers = [
        i
        for i, pair in enumerate(zip(found["crc32"], expected["crc32"], strict=False))
        if pair[0] != pair[1]
    ]
    problems = [
        f".{suffix}: the MiB from byte {number * BLOCK_BYTES:,} on is damaged" for number in numbers
    ]
    return problems or [f".{suffix}: its SHA-256 is not the one in its record"]


@dataclass(frozen=True)
class VerifyConfig:
    """Check every byte of a token set. Exit status 0 if everything is right, else 1."""

    # the token set's folder
    path: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]
    quick: bool = False  # check only files, sizes, records and manifest
    workers: int = 2  # number of processes


def verify(
    path: str | os.PathLike[str], *, quick: bool = False, workers: int = 2
) -> dict[str, list[str]]:
    """What is wrong with each bad shard, by name, and under "" with the set as a whole. Empty if everything is right.

    Raises FileNotFoundError or ValueError if there is no token set at all, or one at an address.
    """
    if is_address(path):
        raise ValueError(
            f"{redact(str(path))}: verify reads sets on this disk; pull it, which compares every checksum"
        )
    token_set = TokenSet(path)
    wrong = {"": of_the_set(token_set)}
    wrong |= {entry.name: of_the_files(token_set, entry) for entry in token_set.entries}
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
    for first, block in zip(
        range(0, entry.tokens, BLOCK_BYTES), in_blocks(tokens, BLOCK_BYTES), strict=True
    ):
        checksums[TOKENS.suffix].update(block.data)
        wrong = wrong or of_block(token_set.tokenizer, block, offsets, first)
        report(int((block == token_set.bos_id).sum()), len(block), block.nbytes, len(block))
    for suffix in (name for name, column in columns_of(record).items() if column.optional):
        for block in in_blocks(
            map_file(token_set.column_path(entry, suffix), np.dtype(np.uint8)), BLOCK_BYTES
        ):
            checksums[suffix].update(block.data)
    for suffix, found in checksums.items():
        wrong += of_bytes(found.facts(), record[suffix], suffix)
    wrong = [*of_offsets(offsets, entry), *wrong]
    return wrong or of_mask(token_set, entry, offsets)


def main(arguments: list[str], prog: str) -> int:
    """Prints what is wrong, one problem a line. Returns the exit status."""
    config = tyro.cli(VerifyConfig, prog=prog, args=arguments)
    wrong, token_set = (
        verify(config.path, quick=config.quick, workers=config.workers),
        TokenSet(config.path),
    )
    for name, found in wrong.items():
        for problem in found:
            print(sanitize(f"{name or 'the set'}: {problem}"))
    bad, shards = sorted(name for name in wrong if name), len(token_set.entries)
    print(
        f"{token_set.display_name}: {shards:,} shards, {len(bad):,} bad{', read in full' * (not config.quick)}"
    )
    if bad:
        records = " ".join(
            shlex.quote(str(shard_path(token_set.path, name, "json"))) for name in bad
        )
        print(
            f"put the right files back; or run this, and prepare again with the same flags:\n  rm -f {records}"
        )
    return 1 if wrong else 0
