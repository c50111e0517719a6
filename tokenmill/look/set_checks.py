"""The checks of `tokenmill verify`: of a set's small files, of a shard's files, and of its bytes.

Each check returns a sentence for every problem: [] if there is none.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tokenmill.store.columns import MASK, TARGETS, columns_of
from tokenmill.store.files import BLOCK_BYTES, sha256_of_file
from tokenmill.store.json_files import read_unchanged
from tokenmill.store.manifests import (
    SMALL_FILES,
    checksums_of_files,
    kept_manifest,
    require_kept_manifests,
)
from tokenmill.store.maps import map_file
from tokenmill.store.shards import OFFSET, ShardEntry, shard_path
from tokenmill.store.token_sets import TokenSet
from tokenmill.store.views import FOLDER, VIEW_ARRAYS
from tokenmill.tokenize.tokenizer import Tokenizer

MASKED_DOCUMENTS = 100_000  # whose masks are compared at a time


def of_the_set(token_set: TokenSet) -> list[str]:
    """The small files, the tokenizer, former manifests and views."""
    problems = []
    try:
        for problem in _of_the_small_files(token_set):
            problems.append(problem)
    except (OSError, ValueError) as error:
        problems.append(str(error))
    for stem in token_set.view_stems():
        try:
            for problem in _of_view(token_set, stem):
                problems.append(f"{FOLDER}/{stem}: {problem}")
        except (OSError, ValueError) as error:
            problems.append(f"{FOLDER}/{stem}: {error}")
    return problems


def _of_the_small_files(token_set: TokenSet) -> Iterator[str]:
    """The tokenizer against the manifest, checksums, and manifests against their copies."""
    expected = token_set.tokenizer
    actual = Tokenizer.load(token_set.file("tokenizer.json")).facts()
    for key in {**expected, **actual}:
        if expected.get(key) != actual.get(key):
            yield f"tokenizer.json: expected {key} {expected.get(key)!r}, found {actual.get(key)!r}"
    listed = token_set.manifest["files"]
    checksums = checksums_of_files(token_set.path)
    for name in SMALL_FILES:
        if checksums.get(name) != listed.get(name):
            yield f"{name}: it is missing, or its SHA-256 is not the manifest's"
    read_unchanged(token_set.file("manifest.json"), "tokens")
    require_kept_manifests(token_set.path)
    if not kept_manifest(token_set.path, token_set.digest).exists():
        yield (
            f"manifest.json: expected its copy manifests/{token_set.digest}.json, found none: one "
            "of the two was changed or deleted; put it back"
        )


def _of_view(token_set: TokenSet, stem: str) -> Iterator[str]:
    """A view's figures, their copy, and its arrays."""
    view = read_unchanged(token_set.view_file(f"{stem}.json"), "view")
    copy = token_set.view_file(f"{view['digest']}.json")
    if not copy.exists():
        yield f"expected its copy {copy.name}, found none; make the view again"
    for array in VIEW_ARRAYS:
        path = token_set.view_file(f"{view['digest']}.{array}", view[array])
        if sha256_of_file(path) != view[array]["sha256"]:
            yield f"{array}: its SHA-256 is not the view's; make the view again"


def of_the_files(token_set: TokenSet, entry: ShardEntry) -> list[str]:
    """A shard's record, and the sizes of its files."""
    try:
        record = token_set.record(entry)
        problems = []
        path = shard_path(token_set.path, entry.name, "json")
        if sha256_of_file(path) != token_set.records[entry.name]:
            problems.append("record: its SHA-256 is not the manifest's")
        if record["fingerprint"] != token_set.tokenizer["fingerprint"]:
            problems.append("record: its fingerprint is not the token set's")
        for suffix, column in columns_of(record).items():
            recorded = record[suffix]["bytes"]
            size = column.size(entry.documents, entry.tokens)
            expected = recorded if size is None else size
            actual = shard_path(token_set.path, entry.name, suffix).stat().st_size
            if not actual == recorded == expected:
                problems.append(f".{suffix}: expected {expected:,} bytes, found {actual:,}")
        return problems
    except (OSError, ValueError) as error:
        return [str(error)]


