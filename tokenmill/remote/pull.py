"""Pull: the files of a token set are fetched into a folder, the manifest last.

    pull("s3://bucket/web", Path("data/tokens/web"))    a folder as if it had been prepared there

A file that is there already with the right SHA-256 is not fetched again, so a pull continues where
it stopped. What comes is compared before it counts.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tokenmill.remote.files import read
from tokenmill.remote.part_cache import PART_BYTES, require_crc32
from tokenmill.remote.set_files import (
    THREADS,
    Facts,
    Progress,
    column_files,
    record_file,
    small_files,
)
from tokenmill.remote.token_set import RemoteTokenSet
from tokenmill.store.columns import META, TOKENS
from tokenmill.store.files import (
    AtomicFile,
    remove_temporary_files,
    sha256_of_file,
    write_changed,
)
from tokenmill.store.locks import locked
from tokenmill.store.manifests import SMALL_FILES
from tokenmill.store.shards import ShardEntry
from tokenmill.store.token_sets import TokenSet
from tokenmill.store.views import FOLDER

RANGE_PARTS = 8  # parts that are read at once
KNOWN_NAMES = {"shards", "manifests", FOLDER, *SMALL_FILES}


def pull(address: str, folder: Path, progress: Progress = lambda *_: None) -> int:
    """Fetches a set into a folder. Returns how many shards came.

    An address that cannot be listed (https://) gives the present manifest and its shards, without
    views and former manifests. FileExistsError if the folder has another set; what `read` raises.
    """
    token_set = RemoteTokenSet(address)  # before anything is made here
    with locked(folder):
        _require_same_here(folder, token_set)
        remove_temporary_files(folder, folder / "shards", folder / "manifests", folder / FOLDER)
        fetch = partial(_pull_shard, token_set, folder, progress)
        with ThreadPoolExecutor(THREADS) as threads:
            num_fetched = sum(threads.map(fetch, token_set.entries))
        for name, facts in small_files(token_set):
            _pull_file(token_set, folder, name, facts)
        manifest = folder / f"manifests/{token_set.digest}.json"
        write_changed(folder / "manifest.json", manifest.read_bytes())
    return num_fetched


def _require_same_here(folder: Path, token_set: RemoteTokenSet) -> None:
    """FileExistsError if the folder has a set that the one at the address is not, and never was."""
    if not (folder / "manifest.json").exists():
        unknown = sorted({path.name for path in folder.iterdir()} - KNOWN_NAMES)
        if unknown:
            raise FileExistsError(
                f"{folder}: expected a new folder, found {unknown[0]} in it; name another folder"
            )
        return
    digest = TokenSet(folder).digest
    if not token_set.knows(digest):
        raise FileExistsError(
            f"{folder}: has another token set, with manifest {digest}, which "
            f"{token_set.display_name} never had; if this one has grown since, push it; else name "
            "a new folder"
        )


def _pull_shard(
    token_set: RemoteTokenSet, folder: Path, progress: Progress, entry: ShardEntry
) -> bool:
    """Whether a shard had to be fetched. Its record is written last."""
    record = token_set.record(entry)
    metadata = folder / f"shards/{entry.name}.{META.suffix}"
    if metadata.exists() and META.suffix not in record:
        raise FileExistsError(
            f"{metadata}: is not at {token_set.display_name}; push the kept columns, or delete "
            "them here"
        )
    files = column_files(record)
    fetched = [_pull_file(token_set, folder, name, facts) for name, facts in files.items()]
    _pull_file(token_set, folder, record_file(entry.name), {})
    progress(1, record[TOKENS.suffix]["bytes"])
    return any(fetched)


def _pull_file(token_set: RemoteTokenSet, folder: Path, name: str, facts: Facts) -> bool:
    """Whether a large file had to be fetched, some MiB at a time. Small ones go by the cache."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if "crc32" not in facts:
        # one without facts is in the cache already
        cached = token_set.path_of(name, facts) if facts else token_set.path / name
        write_changed(path, cached.read_bytes())
        return False
    if path.exists() and sha256_of_file(path) == facts["sha256"]:
        return False
    sums = facts["crc32"]
    with AtomicFile(path) as file:
        for first in range(0, len(sums), RANGE_PARTS):
            start = first * PART_BYTES
            end = min(start + RANGE_PARTS * PART_BYTES, facts["bytes"])
            check = partial(require_crc32, end - start, sums[first : first + RANGE_PARTS])
            file.write(read(token_set.address, name, start, end, check))
        file.commit()
    return True
