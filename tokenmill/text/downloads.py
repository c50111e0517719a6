"""Files of a listing of the hub (hub.py), fetched side by side, checked, and renamed once they are whole.

`huggingface_hub` downloads and resumes. A file is checked against size and hash before it gets its name, and one that
was there before it is read. A connection that drops is taken up in the middle of a file; a file that a killed run was
fetching begins again.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from tokenmill.hub_client import HubFile, endpoint, first_line, token
from tokenmill.humanize import in_bytes
from tokenmill.store.files import header, read_json, write_json
from tokenmill.store.names import require_inside
from tokenmill.text.hub import Listing, no_such_commit

ATTEMPTS = 6  # of a download, with pauses of 1, 2, 4, 8 and 16 seconds
INCOMING = ".incoming"  # where downloads grow
CHECKED = "checked.json"  # beside the files: which of them were compared with the hub's hashes
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}


class Bars(Protocol):
    """What downloads are shown on."""

    def say(self, text: str) -> None: ...
    def begin(self, what: str) -> Any: ...
    def move(self, bar: Any, done: float, total: float, rates: str) -> None: ...
    def end(self, bar: Any) -> None: ...


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
        self._checking = threading.Lock()
        self._checked: dict[str, list[int]] = {}  # files whose hash was compared, as they were then
        with contextlib.suppress(OSError, ValueError):  # not there, or damaged: compared again
            self._checked = read_json(folder / CHECKED, "checked")["files"]
        self._lock: int | None = None

    def has(self, name: str) -> bool:
        """Whether the listing has a file of this name."""
        return name in self._files

    def size(self, name: str) -> int:
        return self._files[name].bytes

    def is_there(self, name: str) -> bool:
        """Whether the file is there, with the size and the hash that the hub states; hashed once, until it changes."""
        path = self.folder / name
        if not path.is_file() or path.stat().st_size != self.size(name):
            return False
        with self._checking:
            if self._checked.get(name) == _stamp(path):
                return True
            if problem := _difference(path, self._files[name]):
                self._bars.say(f"{path}: is not the file that the hub states ({problem}); it is fetched again")
                return False
            self._note(name)
            return True

    def _note(self, name: str) -> None:
        """Takes down that a file was checked. Of parts side by side each may lose the other's: it is checked again."""
        self._checked[name] = _stamp(self.folder / name)
        write_json(self.folder / CHECKED, header("checked") | {"files": self._checked})

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

    def delete(self, name: str) -> None:
        """Takes away a file that is there. ValueError where a link leads out of the folder."""
        require_inside(self.folder, self.folder / name)
        (self.folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Leaves nothing half fetched behind, unless others fetch into the same folder."""
        if self._lock is not None:
            self._clear_if_alone(self._lock)
            os.close(self._lock)
            self._lock = None

    def _begin(self) -> None:
        """Clears what killed runs left half fetched."""
        require_inside(self.folder, self._incoming / "file")
        self._incoming.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._incoming, os.O_RDONLY)
        self._clear_if_alone(self._lock)
        fcntl.flock(self._lock, fcntl.LOCK_SH)  # until the process ends

    def _clear_if_alone(self, lock: int) -> None:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in self._incoming.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def _work(self) -> None:
        while True:
            name = self._wanted.get()
            try:
                self._fetch(self._files[name])
                self._futures[name].set_result(None)
            except BaseException as error:
                self._futures[name].set_exception(error)

    def _fetch(self, file: HubFile) -> None:
        """Fetches, checks and renames a file, again after a pause where that may help."""
        require_inside(self.folder, self.folder / file.name)
        bar, started = self._bars.begin(file.name), time.monotonic()
        try:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    self._fetch_once(file, self._show(bar, file))
                    break
                except Exception as error:
                    if attempt == ATTEMPTS or not _may_pass(error):
                        raise self._failed(file, error) from error
                    self._bars.say(f"fetching {file.name} again in {1 << attempt - 1} s ({first_line(error)})")
                    time.sleep(1 << attempt - 1)
        finally:
            self._bars.end(bar)
        rate = file.bytes / max(time.monotonic() - started, 1e-9)
        self._bars.say(f"fetched {file.name}, {in_bytes(file.bytes)}, {in_bytes(rate)}/s")

    def _fetch_once(self, file: HubFile, show: Callable[[int], None]) -> None:
        from huggingface_hub import hf_hub_download

        fetched = Path(
            hf_hub_download(
                self.listing.repository,
                file.name,
                repo_type="dataset",
                revision=self.listing.commit,
                local_dir=self._incoming,
                endpoint=endpoint(),
                token=token(),
                tqdm_class=_bar_class(show),
            )
        )
        if problem := _difference(fetched, file):
            fetched.unlink()
            raise ConnectionError(problem)
        path = self.folder / file.name
        require_inside(self.folder, path)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(fetched, path)
        with self._checking:
            self._note(file.name)

    def _show(self, bar: Any, file: HubFile) -> Callable[[int], None]:
        fetched, started = 0, time.monotonic()

        def show(count: int) -> None:
            nonlocal fetched
            fetched += count
            rate = fetched / max(time.monotonic() - started, 1e-9)
            self._bars.move(bar, fetched, file.bytes, f"{in_bytes(rate)}/s")

        return show

    def _failed(self, file: HubFile, error: Exception) -> Exception:
        from huggingface_hub.errors import RevisionNotFoundError

        if isinstance(error, RevisionNotFoundError):
            return no_such_commit(self.listing.repository, self.listing.commit, self.folder)
        return (OSError if _is_of_the_disk(error) else ConnectionError)(
            f"{self.listing.repository}: fetching {file.name} failed ({first_line(error)}); "
            "run the same command again: files that are complete are not fetched twice"
        )


def _may_pass(error: Exception) -> bool:
    """Whether another attempt may help: not where the hub refuses, nor on a full or read-only disk."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.LocalEntryNotFoundError):  # no connection, and no file in its own cache
        return not constants.HF_HUB_OFFLINE
    refused = (
        errors.EntryNotFoundError,
        errors.GatedRepoError,
        errors.RepositoryNotFoundError,
        errors.RevisionNotFoundError,
    )
    return not isinstance(error, refused) and not _is_of_the_disk(error)


def _is_of_the_disk(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in DISK_ERRORS


def _stamp(path: Path) -> list[int]:
    """Other numbers where a file was written to or replaced."""
    found = path.stat()
    return [found.st_ino, found.st_size, found.st_mtime_ns]


def _difference(path: Path, file: HubFile) -> str | None:
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
