"""A file of documents, wherever it is: on this disk, at a URL that fsspec knows, or on the Hugging Face hub.

SourceFile("web/a.parquet", "/data/web/a.parquet", 3_000_000)
SourceFile("a.jsonl.gz", "s3://bucket/a.jsonl.gz", 9_000, identity='"5d41402a"')
SourceFile("data/train-0.parquet", "/data/raw/owner--name/data/train-0.parquet", 8_000, hub=HubSource(...))
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from tokenmill.addresses import has_scheme
from tokenmill.messages import redact
from tokenmill.text.formats import COMPRESSIONS, TextFormat, format_of

END_BYTES = 1 << 16  # of a file's beginning and end, which tell one file from another
COMPRESSED_TEXT = 4.0  # bytes of text in a byte of a compressed file, about


class HubSource(NamedTuple):
    """Where on the hub a file is from."""

    repository: str
    commit: str
    folder: str  # its files are fetched into
    sha256: str | None  # of a file in Git LFS
    git_sha1: str | None  # of any other


@dataclass(frozen=True)
class SourceFile:
    """One file of documents."""

    name: str  # its path below the source, the same on every machine
    path: str  # absolute; or a URL
    bytes: int  # as listed
    # the share of its documents that validates; between 0 and 1 a hash of the text decides
    validates: float = 0.0
    hub: HubSource | None = None
    identity: str | None = None  # what changes when a file at a URL does, if the listing says it

    @property
    def format(self) -> TextFormat:
        """Its format, which the name says."""
        found = format_of(self.name)
        assert found is not None, "the listing refuses other names"
        return found

    @property
    def compression(self) -> str | None:
        """How the whole file is compressed: gzip, zstd or None."""
        return COMPRESSIONS.get(os.path.splitext(self.name.lower())[1])

    @property
    def is_local(self) -> bool:
        """Whether it is on this disk, or will be when it is fetched from the hub."""
        return not has_scheme(self.path)

    @property
    def shown(self) -> str:
        """Its path, or its URL without passwords and signatures."""
        return self.path if self.is_local else redact(self.path)

    @property
    def text_bytes(self) -> float:
        """How much text it has, about."""
        return self.bytes * (COMPRESSED_TEXT if self.compression else self.format.text_per_byte)

    @property
    def is_there(self) -> bool:
        """Whether it can be opened: a file of the hub has to be fetched first."""
        if self.hub is None:
            return True
        # huggingface_hub writes the commit, and the file's hash, which is another one in a commit that changes it
        kept = Path(self.hub.folder, ".cache", "huggingface", "download", f"{self.name}.metadata")
        has_size = os.path.exists(self.path) and os.path.getsize(self.path) == self.bytes
        return (
            has_size
            and kept.exists()
            and kept.read_text().split()[1:2] == [self.hub.sha256 or self.hub.git_sha1]
        )

    def open(self) -> IO[Any]:
        """Its bytes, as a binary file that can seek."""
        if self.is_local:
            return open(self.path, "rb")
        import fsspec  # takes a thirtieth of a second

        opened: IO[Any] = fsspec.open(self.path, "rb").open()
        return opened

    def open_text(self) -> tuple[Any, IO[Any]]:
        """(stream, raw): its bytes, decompressed, and the file itself, whose `tell` says how much of it was read."""
        raw = self.open()
        if not self.compression:
            return raw, raw
        import pyarrow as pa  # which whoever writes a config need not have

        return pa.CompressedInputStream(pa.PythonFile(raw, "r"), self.compression), raw

    def facts(self) -> dict[str, Any]:
        """What the record of a shard says about a file that it is made of: it changes when the file does."""
        found: dict[str, Any] = {
            "file": self.name,
            "bytes": self.bytes,
            "validates": self.validates,
        }
        if self.hub is not None:
            return found | {"checksum": self.hub.sha256 or self.hub.git_sha1}
        return found | {"checksum": self.identity or self._ends()}

    def _ends(self) -> str:
        """The SHA-256 of both ends of the file."""
        with naming_file(self), self.open() as file:
            start = file.read(END_BYTES)
            if self.bytes > END_BYTES:
                file.seek(max(END_BYTES, self.bytes - END_BYTES))
            return hashlib.sha256(start + file.read(END_BYTES)).hexdigest()

    def stamp(self) -> tuple[int, ...] | None:
        """Changes when a local file is written to or replaced; None for a URL. ValueError if it is not as listed."""
        if not self.is_local:
            return None
        with naming_file(self):
            found = os.stat(self.path)
        if found.st_size != self.bytes:
            raise changed(self)
        return found.st_dev, found.st_ino, found.st_mtime_ns


def changed(file: SourceFile) -> ValueError:
    """The error for a file that somebody writes to."""
    return ValueError(
        f"{file.shown}: was written to or replaced while it was prepared; run again when nobody does that"
    )


@contextlib.contextmanager
def naming_file(file: SourceFile) -> Iterator[None]:
    """Turns errors of reading into errors that name the file and say what to do."""
    import pyarrow as pa

    try:
        yield
    except (
        FileNotFoundError,
        PermissionError,
        MemoryError,
    ) as error:  # Arrow's own MemoryError is one too
        why: dict[type, str] = {
            FileNotFoundError: "no such file any more",
            PermissionError: "no permission to read it",
        }
        raise type(error)(
            f"{file.shown}: {why.get(type(error), 'too little memory; use fewer --workers')}"
        ) from None
    except (pa.ArrowException, OSError, EOFError) as error:
        reason = redact((str(error) or type(error).__name__).splitlines()[0])
        raise ValueError(
            f"{file.shown}: expected a whole {file.format.name} file, found damage ({reason}); fetch it again, or take "
            "it out of the source"
        ) from None
