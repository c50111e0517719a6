"""Every knob: one frozen dataclass for preparing, one for loading; each is checked when it is made."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenmill.formats import SUFFIX, Reading
from tokenmill.packing import LONG_DOCUMENTS
from tokenmill.shards import SPLITS
from tokenmill.skipped import parse_skipped

PACKINGS = ("best_fit", "nanochat", "concat", "random")
VAL_SEED = 0  # fixed: the first N validation batches are the same fair sample in every run


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _at_least(smallest: int, field: str, value: int) -> None:
    if not isinstance(value, int) or value < smallest:
        raise ValueError(f"{field} must be a whole number of at least {smallest}, not {value!r}")


@dataclass(frozen=True)
class PrepareConfig:
    """Turns shards of text into token shards, once, on all cores. Run it again and it goes on where it was.

    A preset may stand before the flags: `demo` (the Python library of this machine, with a tokenizer
    trained on it), `fineweb-edu` (the default) or `climbmix` (ClimbMix's first 170 files, and its last to validate).
    """

    source: str = "karpathy/fineweb-edu-100b-shuffle"  # a dataset repository on the Hugging Face hub; a folder, file or glob of parquet, jsonl or txt files, here or at a URL; or stdlib
    num_shards: int = 46  # of a hub repository: how many files, in name order; the last of them validates
    revision: str = "main"  # of a hub repository: a branch, tag or commit; kept as it is when first seen
    tokenizer: str = "gpt2"  # a tiktoken encoding; or train:N, a byte-level BPE of N tokens trained on the source; or a tokenizer.json, tokenmill's or Hugging Face's; or nanochat's tokenizer.pkl
    bos_token: str | None = None  # the special token that begins a document, where it cannot be told
    engine: Literal["auto", "tiktoken", "gigatoken", "fastokens"] = "auto"  # what tokenizes; auto is the fastest proven
    name: str | None = None  # the data set's name in the token set's folder; by default from the source
    val_file: str | None = None  # validates: a file's name or path, or `last` in the repository; by default the last
    text_column: str = "text"  # the column, or key of a jsonl line, with the documents
    document_separator: str | None = None  # between the documents of a txt file, as `\n\n`; by default a file is one
    skip_broken_lines: bool = False  # leave out and count lines of jsonl that are broken; by default an error
    tokens_root: Path = Path("data/tokens")  # where token sets are written
    raw_dir: Path = Path("data/raw")  # where files from the hub are downloaded
    download_workers: int = 4  # files that are downloaded at a time
    keep_raw: bool = True  # keep files from the hub; or delete each once its shards are made
    workers: int = available_cores()  # processes; by default the cores that this process may use
    cluster: Literal["ray"] | None = None  # make shards on the Ray cluster that RAY_ADDRESS names
    part: str | None = None  # I/N: make only every N-th shard, as one of N machines; the last to end finishes
    finish: bool = False  # make nothing; write the manifest, where all parts have made their shards
    shard_text_bytes: int = 256 << 20  # bytes of text in one token shard, at most
    train_text_bytes: int = 1 << 30  # bytes of text that train:N reads, at most

    def __post_init__(self):
        for field in ("workers", "num_shards", "download_workers", "shard_text_bytes", "train_text_bytes"):
            _at_least(1, field, getattr(self, field))
        if self.part is not None and not (
            re.fullmatch(r"\d+/\d+", self.part) and 1 <= self.part_of_all[0] <= self.part_of_all[1]
        ):
            raise ValueError(f"part must be I/N, from 1/N to N/N, not {self.part!r}")
        if not re.fullmatch(r"[\w.-]+", self.dataset):
            raise ValueError(f"name must be of letters, digits, '.', '_' and '-', not {self.dataset!r}; give --name")

    @property
    def dataset(self) -> str:
        """The data set's name: --name, or the last part of the source."""
        return self.name or SUFFIX.sub("", Path(os.path.abspath(self.source)).name)

    @property
    def reading(self) -> Reading:
        """How documents are told in files; a separator's \\n, \\r, \\t and \\\\ mean what they do in Python."""
        separator = self.document_separator
        if separator is not None:
            escapes = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
            separator = re.sub(r"\\([nrt\\])", lambda found: escapes[found[1]], separator).encode()
        return Reading(self.text_column, separator, self.skip_broken_lines)

    @property
    def part_of_all(self) -> tuple[int, int]:
        """(I, N) of --part; everything is 1 of 1."""
        part, _, parts = (self.part or "1/1").partition("/")
        return int(part), int(parts)

    @property
    def tokenizers_dir(self) -> Path:
        """Where trained tokenizers are kept."""
        return Path(self.tokens_root).parent / "tokenizers"


PRESETS = {
    "fineweb-edu": PrepareConfig(),
    "climbmix": PrepareConfig(source="karpathy/climbmix-400b-shuffle", num_shards=170, val_file="last"),
    "demo": PrepareConfig(source="stdlib", tokenizer="train:8192"),
}


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """Which rows training gets, and where."""

    batch_size: int  # rows of one rank at each call
    seq_len: int  # tokens of an input; a row has one more
    tokens: str | Path | None = None  # the token set's folder; by default the one under data/tokens
    split: str = "train"  # "train" or "val"
    device: str = "cpu"  # where the batches go, as torch names it
    packing: str = "best_fit"  # how rows are made; see PACKINGS
    long_documents: str = "split"  # best_fit: "split" a document longer than a row, or "crop" it
    shuffle: bool = True  # train: another order at every epoch; False: shards in order, every epoch the same
    seed: int = 1337  # of every random order
    skip_rows: tuple[str, ...] = ()  # rows to leave out, as `show` names them: ("0:12:100-163",)
    epochs: int | None = None  # how many the iteration has; by default it is endless
    drop_last: bool = True  # with epochs: drop the last rows, fewer than a batch of all ranks, or return them
    documents: bool = False  # batches are (inputs, targets, document_ids): which document of its row a token is of
    prefetch: int = 2  # batches that a thread makes ahead; 0 makes each when it is asked for
    rank: int | None = None  # by default torch.distributed's, torchrun's, or 0
    world_size: int | None = None  # likewise, or 1

    def __post_init__(self):
        _at_least(1, "batch_size", self.batch_size)
        _at_least(1, "seq_len", self.seq_len)
        _at_least(0, "prefetch", self.prefetch)
        if self.epochs is not None:
            _at_least(1, "epochs", self.epochs)
        for field, known in (("packing", PACKINGS), ("long_documents", LONG_DOCUMENTS), ("split", SPLITS)):
            if getattr(self, field) not in known:
                raise ValueError(f"{field} must be one of {', '.join(known)}, not {getattr(self, field)!r}")
        if self.packing == "nanochat" and self.epochs is not None:
            raise ValueError(
                "epochs cannot be counted with packing 'nanochat', whose rows go on from one into the next"
            )
        if parse_skipped(self.skip_rows) and self.packing == "nanochat":
            raise ValueError(
                "skip_rows cannot be left out with packing 'nanochat', whose rows have no places of their own"
            )
        if self.packing == "random" and self.documents:
            raise ValueError("documents need a packing that knows them: packing 'random' cuts anywhere; use best_fit")
        if (self.rank is None) != (self.world_size is None):
            raise ValueError(f"rank and world_size go together, found rank={self.rank}, world_size={self.world_size}")
        if self.rank is not None and not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank must be from 0 to world_size - 1, found rank={self.rank}, world_size={self.world_size}"
            )

    @property
    def order(self) -> dict:
        """What, beside packing and seq_len, the order of planned rows follows from."""
        train = self.split == "train"
        return {
            "long_documents": self.long_documents,
            "shuffle": self.shuffle and train,
            "seed": self.seed if train else VAL_SEED,
        }
