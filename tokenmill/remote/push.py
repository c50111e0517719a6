"""Sends a token set to an address: shards first, manifest and card last, so that readers see the old set or the new.

The record of a shard is sent after its columns. So a shard is there if its record is there with the same SHA-256s, and
its files have the right sizes. Such a shard is not sent again, except with `again`, and an interrupted push continues
where it stopped.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tokenmill.addresses import remote_name
from tokenmill.remote.backends import Backend, read
from tokenmill.remote.writers import Item, Sink
from tokenmill.store.columns import checksums_of, columns_of
from tokenmill.store.files import parse_json, read_bounded, read_json
from tokenmill.store.shards import ShardEntry, shard_path
from tokenmill.store.small_files import SMALL_FILES, has_record, is_record, what_is_wrong
from tokenmill.store.token_sets import TokenSet, digest_of, require_kept_manifests
from tokenmill.store.views import DIGEST, FOLDER, VIEW_ARRAYS

THREADS = 8
FILES_A_SHARD = 4  # tokens, offsets, ids and the record; other columns come on top
SUBFOLDERS = 256  # if one folder cannot hold all files


def subfolders_for(entries: Sequence[ShardEntry], most: int) -> int:
    """How many folders below shards/ these shards need, if a folder can hold `most` files; 0 for none."""
    files = sum(FILES_A_SHARD + len(entry.columns) for entry in entries)
    return 0 if files < most else SUBFOLDERS


def push(
    token_set: TokenSet,
    sink: Sink,
    card: bytes | None = None,
    again: bool = False,
    progress: Callable[[int, int], None] = lambda shards, size: None,
) -> int:
    """Sends the missing shards of a set, and then its manifest. Returns how many shards were sent.

    `progress` is called with the shards and bytes that arrived since the last call. ValueError if a shard is damaged on
    this disk; FileExistsError if there is another set at the address; what Sink.put raises if a file cannot be sent.
    """
    _require_no_other(token_set, sink.backend)
    sizes = {} if again else sink.sizes()
    entries, records = token_set.entries, token_set.records
    subfolders = subfolders_for(entries, sink.most_in_a_folder)
    todo: list[ShardEntry] = []
    with ThreadPoolExecutor(THREADS) as threads:
        there = threads.map(lambda entry: _is_there(entry, sizes, sink.backend, subfolders, records), entries)
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


def _require_no_other(token_set: TokenSet, backend: Backend) -> None:
    """FileExistsError if the manifest at the address is not one that this set has, or has had."""
    try:
        there = parse_json(read(backend, "manifest.json"), backend.display("manifest.json"), "tokens")
    except FileNotFoundError:
        return
    if (digest := digest_of(there)) not in {token_set.digest, *token_set.digests()}:
        raise FileExistsError(
            f"{backend.display('manifest.json')}: is of another token set, {there['dataset']} with manifest {digest}, "
            f"which {token_set.path} never was; push to another address, or delete that one first"
        )


def _is_there(
    entry: ShardEntry, sizes: dict[str, int], backend: Backend, subfolders: int, records: Mapping[str, str]
) -> bool:
    if (name := remote_name(subfolders, entry.name, "json")) not in sizes:
        return False
    try:
        record = parse_json(data := read(backend, name), entry.name, "shard")
        files = {suffix: remote_name(subfolders, entry.name, suffix) for suffix in columns_of(record)}
        same_sizes = all(sizes.get(file) == checksums_of(record, suffix)["bytes"] for suffix, file in files.items())
        return entry.is_of(record) and same_sizes and is_record(data, entry.name, records)
    except (FileNotFoundError, ValueError, KeyError):
        return False


def shard_items(token_set: TokenSet, entry: ShardEntry, subfolders: int = 0) -> list[Item]:
    """The files of a shard, the record last. ValueError if one is damaged."""
    record = token_set.record(entry)
    if not (entry.is_of(record) and has_record(token_set.path, entry.name, token_set.records)):
        raise ValueError(
            f"{token_set.display_name}: the record of shard {entry.name} is not the one that the manifest lists; "
            "put the right file back, or prepare the set again"
        )
    return items_of(token_set.path, record, subfolders)


def items_of(folder: Path, record: dict[str, Any], subfolders: int = 0) -> list[Item]:
    """The files of the shard with this record, the record last. ValueError if one is damaged."""
    shard, items = record["name"], list[Item]()
    for suffix in columns_of(record):
        path = shard_path(folder, shard, suffix)
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        expected = checksums_of(record, suffix)["sha256"]
        if found != expected:
            raise ValueError(
                f"{path}: expected SHA-256 {expected}, found {found}: damaged; `tokenmill verify --drop-bad` takes the "
                "shard out, and preparing again makes it again"
            )
        items.append((remote_name(subfolders, shard, suffix), path))
    return [*items, (remote_name(subfolders, shard, "json"), shard_path(folder, shard, "json"))]


def closing_items(token_set: TokenSet, subfolders: int, card: bytes | None) -> list[Item]:
    """The files that make the shards at an address a token set, the manifest last."""
    folder = token_set.path
    require_kept_manifests(folder)
    kept = [path for path in sorted((folder / "manifests").glob("*.json")) if path.stem != token_set.digest]
    items: list[Item] = [(name, _right_file(token_set, name)) for name in SMALL_FILES]
    items += [(f"manifests/{path.name}", _manifest(path, subfolders)) for path in kept]
    now = _manifest(folder / "manifest.json", subfolders, [path.stem for path in kept], token_set.view_stems())
    items += view_items(token_set)
    items.append((f"manifests/{token_set.digest}.json", now))
    if card is not None:
        items.append(("README.md", card))
    return [*items, ("manifest.json", now)]


def _right_file(token_set: TokenSet, name: str) -> bytes:
    path = token_set.file(name)
    data = read_bounded(path, SMALL_FILES[name], name)
    if (wrong := what_is_wrong(name, data, token_set.manifest)) is not None:
        raise ValueError(f"{path}: {wrong}: damaged; put the right file back, or prepare again")
    return data


def view_items(token_set: TokenSet) -> list[Item]:
    """The files of a set's views, former ones too, each JSON after its arrays. ValueError if one is damaged."""
    items: list[Item] = []
    for stem in sorted(token_set.view_stems(), key=lambda stem: (not DIGEST.fullmatch(stem), stem)):
        path = token_set.view_file(f"{stem}.json")
        facts = read_json(path, "view")
        for kind in VIEW_ARRAYS if stem == facts["digest"] else ():
            array = token_set.view_file(f"{stem}.{kind}")
            with open(array, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != facts[kind]["sha256"]:
                raise ValueError(
                    f"{array}: expected SHA-256 {facts[kind]['sha256']}, found {found}: damaged; make the view again "
                    f"by `tokenmill view {token_set.path} --name {facts['name']} --update`"
                )
            items.append((f"{FOLDER}/{array.name}", array))
        items.append((f"{FOLDER}/{path.name}", path))
    return items


def _manifest(path: Path, subfolders: int, earlier: Sequence[str] = (), views: Sequence[str] = ()) -> bytes:
    """A manifest that also says where its shards are, which manifests came before, and which views there are, as some
    backends cannot list.
    """
    manifest: dict[str, Any] = read_json(path, "tokens")
    more = {"subfolders": subfolders, "earlier": list(earlier), "views": list(views)}
    said = {key: value for key, value in more.items() if value}
    if not said:
        return path.read_bytes()
    return (json.dumps(manifest | said, indent=1, ensure_ascii=False) + "\n").encode()
