"""Files that appear whole, or not at all.

Everything tokenmill writes goes to a temporary name in the same folder, is flushed to disk and
renamed, so that a crash at any instant leaves the old file, the new one, or a `.tmp` that nothing
reads. The JSON among them says its format and version first.
"""

import hashlib
import json
import os
import uuid
from pathlib import Path

VERSION = 1
TEMPORARY = ".tmp"


class AtomicFile:
    """A file that appears at `path` whole and on disk, with its SHA-256 known, or not at all."""

    def __init__(self, path: Path):
        self.path, self.bytes = path, 0
        # a name of its own: the dying worker of a killed run may still be writing the same shard
        self._temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}{TEMPORARY}")
        try:
            self._file = open(self._temporary, "wb")  # noqa: SIM115 (closed by commit or discard)
        except OSError as error:
            raise OSError(
                f"{path.parent}: cannot be written to ({error.strerror}); mend it, or choose another folder"
            ) from error
        self._digest = hashlib.sha256()

    def write(self, data) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.bytes += memoryview(data).nbytes

    def commit(self) -> dict:
        """Makes the file count; returns its {"bytes", "sha256"}."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._temporary, self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename itself must survive a power cut
        finally:
            os.close(folder)
        return {"bytes": self.bytes, "sha256": self._digest.hexdigest()}

    def discard(self) -> None:
        """Removes what is not committed; does nothing after `commit`."""
        try:
            self._file.close()
        finally:
            self._temporary.unlink(missing_ok=True)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.discard()


def write_file(path: Path, data) -> dict:
    """Writes data (bytes or a contiguous array) to path in one rename: its {"bytes", "sha256"}."""
    with AtomicFile(path) as file:
        file.write(data)
        return file.commit()


def write_json(path: Path, value: dict) -> None:
    """Writes value as JSON in one rename; a file that says the same already stays untouched."""
    data = (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
    if not (path.exists() and path.read_bytes() == data):
        write_file(path, data)


def read_json(path: Path, kind: str) -> dict:
    """Reads what `write_json` wrote; ValueError where it is no such file of this version."""
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(
            f"{path}: expected a {kind}, found broken JSON ({error}); delete it and prepare again"
        ) from error
    found = (value.get("format"), value.get("version")) if isinstance(value, dict) else None
    if found != (f"tokenmill-{kind}", VERSION):
        raise ValueError(f"{path}: expected format tokenmill-{kind}, version {VERSION}, found {found}")
    return value


def header(kind: str) -> dict:
    """What every JSON file of the format begins with."""
    return {"format": f"tokenmill-{kind}", "version": VERSION}


def remove_temporary_files(*folders: Path) -> None:
    """Clears what killed runs left in these folders."""
    for folder in folders:
        for path in folder.glob(f"*{TEMPORARY}"):
            path.unlink(missing_ok=True)
