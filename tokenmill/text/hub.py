"""Files of a dataset repository on the Hugging Face hub: listed once, then fetched side by side.

    karpathy/fineweb-edu-100b-shuffle, 46 files  ->  data/raw/karpathy--fineweb-edu-100b-shuffle/shard_00000.parquet ...

The list, with the commit, the sizes and the hashes that the hub states, is kept beside the files, so that every
later run means the same files, whatever the repository's branch has become. `huggingface_hub` downloads, resumes,
and takes the token of private repositories as it always does (HF_TOKEN, `hf auth login`, HF_ENDPOINT). A file is
checked against size and hash before it gets its name, so one that is there is whole. A connection that drops is
taken up in the middle of a file; a file that a killed run was fetching begins anew.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from tokenmill.store.files import header, read_json, write_json
from tokenmill.text.formats import FORMATS, SUFFIX

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
ATTEMPTS = 6  # of a download, with pauses of 1, 2, 4, 8 and 16 seconds
INCOMING = ".incoming"  # where downloads grow
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}


class Bars(Protocol):
    """What downloads are shown on."""

    def say(self, text: str) -> None: ...
    def begin(self, what: str) -> Any: ...
    def move(self, bar: Any, done: float, total: float, rates: str) -> None: ...
    def end(self, bar: Any) -> None: ...


@dataclass(frozen=True)
class RemoteFile:
    """What the hub states of a file. Of `sha256` and `git_sha1` it has one: large files have the first."""

    name: str
    bytes: int
    sha256: str | None
    git_sha1: str | None


@dataclass(frozen=True)
class Listing:
    """A repository's files of documents at one commit, in name order."""

    repository: str
    revision: str
    commit: str
    files: tuple[RemoteFile, ...]

    def facts(self, names: set[str]) -> dict:
        """For a manifest: where the files of these names are from."""
        return asdict(self) | {"files": [asdict(file) for file in self.files if file.name in names]}


def is_repository(source: str) -> bool:
    """Whether a source that is no local path reads as owner/name."""
    return bool(REPOSITORY.fullmatch(source)) and not source.startswith(".") and not SUFFIX.search(source)


def list_files(repository: str, revision: str, folder: Path, commit: str | None = None) -> Listing:
    """The list that `folder` has of this revision, or else the hub's, at `commit` where one is known already.

    ConnectionError where the hub does not answer, FileNotFoundError where it has no such
    repository or revision, or no files of documents in it.
    """
    path = folder / "files.json"
    if path.exists():
        known = read_json(path, "files")
        if (known["repository"], known["revision"]) == (repository, revision):
            files = tuple(RemoteFile(**file) for file in known["files"])
            return Listing(repository, revision, known["commit"], files)
    listing = _ask(repository, revision, commit, folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, header("files") | asdict(listing))
    return listing


def _ask(repository: str, revision: str, commit: str | None, folder: Path) -> Listing:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        commit = commit or HfApi().dataset_info(repository, revision=revision).sha
        tree = HfApi().list_repo_tree(repository, repo_type="dataset", revision=commit, recursive=True)
        found = [_remote_file(entry) for entry in tree if SUFFIX.search(entry.path) and hasattr(entry, "size")]
    except RevisionNotFoundError as error:
        raise FileNotFoundError(f"{repository}: has no revision {revision!r}; check --revision") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise FileNotFoundError(
            f"{repository}: no such local file or folder, and no such dataset repository on the hub "
            "(for a private one, log in with `hf auth login`); check --source"
        ) from error
    except Exception as error:
        raise ConnectionError(
            f"{repository}: the Hugging Face hub could not be reached ({_first_line(error)}); try again with a "
            f"network, or prepare files that are already there: --source {folder}"
        ) from error
    for format in FORMATS:
        of_format = [f for f in found if (suffix := SUFFIX.search(f.name)) and suffix[1] == format]
        if commit and of_format:
            return Listing(repository, revision, commit, tuple(sorted(of_format, key=lambda file: file.name)))
    raise FileNotFoundError(f"{repository}: expected parquet, jsonl or txt files, found none; check --source")


def _remote_file(entry) -> RemoteFile:
    if entry.lfs is not None:
        return RemoteFile(entry.path, entry.lfs.size, entry.lfs.sha256, None)
    return RemoteFile(entry.path, entry.size, None, entry.blob_id)


