"""LoaderConfig: a loader's settings, checked and in one normal form.

RowLoader's docstring (batches/loader.py) explains each setting.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from tokenmill.addresses import cache_root, named
from tokenmill.checks import LARGEST, LONGEST_ROW, bytes_of, one_of, truth, whole_number
from tokenmill.feed.loss_mask import LOSSES
from tokenmill.feed.mixture import ONE_SET, Mixture
from tokenmill.remote.sets import Kept, open_set
from tokenmill.rows.packing import LONG_DOCUMENTS, LongDocuments
from tokenmill.rows.packings import PACKINGS, find_packing
from tokenmill.rows.skip_rows import by_source, format_by_source
from tokenmill.sanitize import redact
from tokenmill.store.set_names import TOKENS_ROOT, find_token_set, set_folder
from tokenmill.store.shards import SPLITS, Split
from tokenmill.store.token_sets import TokenSet

Tokens = str | os.PathLike[str] | Mixture | None  # the type of the `tokens` parameter
# for type checkers; at run time the name of any registered packing works (rows/packings.py)
Packing = Literal["best_fit", "nanochat", "concat", "random"]
MOST_PREFETCHED = 1_000  # batches; more would only take memory
Loss = Literal["all", "once"]
VAL_SEED = 0  # fixed, so that the first N validation batches are the same fair sample in every run


@dataclass(frozen=True, kw_only=True, repr=False)
class LoaderConfig:
    """Which rows training gets, and where. Equivalent settings are equal: 32 and np.int64(32), "a" and Path("a")."""

    tokens: Tokens = None
    split: Split = "train"
    view: str | None = None
    batch_size: int
    seq_len: int
    device: Any = "cpu"  # with JAX, the sharding of global batches
    dtype: Any = None  # with NumPy, the type of inputs and targets
    packing: Packing = "best_fit"
    long_documents: LongDocuments = "split"
    shuffle: bool = True
    seed: int = 1337
    skip_rows: Iterable[str] | None = None
    epochs: int | None = None
    drop_last: bool = True
    documents: bool = False
    sources: bool = False
    loss: Loss = "all"
    ignore_index: int = -100
    prefetch: int = 2
    rank: int | None = None
    world_size: int | None = None
    mesh: Any = None
    cache_dir: str | os.PathLike[str] | None = None
    cache_bytes: int | str | None = None
    # (name, digest of the manifest, digest of the view) of each source, if its documents must not be others than when
    # the settings were made
    pinned: tuple[tuple[str, str, str], ...] = ()

    def __repr__(self) -> str:
        values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self))
        return redact(f"LoaderConfig({values})")

    @classmethod
    def of(cls, arguments: dict[str, Any]) -> Self:
        """The settings among `arguments`, the `locals()` of a function whose parameters are named like the fields."""
        return cls(**{field.name: arguments[field.name] for field in fields(cls) if field.name in arguments})

    def __post_init__(self) -> None:
        self._require_folder_first()
        for field, known in (
            ("split", SPLITS),
            ("packing", PACKINGS),
            ("long_documents", LONG_DOCUMENTS),
            ("loss", LOSSES),
        ):
            one_of(field, getattr(self, field), known)
        smallest = {"batch_size": 1, "seq_len": 1, "prefetch": 0, "epochs": 1, "seed": None, "rank": 0, "world_size": 1}
        smallest |= {"ignore_index": -LARGEST}
        if self.cache_bytes is not None:
            self._set("cache_bytes", bytes_of("cache_bytes", self.cache_bytes))
        for field, least in smallest.items():
            if getattr(self, field) is not None or field not in ("epochs", "rank", "world_size"):
                most = {"seq_len": LONGEST_ROW, "prefetch": MOST_PREFETCHED}.get(field, LARGEST)
                self._set(field, whole_number(field, getattr(self, field), least, most))
        for field in ("shuffle", "drop_last", "documents", "sources"):
            self._set(field, truth(field, getattr(self, field)))
        self._set("split", str(self.split))
        if self.cache_dir is not None:
            self._set("cache_dir", cache_root(self.cache_dir))
        if isinstance(self.tokens, Mapping):
            raise ValueError(
                "tokens must be a token set's folder or a Mixture, not a dict; pass Mixture({...}) of these weights"
            )
        if self.tokens is not None and not isinstance(self.tokens, Mixture):
            location = named(self.tokens)
            is_mixture = isinstance(location, Path) and location.suffix == ".toml"
            self._set("tokens", Mixture.load(location) if is_mixture else set_folder(self.tokens))
        if self.skip_rows is not None:
            names = self.tokens.names if isinstance(self.tokens, Mixture) else (ONE_SET,)
            self._set("skip_rows", tuple(format_by_source(by_source(self.skip_rows, names))))
        self._require_valid()

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)  # the dataclass is frozen

    def _require_folder_first(self) -> None:
        """Explains RowLoader("train"), which would take the split for a folder."""
        if self.tokens == "":
            raise ValueError("tokens must be a token set's folder, not ''; omit it to use the one under data/tokens")
        if isinstance(self.tokens, str) and self.tokens in SPLITS and not Path(self.tokens, "manifest.json").exists():
            raise ValueError(
                f"the first argument must be a token set's folder, found {self.tokens!r}, which is a split: write "
                f"split={self.tokens!r} to use the one token set under data/tokens, or pass the folder first: "
                f"('data/tokens/NAME', {self.tokens!r}, ...)"
            )

    def _require_valid_for_mixture(self) -> None:
        if not isinstance(self.tokens, Mixture):
            if self.sources:
                raise ValueError(
                    "sources=True returns which source of a mixture each row is from; pass tokens=Mixture(...)"
                )
            return
        if self.view is not None:
            raise ValueError(
                f"view={self.view!r} is for one token set; a mixture names the views of its sources: "
                "Mixture(..., views={source: view})"
            )
        if self.epochs is not None and len(self.tokens.names) > 1:
            raise ValueError(
                "epochs needs exactly one source, as in RowLoader(mixture['NAME'], epochs=1); the max_epochs and "
                "on_cap of a mixture of several sources decide whether it ends"
            )
        if self.epochs is not None and self.tokens.max_epochs:
            raise ValueError("epochs and the mixture's max_epochs both limit the rows; use only one of them")

    def _require_valid_for_packing(self) -> None:
        packing = find_packing(self.packing)
        if packing.per_rank:
            unsupported = f"is not supported with packing={self.packing!r}"
            if isinstance(self.tokens, Mixture):
                raise ValueError(f"a mixture {unsupported}, which reads one token set; use another packing")
            if self.view is not None:
                raise ValueError(f"view {unsupported}; use packing='best_fit'")
            if self.epochs is not None:
                raise ValueError(f"epochs {unsupported}: its rows continue from one epoch into the next")
            if self.skip_rows:
                raise ValueError(f"skip_rows {unsupported}: its rows have no epoch:window:row")
        if self.loss == "once" and not (packing.packs_documents and packing.packer is not None):
            raise ValueError(
                f"loss='once' is not supported with packing={self.packing!r}, whose rows do not have every token once; "
                "use packing='best_fit'"
            )
        if self.documents and not packing.keeps_boundaries:
            raise ValueError(
                f"documents=True is not supported with packing={self.packing!r}, which cuts documents anywhere; "
                "use best_fit"
            )

    def _require_valid(self) -> None:
        self._require_valid_for_mixture()
        self._require_valid_for_packing()
        if self.mesh is not None and self.rank is not None:
            raise ValueError("mesh determines rank and world_size; leave these out")
        if (self.rank is None) != (self.world_size is None):
            raise ValueError(f"rank and world_size go together, found rank={self.rank}, world_size={self.world_size}")
        if self.rank is not None and self.world_size is not None and self.rank >= self.world_size:
            raise ValueError(
                f"rank must be from 0 to world_size - 1, found rank={self.rank}, world_size={self.world_size}"
            )

    @property
    def mixture(self) -> Mixture:
        """The mixture that rows are made of; one token set is a mixture with one source.

        Raises what finding a token set raises.
        """
        if isinstance(self.tokens, Mixture):
            return self.tokens
        return Mixture.of_one_set(find_token_set(TOKENS_ROOT) if self.tokens is None else self.tokens, self.view)

    def at(self, tokens: int) -> Self:
        """The settings at a moment of the run, as `sizes_at` says."""
        batch_size, seq_len = self.sizes_at(tokens)
        if (batch_size, seq_len) == (self.batch_size, self.seq_len):
            return self
        return replace(self, batch_size=batch_size, seq_len=seq_len)

    def of_stages(self) -> "list[Self]":
        """The settings in each stage that names a row length, and those in all others."""
        begins = self.tokens.seq_lens if isinstance(self.tokens, Mixture) else ()
        return [self, *map(self.at, begins)]

    def sizes_at(self, tokens: int) -> tuple[int, int]:
        """(batch_size, seq_len) at a moment of the run: a stage of the mixture may name another row length, and then a
        batch has as many tokens as before. ValueError if its rows do not add up to as many.
        """
        named = self.tokens.seq_len_at(tokens) if isinstance(self.tokens, Mixture) else None
        if named is None:
            return self.batch_size, self.seq_len
        batch_size, rest = divmod(self.batch_size * self.seq_len, named)
        if rest or not batch_size:
            raise ValueError(
                f"a stage of the mixture has rows of {named:,} tokens, and a batch of {self.batch_size:,} rows of "
                f"{self.seq_len:,} has {self.batch_size * self.seq_len:,}, which is no multiple of that; choose "
                "another batch_size or seq_len"
            )
        return batch_size, named

    def open_sets(self) -> dict[str, TokenSet]:
        """The token set of each source, with its view, by name. Raises what opening a token set or a view raises."""
        mixture, pinned = self.mixture, {name: digests for name, *digests in self.pinned}
        opened: dict[str | Path, TokenSet] = {}  # each once, whatever views of it there are
        found = {}
        for name, path in mixture.paths.items():
            token_set = opened[path] = opened.get(path) or open_set(path, self.kept)
            manifest, view = pinned.get(name, (token_set.digest, mixture.views.get(name)))
            found[name] = token_set.as_it_was(manifest, self.split).viewed(view)
        return found

    @property
    def kept(self) -> Kept:
        """Where blocks of remote token sets are cached, and the size limit of that cache."""
        return Kept(self.cache_dir, None if self.cache_bytes is None else int(self.cache_bytes))

    @property
    def order(self) -> dict[str, Any]:
        """The settings, besides packing and seq_len, that determine the order of planned rows."""
        seed = self.seed if self.split == "train" else VAL_SEED
        return {"long_documents": self.long_documents, "shuffle": self.shuffle, "seed": seed}
