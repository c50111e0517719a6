"""Push and pull: the files of a token set, copied to an address or from it, the manifest last.

    push(TokenSet("data/tokens/web"), "s3://bucket/web")      readers see the old set, or the new one
    pull("s3://bucket/web", Path("data/tokens/web"))          a folder as if it had been prepared there

A set has the same files at an address as in a folder. A file that is there already with the right size (push) or
SHA-256 (pull) is not copied again, so both continue where they stopped. The record of a shard is copied after its
columns. What is sent is first compared with its checksum, and what comes is compared before it counts. To the Hugging
Face hub everything goes in one commit; huggingface_hub does not send again what the hub has.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenmill import hub_client
from tokenmill.addresses import display_address
from tokenmill.remote.files import WrongBytes, read, require_writable, scheme_of, sizes, write
from tokenmill.remote.part_cache import PART_BYTES, require_crc32
from tokenmill.remote.token_set import read_manifest, require_sha256
from tokenmill.sanitize import sanitize
from tokenmill.store.columns import META, checksums_of, columns_of
from tokenmill.store.files import (
    BLOCK_BYTES,
    AtomicFile,
    parse_json,
    read_json,
    remove_temporary_files,
    sha256_of_file,
    write_file,
)
from tokenmill.store.locked import locked
from tokenmill.store.shards import ShardEntry, shard_path
from tokenmill.store.token_sets import (
    SMALL_FILES,
    TokenSet,
    digest_of,
    kept_manifest,
    require_kept_manifests,
)
from tokenmill.store.views import DIGEST, FOLDER, NAME, VIEW_ARRAYS

THREADS = 8
RANGE = 8 * PART_BYTES
MOST_IN_A_FOLDER = 10_000  # files, on the hub
Progress = Callable[[int, int], None]  # shards and bytes since the last call


# ---------------------------------------------------------------------------- push


def push(
    token_set: TokenSet,
    address: str,
    progress: Progress = lambda shards, size: None,
    card: bytes = b"",
    private: bool = False,
) -> int:
    """Sends a set; `card` and `private` are for the hub. Returns how many shards were sent.

    ValueError if a file is damaged here; FileExistsError if another set is there; what `write` raises.
    """
    if scheme_of(address) == "hf":
        return _commit(token_set, address, progress, card, private)
    require_writable(address)
    _require_no_other(token_set, address)
    there, entries = sizes(address), token_set.entries
    with ThreadPoolExecutor(THREADS) as threads:
        sent = sum(threads.map(lambda entry: _push_shard(token_set, entry, address, there, progress), entries))
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
            f"{display_address(address)}: has another token set, {manifest['dataset']} with manifest {digest}, which "
            f"{token_set.path} never had; if that one has grown since, pull it; else push to another address"
        )


def _push_shard(
    token_set: TokenSet, entry: ShardEntry, address: str, there: dict[str, int], progress: Progress
) -> bool:
    """Whether a shard had to be sent: it is there if its record is, and its columns with their sizes."""
    record, name, sha256 = _record(token_set, entry), f"shards/{entry.name}", token_set.records[entry.name]
    columns = {f"{name}.{suffix}": checksums_of(record, suffix)["bytes"] for suffix in columns_of(record)}
    if (lost := f"{name}.{META.suffix}") in there and lost not in columns:
        raise FileExistsError(
            f"{display_address(address)}: has kept columns, which {token_set.path} lacks; pull it first"
        )
    known = f"{name}.json" in there and columns.items() <= there.items()
    try:
        known = known and bool(read(address, f"{name}.json", check=partial(require_sha256, sha256)))
    except WrongBytes:
        known = False
    if not known:
        push_shard(token_set.path, record, address)
    progress(1, record["bin"]["bytes"])
    return not known


def _record(token_set: TokenSet, entry: ShardEntry) -> dict[str, Any]:
    """The record of a shard. ValueError if it is not the one that the manifest lists."""
    _require_file(shard_path(token_set.path, entry.name, "json"), token_set.records[entry.name])
    return token_set.record(entry)


def push_shard(folder: Path, record: dict[str, Any], address: str) -> None:
    """Sends the files of the shard with this record, the record last. ValueError if one is damaged."""
    for name, path in _shard_files(folder, record):
        write(address, name, path)


def push_rest(token_set: TokenSet, address: str, there: Mapping[str, int] = MappingProxyType({})) -> None:
    """Sends what makes the shards at an address a token set, the manifest last. `there` are the sizes of files that it
    has.
    """
    for name, path in _other_files(token_set):
        is_named_by_content = name.startswith("manifests/") or Path(name).suffix[1:] in VIEW_ARRAYS
        if not (is_named_by_content and there.get(name) == path.stat().st_size):
            write(address, name, path)
    write(address, "manifest.json", token_set.path / "manifest.json")


def _shard_files(folder: Path, record: dict[str, Any]) -> Iterator[tuple[str, Path]]:
    """The files of a shard, by their names in the set, compared with their checksums; the record last."""
    for suffix in columns_of(record):
        path = shard_path(folder, record["name"], suffix)
        _require_file(path, checksums_of(record, suffix)["sha256"])
        yield f"shards/{path.name}", path
    yield f"shards/{record['name']}.json", shard_path(folder, record["name"], "json")


def _other_files(token_set: TokenSet) -> Iterator[tuple[str, Path]]:
    """All other files of a set but its manifest, compared with their checksums; a view's arrays before its JSON."""
    folder = token_set.path
    for name in SMALL_FILES:
        _require_file(folder / name, token_set.manifest["files"][name])
        yield name, folder / name
    require_kept_manifests(folder)
    views = {stem: folder / FOLDER / f"{stem}.json" for stem in token_set.view_stems()}
    for stem, path in views.items():
        facts = read_json(path, "view")
        for kind in VIEW_ARRAYS if stem == facts["digest"] else ():
            _require_file(array := path.with_suffix(f".{kind}"), facts[kind]["sha256"])
            yield f"{FOLDER}/{array.name}", array
    for path in [*sorted((folder / "manifests").glob("*.json")), *views.values()]:
        yield f"{path.parent.name}/{path.name}", path