class Downloads:
    """Fetches files of a listing into a folder, `workers` at a time, in threads that end with the process.

    downloads = Downloads(listing, folder, 4, bars)
    downloads.start("shard_00000.parquet").result()      waits for it

    ConnectionError is what a Future ends with where a file cannot be had, OSError where it cannot be written.
    """

    def __init__(self, listing: Listing, folder: Path, workers: int, bars: Bars):
        self.listing, self.folder, self._bars = listing, folder, bars
        self._files = {file.name: file for file in listing.files}
        self._wanted: SimpleQueue[str] = SimpleQueue()
        self._idle = workers
        self._futures: dict[str, Future] = {}
        self._incoming = folder / INCOMING
        self._lock: int | None = None

    def has(self, name: str) -> bool:
        """Whether the listing has a file of this name."""
        return name in self._files

    def size(self, name: str) -> int:
        return self._files[name].bytes

    def is_there(self, name: str) -> bool:
        """Whether the file is there, whole; one of another size is from a list that was deleted since."""
        path = self.folder / name
        return path.exists() and path.stat().st_size == self.size(name)

    def start(self, name: str) -> Future:
        """Begins to fetch a file that is not there or on its way; done when it is there."""
        if name in self._futures:
            return self._futures[name]
        future = self._futures[name] = Future()
        if self.is_there(name):
            future.set_result(None)
            return future
        if self._lock is None:
            self._begin()
        self._wanted.put(name)
        if self._idle:
            self._idle -= 1
            threading.Thread(target=self._work, daemon=True, name="tokenmill-download").start()
        return future

    def close(self) -> None:
        """Leaves nothing half fetched behind, unless others fetch into the same folder."""
        if self._lock is not None:
            self._clear_if_alone(self._lock)
            os.close(self._lock)
            self._lock = None

    def _begin(self) -> None:
        """Clears what killed runs left half fetched."""
        self._incoming.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._incoming, os.O_RDONLY)
        self._clear_if_alone(self._lock)
        fcntl.flock(self._lock, fcntl.LOCK_SH)  # until the process ends

    def _clear_if_alone(self, lock: int) -> None:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in self._incoming.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _work(self) -> None:
        while True:
            name = self._wanted.get()
            try:
                self._fetch(self._files[name])
                self._futures[name].set_result(None)
            except BaseException as error:
                self._futures[name].set_exception(error)

    def _fetch(self, file: RemoteFile) -> None:
        """Fetches, checks and renames a file, again after a pause where that may help."""
        bar, started = self._bars.begin(file.name), time.monotonic()
        try:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    self._fetch_once(file, self._show(bar, file))
                    break
                except Exception as error:
                    if attempt == ATTEMPTS or not _may_pass(error):
                        raise self._failed(file, error) from error
                    self._bars.say(f"fetching {file.name} again in {1 << attempt - 1} s ({_first_line(error)})")
                    time.sleep(1 << attempt - 1)
        finally:
            self._bars.end(bar)
        rate = file.bytes / max(time.monotonic() - started, 1e-9) / 1e6
        self._bars.say(f"fetched {file.name}, {file.bytes / 1e6:,.1f} MB, {rate:,.1f} MB/s")

    def _fetch_once(self, file: RemoteFile, show: Callable[[int], None]) -> None:
        from huggingface_hub import hf_hub_download

        fetched = Path(
            hf_hub_download(
                self.listing.repository,
                file.name,
                repo_type="dataset",
                revision=self.listing.commit,
                local_dir=self._incoming,
                tqdm_class=_bar_class(show),
            )
        )
        if problem := _difference(fetched, file):
            fetched.unlink()
            raise ConnectionError(problem)
        path = self.folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(fetched, path)

    def _show(self, bar: Any, file: RemoteFile) -> Callable[[int], None]:
        fetched, started = 0, time.monotonic()

        def show(count: int) -> None:
            nonlocal fetched
            fetched += count
            rate = fetched / max(time.monotonic() - started, 1e-9) / 1e6
            self._bars.move(bar, fetched, file.bytes, f"{rate:.1f} MB/s")

        return show

    def _failed(self, file: RemoteFile, error: Exception) -> Exception:
        return (OSError if _is_of_the_disk(error) else ConnectionError)(
            f"{self.listing.repository}: fetching {file.name} failed ({_first_line(error)}); "
            "run the same command again: files that are complete are not fetched twice"
        )


def _may_pass(error: Exception) -> bool:
    """Whether another attempt may help: not where the hub refuses, nor on a full or read-only disk."""
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, RepositoryNotFoundError

    if isinstance(error, EntryNotFoundError | GatedRepoError | RepositoryNotFoundError):
        return False
    return not _is_of_the_disk(error)


def _is_of_the_disk(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in DISK_ERRORS


def _difference(path: Path, file: RemoteFile) -> str | None:
    """How a file is not what the hub states."""
    size = path.stat().st_size
    if size != file.bytes:
        return f"expected {file.bytes:,} bytes, found {size:,}"
    with open(path, "rb") as data:
        if file.sha256:
            expected: str | None = file.sha256
            found = hashlib.file_digest(data, "sha256").hexdigest()
        else:
            blob = hashlib.sha1(b"blob %d\0" % size)
            expected, found = file.git_sha1, hashlib.file_digest(data, lambda: blob).hexdigest()
    return None if found == expected else f"expected the hash {expected}, found {found}"


def _bar_class(show: Callable[[int], None]):
    """What huggingface_hub takes for a tqdm, and that shows nothing itself."""
    from tqdm import tqdm

    class Shown(tqdm):
        def __init__(self, *args, initial: int = 0, **kwargs):
            super().__init__(disable=True)
            show(initial)

        def update(self, n: float | None = 1) -> None:
            show(int(n or 0))

    return Shown


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
