"""The checks of verify.py. Each returns a sentence for every problem, and none if everything is right."""

import io
from collections import Counter

import numpy as np

from tokenmill.look.bit_errors import flipped_bit
from tokenmill.remote.token_set import RemoteTokenSet
from tokenmill.rows.windows import SLICE, cut_slices
from tokenmill.store.columns import MASK, TARGETS, columns_of, listed_sha256
from tokenmill.store.files import BLOCK_BYTES, read_json, sha256_of_file
from tokenmill.store.maps import map_file
from tokenmill.store.shards import COUNTS, OFFSET, ShardEntry, shard_path
from tokenmill.store.token_sets import SMALL_FILES, TokenSet, checksums_of_files, require_kept_manifests
from tokenmill.store.views import FOLDER, VIEW_ARRAYS, read_view
from tokenmill.tokenize.tokenizer import Tokenizer

MASKED_DOCUMENTS = 100_000  # whose masks are compared at a time


def _is_array(data: bytes, expected: np.ndarray) -> bool:
    """Whether the bytes of a .npy file are this array, of any type."""
    try:
        return np.array_equal(np.load(io.BytesIO(data), allow_pickle=False), expected)
    except Exception:  # Python's parser may raise anything for a damaged header
        return False


def of_the_set(token_set: TokenSet) -> list[str]:
    problems, facts = [], token_set.tokenizer
    try:
        tokenizer = Tokenizer.load(token_set.file("tokenizer.json"))
        found = tokenizer.facts()
        others = [key for key in {**facts, **found} if facts.get(key) != found.get(key)]
        problems += [f"tokenizer.json: expected {key} {facts.get(key)!r}, found {found.get(key)!r}" for key in others]
        paths = [token_set.file(name) for name in SMALL_FILES]
        listed, sums = token_set.manifest["files"], checksums_of_files(token_set.path)
        problems += [f"{name}: its SHA-256 is not the manifest's" for name in SMALL_FILES if sums[name] != listed[name]]
        if not _is_array(paths[1].read_bytes(), tokenizer.token_bytes()):
            problems.append("token_bytes.npy: expected the bytes of the tokens in tokenizer.json, found others")
        require_kept_manifests(token_set.path)
        problems += of_views(token_set)
    except (OSError, ValueError, KeyError) as error:
        problems.append(str(error))
    groups = Counter(name for sources in {entry.sources for entry in token_set.entries} for name in sources)
    return problems + [f"manifest.json: {name} is in shards of other files" for name, n in groups.items() if n > 1]


def of_views(token_set: TokenSet) -> list[str]:
    """The counts and slices of each view, and of a view of this manifest that its slices are those of its counts."""
    problems = []
    for stem in token_set.view_stems():
        name = f"{FOLDER}/{stem}"
        try:
            facts = read_json(token_set.view_file(f"{stem}.json"), "view")
            arrays = {kind: token_set.view_file(f"{facts['digest']}.{kind}", facts[kind]) for kind in VIEW_ARRAYS}
        except (OSError, ValueError) as error:
            problems.append(f"{name}: {error}")
            continue
        found = [
            f"{name}: {kind}: expected SHA-256 {facts[kind]['sha256']}, found {other}; make the view again"
            for kind, path in arrays.items()
            if (other := sha256_of_file(path) if path.exists() else "") != facts[kind]["sha256"]
        ]
        if not found and facts["manifest"] == token_set.digest:
            found = [f"{name}: {what}" for what in _of_slices(token_set, facts["digest"])]
        problems += found
    return problems


def _of_slices(token_set: TokenSet, digest: str) -> list[str]:
    view = read_view(token_set, digest)
    made = [
        cut_slices(number, np.asarray(token_set.open(entry).offsets), view.counts_of(entry), view.slice_tokens)
        for number, entry in enumerate(token_set.entries)
    ]
    expected = np.concatenate([np.zeros(0, SLICE), *made])
    path = token_set.view_file(f"{digest}.slices", view.facts["slices"])
    return [] if np.array_equal(np.fromfile(path, SLICE), expected) else ["slices: are not those of its counts"]


def of_the_files(token_set: TokenSet, entry: ShardEntry) -> list[str]:
    try:
        record = token_set.record(entry)
        problems = [
            f"record: {key} is {record[key]}, the manifest has {getattr(entry, key)}"
            for key in COUNTS
            if hasattr(entry, key) and record[key] != getattr(entry, key)
        ]
        if sha256_of_file(shard_path(token_set.path, entry.name, "json")) != token_set.records[entry.name]:
            problems.append("record: its SHA-256 is not the manifest's")
        if record["fingerprint"] != token_set.tokenizer["fingerprint"]:
            problems.append("record: its fingerprint is not the token set's")
        others = {suffix for suffix, _ in {*entry.sha256} ^ {*listed_sha256(record).items()}}
        problems += [f"record: the SHA-256 of .{suffix} is not the manifest's" for suffix in sorted(others)]
        for suffix, column in columns_of(record).items():
            recorded = record[suffix]["bytes"]
            found, size = _size(token_set, entry, recorded, suffix), column.size(entry.documents, entry.tokens)
            expected = recorded if size is None else size
            if not found == expected == recorded:
                problems.append(f".{suffix}: expected {expected:,} bytes, found {found:,}")
        return problems
    except (OSError, ValueError) as error:
        return [str(error)]
    except KeyError as error:
        return [f"record: {error} is missing"]


