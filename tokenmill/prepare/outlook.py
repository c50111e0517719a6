"""What a preparation has ahead of it, told before anything is fetched or made: files, bytes to fetch, bytes to write.

    46 files, 46 of them to fetch: 4.3 GB into data/raw/karpathy--fineweb-edu-100b-shuffle
    about 17.0 GB of text to tokenize, about 8.5 GB of token files in data/tokens; 310.2 GB are free there

How much text a compressed file has, and how many tokens a text, is not known before both were seen: from the first
shard on (`after_first`) it is told by what was seen.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenmill.amounts import counted, in_bytes, in_time
from tokenmill.prepare.progress import Meter

TEXT_IN_TOKEN = 4  # bytes of text that a token stands for, about


@dataclass(frozen=True)
class Outlook:
    """What is ahead. Folders may not be there yet; `tokens` is None where shards are sent elsewhere."""

    files: int  # of the source
    absent: int  # of these, to be fetched
    fetch_bytes: int
    text_bytes: int | None  # to be tokenized, about; None where that is not known
    itemsize: int  # of a token
    raw: Path
    tokens: Path | None
    keep_raw: bool

    @property
    def token_bytes(self) -> int:
        return (self.text_bytes or 0) // TEXT_IN_TOKEN * self.itemsize

    def lines(self) -> list[str]:
        """What is told of it."""
        told = counted(self.files, "file")
        if self.absent:
            kept = "" if self.keep_raw else ", each deleted once its shards are made"
            told += f", {self.absent:,} of them to fetch: {in_bytes(self.fetch_bytes)} into {self.raw}{kept}"
        if self.text_bytes is None:
            return [f"{told}; how much text that is, is not known before it is read"]
        if not self.text_bytes:
            return [f"{told}; all shards of this part are made"]
        written = f"about {in_bytes(self.token_bytes)} of token files"
        if self.tokens is not None:
            written += f" in {self.tokens}; {in_bytes(free_bytes(self.tokens))} are free there"
        return [told, f"about {in_bytes(self.text_bytes)} of text to tokenize, {written}"]

    def require_places(self) -> None:
        """ValueError where a folder cannot be made, as a file is in its place."""
        for flag, folder in (("--tokens-root", self.tokens), ("--raw-dir", self.raw if self.absent else None)):
            if folder is not None and not (there := _there(folder)).is_dir():
                raise ValueError(f"{folder}: cannot be made, as {there} is no folder; choose another {flag}")

    def require_room(self) -> None:
        """ValueError where the files to be fetched cannot lie on the disk, whatever their text."""
        free = free_bytes(self.raw)
        if self.keep_raw and self.fetch_bytes > free:
            raise ValueError(
                f"{self.raw}: {in_bytes(self.fetch_bytes)} are to be fetched, and {in_bytes(free)} are free there; "
                "make room, name another disk with --raw-dir, take fewer files with --num-shards, or give --no-keep-raw"
            )

    def warnings(self) -> Iterable[str]:
        """Where the token files will probably not fit."""
        if self.tokens is None:
            return
        fetched = self.fetch_bytes if self.keep_raw and _device(self.raw) == _device(self.tokens) else 0
        if (needed := fetched + self.token_bytes) > (free := free_bytes(self.tokens)):
            yield (
                f"warning: {self.tokens}: about {in_bytes(needed)} are needed, and {in_bytes(free)} are free; should "
                "it get full, what is done stays, and the same command goes on once there is room"
            )


def free_bytes(folder: Path) -> int:
    """Bytes that may still be written where a folder is, or will be."""
    return shutil.disk_usage(_there(folder)).free


def _device(folder: Path) -> int:
    return _there(folder).stat().st_dev


def _there(folder: Path) -> Path:
    """The folder, or the nearest above it that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def after_first(meter: Meter, itemsize: int) -> str:
    """What the first shard tells of the rest: how long it takes, and how large it gets."""
    size = meter.total * meter.tokens / max(1, meter.done) * itemsize
    took, left = in_time(meter.seconds), in_time(meter.seconds_left or 0)
    return f"the first shard took {took}; at this rate the rest takes {left}, and all have {in_bytes(size)} of tokens"