def of_offsets(offsets: np.ndarray, entry: ShardEntry) -> list[str]:
    """The first and last offset, and that they increase."""
    first = offsets[0]
    last = offsets[-1]
    if (first, last) != (0, entry.tokens):
        return [f".idx: expected offsets from 0 to {entry.tokens:,}, found {first:,} to {last:,}"]
    wrong = np.flatnonzero(offsets[1:] <= offsets[:-1])
    if not len(wrong):
        return []
    number = wrong[0] + 1
    return [f".idx: offset {number:,} is not above the one before it"]


def of_block(
    facts: dict[str, Any], block: np.ndarray, offsets: np.ndarray, first: int
) -> list[str]:
    """A block of tokens that begins at token `first`.

    Ids are below the vocabulary size; BOS is where documents begin and nowhere else; EOT, if the
    set has one, is where they end.
    """
    vocab_size = facts["vocab_size"]
    if int(block.max()) >= vocab_size:
        place = int(np.argmax(block >= vocab_size))
        token = first + place
        return [f".bin: token {token:,} is {block[place]}, the vocabulary has {vocab_size:,}"]
    bounds = np.array([first, first + len(block)], OFFSET)
    begin, end = np.searchsorted(offsets[:-1], bounds).tolist()
    expected = offsets[begin:end]
    actual = np.flatnonzero(block == facts["bos_id"]) + first
    missing = np.setdiff1d(expected, actual)
    if len(missing):
        number = begin + int(np.searchsorted(expected, missing[0]))
        return [f".bin: document {number:,} has no BOS at token {missing[0]:,}"]
    extra = np.setdiff1d(actual, expected)
    if len(extra):
        return [f".bin: BOS at token {extra[0]:,}, where no document begins"]
    if "eot_id" not in facts or (offsets[1:] <= offsets[:-1]).any():
        return []
    begin, end = np.searchsorted(offsets[1:], bounds, side="right").tolist()
    last_tokens = offsets[1 + begin : 1 + end].astype(np.int64) - 1 - first
    wrong = np.flatnonzero(block[last_tokens] != facts["eot_id"])
    if not len(wrong):
        return []
    number = begin + wrong[0]
    return [f".bin: document {number:,} does not end with {facts['eot_token']}"]


def of_mask(token_set: TokenSet, entry: ShardEntry, offsets: np.ndarray) -> list[str]:
    """Each document of a chat set has as many tokens in the loss as `targets` says, and no BOS."""
    if not token_set.is_chat:
        return []
    lacking = {MASK.suffix, TARGETS.suffix} - token_set.record(entry).keys()
    if lacking:
        names = " and ".join(sorted(lacking))
        return [f"record: a chat set's shard lacks {names}"]
    mask = map_file(token_set.column_path(entry, MASK.suffix), MASK.numpy_dtype)
    targets = map_file(token_set.column_path(entry, TARGETS.suffix), TARGETS.numpy_dtype)
    for first in range(0, entry.documents, MASKED_DOCUMENTS):
        edges = offsets[first : first + MASKED_DOCUMENTS + 1].astype(np.int64)
        num_documents = len(edges) - 1
        first_byte = edges[0] >> 3
        last_byte = (edges[-1] + 7) >> 3
        bits = np.unpackbits(mask[first_byte:last_byte], bitorder="little")[edges[0] & 7 :]
        places = edges - edges[0]
        sums = np.concatenate([[0], np.cumsum(bits, dtype=np.int64)])[places]
        wrong = np.flatnonzero(np.diff(sums) != targets[first : first + num_documents])
        if len(wrong):
            number = first + wrong[0]
            return [
                f".targets: document {number:,} has another number of tokens in the loss in .mask"
            ]
        bos = np.flatnonzero(bits[places[:-1]])
        if len(bos):
            number = first + int(bos[0])
            return [f".mask: BOS of document {number:,} is in the loss"]
    return []


def of_bytes(actual: dict[str, Any], expected: dict[str, Any], suffix: str) -> list[str]:
    """Which MiB of a file are not what was written, by their CRC-32."""
    if actual["sha256"] == expected["sha256"]:
        return []
    problems = []
    first = 0
    for actual_sum, expected_sum in zip(actual["crc32"], expected["crc32"], strict=False):
        if actual_sum != expected_sum:
            problems.append(f".{suffix}: the MiB from byte {first:,} on is damaged")
        first += BLOCK_BYTES
    return problems or [f".{suffix}: its SHA-256 is not the one in its record"]