def _size(token_set: TokenSet, entry: ShardEntry, recorded: int, suffix: str) -> int:
    """The size of a file on this disk; for a remote set the size in its record, as its bytes are compared when read."""
    if isinstance(token_set, RemoteTokenSet):
        return recorded
    return shard_path(token_set.path, entry.name, suffix).stat().st_size


def of_offsets(offsets: np.ndarray, entry: ShardEntry) -> list[str]:
    if (offsets[0], offsets[-1]) != (0, entry.tokens):
        return [f".idx: expected offsets from 0 to {entry.tokens:,}, found {offsets[0]:,} to {offsets[-1]:,}"]
    wrong = np.flatnonzero(offsets[1:] <= offsets[:-1])
    return [f".idx: offset {wrong[0] + 1:,} is not above the one before it"] if len(wrong) else []


def of_ids(token_set: TokenSet, block: np.ndarray, first: int) -> list[str]:
    vocab_size = token_set.tokenizer["vocab_size"]
    if int(block.max()) < vocab_size:
        return []
    at = int(np.argmax(block >= vocab_size))
    return [f".bin: token {first + at:,} is {block[at]}, the vocabulary has {vocab_size:,}"]


def of_starts(token_set: TokenSet, block: np.ndarray, starts: np.ndarray, first: int, number: int) -> list[str]:
    """BOS must be where documents begin, and nowhere else. `number` is the first document that begins in the block."""
    found = np.flatnonzero(block == token_set.bos_id) + first
    if np.array_equal(found, starts):
        return []
    missing, extra = np.setdiff1d(starts, found), np.setdiff1d(found, starts)
    if len(missing):
        return [
            f".bin: document {number + int(np.searchsorted(starts, missing[0])):,} has no BOS at token {missing[0]:,}"
        ]
    return [f".bin: BOS at token {extra[0]:,}, where no document begins"] if len(extra) else []


def of_ends(token_set: TokenSet, block: np.ndarray, offsets: np.ndarray, first: int) -> list[str]:
    """EOT must be where documents end, if the set has one."""
    eot_id = token_set.tokenizer.get("eot_id")
    if eot_id is None or (offsets[1:] <= offsets[:-1]).any():
        return []
    begin, end = np.searchsorted(offsets[1:], np.array([first, first + len(block)], OFFSET), side="right").tolist()
    wrong = np.flatnonzero(block[offsets[1 + begin : 1 + end].astype(np.int64) - 1 - first] != eot_id)
    eot_token = token_set.tokenizer.get("eot_token")
    return [f".bin: document {begin + wrong[0]:,} does not end with {eot_token}"] if len(wrong) else []


def of_mask(token_set: TokenSet, entry: ShardEntry, offsets: np.ndarray) -> list[str]:
    """Each document of a chat set must have as many tokens that bear loss as `targets` says, and no BOS may be one."""
    columns = {MASK.suffix, TARGETS.suffix} & dict(entry.sha256).keys()
    if token_set.is_chat != (len(columns) == 2):
        return [
            f"it has columns {', '.join(sorted(columns)) or 'neither mask nor targets'}, as no chat set or text has"
        ]
    if not token_set.is_chat or of_offsets(offsets, entry):
        return []
    mask, targets = (
        map_file(token_set.column_path(entry, column.suffix), column.numpy_dtype) for column in (MASK, TARGETS)
    )
    for first in range(0, entry.documents, MASKED_DOCUMENTS):
        some = offsets[first : first + MASKED_DOCUMENTS + 1].astype(np.int64)
        bits = np.unpackbits(mask[some[0] >> 3 : (some[-1] + 7) >> 3], bitorder="little")[some[0] & 7 :]
        done = np.concatenate([[0], np.cumsum(bits, dtype=np.int64)])
        at = some - some[0]
        wrong = np.flatnonzero(done[at[1:]] - done[at[:-1]] != targets[first : first + len(some) - 1])
        if len(wrong):
            return [
                f".targets: document {first + int(wrong[0]):,} has another number of tokens that bear loss in .mask"
            ]
        if (bos := np.flatnonzero(bits[at[:-1]])).size:
            return [f".mask: BOS of document {first + int(bos[0]):,} bears loss"]
    return []


def of_bytes(found: dict, expected: dict, suffix: str) -> list[str]:
    if found["sha256"] == expected["sha256"]:
        return []
    problems = []
    for number, (crc, right) in enumerate(zip(found["crc32"], expected.get("crc32", []), strict=False)):
        if crc != right:
            first = number * BLOCK_BYTES
            length = min(BLOCK_BYTES, found["bytes"] - first)
            place = flipped_bit(crc ^ right, length)
            damage = (
                f"bytes {first:,} to {first + length - 1:,} are not what was written"
                if place is None
                else f"bit {place % 8} of byte {first + place // 8:,} is flipped"
            )
            problems.append(f".{suffix}: {damage}")
    return problems or [f".{suffix}: its SHA-256 is not the one in its record"]
