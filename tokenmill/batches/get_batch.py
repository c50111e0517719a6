"""get_batch, as in many tutorials, and the loaders that it keeps.

    inputs, targets = get_batch("train", batch_size=32, seq_len=2048, device="cuda")
    checkpoint["data"] = state_dict()

Arguments that mean the same share one loader: 32 and np.int64(32), "a" and Path("a"), or a default
that you write out. A loaded position goes to the call with the same arguments.
"""

import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch

from tokenmill.batches.loader import RowLoader
from tokenmill.batches.torch_arrays import find_device
from tokenmill.checks import one_of
from tokenmill.feed.config import LoaderConfig, PackingName, Tokens, mixture_file
from tokenmill.feed.mixture import Mixture
from tokenmill.feed.table import Loss
from tokenmill.rows.packing import LongDocuments
from tokenmill.store.set_names import TOKENS_ROOT, find_token_set
from tokenmill.store.shards import Split

Purpose = Literal["train", "eval"]
# added to the seed for evaluation, so that it is no seed that anybody trains with
EVAL_SEEDS = 1 << 32
SAVED = (
    "split",
    "batch_size",
    "seq_len",
    "view",
    "packing",
    "long_documents",
    "shuffle",
    "seed",
    "loss",
)
Call = dict[str, Any]  # the arguments of a call that decide which rows it returns


class Saved(NamedTuple):
    """A call, and the position of its loader."""

    call: Call
    position: dict[str, str]


class Key(NamedTuple):
    """What a call names its loader by."""

    config: LoaderConfig
    purpose: str
    folder: str  # in which the one token set is looked for


class LoaderCache:
    """Keeps a loader for each set of arguments.

    A loaded position waits until its loader is first used.
    """

    def __init__(self) -> None:
        self._loaders: dict[Key, RowLoader] = {}
        self._waiting: list[Saved] = []  # loaded, and no loader has taken them yet
        self._continued: list[Call] = []  # of loaded ones, those that a loader has taken

    def next(self, config: LoaderConfig, purpose: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The next batch of the loader with these settings."""
        folder = os.getcwd() if config.tokens is None else ""
        key = Key(config, purpose, folder)
        if key not in self._loaders:
            self._loaders[key] = self._make(config, purpose)
        return next(self._loaders[key])

    def _make(self, config: LoaderConfig, purpose: str) -> RowLoader:
        """A new loader, at the loaded position of its call, if there is one."""
        tokens = config.tokens or find_token_set(TOKENS_ROOT)
        if isinstance(tokens, Path):
            tokens = tokens.resolve()
        seed = config.seed + EVAL_SEEDS if purpose == "eval" else config.seed
        resolved = replace(config, tokens=tokens, device=find_device(config.device), seed=seed)
        for known in self._loaders.values():
            if known.config == resolved:  # by other words
                return known
        # one rank may evaluate alone
        loader = RowLoader.of(resolved, is_compared=purpose == "train")
        self._load_position(loader, _call_of(loader, purpose))
        return loader

    def _load_position(self, loader: RowLoader, call: Call) -> None:
        """Moves a new loader to the loaded position of its call.

        ValueError if another loader has taken it, or if training would begin anew beside loaded
        positions of training that wait.
        """
        if call in self._continued:
            raise ValueError(
                f"another call came first and continued the position of {_in_words(call)}"
            )
        for saved in self._waiting:
            if saved.call == call:
                loader.load_state_dict(saved.position)
                self._waiting.remove(saved)
                self._continued.append(call)
                return
        waiting = [saved.call for saved in self._waiting if saved.call["purpose"] == "train"]
        if waiting and call["purpose"] == "train":
            raise ValueError(
                f"no loaded position is of {_in_words(call)}, which would begin at its first row, "
                f"and no call has continued that of {_in_words(waiting[0])}: call get_batch with "
                "these arguments and this token set first, or load the position into a RowLoader"
            )

    def state_dict(self) -> dict[str, str]:
        """See tokenmill.state_dict."""
        saved: dict[int, Saved] = {}  # by the loader, which two keys may have
        for key, loader in self._loaders.items():
            saved[id(loader)] = Saved(_call_of(loader, key.purpose), loader.state_dict())
        calls = [call for call, _ in saved.values()]
        for call in calls:
            if calls.count(call) > 1:
                raise ValueError(
                    "a state cannot tell two calls apart that agree in all of this: "
                    f"{_in_words(call)}"
                )
        return {"get_batch": json.dumps([*saved.values(), *self._waiting])}

    def load_state_dict(self, state: Any) -> None:
        """See tokenmill.load_state_dict."""
        try:
            loaded = [_read_saved(*saved) for saved in json.loads(state["get_batch"])]
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(
                f"expected what tokenmill.state_dict() returned, found {str(state)[:80]!r}"
            ) from error
        self._loaders.clear()
        _mixture_of.cache_clear()
        self._waiting = loaded
        self._continued = []


def _read_saved(call: Call, position: dict[str, str]) -> Saved:
    missing = {*SAVED, "purpose", "tokens"} - call.keys()
    if missing:
        raise ValueError(f"a call without {missing}")
    return Saved(call, position)


def _call_of(loader: RowLoader, purpose: str) -> Call:
    """The arguments that decide which rows a call returns, but for the rank and the set's place."""
    call = {name: getattr(loader.config, name) for name in SAVED}
    tokens = repr(loader.config.tokens) if loader.sources else loader.token_set.name
    return call | {"purpose": purpose, "tokens": tokens}


def _in_words(call: Call) -> str:
    listed = ", ".join(f"{name}={value!r}" for name, value in call.items() if value is not None)
    return f"get_batch({listed})"


_loaders = LoaderCache()
_mixture_of = cache(Mixture.load)  # a file as it was at the first call that named it


def get_batch(
    split: Split,
    batch_size: int,
    seq_len: int,
    device: str | int | torch.device = "cpu",
    *,
    tokens: Tokens = None,
    purpose: Purpose = "train",
    view: str | None = None,
    packing: PackingName = "best_fit",
    long_documents: LongDocuments = "split",
    shuffle: bool = True,
    seed: int = 1337,
    loss: Loss = "all",
    ignore_index: int = -100,
    prefetch: int = 2,
    rank: int | None = None,
    world_size: int | None = None,
    mesh: Any = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The next (inputs, targets) of a split, each (B, T) int64 on `device`.

    It keeps one `RowLoader` for each distinct set of arguments, so training and validation each
    continue where they were. The parameters and errors are those of RowLoader, without `epochs`,
    because get_batch is endless.

    With purpose="eval" the training position does not move, so one rank may evaluate alone: it
    reads the same text in a separate order. Batches of the validation split are always for
    evaluation.
    """
    one_of("purpose", purpose, get_args(Purpose))
    file = mixture_file(tokens)
    if file is not None:
        tokens = _mixture_of(file.absolute())
    is_train = split == "train" and purpose == "train"
    return _loaders.next(LoaderConfig.of(locals()), "train" if is_train else "eval")
