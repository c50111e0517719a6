"""A token set to an address: shards first, manifest and card last, so that readers see the old set or the new one.

A shard's record is sent after its tokens and offsets. So a shard is there where its record is, says the same SHA-256,
and its files have their sizes: one that is there is not sent again, but with `again`, and a push that was interrupted
goes on when it is run again.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tokenmill.remote.addresses import remote_name
from tokenmill.remote.places import Place, read
from tokenmill.remote.sending import Item, Sink
from tokenmill.store.files import parse_json, read_json
from tokenmill.store.shards import ShardEntry, shard_path, suffixes_of
from tokenmill.store.token_sets import TokenSet, digest_of

THREADS = 8
FILES_A_SHARD = 4
SUBFOLDERS = 256  # where one folder may not hold all


def subfolders_for(shards: int, most: int) -> int:
    """How many folders below shards/ so many shards need, where a folder may hold `most` files."""
    return 0 if shards * FILES_A_SHARD < most else SUBFOLDERS


def push(
    token_set: TokenSet,
    sink: Sink,
    card: bytes | None = None,
    again: bool = False,
    progress: Callable[[int, int], None] = lambda shards, size: None,
) -> int:
    """Sends what is missing of a set, and then its manifest: how many shards were sent.

    `progress` is called with shards and bytes that are there since the last call. ValueError where a shard is damaged
    here; FileExistsError where another set is there; what Sink.put raises where one cannot be sent.
    """
    _require_no_other(token_set, sink.place)
    sizes = {} if again else sink.sizes()
    entries = token_set.entries
    subfolders = subfolders_for(len(entries), sink.most_in_a_folder)
    todo: list[ShardEntry] = []
    with ThreadPoolExecutor(THREADS) as threads:
        there = threads.map(lambda entry: _is_there(entry, sizes, sink.place, subfolders), entries)
        for entry, known in zip(entries, there, strict=True):
            if known:
                progress(1, entry.tokens * token_set.numpy_dtype.itemsize)
            else:
                todo.append(entry)
        together = [todo[first : first + sink.together] for first in range(0, len(todo), sink.together)]

        def send(some: list[ShardEntry]) -> None:
            sink.put([item for entry in some for item in shard_items(token_set, entry, subfolders)])
            progress(len(some), sum(entry.tokens for entry in some) * token_set.numpy_dtype.itemsize)

        if sink.together == 1:
            list(threads.map(send, together))
        else:  # commits come one after the other
            for some in together:
                send(some)
    sink.put(closing_items(token_set, subfolders, card))
    return len(todo)


def _require_no_other(token_set: TokenSet, place: Place) -> None:
    """FileExistsError where the manifest there is none that this set has, or has had."""
    try:
        there = parse_json(read(place, "manifest.json"), place.told("manifest.json"), "tokens")
    except FileNotFoundError:
        return
    if (digest := digest_of(there)) not in {token_set.digest, *token_set.digests()}:
        raise FileExistsError(
            f"{place.told('manifest.json')}: is of another token set, {there['dataset']} with manifest {digest}, which "
            f"{token_set.path} never was; push to another address, or delete that one first"
        )


def _is_there(entry: ShardEntry, sizes: dict[str, int], place: Place, subfolders: int) -> bool:
    if (name := remote_name(subfolders, entry.name, "json")) not in sizes:
        return False
    try:
        record = parse_json(read(place, name), entry.name, "shard")
        same = (record["bin"]["sha256"], record["idx"]["sha256"]) == (entry.bin_sha256, entry.idx_sha256)
        files = [(remote_name(subfolders, entry.name, suffix), suffix) for suffix in suffixes_of(record)]
        return same and all(sizes.get(file) == record[suffix]["bytes"] for file, suffix in files)
    except (FileNotFoundError, ValueError, KeyError):
        return False


def shard_items(token_set: TokenSet, entry: ShardEntry, subfolders: int = 0) -> list[Item]:
    """A shard's files, the record last. ValueError where one is not what was written."""
    record = token_set.record(entry)
    if (record["bin"]["sha256"], record["idx"]["sha256"]) != (entry.bin_sha256, entry.idx_sha256):
        raise ValueError(f"{token_set.told}: the record of shard {entry.name} is of another than the manifest lists")
    return items_of(token_set.path, record, subfolders)


def items_of(folder: Path, record: dict[str, Any], subfolders: int = 0) -> list[Item]:
    """The files of a shard with this record, the record last. ValueError where one is not what was written."""
    shard, items = record["name"], list[Item]()
    for suffix in suffixes_of(record):
        path = shard_path(folder, shard, suffix)
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        expected = record[suffix]["sha256"]
        if found != expected:
            raise ValueError(
                f"{path}: expected SHA-256 {expected}, found {found}: damaged; `tokenmill verify --drop-bad` takes the "
                "shard out, and preparing again makes it anew"
            )
        items.append((remote_name(subfolders, shard, suffix), path))
    return [*items, (remote_name(subfolders, shard, "json"), shard_path(folder, shard, "json"))]


def closing_items(token_set: TokenSet, subfolders: int, card: bytes | None) -> list[Item]:
    """What makes the shards at an address a token set: the manifest comes last."""
    folder = token_set.path
    kept = [path for path in sorted((folder / "manifests").glob("*.json")) if path.stem != token_set.digest]
    items: list[Item] = [(name, folder / name) for name in ("tokenizer.json", "token_bytes.npy")]
    items += [(f"manifests/{path.name}", _manifest(path, subfolders)) for path in kept]
    now = _manifest(folder / "manifest.json", subfolders, [path.stem for path in kept])
    items.append((f"manifests/{token_set.digest}.json", now))
    if card is not None:
        items.append(("README.md", card))
    return [*items, ("manifest.json", now)]


def _manifest(path: Path, subfolders: int, earlier: Sequence[str] = ()) -> bytes:
    """A manifest that says where its shards lie, and which manifests came before: not every place can be listed."""
    manifest: dict[str, Any] = read_json(path, "tokens")
    more = {"subfolders": subfolders, "earlier": list(earlier)}
    said = {key: value for key, value in more.items() if value}
    if not said:
        return path.read_bytes()
    return (json.dumps(manifest | said, indent=1, ensure_ascii=False) + "\n").encode()
