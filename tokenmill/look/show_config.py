"""The command line of `tokenmill show`, and places as users write them."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from tokenmill.feed.config import LoaderConfig, Packing
from tokenmill.rows.packing import LongDocuments
from tokenmill.store.shards import Split

OF_RUN = ("batch_size", "world_size", "seq_len", "view", "packing", "long_documents", "shuffle", "seed")
ASKED = ("row", "document", "batch", "step")


@dataclass(frozen=True)
class Show:
    """Show what the model saw: a row, a batch, a training step or a document, decoded."""

    # the token set's folder or address, or a mixture's TOML file
    tokens: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]
    row: str | None = None  # a row of the global order, from 0; or a place epoch:window:row, source/... in a mixture
    document: str | None = None  # a document of the split, from 0 (source/... in a mixture), and which rows have it
    batch: int | None = None  # what one rank got at this call, from 0
    step: int | None = None  # what all ranks got at this call, from 0
    checkpoint: str | None = None  # a checkpoint of the run, which says all settings: its file, or DCP's folder
    rank: int | None = None  # the rank whose batch to show; by default the only one
    epoch: int = 0  # the epoch in which to look for a document
    split: Split | None = None  # which split; by default that of a checkpoint with one position, or train
    batch_size: int | None = None  # as in training: rows of a rank at each call
    world_size: int | None = None  # as in training: the number of ranks
    seq_len: int | None = None  # as in training: tokens of an input
    view: str | None = None  # as in training: the name of a view of the set
    packing: Packing | None = None  # as in training, by default best_fit
    long_documents: LongDocuments | None = None  # as in training, by default split, and error for chats
    shuffle: bool | None = None  # as in training, by default shuffled
    seed: int | None = None  # as in training, by default 1337
    columns: str | None = None  # also print a table of these columns of the rows' documents, as score,language; or all
    cache_dir: str | None = None  # where to cache blocks of a remote set; by default TOKENMILL_CACHE
    ids: bool = False  # also print token ids
    full: bool = False  # print whole texts, even for many rows

    def __post_init__(self) -> None:
        given = [name for name in ASKED if getattr(self, name) is not None]
        if len(given) != 1:
            found = ", ".join(f"--{name}" for name in given) or "none"
            raise ValueError(
                f"expected one of --row, --document, --batch and --step, found {found}; --row 0 is the first row"
            )
        (flag,) = given
        if negative := [name for name in ("epoch", "batch", "step") if (getattr(self, name) or 0) < 0]:
            raise ValueError(f"--{negative[0]} counts from 0, found {getattr(self, negative[0])}")
        if flag == "document" and not str(self.document).rpartition("/")[2].isdecimal():
            raise ValueError(f"--document must be a number from 0, or web/7 in a mixture, not {self.document!r}")
        told = [name for name in OF_RUN if getattr(self, name) is not None]
        if self.checkpoint is not None and told:
            raise ValueError(f"--checkpoint says --{told[0].replace('_', '-')}; leave it out")
        if self.checkpoint is None:
            sizes = ["seq_len", *(["batch_size", "world_size"] if flag in ("batch", "step") else [])]
            if self.packing == "nanochat" and flag == "row":
                raise ValueError("--row needs one order of all ranks, which nanochat's rows do not have; use --batch")
            if missing := [f"--{name.replace('_', '-')}" for name in sizes if getattr(self, name) is None]:
                raise ValueError(
                    f"--{flag} needs {' and '.join(missing)}, as in training, or a --checkpoint: which rows these are "
                    "depends on it"
                )

    @property
    def loader(self) -> LoaderConfig:
        """The settings of the training run, checked as a loader checks them."""
        given = {name: getattr(self, name) for name in OF_RUN if getattr(self, name) is not None}
        sizes = {"batch_size": 1, "world_size": 1, "seq_len": 1}
        if self.row is not None:
            given = given | {"batch_size": 1, "world_size": 1}  # the order depends on neither
        return LoaderConfig(
            tokens=self.tokens, split=self.split or "train", cache_dir=self.cache_dir, rank=0, **{**sizes, **given}
        )

    def place(self) -> tuple[str, list[int]]:
        """--row as a source, "" for none, and its numbers: one, or epoch, window and row."""
        source, _, place = str(self.row).rpartition("/")
        parts = place.replace(",", "").split(":")
        if not all(part.isdecimal() for part in parts) or len(parts) not in (1, 3) or (source and len(parts) == 1):
            raise ValueError(f"--row must be a number, or a place as 0:12:100 (epoch:window:row), not {self.row!r}")
        return source, [int(part) for part in parts]
