"""What the user asks for, checked when it is written down.

config = PrepareConfig(source="corpus", tokens_root="s3://bucket/tokens", part="3/32")
config.dataset, config.root, config.address       what the token set is called, and where it goes
config.part_number, config.parts                  which of its shards this run makes
config.options                                    how documents are read
"""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenmill.addresses import cache_root, has_scheme, hide_secrets, named, require_readable_host
from tokenmill.checks import whole_number
from tokenmill.prepare.cores import available_cores
from tokenmill.store.schema import MOST_IDS
from tokenmill.text.formats import MAX_DOCUMENT_BYTES, ReadOptions, parse_columns
from tokenmill.text.several_sources import name_of_source
from tokenmill.tokenize.chat_rule import NAMES as CHAT_NAMES

OPTIONAL_NUMBERS = ("shard_text_bytes",)
WHOLE_NUMBERS = (
    "workers",
    "num_shards",
    "max_document_bytes",
    *OPTIONAL_NUMBERS,
)
FEW_NAMES = 3  # of sources, that make the name of the data set
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}


@dataclass(frozen=True)
class PrepareConfig:
    """Turns files of text into token shards, once, on all cores. Run it again: it continues where it stopped."""

    # fmt: off
    source: str | tuple[str, ...] = "karpathy/fineweb-edu-100b-shuffle"  # a dataset repository on the Hugging Face hub; folders, files or globs of parquet, jsonl, txt, csv, md or arrow files, local or at URLs; or stdlib
    # fmt: on
    num_shards: int = 46  # of a hub repository: how many files, in name order; the last of them validates
    revision: str = "main"  # of a hub repository: a branch, tag or commit; kept as it is when first seen
    # fmt: off
    tokenizer: str | None = None  # a tiktoken encoding; or train:N, a byte-level BPE of N tokens trained on the source; or a model on the Hugging Face hub, as Qwen/Qwen3-0.6B; or a tokenizer.json, tokenmill's or Hugging Face's; or nanochat's tokenizer.pkl; by default gpt2, or the tokenizer.json beside the file of --chat
    # fmt: on
    bos_token: str | None = None  # the special token that begins a document, if it is not clear which one does
    eot_token: str | None = None  # a special token that ends documents too; BOS still begins them
    # fmt: off
    chat: str | None = None  # the source has conversations: nanochat, chatml, or a tokenizer_config.json or .jinja file with a Hugging Face chat template
    # fmt: on
    loss: Literal["all", "last"] = "all"  # which turns of the assistant bear loss
    messages_column: str | None = None  # the column, or key, with the messages, if it is not messages or conversations
    engine: Literal["auto", "tiktoken", "gigatoken"] = "auto"  # what tokenizes; auto takes the fastest proven one
    name: str | None = None  # the data set's name in the token set's folder; by default taken from the source
    val_file: str | None = None  # the file that validates, or last: a repository's last; by default the last taken
    # fmt: off
    val_fraction: float | None = None  # how much of the documents validates, drawn by a hash of their text; by default 0.01 (0.1 of less than 10 MiB) if the last file is the only one or has little text
    # fmt: on
    text_column: str = "text"  # the column, or key of a jsonl line, with the documents; doc.text of a struct; several, as title,text, are joined by a blank line
    keep_ids: str | None = None  # the column, or key, with a document's own id, which `tokenmill show` then prints
    # fmt: off
    keep_columns: str | None = None  # columns, or keys, to keep for `tokenmill view`, as score,meta.language; note? may be missing
    # fmt: on
    document_separator: str | None = None  # between documents of a txt file, as `\n\n`; by default a file is one
    skip_broken: bool = False  # leave out and count lines, and conversations, that are broken; by default an error
    max_document_bytes: int = MAX_DOCUMENT_BYTES  # leave out and count texts, and lines of jsonl, that are longer
    tokens_root: Path | str = Path("data/tokens")  # where token sets are written: a folder, or s3://, gs:// ...
    raw_dir: Path | str = Path("data/raw")  # where files from the hub are downloaded
    keep_raw: bool = True  # keep files from the hub; otherwise each is deleted once its shards are made
    workers: int = available_cores()  # processes; by default as many as this process has cores
    cluster: Literal["ray"] | None = None  # make shards on the Ray cluster that RAY_ADDRESS names
    part: str | None = None  # I/N: make only every N-th shard, as one of N machines; the last one finishes
    dry_run: bool = False  # say what would be fetched and written, and stop
    shard_text_bytes: int | None = None  # bytes of text in a shard; by default a 512th of all, 8 to 256 MiB

    def __post_init__(self) -> None:
        if self.chat is None and (self.loss, self.messages_column) != ("all", None):
            raise ValueError("--loss and --messages-column go with --chat, which is missing")
        if self.chat is not None and self.eot_token:
            raise ValueError("--eot-token is for text; a chat template itself ends its turns")
        if self.val_fraction is not None:
            if self.val_file is not None:
                raise ValueError("--val-file and --val-fraction both say what validates; give one of them")
            object.__setattr__(self, "val_fraction", float(self.val_fraction))
            if not 1e-6 <= self.val_fraction < 1:
                raise ValueError(
                    f"--val-fraction must be from 0.000001 to less than 1, as 0.01, not {self.val_fraction}"
                )
        for field in ("tokenizer", "val_file", "chat"):
            if getattr(self, field) is not None:
                object.__setattr__(self, field, os.fspath(getattr(self, field)))
        given = [self.source] if isinstance(self.source, str | os.PathLike) else self.source
        sources = tuple(dict.fromkeys(map(os.fspath, given)))
        if not sources or not all(source.strip() for source in sources):
            raise ValueError("--source names nothing; name a folder, a file or a repository on the hub")
        for source in sources:
            if has_scheme(source) and "::" not in source:  # of which fsspec makes several URLs
                hide_secrets(source)
                require_readable_host(source)
        object.__setattr__(self, "source", sources[0] if len(sources) == 1 else sources)
        object.__setattr__(self, "tokens_root", named(self.tokens_root))
        if isinstance(self.tokens_root, str) and self.cluster is not None:
            raise ValueError(
                "--cluster writes into a folder that all its machines share; to a bucket prepare by --part"
            )
        for field in WHOLE_NUMBERS:
            if getattr(self, field) is not None or field not in OPTIONAL_NUMBERS:
                object.__setattr__(self, field, whole_number(field, getattr(self, field), 1))
        part, _, parts = ("1/1" if self.part is None else self.part).partition("/")
        if not (re.fullmatch(r"\d+/\d+", f"{part}/{parts}") and 1 <= int(part) <= int(parts)):
            raise ValueError(f"part must be I/N, from 1/N to N/N, not {self.part!r}")
        if not re.fullmatch(r"[\w.-]+", self.dataset):
            raise ValueError(f"name must be of letters, digits, '.', '_' and '-', not {self.dataset!r}; give --name")

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources, one or several."""
        return (self.source,) if isinstance(self.source, str) else self.source

    @property
    def dataset(self) -> str:
        """The data set's name: --name, or the names of the sources."""
        names = list(dict.fromkeys(map(name_of_source, self.sources)))
        if self.name is None and len(names) > FEW_NAMES:
            raise ValueError(f"{len(names)} sources have {len(names)} names; say what to call the data set, by --name")
        return self.name or "-".join(names)

    @property
    def root(self) -> Path:
        """The folder that token sets are made below. A set that goes to a bucket is made in the cache, by each part in a
        folder of its own.
        """
        if not isinstance(self.tokens_root, str):
            return self.tokens_root
        digest = hashlib.sha256(f"{self.tokens_root} {self.part}".encode()).hexdigest()[:16]
        return cache_root() / "preparing" / digest

    @property
    def address(self) -> str | None:
        """Where token sets are sent to, if they go to a bucket."""
        return self.tokens_root if isinstance(self.tokens_root, str) else None

    @property
    def part_number(self) -> int:
        """Which shards this run makes: every `parts`-th from this one on, from 1."""
        return int((self.part or "1/1").partition("/")[0])

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return int((self.part or "1/1").partition("/")[2])

    @property
    def tokenizer_name(self) -> str:
        """What --tokenizer says, or its default."""
        return self.tokenizer or _default_tokenizer(self.chat)

    @property
    def train_size(self) -> int | None:
        """The tokens of a tokenizer to be trained; None if one is named. ValueError if train:N has no valid N."""
        return _train_size(self.tokenizer_name)

    @property
    def trained(self) -> Path:
        """The file that a trained tokenizer is kept in."""
        tokens = Path("data/tokens") if isinstance(self.tokens_root, str) else self.tokens_root
        return tokens.parent / "tokenizers" / f"{self.dataset}-bpe{self.train_size}.json"

    @property
    def options(self) -> ReadOptions:
        """How documents are read."""
        return ReadOptions(
            self.text_column,
            _unescaped(self.document_separator),
            self.skip_broken,
            self.keep_ids,
            self.max_document_bytes,
            None if self.chat is None else True,
            self.messages_column,
            () if self.keep_columns is None else parse_columns(self.keep_columns),
        )


def _default_tokenizer(chat: str | None) -> str:
    if chat is None or chat in CHAT_NAMES:
        return "gpt2"
    beside = Path(chat).with_name("tokenizer.json")
    return str(beside) if beside.is_file() else "gpt2"


def _train_size(tokenizer: str) -> int | None:
    if not tokenizer.startswith("train:"):
        return None
    size = tokenizer.removeprefix("train:")
    if not size.isdecimal() or not 0 < int(size) <= MOST_IDS:
        raise ValueError(f"tokenizer {tokenizer!r}: expected train:N of up to {MOST_IDS:,} tokens, as train:32768")
    return int(size)


def _unescaped(separator: str | None) -> bytes | None:
    r"""A separator as bytes; \n, \r, \t and \\ mean what they do in Python."""
    if separator is None:
        return None
    return re.sub(r"\\([nrt\\])", lambda found: ESCAPES[found[1]], separator).encode()


PRESETS = {
    "fineweb-edu": PrepareConfig(),
    "climbmix": PrepareConfig(source="karpathy/climbmix-400b-shuffle", num_shards=170, val_file="last"),
    "demo": PrepareConfig(source="stdlib", tokenizer="train:8192"),
}
