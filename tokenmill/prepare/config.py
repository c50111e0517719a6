"""What to prepare, from what, and how: the one configuration, which flows through as it is.

config = PrepareConfig(source="corpus", tokenizer="train:32768", part="3/32")
config.dataset, config.options, config.part_of      what the set is called, how documents are read, (3, 32)
"""

import os
import re
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, Literal

from tokenmill.addresses import has_scheme, named, require_no_password
from tokenmill.checks import whole_number
from tokenmill.store.schema import MOST_IDS
from tokenmill.text.formats import MAX_DOCUMENT_BYTES, ReadOptions
from tokenmill.text.listing import name_of_source
from tokenmill.tokenize.chat_rule import NAMES as CHAT_NAMES

FEW_NAMES = 3  # of sources, that make the name of the data set
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}


def available_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that this process may use: those it is bound to, limited by the quota of its container."""
    bound = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        microseconds, period = quota.read_text().split()
        return max(1, min(bound, ceil(int(microseconds) / int(period))))
    except (OSError, ValueError):  # no container, or "max"
        return bound


@dataclass(frozen=True)
class PrepareConfig:
    """Turns files of text into token shards, once, on all cores. Run it again: it continues where it stopped."""

    # fmt: off
    source: str | tuple[str, ...]  # folders, files or globs of parquet, jsonl, txt, csv, md or arrow files, local or at URLs; or a dataset repository on the Hugging Face hub, or a folder or glob in it; or stdlib
    num_shards: int | None = None  # how many source files to take, in name order; by default all
    revision: str = "main"  # of a hub repository: a branch, tag or commit
    tokenizer: str | None = None  # a tiktoken encoding; or train:N, a byte-level BPE of N tokens trained on the source; or a model on the Hugging Face hub, as Qwen/Qwen3-0.6B; or a model's folder, as ./model; or a tokenizer.json, tokenmill's or Hugging Face's; or nanochat's tokenizer.pkl; by default gpt2, or the tokenizer.json beside the file of --chat
    bos_token: str | None = None  # the special token that begins a document, if it is not clear which one does
    eot_token: str | None = None  # a special token that ends documents too; BOS still begins them
    chat: str | None = None  # the source has conversations: nanochat, chatml, or a tokenizer_config.json or .jinja file with a Hugging Face chat template
    loss: Literal["all", "last"] = "all"  # which turns of the assistant are in the loss
    messages_column: str | None = None  # the column, or key, with the messages, if it is not messages or conversations
    engine: Literal["auto", "tiktoken", "gigatoken"] = "auto"  # what tokenizes; auto takes the fastest proven one
    name: str | None = None  # the data set's name in the token set's folder; by default taken from the source
    val_file: str | None = None  # the files that validate: a name or a glob within the source, another file's path, or last: the source's last; by default those named val, valid, validation or dev
    val_fraction: float | None = None  # how much of the documents validates, drawn by a hash of their text; by default, if no file is named so, 0.01 (0.1 of less than 10 MiB)
    text_column: str = "text"  # the column, or key of a jsonl line, with the documents; doc.text of a struct; several, as title,text, are joined by a blank line
    keep_columns: str | None = None  # columns, or keys, to keep for `tokenmill view` and `show`, as id,score,meta.language; note? may be missing
    document_separator: str | None = None  # between documents of a txt file, as `\n\n`; by default a file is one
    skip_broken: bool = False  # leave out and count lines, and conversations, that are broken; by default an error
    max_document_bytes: int = MAX_DOCUMENT_BYTES  # leave out and count texts, and lines of jsonl, that are longer
    tokens_root: str = "data/tokens"  # where token sets are written: a folder, or s3://, gs:// ...
    raw_dir: str = "data/raw"  # where files from the hub are fetched to
    keep_raw: bool = True  # keep files from the hub; otherwise each is deleted once its shards are made
    workers: int = available_cores()  # processes; by default as many as this process has cores
    cluster: Literal["ray"] | None = None  # make shards on the Ray cluster that RAY_ADDRESS names
    part: str | None = None  # I/N: make only every N-th unit, as one of N machines; the last one finishes
    dry_run: bool = False  # say what would be fetched and written, and stop
    shard_text_bytes: int | None = None  # bytes of text in a shard; by default a 512th of all, 8 to 256 MiB
    # fmt: on

    def __post_init__(self) -> None:
        """Raises ValueError for a value that cannot be used."""
        if self.chat is None and (self.loss, self.messages_column) != ("all", None):
            raise ValueError("--loss and --messages-column go with --chat, which is missing")
        if self.chat is not None and self.eot_token:
            raise ValueError("--eot-token is for text; a chat template itself ends its turns")
        if self.val_file is not None and self.val_fraction is not None:
            raise ValueError(
                "--val-file and --val-fraction both say what validates; give one of them"
            )
        if self.val_fraction is not None:
            object.__setattr__(self, "val_fraction", float(self.val_fraction))
        if self.val_fraction is not None and not 1e-6 <= self.val_fraction < 1:
            raise ValueError(
                f"--val-fraction must be from 0.000001 to less than 1, as 0.01, not {self.val_fraction}"
            )
        for field in ("tokenizer", "bos_token", "val_file", "chat", "raw_dir"):
            if getattr(self, field) is not None:
                object.__setattr__(self, field, os.fspath(getattr(self, field)))
            if getattr(self, field) == "":  # an unset variable of the shell
                raise ValueError(
                    f"--{field.replace('_', '-')} is empty; leave it out, or say which"
                )
        given = [self.source] if isinstance(self.source, str | os.PathLike) else self.source
        sources = tuple(dict.fromkeys(map(os.fspath, given)))
        if not sources or not all(source.strip() for source in sources):
            raise ValueError(
                "--source names nothing; name a folder, a file or a repository on the hub"
            )
        for source in (*sources, self.val_file or ""):
            for part in (
                source.split("::") if has_scheme(source) else ()
            ):  # fsspec knows chains of URLs
                require_no_password(part)
        object.__setattr__(self, "source", sources)
        object.__setattr__(self, "tokens_root", str(named(self.tokens_root)))
        if has_scheme(self.tokens_root) and self.cluster is not None:
            raise ValueError(
                "--cluster writes into a folder that its machines share; to a bucket prepare by --part"
            )
        for field in ("workers", "num_shards", "max_document_bytes", "shard_text_bytes"):
            if getattr(self, field) is not None:
                least = 1000 if field == "shard_text_bytes" else 1
                object.__setattr__(self, field, whole_number(field, getattr(self, field), least))
        if (
            not re.fullmatch(r"\d+/\d+", self.part or "1/1")
            or not 1 <= self.part_of[0] <= self.part_of[1]
        ):
            raise ValueError(f"part must be I/N, from 1/N to N/N, not {self.part!r}")
        if not re.fullmatch(r"\w[\w.-]*", self.dataset):
            raise ValueError(
                f"name must be of letters, digits, '.', '_' and '-', not {self.dataset!r}; give --name"
            )
        columns = self.options.kept
        if "" in columns or len(set(columns)) < len(columns):
            raise ValueError(
                f"--keep-columns must be names, separated by commas, not {self.keep_columns!r}"
            )

    @property
    def dataset(self) -> str:
        """The data set's name: --name, or the names of the sources."""
        names = list(dict.fromkeys(map(name_of_source, self.source)))
        if self.name is None and len(names) > FEW_NAMES:
            raise ValueError(
                f"{len(names)} sources have {len(names)} names; say what to call the data set, by --name"
            )
        return self.name or "-".join(names)

    @property
    def part_of(self) -> tuple[int, int]:
        """(I, N): this run makes every N-th unit from the I-th on."""
        number, _, parts = (self.part or "1/1").partition("/")
        return int(number), int(parts)

    @property
    def tokenizer_name(self) -> str:
        """What --tokenizer says, or its default."""
        if self.tokenizer is not None or self.chat is None or self.chat in CHAT_NAMES:
            return "gpt2" if self.tokenizer is None else self.tokenizer
        beside = (Path(self.chat) / "x" if Path(self.chat).is_dir() else Path(self.chat)).with_name(
            "tokenizer.json"
        )
        return str(beside) if beside.is_file() else "gpt2"

    @property
    def train_size(self) -> int | None:
        """The tokens of a tokenizer to be trained; None if one is named. ValueError if train:N has no valid N."""
        kind, _, size = self.tokenizer_name.partition(":")
        if kind != "train":
            return None
        if not size.isdecimal() or not 0 < int(size) <= MOST_IDS:
            raise ValueError(
                f"tokenizer {self.tokenizer_name!r}: expected train:N of up to {MOST_IDS:,} tokens, as train:32768"
            )
        return int(size)

    @property
    def options(self) -> ReadOptions:
        """How documents are read."""
        separator = self.document_separator
        if separator is not None:  # \n, \r, \t and \\ mean what they do in Python
            separator = re.sub(r"\\([nrt\\])", lambda found: ESCAPES[found[1]], separator)
        return ReadOptions(
            self.text_column,
            separator or None,
            ()
            if self.keep_columns is None
            else tuple(name.strip() for name in self.keep_columns.split(",")),
            self.max_document_bytes,
            self.skip_broken,
            self.chat is not None,
            self.messages_column,
        )


FINEWEB = PrepareConfig(
    source="karpathy/fineweb-edu-100b-shuffle", num_shards=46, val_file="shard_00045.parquet"
)
PRESETS = {
    "fineweb-edu": FINEWEB,
    "climbmix": replace(
        FINEWEB, source="karpathy/climbmix-400b-shuffle", num_shards=170, val_file="last"
    ),
    "demo": PrepareConfig(source="stdlib", tokenizer="train:8192"),
}


class PreparationError(Exception):
    """Some units could not be made; the others are done. `failures` (pool.Failure) says which, `folder` has the others."""

    def __init__(self, failures: list[Any], folder: Path | str):
        reasons = "; ".join(dict.fromkeys(failure.reason for failure in failures))
        others = ", all others are done" * (not any(failure.is_for_all for failure in failures))
        super().__init__(f"{len(failures)} failed{others}: {reasons}")
        self.failures, self.folder = failures, folder
