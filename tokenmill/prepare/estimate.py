"""What a preparation will fetch and write, estimated before it starts.

    46 files, 46 of them to fetch: 4.3 GB into data/raw/karpathy--fineweb-edu-100b-shuffle
    about 17.0 GB of text to tokenize, about 8.5 GB of token files in data/tokens; 310.2 GB are free there

How much text a compressed file has, and how many tokens a text has, is not known yet. Once the first shard is made,
`after_first` estimates both from it.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenmill.humanize import counted, in_bytes, in_time
from tokenmill.prepare.input_files import InputFiles
from tokenmill.prepare.plan import Missing
from tokenmill.prepare.progress import Meter
from tokenmill.store.shards import SPLITS
from tokenmill.text.file_groups import about_text_bytes
from tokenmill.text.units import SourceFile

TEXT_IN_TOKEN = 4  # bytes of text that a token stands for, about


@dataclass(frozen=True)
class Estimate:
    """What is ahead. The folders may not exist yet."""

    files: int  # of the source
    absent: int  # of these, how many must be fetched
    fetch_bytes: int
    text_bytes: int | None  # to be tokenized, about; None if unknown
    itemsize: int  # of a token
    raw: Path  # where files are fetched to
    tokens: Path | None  # where shards are kept; None if they are uploaded
    keep_raw: bool

    @property
    def token_bytes(self) -> int:
        return (self.text_bytes or 0) // TEXT_IN_TOKEN * self.itemsize

    def lines(self) -> list[str]:
        """The estimate in sentences."""
        files = counted(self.files, "file")
        if self.absent:
            kept = "" if self.keep_raw else ", each deleted once its shards are made"
            files += f", {self.absent:,} of them to fetch: {in_bytes(self.fetch_bytes)} into {self.raw}{kept}"
        if self.text_bytes is None:
            return [f"{files}; how much text that is, is not known before it is read"]
        if not self.text_bytes:
            return [f"{files}; all shards of this part are made"]
        written = f"about {in_bytes(self.token_bytes)} of token files (if a token is {TEXT_IN_TOKEN} bytes of text)"
        if self.tokens is not None:
            written += f" in {self.tokens}; {in_bytes(free_bytes(self.tokens))} are free there"
        return [files, f"about {in_bytes(self.text_bytes)} of text to tokenize, {written}"]

    def require_folders(self) -> None:
        """ValueError if a folder cannot be made because a file is in its place."""
        for flag, folder in (("--tokens-root", self.tokens), ("--raw-dir", self.raw if self.absent else None)):
            if folder is not None and not (there := _there(folder)).is_dir():
                raise ValueError(f"{folder}: cannot be made, as {there} is no folder; choose another {flag}")

    def require_room(self) -> None:
        """ValueError if the files to be fetched do not fit on the disk."""
        free = free_bytes(self.raw)
        if self.keep_raw and self.fetch_bytes > free:
            raise ValueError(
                f"{self.raw}: {in_bytes(self.fetch_bytes)} are to be fetched, and {in_bytes(free)} are free there; "
                "make room, name another disk with --raw-dir, take fewer files with --num-shards, or give --no-keep-raw"
            )

    def warnings(self) -> Iterable[str]:
        """Says so if the token files will probably not fit."""
        if self.tokens is None:
            return
        fetched = self.fetch_bytes if self.keep_raw and _device(self.raw) == _device(self.tokens) else 0
        if (needed := fetched + self.token_bytes) > (free := free_bytes(self.tokens)):
            yield (
                f"warning: {self.tokens}: about {in_bytes(needed)} are needed, and {in_bytes(free)} are free; if "
                "the disk fills up, what is done stays, and the same command continues once there is room"
            )


def estimate(missing: Missing, inputs: InputFiles, raw: Path, tokens: Path | None, itemsize: int) -> Estimate:
    """What making the missing shards takes."""
    absent = [file for group in missing.absent for file in group]
    to_fetch = {file.path: file for file in absent}  # a file may be in both splits
    guessed = [file for group in missing.unread for file in group] + absent
    is_known = all(file.bytes is not None for file in guessed)
    text: float = sum(unit.text_bytes for unit in missing.units)
    text += sum(about_text_bytes(file) * file.fraction for file in guessed)
    return Estimate(
        files=len({file.path for file in inputs.files}),
        absent=len(to_fetch),
        fetch_bytes=sum(map(inputs.size, to_fetch.values())),
        text_bytes=round(text) if is_known else None,
        itemsize=itemsize,
        raw=raw if inputs.downloads is None else inputs.downloads.folder,
        tokens=tokens,
        keep_raw=inputs.keep_raw,
    )


def split_line(files: list[SourceFile]) -> str:
    """Which files, or documents, validate, and how much of the bytes these are."""
    if (fraction := files[0].val_fraction) is not None:
        return fraction_line(fraction)
    names = [file.name for file in files if file.split == "val"]
    more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    share = ""
    if all(file.bytes is not None for file in files):
        sizes = {split: sum(about_text_bytes(file) for file in files if file.split == split) for split in SPLITS}
        share = f", about {sizes['val'] / max(1, sum(sizes.values())):.1%} of the text"
    return f"validates: {names[0]}{more}{share} (--val-file names another, --val-fraction takes documents of all files)"


def fraction_line(fraction: float) -> str:
    """That a fraction of the documents validates."""
    return f"validates: {fraction:.4g} of the documents, chosen by a hash of their text (--val-fraction)"


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder, which may not exist yet."""
    return shutil.disk_usage(_there(folder)).free


def _device(folder: Path) -> int:
    return _there(folder).stat().st_dev


def _there(folder: Path) -> Path:
    """The folder, or the nearest folder above it that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def after_first(meter: Meter, itemsize: int) -> str:
    """How long the rest will take, and how large all shards will be, judged by the first."""
    size = meter.total * meter.tokens / max(1, meter.done) * itemsize
    took, left = in_time(meter.seconds), in_time(meter.seconds_left or 0)
    return f"the first shard took {took}; at this rate the rest takes {left}, and all have {in_bytes(size)} of tokens"
