"""Fetches a whole token set from an address into a folder, which is then as if it had been prepared there.

Blocks come as for training (fetcher.py), into a folder beside the shards. Once all blocks of a shard are there, its
tokens are read once more, their SHA-256 is compared, and its files are moved to their places. Optional columns are
fetched whole and compared in the same way. The manifest is written last. So an interrupted pull continues with the next
block, and of a set that has grown only the new shards are fetched.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenmill.remote.cache import Need
from tokenmill.remote.caches import forget
from tokenmill.remote.fetcher import fetcher
from tokenmill.remote.sets import Kept, RemoteTokenSet, manifest_at
from tokenmill.store.columns import columns_of
from tokenmill.store.files import (
    LARGEST,
    parse_json,
    read_bounded,
    read_json,
    remove_temporary_files,
    write_file,
    write_json,
)
from tokenmill.store.locked import locked
from tokenmill.store.names import plain
from tokenmill.store.shards import ShardEntry, finished_record, shard_path
from tokenmill.store.small_files import SMALL_FILES, has_record
from tokenmill.store.token_sets import TokenSet, kept_manifest
from tokenmill.store.views import FOLDER, VIEW_ARRAYS

INCOMING = ".incoming"  # where blocks come
AHEAD = 4  # shards that are fetched while one is checked
NO_LIMIT = 1 << 62
TOLD_BLOCKS = 16  # that come before their bytes are counted


def pull(address: str, folder: Path, progress: Callable[[int, int], None] = lambda shards, size: None) -> int:
    """Fetches a set into a folder. Returns how many shards came.

    `progress` is called with the shards and bytes since the last call. FileNotFoundError if there is no set;
    FileExistsError if the folder has another one; what reading a set raises.
    """
    manifest_at(address)  # before anything is made here
    with locked(folder):
        token_set = RemoteTokenSet(address, Kept(folder / INCOMING, NO_LIMIT))
        _require_same_set(folder, token_set)
        remove_temporary_files(folder, folder / "shards")
        (folder / "shards").mkdir(exist_ok=True)
        todo = [entry for entry in token_set.entries if not _is_there(folder, entry, token_set.records)]
        for entry in token_set.entries:
            if entry not in todo:
                progress(1, entry.tokens * token_set.numpy_dtype.itemsize)
        for entry in todo:
            _put_back(token_set, entry, folder)
        needs, current = dict[str, Need](), list[str]()
        for number, entry in enumerate(todo):
            for later in todo[number : number + AHEAD]:
                if later.name not in needs:
                    needs[later.name] = _expect(token_set, later, current)
            current.append(entry.name)
            needs[entry.name].stay = True  # on a disk that is full, the shards after it make room for it
            _take(token_set, entry, folder, progress)
            del needs[entry.name]
            progress(1, 0)
        _close(token_set, folder)
        forget(token_set.cache)
        shutil.rmtree(folder / INCOMING, ignore_errors=True)
    return len(todo)


def _require_same_set(folder: Path, token_set: RemoteTokenSet) -> None:
    if not (folder / "manifest.json").exists():
        return
    there = TokenSet(folder)
    if there.tokenizer["fingerprint"] != token_set.tokenizer["fingerprint"]:
        raise FileExistsError(f"{folder}: is there already, of another tokenizer; name a new folder")
    if not token_set.knows(there.digest):
        raise FileExistsError(
            f"{folder}: is there already, with manifest {there.digest}, which {token_set.display_name} never had; name "
            "a new folder"
        )


def _is_there(folder: Path, entry: ShardEntry, records: Mapping[str, str]) -> bool:
    record = finished_record(folder, entry.name)
    return record is not None and entry.is_of(record) and has_record(folder, entry.name, records)


def _put_back(token_set: RemoteTokenSet, entry: ShardEntry, folder: Path) -> None:
    """Moves files of a shard back to the incoming ones, if moving them was interrupted."""
    for suffix, size in (("bin", token_set.cache.bytes_of(entry.name)), ("idx", (entry.documents + 1) * 8)):
        here, there = shard_path(folder, entry.name, suffix), shard_path(token_set.path, entry.name, suffix)
        if here.exists() and here.stat().st_size == size and not there.exists():
            os.replace(here, there)


def _expect(token_set: RemoteTokenSet, entry: ShardEntry, current: list[str]) -> Need:
    need = Need(token_set.cache.blocks_of(entry.name), lambda: int(entry.name not in current))
    fetcher().expect(token_set.cache, need)
    return need


def _take(token_set: RemoteTokenSet, entry: ShardEntry, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Waits for a shard's blocks, and moves its files to their places, the record last."""
    token_set.bring([entry])
    blocks = token_set.cache.blocks_of(entry.name)
    for first in range(0, len(blocks), TOLD_BLOCKS):
        some = blocks[first : first + TOLD_BLOCKS]
        fetcher().require(token_set.cache, some)
        progress(0, sum(at.stop - at.start for at in map(token_set.cache.blocks.span, some.tolist())))
    path = shard_path(token_set.path, entry.name, "bin")
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    if found != entry.bin_sha256:
        token_set.cache.doubt(entry.name)
        raise OSError(
            f"{token_set.display_name}: shard {entry.name}: expected SHA-256 {entry.bin_sha256}, found {found}, though "
            "each block had the CRC-32 of its record when it came; run the command again to fetch it again. If that "
            "does not help, it was damaged before it was sent: run `tokenmill push --again` where it came from"
        )
    columns = columns_of(token_set.record(entry))
    for suffix in (name for name, column in columns.items() if column.optional):
        token_set.column_path(entry, suffix)
    shutil.copymode(shard_path(token_set.path, entry.name, "json"), path)  # the cache's is for this user alone
    for suffix in (*columns, "json"):
        os.replace(shard_path(token_set.path, entry.name, suffix), shard_path(folder, entry.name, suffix))


