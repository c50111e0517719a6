"""Push and pull: the files of a token set, copied to an address or from it, the manifest last.

    push(TokenSet("data/tokens/web"), "s3://bucket/web")      readers see the old set, or the new one
    pull("s3://bucket/web", Path("data/tokens/web"))          a folder as if it had been prepared there

A file that is there already with the right size (push) or SHA-256 (pull) is not copied again, so both continue where
they stopped. What is sent is first compared with its checksum, and what comes is compared before it counts. To the
Hugging Face hub everything goes in one commit; huggingface_hub does not send again what the hub has.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tokenmill import hub_client
from tokenmill.messages import redact, sanitize
from tokenmill.remote.files import read, require_writable, scheme_of, sizes, write
from tokenmill.remote.part_cache import PART_BYTES, require_crc32
from tokenmill.remote.token_set import RemoteTokenSet, read_manifest
from tokenmill.store.columns import META, columns_of
from tokenmill.store.files import (
    AtomicFile,
    read_json,
    remove_temporary_files,
    sha256_of_file,
    write_changed,
)
from tokenmill.store.locks import locked
from tokenmill.store.shards import ShardEntry
from tokenmill.store.token_sets import SMALL_FILES, TokenSet, digest_of
from tokenmill.store.views import FOLDER, VIEW_ARRAYS

THREADS, RANGE = 8, 8 * PART_BYTES  # bytes that are read at once
MOST_IN_A_FOLDER = 10_000  # files, on the hub
Progress = Callable[[int, int], None]  # shards and bytes since the last call
Facts = dict[str, Any]  # the "sha256" of a file; of large ones its "bytes" and "crc32" too


def _columns(record: dict[str, Any]) -> dict[str, Facts]:
    """The files of a shard but its record, by their names in the set."""
    return {f"shards/{record['name']}.{suffix}": record[suffix] for suffix in columns_of(record)}


def _other_files(token_set: TokenSet) -> Iterator[tuple[str, Facts]]:
    """The files of a set but its shards and its manifest; the arrays of views before their JSON."""
    sha256 = token_set.manifest["files"]
    yield from ((name, {"sha256": sha256[name]}) for name in SMALL_FILES if name in sha256)
    for digest in token_set.digests():
        token_set.knows(digest)  # ValueError if it is another manifest
        yield f"manifests/{digest}.json", {}
    views = {
        stem: read_json(token_set.view_file(f"{stem}.json"), "view")
        for stem in token_set.view_stems()
    }
    for digest, facts in {facts["digest"]: facts for facts in views.values()}.items():
        yield from ((f"{FOLDER}/{digest}.{kind}", facts[kind]) for kind in VIEW_ARRAYS)
    yield from ((f"{FOLDER}/{stem}.json", {}) for stem in views)


# ---------------------------------------------------------------------------- push


def push(
    token_set: TokenSet,
    address: str,
    progress: Progress = lambda *_: None,
    card: bytes = b"",
    private: bool = False,
) -> int:
    """Sends a set; `card` and `private` are for the hub. Returns how many shards were sent.

    ValueError if a file is damaged here; FileExistsError if another set is there; what `write` raises.
    """
    with (
        locked(token_set.path, shared=True),
        ThreadPoolExecutor(THREADS) as threads,
    ):  # or it grows meanwhile
        token_set = TokenSet(token_set.path)
        if scheme_of(address) == "hf":
            return _commit(token_set, address, progress, card, private)
        require_writable(address)
        _require_no_other(token_set, address)
        there, entries = sizes(address), token_set.entries
        sent = sum(
            threads.map(
                lambda entry: _push_shard(token_set, entry, address, there, progress), entries
            )
        )
        push_rest(token_set, address, there)
    return sent


def _require_no_other(token_set: TokenSet, address: str) -> None:
    """FileExistsError if the manifest at the address is not one that this set has, or has had."""
    try:
        _, manifest = read_manifest(address)
    except FileNotFoundError:
        return
    if (digest := digest_of(manifest)) not in {token_set.digest, *token_set.digests()}:
        raise FileExistsError(
            f"{redact(address)}: has another token set, {manifest['dataset']} with manifest {digest}, which "
            f"{token_set.path} never had; if that one has grown since, pull it; else push to another address"
        )


def _push_shard(
    token_set: TokenSet, entry: ShardEntry, address: str, there: dict[str, int], progress: Progress
) -> bool:
    """Whether a shard had to be sent: it is there if its record is, and its columns with their sizes."""
    record = _record(token_set, entry, address, there)
    name, columns = (
        f"shards/{entry.name}",
        {name: facts["bytes"] for name, facts in _columns(record).items()},
    )
    known = f"{name}.json" in there and columns.items() <= there.items()
    known = (
        known
        and hashlib.sha256(read(address, f"{name}.json")).hexdigest()
        == token_set.records[entry.name]
    )
    if not known:
        push_shard(token_set.path, record, address)
    progress(1, record["bin"]["bytes"])
    return not known


def _record(
    token_set: TokenSet, entry: ShardEntry, address: str, there: Mapping[str, int]
) -> dict[str, Any]:
    """The record of a shard. ValueError if it is damaged; FileExistsError if kept columns are there, and not here."""
    _whole(token_set.path, f"shards/{entry.name}.json", {"sha256": token_set.records[entry.name]})
    record = token_set.record(entry)
    if f"shards/{entry.name}.{META.suffix}" in there and META.suffix not in record:
        raise FileExistsError(
            f"{redact(address)}: has kept columns that {token_set.path} lacks; pull first"
        )
    return record


def push_shard(folder: Path, record: dict[str, Any], address: str) -> None:
    """Sends the files of the shard with this record, the record last. ValueError if one is damaged."""
    for name, facts in [*_columns(record).items(), (f"shards/{record['name']}.json", {})]:
        write(address, name, _whole(folder, name, facts))


def push_rest(token_set: TokenSet, address: str, there: Mapping[str, int] | None = None) -> None:
    """Sends what makes the shards at an address a token set, the manifest last. `there` are the sizes of its files."""
    for name, facts in _other_files(token_set):
        if (
            "bytes" not in facts or (there or {}).get(name) != facts["bytes"]
        ):  # a view's arrays are named by content
            write(address, name, _whole(token_set.path, name, facts))
    write(address, "manifest.json", token_set.path / "manifest.json")


def _whole(folder: Path, name: str, facts: Facts) -> Path:
    """The path of a file. ValueError if it has another SHA-256."""
    path, expected = folder / name, facts.get("sha256")
    if expected is not None and (found := sha256_of_file(path)) != expected:
        how = "put the right file back, or make it again, as `tokenmill verify` or `tokenmill view --update` says"
        raise ValueError(f"{path}: expected SHA-256 {expected}, found {found}: damaged; {how}")
    return path


def _commit(
    token_set: TokenSet, address: str, progress: Progress, card: bytes, private: bool
) -> int:
    """Sends a set to the hub in one commit. OSError with what the hub says."""
    where, api, shown = hub_client.parse_address(address), hub_client.api(), redact(address)
    files: dict[str, Facts] = {}
    try:
        api.create_repo(where.repository, repo_type="dataset", private=private, exist_ok=True)
        _require_no_other(token_set, address)
        there = sizes(address)
        for entry in token_set.entries:
            record = _record(token_set, entry, address, there)
            files |= _columns(record) | {f"shards/{entry.name}.json": {}}
            progress(1, record["bin"]["bytes"])
        if len(files) >= MOST_IN_A_FOLDER:
            raise ValueError(
                f"{shown}: the hub takes {MOST_IN_A_FOLDER:,} files in a folder, and the set has {len(files):,} in "
                "shards/; prepare it again with larger shards, or push it to a bucket"
            )
        files |= dict(_other_files(token_set)) | {"manifest.json": {}}
        from huggingface_hub import CommitOperationAdd

        added = [
            CommitOperationAdd(where.under(n), _whole(token_set.path, n, facts))
            for n, facts in files.items()
        ]
        added.append(CommitOperationAdd(where.under("README.md"), card))
        how: dict[str, Any] = {"repo_type": "dataset", "revision": where.revision}
        api.create_commit(where.repository, added, commit_message="tokenmill push", **how)
    except (ValueError, FileExistsError, ImportError):
        raise
    except Exception as error:  # of several libraries
        reason = sanitize(hub_client.first_line(error))
        raise OSError(
            f"{shown}: the hub did not take it ({reason}); {hub_client.ACCESS}, and may write"
        ) from error
    return len(token_set.entries)


# ---------------------------------------------------------------------------- pull


def pull(address: str, folder: Path, progress: Progress = lambda *_: None) -> int:
    """Fetches a set into a folder. Returns how many shards came.

    An address that cannot be listed (https://) gives the present manifest and its shards, without views and former
    manifests. FileExistsError if the folder has another set; what `read` raises.
    """
    token_set = RemoteTokenSet(address)  # before anything is made here
    with locked(folder):
        _require_same_set(folder, token_set)
        remove_temporary_files(folder, folder / "shards", folder / "manifests", folder / FOLDER)
        with ThreadPoolExecutor(THREADS) as threads:
            came = sum(
                threads.map(
                    lambda entry: _pull_shard(token_set, folder, entry, progress), token_set.entries
                )
            )
        for name, facts in _other_files(token_set):
            _pull_file(token_set, folder, name, facts)
        write_changed(
            folder / "manifest.json", (folder / f"manifests/{token_set.digest}.json").read_bytes()
        )
    return came


def _require_same_set(folder: Path, token_set: RemoteTokenSet) -> None:
    """FileExistsError if the folder has a set that the one at the address is not, and never was."""
    if not (folder / "manifest.json").exists():
        if others := sorted(
            {path.name for path in folder.iterdir()} - {"shards", "manifests", FOLDER, *SMALL_FILES}
        ):
            raise FileExistsError(
                f"{folder}: expected a new folder, found {others[0]} in it; name another folder"
            )
    elif not token_set.knows(here := TokenSet(folder).digest):
        raise FileExistsError(
            f"{folder}: has another token set, with manifest {here}, which {token_set.display_name} never had; if this "
            "one has grown since, push it; else name a new folder"
        )


def _pull_shard(
    token_set: RemoteTokenSet, folder: Path, entry: ShardEntry, progress: Progress
) -> bool:
    """Whether a shard had to be fetched. Its record is written last."""
    record, lost = token_set.record(entry), folder / f"shards/{entry.name}.{META.suffix}"
    if lost.exists() and META.suffix not in record:
        raise FileExistsError(
            f"{lost}: is not at {token_set.display_name}; push the kept columns, or delete them here"
        )
    came = [_pull_file(token_set, folder, name, facts) for name, facts in _columns(record).items()]
    _pull_file(token_set, folder, f"shards/{entry.name}.json", {})
    progress(1, record["bin"]["bytes"])
    return any(came)


def _pull_file(token_set: RemoteTokenSet, folder: Path, name: str, facts: Facts) -> bool:
    """Whether a large file had to be fetched, some MiB at a time. Small ones come by way of the cache."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if "crc32" not in facts:
        cached = (
            token_set.path_of(name, facts) if facts else token_set.path / name
        )  # or it is there already
        write_changed(path, cached.read_bytes())
        return False
    if path.exists() and sha256_of_file(path) == facts["sha256"]:
        return False
    with AtomicFile(path) as file:
        for start in range(0, facts["bytes"], RANGE):
            end, first = min(start + RANGE, facts["bytes"]), start // PART_BYTES
            check = partial(
                require_crc32, end - start, facts["crc32"][first : first + RANGE // PART_BYTES]
            )
            file.write(read(token_set.address, name, start, end, check))
        file.commit()
    return True
