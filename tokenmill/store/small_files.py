"""The files of a token set beside its columns, and whether one is right: tokenizer.json, token_bytes.npy, and records.

A manifest has the SHA-256 of each. Manifests from before that have the tokenizer's fingerprint, which is computed again
from tokenizer.json, the size of its vocabulary, which is the length of token_bytes.npy, and the SHA-256 of the columns,
which are in the record of a shard.
"""

import hashlib
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.store import fingerprints
from tokenmill.store.files import LARGEST, parse_json, read_bounded
from tokenmill.store.schema import MOST_IDS

SMALL_FILES = {"tokenizer.json": LARGEST, "token_bytes.npy": 5 * MOST_IDS}  # and their most bytes


def checksums_of_files(folder: Path) -> dict[str, str]:
    """The SHA-256 of each of these files that the folder has, as a manifest has them."""
    return {
        name: sha256_of(read_bounded(folder / name, most, "a file of a token set"))
        for name, most in SMALL_FILES.items()
        if (folder / name).exists()
    }


def checksums_of_records(folder: Path, shards: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of each of these shards' records that the folder has, by name, as a manifest has them."""
    paths = {shard: folder / "shards" / f"{shard}.json" for shard in shards}
    return {
        shard: sha256_of(read_bounded(path, LARGEST, "the record of a shard"))
        for shard, path in paths.items()
        if path.exists()
    }


def is_record(data: bytes, shard: str, records: Mapping[str, str]) -> bool:
    """Whether these are the bytes of a shard's record that a manifest lists; true if it lists none for this shard."""
    return shard not in records or sha256_of(data) == records[shard]


def has_record(folder: Path, shard: str, records: Mapping[str, str]) -> bool:
    """Whether the folder has the record of a shard that a manifest lists; true if it lists none for this shard."""
    path = folder / "shards" / f"{shard}.json"
    return is_record(read_bounded(path, LARGEST, "the record of a shard"), shard, records)


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def what_is_wrong(name: str, data: bytes, manifest: dict[str, Any]) -> str | None:
    """What a manifest says of a file, and what was found instead; None if the file is right."""
    listed = manifest.get("files", {})
    if name in listed:
        found = sha256_of(data)
        return None if found == listed[name] else f"expected SHA-256 {listed[name]}, found {found}"
    return (_wrong_tokenizer if name == "tokenizer.json" else _wrong_array)(name, data, manifest["tokenizer"])


def _wrong_tokenizer(name: str, data: bytes, facts: dict[str, Any]) -> str | None:
    try:
        found = fingerprints.of_saved(parse_json(data, name, "tokenizer"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"expected the tokenizer of the set, found another file ({error})"
    expected = facts["fingerprint"]
    return None if found == expected else f"expected a tokenizer with fingerprint {expected}, found {found}"


def _wrong_array(name: str, data: bytes, facts: dict[str, Any]) -> str | None:
    expected = f"expected {facts['vocab_size']:,} numbers"
    try:
        found = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # NumPy's parser may raise anything for a damaged header
        return f"{expected}, found another file ({type(error).__name__})"
    right = isinstance(found, np.ndarray) and found.shape == (facts["vocab_size"],) and found.dtype.kind in "iu"
    return None if right else f"{expected}, found {getattr(found, 'dtype', '')} {getattr(found, 'shape', '')}"
