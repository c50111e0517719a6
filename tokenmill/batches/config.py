"""What a loader is told, in one form however it was said, and checked when it is made.

What each setting means is told where it is said, in `RowLoader` (loader.py).
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

from tokenmill.batches.mixture import Mixture
from tokenmill.checks import LARGEST, LONGEST_ROW, bytes_of, one_of, truth, whole_number
from tokenmill.remote.addresses import cache_root, named
from tokenmill.remote.sets import Kept
from tokenmill.rows.packing import LONG_DOCUMENTS, LongDocuments
from tokenmill.rows.skipped import by_source, format_by_source, format_skipped, parse_skipped
from tokenmill.store.shards import SPLITS, Split

Tokens = str | os.PathLike[str] | Mixture | None  # what `tokens` may be
Packing = Literal["best_fit", "nanochat", "concat", "random"]
PACKINGS = get_args(Packing)
VAL_SEED = 0  # fixed: the first N validation batches are the same fair sample in every run


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """Which rows training gets, and where. Two that mean the same are equal: 32 and np.int64(32), "a" and Path("a")."""

    tokens: Tokens = None
    split: Split = "train"
    batch_size: int
    seq_len: int
    device: Any = "cpu"
    packing: Packing = "best_fit"
    long_documents: LongDocuments = "split"
    shuffle: bool = True
    seed: int = 1337
    skip_rows: Iterable[str] | None = None
    epochs: int | None = None
    drop_last: bool = True
    documents: bool = False
    sources: bool = False
    prefetch: int = 2
    rank: int | None = None
    world_size: int | None = None
    mesh: Any = None
    cache_dir: str | os.PathLike[str] | None = None
    cache_bytes: int | str | None = None

    @classmethod
    def of(cls, arguments: dict[str, Any]) -> Self:
        """The settings among the `locals()` of a function that spells them out."""
        return cls(**{field.name: arguments[field.name] for field in fields(cls) if field.name in arguments})

    def __post_init__(self) -> None:
        self._require_folder_first()
        for field, known in (("split", SPLITS), ("packing", PACKINGS), ("long_documents", LONG_DOCUMENTS)):
            one_of(field, getattr(self, field), known)
        smallest = {"batch_size": 1, "seq_len": 1, "prefetch": 0, "epochs": 1, "seed": None, "rank": 0, "world_size": 1}
        if self.cache_bytes is not None:
            self._set("cache_bytes", bytes_of("cache_bytes", self.cache_bytes))
        for field, least in smallest.items():
            if getattr(self, field) is not None or field not in ("epochs", "rank", "world_size"):
                most = LONGEST_ROW if field == "seq_len" else LARGEST
                self._set(field, whole_number(field, getattr(self, field), least, most))
        for field in ("shuffle", "drop_last", "documents", "sources"):
            self._set(field, truth(field, getattr(self, field)))
        self._set("split", str(self.split))
        if self.cache_dir is not None:
            self._set("cache_dir", cache_root(self.cache_dir))
        if isinstance(self.tokens, Mapping):
            raise ValueError(
                "tokens must be a token set's folder, or a mixture: write Mixture({...}) around the weights"
            )
        if self.tokens is not None and not isinstance(self.tokens, Mixture):
            where = named(self.tokens)
            is_mixture = isinstance(where, Path) and where.suffix == ".toml"
            self._set("tokens", Mixture.load(where) if is_mixture else where)
        if self.skip_rows is not None and isinstance(self.tokens, Mixture):
            self._set("skip_rows", tuple(format_by_source(by_source(self.skip_rows, self.tokens.names))))
        elif self.skip_rows is not None:
            self._set("skip_rows", tuple(format_skipped(parse_skipped(self.skip_rows))))
        self._require_sense()

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)  # frozen for everybody else

    def _require_folder_first(self) -> None:
        """RowLoader("train") takes the split for a folder."""
        if self.tokens == "":
            raise ValueError("tokens must be a token set's folder, not ''; leave it out for the one under data/tokens")
        if isinstance(self.tokens, str) and self.tokens in SPLITS and not Path(self.tokens, "manifest.json").exists():
            raise ValueError(
                f"the first argument is a token set's folder, found {self.tokens!r}, a split: write "
                f"split={self.tokens!r}, with the one token set under data/tokens, or the folder first: "
                f"('data/tokens/NAME', {self.tokens!r}, ...)"
            )

    def _require_sense_of_mixture(self) -> None:
        mixture = isinstance(self.tokens, Mixture)
        if self.sources and not mixture:
            raise ValueError("sources=True tells of a mixture which source each row is of; give tokens=Mixture(...)")
        if mixture and self.packing == "nanochat":
            raise ValueError(
                "packing 'nanochat' deals rows of one token set, a rank at a time; mix with another packing"
            )
        if mixture and self.epochs is not None:
            raise ValueError(
                "epochs are of one token set, as RowLoader(mixture['NAME'], epochs=1); a mixture ends, or goes on, as "
                "its max_epochs and on_cap say"
            )

    def _require_sense(self) -> None:
        self._require_sense_of_mixture()
        if self.packing == "nanochat" and self.epochs is not None:
            raise ValueError(
                "epochs cannot be counted with packing 'nanochat', whose rows go on from one into the next"
            )
        if self.skip_rows and self.packing == "nanochat":
            raise ValueError(
                "skip_rows cannot be left out with packing 'nanochat', whose rows have no places of their own"
            )
        if self.packing == "random" and self.documents:
            raise ValueError("documents need a packing that knows them: packing 'random' cuts anywhere; use best_fit")
        if self.mesh is not None and self.rank is not None:
            raise ValueError("mesh tells rank and world_size; leave these out")
        if (self.rank is None) != (self.world_size is None):
            raise ValueError(f"rank and world_size go together, found rank={self.rank}, world_size={self.world_size}")
        if self.rank is not None and self.world_size is not None and self.rank >= self.world_size:
            raise ValueError(
                f"rank must be from 0 to world_size - 1, found rank={self.rank}, world_size={self.world_size}"
            )

    @property
    def kept(self) -> Kept:
        """Where blocks of sets that lie elsewhere are kept, and how many."""
        return Kept(self.cache_dir, None if self.cache_bytes is None else int(self.cache_bytes))

    @property
    def order(self) -> dict[str, Any]:
        """What, beside packing and seq_len, the order of planned rows follows from."""
        seed = self.seed if self.split == "train" else VAL_SEED
        return {"long_documents": self.long_documents, "shuffle": self.shuffle, "seed": seed}
