"""Push: the files of a token set are sent to an address, the manifest last.

    push(TokenSet("data/tokens/web"), "s3://bucket/web")    readers see the old set, or the new one

A file that is there already with the right size is not sent again, so a push continues where it
stopped. What is sent is first compared with its checksum. To the Hugging Face hub everything goes
in one commit; huggingface_hub does not send again what the hub has.
"""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tokenmill import hub_client
from tokenmill.messages import first_line, redact, sanitize
from tokenmill.remote.files import read, require_writable, scheme_of, sizes, write
from tokenmill.remote.set_files import (
    THREADS,
    Facts,
    Progress,
    column_files,
    record_file,
    small_files,
)
from tokenmill.remote.token_set import read_manifest
from tokenmill.store.columns import META, TOKENS
from tokenmill.store.files import sha256_of_file
from tokenmill.store.locks import locked
from tokenmill.store.manifests import digest_of
from tokenmill.store.shards import ShardEntry
from tokenmill.store.token_sets import TokenSet

MOST_IN_A_FOLDER = 10_000  # files, on the hub


def push(
    token_set: TokenSet,
    address: str,
    progress: Progress = lambda *_: None,
    card: bytes = b"",
    private: bool = False,
) -> int:
    """Sends a set; `card` and `private` are for the hub. Returns how many shards were sent.

    ValueError if a file is damaged here; FileExistsError if another set is there; what `write`
    raises.
    """
    with locked(token_set.path, shared=True):  # or it grows meanwhile
        token_set = TokenSet(token_set.path)
        if scheme_of(address) == "hf":
            return _commit(token_set, address, progress, card, private)
        require_writable(address)
        _require_same_there(token_set, address)
        present = sizes(address)
        send = partial(_push_shard, token_set, address, present, progress)
        with ThreadPoolExecutor(THREADS) as threads:
            num_sent = sum(threads.map(send, token_set.entries))
        push_rest(token_set, address, present)
    return num_sent


def _require_same_there(token_set: TokenSet, address: str) -> None:
    """FileExistsError if the manifest at the address is not one that this set has, or has had."""
    try:
        _, manifest = read_manifest(address)
    except FileNotFoundError:
        return
    digest = digest_of(manifest)
    if digest not in {token_set.digest, *token_set.digests()}:
        raise FileExistsError(
            f"{redact(address)}: has another token set, {manifest['dataset']} with manifest "
            f"{digest}, which {token_set.path} never had; if that one has grown since, pull it; "
            "else push to another address"
        )


def _push_shard(
    token_set: TokenSet,
    address: str,
    present: Mapping[str, int],
    progress: Progress,
    entry: ShardEntry,
) -> bool:
    """Whether a shard had to be sent. `present` are the sizes of files at the address."""
    record = _own_record(token_set, entry, address, present)
    is_there = _is_there(token_set, record, address, present)
    if not is_there:
        push_shard(token_set.path, record, address)
    progress(1, record[TOKENS.suffix]["bytes"])
    return not is_there


def _is_there(
    token_set: TokenSet, record: dict[str, Any], address: str, present: Mapping[str, int]
) -> bool:
    """Whether the address has a shard's record, and its columns with their sizes."""
    name = record_file(record["name"])
    if name not in present:
        return False
    columns = {path: facts["bytes"] for path, facts in column_files(record).items()}
    if not columns.items() <= present.items():
        return False
    checksum = hashlib.sha256(read(address, name)).hexdigest()
    return checksum == token_set.records[record["name"]]


def _own_record(
    token_set: TokenSet, entry: ShardEntry, address: str, present: Mapping[str, int]
) -> dict[str, Any]:
    """The record of a shard here.

    ValueError if it is damaged; FileExistsError if kept columns are there, and not here.
    """
    expected = {"sha256": token_set.records[entry.name]}
    _compared(token_set.path, record_file(entry.name), expected)
    record = token_set.record(entry)
    if f"shards/{entry.name}.{META.suffix}" in present and META.suffix not in record:
        raise FileExistsError(
            f"{redact(address)}: has kept columns that {token_set.path} lacks; pull first"
        )
    return record


def push_shard(folder: Path, record: dict[str, Any], address: str) -> None:
    """Sends the files of the shard with this record, the record last.

    ValueError if one is damaged.
    """
    files = {**column_files(record), record_file(record["name"]): {}}
    for name, facts in files.items():
        write(address, name, _compared(folder, name, facts))


def push_rest(token_set: TokenSet, address: str, present: Mapping[str, int] | None = None) -> None:
    """Sends what makes the shards at an address a token set, the manifest last.

    `present` are the sizes of files at the address.
    """
    present = present or {}
    for name, facts in small_files(token_set):
        is_there = "bytes" in facts and present.get(name) == facts["bytes"]
        if not is_there:  # a view's arrays are named by content
            write(address, name, _compared(token_set.path, name, facts))
    write(address, "manifest.json", token_set.path / "manifest.json")


def _compared(folder: Path, name: str, facts: Facts) -> Path:
    """The path of a file. ValueError if it has another SHA-256."""
    path = folder / name
    expected = facts.get("sha256")
    if expected is None:
        return path
    actual = sha256_of_file(path)
    if actual != expected:
        raise ValueError(
            f"{path}: expected SHA-256 {expected}, found {actual}: damaged; put the right file "
            "back, or make it again, as `tokenmill verify` or `tokenmill view --update` says"
        )
    return path


def _commit(
    token_set: TokenSet, address: str, progress: Progress, card: bytes, private: bool
) -> int:
    """Sends a set to the hub in one commit. OSError with what the hub says."""
    place = hub_client.parse_address(address)
    api = hub_client.api()
    shown = redact(address)
    try:
        files = _files_to_commit(token_set, address, progress)
        api.create_repo(place.repository, repo_type="dataset", private=private, exist_ok=True)
        from huggingface_hub import CommitOperationAdd

        operations = [
            CommitOperationAdd(place.under(name), _compared(token_set.path, name, facts))
            for name, facts in files.items()
        ]
        operations.append(CommitOperationAdd(place.under("README.md"), card))
        api.create_commit(
            place.repository,
            operations,
            commit_message="tokenmill push",
            repo_type="dataset",
            revision=place.revision,
        )
    except (ValueError, FileExistsError, ImportError):
        raise
    except Exception as error:  # of several libraries
        reason = sanitize(first_line(error))
        raise OSError(
            f"{shown}: the hub did not take it ({reason}); {hub_client.ACCESS}, and may write"
        ) from error
    return len(token_set.entries)


def _files_to_commit(token_set: TokenSet, address: str, progress: Progress) -> dict[str, Facts]:
    """All files of a set. ValueError if they are too many for the hub."""
    _require_same_there(token_set, address)
    present = sizes(address)
    files: dict[str, Facts] = {}
    for entry in token_set.entries:
        record = _own_record(token_set, entry, address, present)
        files |= column_files(record)
        files[record_file(entry.name)] = {}
        progress(1, record[TOKENS.suffix]["bytes"])
    if len(files) >= MOST_IN_A_FOLDER:
        raise ValueError(
            f"{redact(address)}: the hub takes {MOST_IN_A_FOLDER:,} files in a folder, and the set "
            f"has {len(files):,} in shards/; prepare it again with larger shards, or push it to a "
            "bucket"
        )
    return files | dict(small_files(token_set)) | {"manifest.json": {}}