def _require_file(path: Path, expected: str) -> None:
    if (found := sha256_of_file(path)) != expected:
        raise ValueError(
            f"{path}: expected SHA-256 {expected}, found {found}: damaged; put the right file back, or make it again: "
            "a shard by `tokenmill verify --drop-bad` and preparing, a view by `tokenmill view --update`"
        )


def _commit(token_set: TokenSet, address: str, progress: Progress, card: bytes, private: bool) -> int:
    """Sends a set to the hub in one commit. OSError with what the hub says."""
    where, api, shown = hub_client.parse_address(address), hub_client.api(), display_address(address)
    files: dict[str, Any] = {}
    try:
        api.create_repo(where.repository, repo_type="dataset", private=private, exist_ok=True)
        _require_no_other(token_set, address)
        for entry in token_set.entries:
            record = _record(token_set, entry)
            files |= dict(_shard_files(token_set.path, record))
            progress(1, record["bin"]["bytes"])
        if len(files) >= MOST_IN_A_FOLDER:
            raise ValueError(
                f"{shown}: the hub takes {MOST_IN_A_FOLDER:,} files in a folder, and the set has {len(files):,} in "
                "shards/; prepare it again with larger shards, or push it to a bucket"
            )
        files |= dict(_other_files(token_set)) | {"manifest.json": token_set.path / "manifest.json", "README.md": card}
        from huggingface_hub import CommitOperationAdd

        added = [CommitOperationAdd(where.under(name), file) for name, file in files.items()]
        how: dict[str, Any] = {"repo_type": "dataset", "revision": where.revision}
        api.create_commit(where.repository, added, commit_message="tokenmill push", **how)
    except (ValueError, FileExistsError, ImportError):
        raise
    except Exception as error:  # of several libraries
        reason = sanitize(hub_client.first_line(error))
        raise OSError(f"{shown}: the hub did not take it ({reason}); {hub_client.ACCESS}, and may write") from error
    return len(token_set.entries)


# ---------------------------------------------------------------------------- pull


def pull(address: str, folder: Path, progress: Progress = lambda shards, size: None) -> int:
    """Fetches a set into a folder. Returns how many shards came.

    An address that cannot be listed (https://) gives the present manifest and its shards, without views and former
    manifests. FileExistsError if the folder has another set; what `read` raises.
    """
    data, manifest = read_manifest(address)  # before anything is made here
    digest, entries = digest_of(manifest), [ShardEntry.of_listed(listed) for listed in manifest["shards"]]
    with locked(folder):
        _require_same_set(folder, address, digest)
        remove_temporary_files(folder, folder / "shards", folder / "manifests", folder / FOLDER)
        for name in ("shards", "manifests", FOLDER):
            (folder / name).mkdir(exist_ok=True)
        with ThreadPoolExecutor(THREADS) as threads:
            came = list(threads.map(lambda entry: _pull_shard(address, folder, manifest, entry, progress), entries))
        for name in SMALL_FILES:
            write_file(folder / name, read(address, name, check=partial(require_sha256, manifest["files"][name])))
        _pull_listed(address, folder)
        write_file(kept_manifest(folder, digest), data)
        write_file(folder / "manifest.json", data)
    return sum(came)