def _close(token_set: RemoteTokenSet, folder: Path) -> None:
    """Writes what makes the shards a token set, the manifest last."""
    for name in SMALL_FILES:
        write_file(folder / name, token_set.file(name).read_bytes())
    manifest = _as_it_is_here(token_set.path / "manifest.json", token_set.display_name)
    for stem in token_set.view_stems():
        _take_view(token_set, stem, folder)
    kept = kept_manifest(folder, token_set.digest)
    kept.parent.mkdir(exist_ok=True)
    for digest in token_set.digests():
        if digest != token_set.digest and token_set.knows(digest):
            earlier = _as_it_is_here(kept_manifest(token_set.path, digest), token_set.display_name)
            write_json(kept_manifest(folder, digest), earlier)
    if (folder / "manifest.json").exists():
        former = TokenSet(folder)
        with contextlib.suppress(FileExistsError):
            os.link(folder / "manifest.json", kept_manifest(folder, former.digest))
    write_json(kept, manifest)
    write_json(folder / "manifest.json", manifest)


def _take_view(token_set: RemoteTokenSet, stem: str, folder: Path) -> None:
    """Copies a view, former ones too, into the folder; its arrays first."""
    (folder / FOLDER).mkdir(exist_ok=True)
    path = token_set.view_file(f"{plain('a view', stem)}.json")
    facts = read_json(path, "view")
    for kind in VIEW_ARRAYS if stem == facts["digest"] else ():
        array = token_set.view_file(f"{stem}.{kind}", facts[kind])
        os.replace(array, folder / FOLDER / array.name)
    write_file(folder / FOLDER / path.name, path.read_bytes())


def _as_it_is_here(path: Path, what: str) -> dict[str, Any]:
    """A manifest without the keys that are about its address."""
    manifest = parse_json(read_bounded(path, LARGEST, "a manifest"), what, "tokens")
    return {key: value for key, value in manifest.items() if key not in ("subfolders", "earlier", "views")}
