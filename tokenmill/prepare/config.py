"""What preparing is told, checked when it is made, and the presets: settings that have a name."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenmill.checks import whole_number
from tokenmill.prepare.cores import available_cores
from tokenmill.remote.addresses import cache_root, named
from tokenmill.text.formats import MAX_DOCUMENT_BYTES, SUFFIX, Reading


@dataclass(frozen=True)
class PrepareConfig:
    """Turns shards of text into token shards, once, on all cores. Run it again and it goes on where it was."""

    source: str = "karpathy/fineweb-edu-100b-shuffle"  # a dataset repository on the Hugging Face hub; a folder, file or glob of parquet, jsonl or txt files, here or at a URL; or stdlib
    num_shards: int = 46  # of a hub repository: how many files, in name order; the last of them validates
    revision: str = "main"  # of a hub repository: a branch, tag or commit; kept as it is when first seen
    tokenizer: str = "gpt2"  # a tiktoken encoding; or train:N, a byte-level BPE of N tokens trained on the source; or a tokenizer.json, tokenmill's or Hugging Face's; or nanochat's tokenizer.pkl
    bos_token: str | None = None  # the special token that begins a document, where it cannot be told
    eot: bool = False  # end documents with the tokenizer's end of text too; BOS still begins them
    eot_token: str | None = None  # the special token that ends a document, where it cannot be told
    engine: Literal["auto", "tiktoken", "gigatoken", "fastokens"] = "auto"  # what tokenizes; auto is the fastest proven
    name: str | None = None  # the data set's name in the token set's folder; by default from the source
    val_file: str | None = None  # the file to validate with, or `last` of a repository; by default the last taken
    text_column: str = "text"  # the column, or key of a jsonl line, with the documents; doc.text of a struct; several, as title,text, are joined by a blank line
    keep_ids: str | None = None  # the column, or key, with a document's own id, which show then tells
    document_separator: str | None = None  # between the documents of a txt file, as `\n\n`; by default a file is one
    skip_broken_lines: bool = False  # leave out and count lines of jsonl that are broken; by default an error
    max_document_bytes: int = MAX_DOCUMENT_BYTES  # leave out and count texts, and lines of jsonl, that are longer
    tokens_root: Path | str = Path("data/tokens")  # where token sets are written: a folder, or s3://, gs:// ...
    raw_dir: Path | str = Path("data/raw")  # where files from the hub are downloaded
    download_workers: int = 4  # files that are downloaded at a time
    keep_raw: bool = True  # keep files from the hub; or delete each once its shards are made
    workers: int = available_cores()  # processes; by default as many as this process has cores
    cluster: Literal["ray"] | None = None  # make shards on the Ray cluster that RAY_ADDRESS names
    part: str | None = None  # I/N: make only every N-th shard, as one of N machines; the last to end finishes
    finish: bool = False  # make nothing; write the manifest, where all parts have made their shards
    dry_run: bool = False  # tell what would be fetched and written, and stop
    shard_text_bytes: int = 256 << 20  # bytes of text in one token shard, at most
    train_text_bytes: int = 1 << 30  # bytes of text that train:N reads, at most

    def __post_init__(self) -> None:
        for field in ("source", "tokenizer", "val_file"):
            if getattr(self, field) is not None:
                object.__setattr__(self, field, os.fspath(getattr(self, field)))
        object.__setattr__(self, "tokens_root", named(self.tokens_root))
        if self.elsewhere is not None and self.cluster is not None:
            raise ValueError(
                "--cluster writes into a folder that all its machines share; to a bucket prepare by --part"
            )
        for field in (
            "workers",
            "num_shards",
            "download_workers",
            "shard_text_bytes",
            "train_text_bytes",
            "max_document_bytes",
        ):
            object.__setattr__(self, field, whole_number(field, getattr(self, field), 1))
        if self.part is not None and not (
            re.fullmatch(r"\d+/\d+", self.part) and 1 <= self.part_of_all[0] <= self.part_of_all[1]
        ):
            raise ValueError(f"part must be I/N, from 1/N to N/N, not {self.part!r}")
        if not re.fullmatch(r"[\w.-]+", self.dataset):
            raise ValueError(f"name must be of letters, digits, '.', '_' and '-', not {self.dataset!r}; give --name")

    @property
    def dataset(self) -> str:
        """The data set's name: --name, or the last part of the source."""
        source = self.source.partition("?")[0] if "://" in self.source else self.source
        return self.name or SUFFIX.sub("", Path(os.path.abspath(source)).name)

    @property
    def elsewhere(self) -> str | None:
        """The address that token sets are written to, where it is none of a folder."""
        return self.tokens_root if isinstance(self.tokens_root, str) else None

    @property
    def here(self) -> Path:
        """Where token sets are made on this disk: of those that go elsewhere, by this part, in the cache."""
        if not isinstance(self.tokens_root, str):
            return Path(self.tokens_root)
        told = hashlib.sha256(f"{self.tokens_root} {self.part}".encode()).hexdigest()[:16]
        return cache_root() / "preparing" / told

    @property
    def reading(self) -> Reading:
        """How documents are told in files; a separator's \\n, \\r, \\t and \\\\ mean what they do in Python."""
        escapes, separator = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}, None
        if self.document_separator is not None:
            separator = re.sub(r"\\([nrt\\])", lambda found: escapes[found[1]], self.document_separator).encode()
        return Reading(self.text_column, separator, self.skip_broken_lines, self.keep_ids, self.max_document_bytes)

    @property
    def part_of_all(self) -> tuple[int, int]:
        """(I, N) of --part; everything is 1 of 1."""
        part, _, parts = (self.part or "1/1").partition("/")
        return int(part), int(parts)

    @property
    def tokenizers_dir(self) -> Path:
        """Where trained tokenizers are kept."""
        root = Path("data/tokens") if isinstance(self.tokens_root, str) else self.tokens_root
        return root.parent / "tokenizers"


PRESETS = {
    "fineweb-edu": PrepareConfig(),
    "climbmix": PrepareConfig(source="karpathy/climbmix-400b-shuffle", num_shards=170, val_file="last"),
    "demo": PrepareConfig(source="stdlib", tokenizer="train:8192"),
}
