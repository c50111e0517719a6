"""LoaderConfig: a loader's settings, checked and in one normal form.

RowLoader's docstring (batches/loader.py) explains each setting.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self

from tokenmill.addresses import cache_root, named
from tokenmill.checks import LARGEST, LONGEST_ROW, bytes_of, one_of, truth, whole_number
from tokenmill.feed.mixture import ONE_SET, Mixture
from tokenmill.feed.mixture_file import folder_of
from tokenmill.feed.table import LOSSES, Loss
from tokenmill.remote.token_set import CacheConfig
from tokenmill.rows.packing import LONG_DOCUMENTS, LongDocuments
from tokenmill.rows.plan import PACKINGS
from tokenmill.store.set_names import TOKENS_ROOT, find_token_set
from tokenmill.store.shards import SPLITS, Split

Tokens = str | os.PathLike[str] | Mixture | None  # the type of the `tokens` parameter
PackingName = Literal["best_fit", "nanochat", "concat", "random"]
MOST_PREFETCHED = 1_000  # batches; more would only take memory
VAL_SEED = 0  # fixed, so that the first N validation batches are the same fair sample in every run
LEAST = {"batch_size": 1, "seq_len": 1, "prefetch": 0, "seed": None, "ignore_index": -LARGEST}
LEAST_IF_SET = {"epochs": 1, "rank": 0, "world_size": 1}
MOST = {"seq_len": LONGEST_ROW, "prefetch": MOST_PREFETCHED}
KNOWN = {
    "split": SPLITS,
    "packing": PACKINGS,
    "long_documents": LONG_DOCUMENTS,
    "loss": LOSSES,
}
OF_BEST_FIT = {"loss": "all", "long_documents": "split"}  # whose other values it alone follows


@dataclass(frozen=True, kw_only=True, repr=False)
class LoaderConfig:
    """Which rows training gets, and where. Equivalent settings are equal: 32 and np.int64(32)."""

    tokens: Tokens = None
    split: Split = "train"
    view: str | None = None
    batch_size: int
    seq_len: int
    device: Any = "cpu"  # with JAX, the sharding of global batches
    dtype: Any = None  # with NumPy, the type of inputs and targets
    packing: PackingName = "best_fit"
    long_documents: LongDocuments = "split"
    shuffle: bool = True
    seed: int = 1337
    epochs: int | None = None
    drop_last: bool = True
    loss: Loss = "all"
    ignore_index: int = -100
    prefetch: int = 2
    rank: int | None = None
    world_size: int | None = None
    mesh: Any = None
    cache_dir: str | os.PathLike[str] | None = None
    cache_bytes: int | str | None = None

    @classmethod
    def of(cls, arguments: dict[str, Any]) -> Self:
        """The settings among `arguments`: the `locals()` of a function with such parameters."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: arguments[name] for name in names if name in arguments})

    def __post_init__(self) -> None:
        self._require_folder_first()
        for field, values in KNOWN.items():
            one_of(field, getattr(self, field), values)
        for field, smallest in (LEAST | LEAST_IF_SET).items():
            value = getattr(self, field)
            if value is None and field in LEAST_IF_SET:
                continue
            largest = MOST.get(field, LARGEST)
            self._set(field, whole_number(field, value, smallest, largest))
        for field in ("shuffle", "drop_last"):
            self._set(field, truth(field, getattr(self, field)))
        self._set("split", str(self.split))
        self._set("view", self.view or None)
        if self.cache_bytes is not None:
            self._set("cache_bytes", bytes_of("cache_bytes", self.cache_bytes))
        if self.cache_dir is not None:
            self._set("cache_dir", cache_root(self.cache_dir))
        self._set("tokens", _found(self.tokens))
        if isinstance(self.tokens, Mixture):
            self._require_fits(self.tokens)
        self._require_packing()
        self._require_rank()

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)  # the dataclass is frozen

    def _require_folder_first(self) -> None:
        is_split = self.tokens in ("", *SPLITS)
        if is_split and not Path(str(self.tokens), "manifest.json").exists():
            raise ValueError(
                f"the first argument must be a token set's folder, found {self.tokens!r}: pass the "
                "folder first, as ('data/tokens/NAME', 'train'), or write split='train' to use the "
                "one token set under data/tokens"
            )

    def _require_fits(self, mixture: Mixture) -> None:
        """ValueError for a setting that is not for a mixture."""
        if self.view is not None:
            raise ValueError(
                f"view={self.view!r} is for one token set; use Mixture(..., views={{source: view}})"
            )
        if self.epochs is not None:
            raise ValueError(
                "epochs is for one token set, as mixture['NAME']; a mixture ends with its "
                "max_epochs"
            )
        if self.split == "val" and len(mixture.stages) > 1:
            raise ValueError("validation has no stages: pass mixture.at(0), or mixture.at('900B')")

    def _require_packing(self) -> None:
        is_whole_set = not isinstance(self.tokens, Mixture) and self.view is None
        if self.packing == "nanochat" and (not is_whole_set or self.epochs is not None):
            raise ValueError(
                "a mixture, view or epochs is not supported with packing='nanochat', whose rows "
                "are those of one whole token set, without end; use packing='best_fit'"
            )
        if self.packing == "nanochat" and not self.shuffle:
            raise ValueError(
                "shuffle=False is not supported with packing='nanochat', which has an order of its "
                "own; leave it out"
            )
        for field, default in OF_BEST_FIT.items():
            value = getattr(self, field)
            if value != default and self.packing != "best_fit":
                raise ValueError(
                    f"{field}={value!r} is not supported with packing={self.packing!r}; "
                    "use packing='best_fit'"
                )

    def _require_rank(self) -> None:
        if self.mesh is not None and self.rank is not None:
            raise ValueError("mesh determines rank and world_size; leave these out")
        if self.rank is None and self.world_size is None:
            return
        if self.rank is None or self.world_size is None or self.rank >= self.world_size:
            raise ValueError(
                "pass both, rank from 0 to world_size - 1, or none; found "
                f"rank={self.rank}, world_size={self.world_size}"
            )

    @property
    def mixture(self) -> Mixture:
        """The mixture that rows are made of; one token set is a mixture of one.

        Raises what finding a set raises.
        """
        tokens = find_token_set(TOKENS_ROOT) if self.tokens is None else self.tokens
        return Mixture.of(tokens, self.view)

    @property
    def is_one_set(self) -> bool:
        """Whether rows come from one token set, which has no name."""
        return not isinstance(self.tokens, Mixture) or self.tokens.names == (ONE_SET,)

    @property
    def cache(self) -> CacheConfig:
        """Where remote token sets are cached, and the size limit of that cache."""
        limit = None if self.cache_bytes is None else int(self.cache_bytes)
        return CacheConfig(self.cache_dir, limit)

    @property
    def order_seed(self) -> int:
        """The seed of the random order of this split."""
        return self.seed if self.split == "train" else VAL_SEED


def mixture_file(tokens: Any) -> Path | None:
    """The mixture's .toml file that `tokens` names, if it does."""
    if tokens is None or isinstance(tokens, Mixture | Mapping):
        return None
    location = named(tokens)
    is_file = isinstance(location, Path) and location.suffix == ".toml"
    return Path(location) if is_file else None


def _found(tokens: Any) -> Any:
    """The mixture of a .toml file, or the absolute folder of a set, or its address."""
    if isinstance(tokens, Mapping):
        raise ValueError(
            "tokens must be a token set's folder or a Mixture, not a dict; pass Mixture({...})"
        )
    if tokens is None or isinstance(tokens, Mixture):
        return tokens
    file = mixture_file(tokens)
    if file is not None:
        return Mixture.load(file)
    return folder_of(tokens, Path.cwd())
