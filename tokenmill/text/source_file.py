"""A file of documents, wherever it is: on this disk, at a URL that fsspec knows, or on the hub.

SourceFile("web/a.parquet", "/data/web/a.parquet", 3_000_000)
SourceFile("a.jsonl.gz", "s3://bucket/a.jsonl.gz", 9_000, identity='"5d41402a"')
SourceFile("data/0.parquet", "/data/raw/owner--name/data/0.parquet", 8_000, hub=HubSource(...))
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from tokenmill.addresses import has_scheme
from tokenmill.messages import first_line, redact
from tokenmill.text.formats import COMPRESSIONS, TextFormat, format_of

END_BYTES = 1 << 16  # of a file's beginning and end, which tell one file from another
# how files in other encodings begin; that of UTF-32 begins as that of UTF-16
OTHER_MARKS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"\x84\x31\x95\x33": "GB18030",
}
MOST_NUL = 1 / 8  # of the bytes of text; in UTF-16, half are where it is ASCII
COMPRESSED_TEXT = 4.0  # bytes of text in a byte of a compressed file, about


# of files' ends, by path: the stamp of the file that was read, and its digest
_digests: dict[str, tuple[tuple[int, ...] | None, str]] = {}


class HubSource(NamedTuple):
    """Where on the hub a file is from."""

    repository: str
    commit: str
    folder: str  # its files are fetched into
    sha256: str | None  # of a file in Git LFS
    git_sha1: str | None  # of any other

    @property
    def checksum(self) -> str | None:
        return self.sha256 or self.git_sha1


@dataclass(frozen=True)
class SourceFile:
    """One file of documents."""

    name: str  # its path below the source, the same on every machine
    path: str  # absolute; or a URL
    bytes: int  # as listed
    val_share: float = 0.0  # of its documents; between 0 and 1 a hash of each text decides
    hub: HubSource | None = None
    identity: str | None = None  # what changes when a file at a URL does, if the listing says it

    @property
    def format(self) -> TextFormat:
        """Its format, which the name says."""
        by_name = format_of(self.name)
        assert by_name is not None, "the listing refuses other names"
        return by_name

    @property
    def compression(self) -> str | None:
        """How the file is compressed as a whole: gzip, zstd or None."""
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
        if self.compression:
            return self.bytes * COMPRESSED_TEXT
        return self.bytes * self.format.text_per_byte

    @property
    def is_there(self) -> bool:
        """Whether it can be opened: a file of the hub has to be fetched first."""
        if self.hub is None:
            return True
        if not os.path.exists(self.path) or os.path.getsize(self.path) != self.bytes:
            return False
        # huggingface_hub writes the commit and the file's hash: another one if the file changed
        downloads = Path(self.hub.folder, ".cache", "huggingface", "download")
        metadata = downloads / f"{self.name}.metadata"
        if not metadata.exists():
            return False
        return metadata.read_text().split()[1:2] == [self.hub.checksum]

    def open(self) -> IO[Any]:
        """Its bytes, as a binary file that can seek."""
        if self.is_local:
            return open(self.path, "rb")
        import fsspec  # takes a thirtieth of a second

        opened: IO[Any] = fsspec.open(self.path, "rb").open()
        return opened

    def open_text(self) -> tuple[Any, IO[Any]]:
        """(stream, raw): its bytes, decompressed; and the file, whose `tell` says what was read."""
        raw = self.open()
        if not self.compression:
            return raw, raw
        import pyarrow as pa  # which whoever writes a config need not have

        return pa.CompressedInputStream(pa.PythonFile(raw, "r"), self.compression), raw

    def facts(self) -> dict[str, Any]:
        """What the record of a shard says of a file: it changes when the file does."""
        return {
            "file": self.name,
            "bytes": self.bytes,
            "validates": self.val_share,
            "checksum": self._checksum(),
        }

    def _checksum(self) -> str | None:
        if self.hub is not None:
            return self.hub.checksum
        return self.identity or self._digest_of_ends()

    def _digest_of_ends(self) -> str:
        """The SHA-256 of both ends of the file. It is read again if the file has changed."""
        stamp = self.stamp()
        known_stamp, digest = _digests.get(self.path, (None, ""))
        if stamp is not None and stamp == known_stamp:
            return digest
        with naming_file(self), self.open() as file:
            start = file.read(END_BYTES)
            if self.bytes > END_BYTES:
                file.seek(max(END_BYTES, self.bytes - END_BYTES))
            digest = hashlib.sha256(start + file.read(END_BYTES)).hexdigest()
        _digests[self.path] = (stamp, digest)
        return digest

    def stamp(self) -> tuple[int, ...] | None:
        """Changes when a local file is written to or replaced; None for a URL.

        ValueError if it is not as listed.
        """
        if not self.is_local:
            return None
        with naming_file(self):
            status = os.stat(self.path)
        if status.st_size != self.bytes:
            raise changed(self)
        return status.st_dev, status.st_ino, status.st_mtime_ns


def changed(file: SourceFile) -> ValueError:
    """The error for a file that somebody writes to."""
    return ValueError(
        f"{file.shown}: was written to or replaced while it was prepared; run again when nobody "
        "does that"
    )


def require_utf8(file: SourceFile, block: bytes, is_first: bool) -> None:
    """ValueError if some bytes of a file, perhaps its first, are text in another encoding."""
    encoding = ""
    if is_first:
        marked = [name for mark, name in OTHER_MARKS.items() if block.startswith(mark)]
        encoding = "".join(marked[:1])
    if not encoding and block.count(0) > len(block) * MOST_NUL:
        encoding = "NUL bytes, as in UTF-16 without its mark"
    if encoding:
        raise ValueError(
            f"{file.shown}: expected text in UTF-8, found {encoding}; write it again as UTF-8, "
            "as by iconv -f UTF-16 -t UTF-8"
        )


@contextlib.contextmanager
def naming_file(file: SourceFile) -> Iterator[None]:
    """Turns errors of reading into errors that name the file and say what to do."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError as error:
        raise type(error)(f"{file.shown}: no such file any more") from None
    except PermissionError as error:
        raise type(error)(f"{file.shown}: no permission to read it") from None
    except MemoryError as error:  # Arrow's own is one too
        raise type(error)(f"{file.shown}: too little memory; use fewer --workers") from None
    except (pa.ArrowException, OSError, EOFError) as error:
        reason = redact(first_line(error))
        raise ValueError(
            f"{file.shown}: expected a whole {file.format.name} file, found damage ({reason}); "
            "fetch it again, or take it out of the source"
        ) from None
