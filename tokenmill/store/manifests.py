"""The manifest of a token set, its digest, and the small files that it has checksums of.

manifest.json     the shards in order, each with its split, counts and checksums; their totals
manifests/        every manifest that ever was, <digest>.json: a position names that of its epoch

The digest follows from what rows depend on, and the checksum, its last key, from every key.
"""

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.store.columns import LISTED
from tokenmill.store.files import sha256_of_file, sync_folder, write_changed
from tokenmill.store.json_files import checksum_of, header, read_unchanged, write_json
from tokenmill.store.schema import CHAT_COUNTS, dtype_name
from tokenmill.store.shards import COUNTS, ShardEntry, Split, shard_path
from tokenmill.store.views import DIGEST

SMALL_FILES = ("tokenizer.json", "token_bytes.npy")


def write_manifest(
    folder: Path,
    dataset: str,
    tokenizer: dict[str, Any],
    shards: list[tuple[dict[str, Any], Split]],
    origin: dict[str, Any] | None = None,
) -> None:
    """Makes the folder a token set. `shards` are (record, split) in their order.

    The folder has tokenizer.json and token_bytes.npy already. `origin` says where the source files
    are from.
    """
    records = [record for record, _ in shards]
    names = [record["name"] for record in records]
    counts = COUNTS + (CHAT_COUNTS if "chat" in tokenizer else ())
    manifest = header("tokens") | {
        "dataset": dataset,
        "dtype": dtype_name(tokenizer["vocab_size"]),
        "tokenizer": tokenizer,
        **{count: _total(records, count) for count in counts},
        **(origin or {}),
        "files": checksums_of_files(folder),
        "records": {name: sha256_of_file(shard_path(folder, name, "json")) for name in names},
        "shards": [ShardEntry.of_record(record, split).listed() for record, split in shards],
    }
    manifest["checksum"] = checksum_of(manifest)
    sync_folder(folder / "shards")  # a run that was killed may have renamed a file and no more
    (folder / "manifests").mkdir(exist_ok=True)
    write_json(kept_manifest(folder, digest_of(manifest)), manifest)
    write_json(folder / "manifest.json", manifest)


def _total(records: list[dict[str, Any]], count: str) -> int:
    return sum(record.get(count, 0) for record in records)


def checksums_of_files(folder: Path) -> dict[str, str]:
    """The SHA-256 of tokenizer.json and token_bytes.npy, as far as the folder has them."""
    return {name: sha256_of_file(folder / name) for name in SMALL_FILES if (folder / name).exists()}


def write_token_bytes(folder: Path, token_bytes: np.ndarray) -> None:
    """Writes how many bytes of text each token id stands for: (vocab_size,)."""
    data = io.BytesIO()
    np.save(data, token_bytes)
    write_changed(folder / "token_bytes.npy", data.getvalue())


def kept_manifest(folder: Path, digest: str) -> Path:
    """The path of a manifest in manifests/. ValueError if this is not a digest."""
    if not DIGEST.fullmatch(digest):
        raise ValueError(f"expected the digest of a manifest, 16 hex digits, found {digest!r}")
    return folder / "manifests" / f"{digest}.json"


def require_kept_manifests(folder: Path) -> None:
    """ValueError if manifests/ has a file that is not a manifest called after its digest."""
    for path in sorted((folder / "manifests").glob("*.json")):
        digest = digest_of(read_unchanged(path, "tokens"))
        if digest != path.stem:
            raise ValueError(
                f"{path}: expected a manifest that is called after its digest, {digest}; move it "
                "elsewhere"
            )


def digest_of(manifest: dict[str, Any]) -> str:
    """16 hex digits that follow from tokens, documents, listed columns, splits and order."""
    fields = ("name", "split", "documents", "tokens", *LISTED)
    shards = []
    for entry in manifest["shards"]:
        shards.append({key: entry[key] for key in fields if key in entry})
    content = repr((manifest["tokenizer"]["fingerprint"], shards))
    return hashlib.sha256(content.encode()).hexdigest()[:16]