def _require_same_set(folder: Path, address: str, digest: str) -> None:
    """FileExistsError if the folder has a set that the one at the address is not, and never was."""
    if not (folder / "manifest.json").exists():
        if others := sorted({path.name for path in folder.iterdir()} - {"shards", "manifests", FOLDER, *SMALL_FILES}):
            raise FileExistsError(f"{folder}: expected a new folder, found {others[0]} in it; name another folder")
        return
    if (here := TokenSet(folder).digest) == digest:
        return
    try:
        read(address, f"manifests/{here}.json")
    except FileNotFoundError:
        raise FileExistsError(
            f"{folder}: has another token set, with manifest {here}, which {display_address(address)} never had; if "
            "this one has grown since, push it; else name a new folder"
        ) from None


def _pull_shard(address: str, folder: Path, manifest: dict[str, Any], entry: ShardEntry, progress: Progress) -> bool:
    """Whether a shard had to be fetched. Its record is read first, and written last."""
    name, check = f"shards/{entry.name}", partial(require_sha256, manifest["records"][entry.name])
    path = folder / f"{name}.json"
    data = read(address, f"{name}.json", check=check)
    record = parse_json(data, f"{display_address(address)}/{name}.json", "shard")
    if not entry.is_of(record):
        raise ValueError(f"{display_address(address)}/{name}.json: is not of the shard that the manifest lists")
    if (lost := path.with_suffix(f".{META.suffix}")).exists() and META.suffix not in record:
        raise FileExistsError(
            f"{lost}: is not at {display_address(address)}; push the kept columns, or delete them here"
        )
    came = False
    for suffix in columns_of(record):
        came |= _pull_file(address, f"{name}.{suffix}", folder / f"{name}.{suffix}", checksums_of(record, suffix))
    if not (path.exists() and path.read_bytes() == data):
        write_file(path, data)
    progress(1, record["bin"]["bytes"])
    return came


def _pull_file(address: str, name: str, path: Path, facts: dict[str, Any]) -> bool:
    """Whether a file had to be fetched, some MiB at a time where its size is known."""
    if path.exists() and sha256_of_file(path) == facts["sha256"]:
        return False
    with AtomicFile(path) as file:
        for start in range(0, facts["bytes"], RANGE):
            end = min(start + RANGE, facts["bytes"])
            expected = facts["crc32"][start // BLOCK_BYTES : -(-end // BLOCK_BYTES)]
            file.write(read(address, name, start, end, partial(require_crc32, end - start, expected)))
        if (found := file.facts()["sha256"]) != facts["sha256"]:
            raise WrongBytes(
                f"{display_address(address)}/{name}: expected SHA-256 {facts['sha256']}, found {found}; push it again"
            )
        file.commit()
    return True


def _pull_listed(address: str, folder: Path) -> None:
    """Fetches the former manifests and the views that an address lists; the JSON of a view after its arrays.

    Whoever may write there chooses the names, so one that tokenmill never gives is left out.
    """
    found = dict[Path, bytes]()
    for kind, names in {"manifests": [DIGEST], FOLDER: [DIGEST, NAME]}.items():
        for name in sizes(address, kind):
            stem = name.removeprefix(f"{kind}/").removesuffix(".json")
            if name != f"{kind}/{stem}.json" or not any(pattern.fullmatch(stem) for pattern in names):
                continue
            path, data = folder / name, read(address, name)
            found[path] = data
            if kind == FOLDER:
                facts = parse_json(data, f"{display_address(address)}/{name}", "view")
                for array in VIEW_ARRAYS if stem == facts["digest"] else ():
                    _pull_file(address, f"{FOLDER}/{stem}.{array}", path.with_suffix(f".{array}"), facts[array])
            elif digest_of(parse_json(data, f"{display_address(address)}/{name}", "tokens")) != stem:
                raise WrongBytes(
                    f"{display_address(address)}/{name}: is not the manifest with this digest; push it again"
                )
    for path, data in found.items():
        write_file(path, data)
