"""get_batch, as in every tutorial, and the loaders that it keeps: one for each distinct set of settings.

    inputs, targets = get_batch("train", batch_size=32, seq_len=2048, device="cuda")
    checkpoint["data"] = state_dict()

Settings that mean the same are one loader: a token set by two paths, 32 and np.int64(32), "cuda" and "cuda:0", a
default that is written out. Which folder a link leads to is looked up when it is asked for first.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, overload

import torch

from tokenmill.batches.chain import TOKENS_ROOT, rank_of
from tokenmill.batches.config import LoaderConfig, Packing
from tokenmill.batches.loader import Pair, RowLoader, Tensors, Triple
from tokenmill.batches.ranks import rank_and_world_size
from tokenmill.batches.transfer import find_device
from tokenmill.rows.packing import LongDocuments
from tokenmill.rows.position import VERSION
from tokenmill.store.shards import Split
from tokenmill.store.token_sets import find_token_set


class KeptLoaders:
    """Loaders, kept by their settings. Loaded positions wait until the loader that they belong to is asked for."""

    def __init__(self) -> None:
        self._asked: dict[tuple[Any, ...], RowLoader[Tensors]] = {}  # by the settings as they were written
        self._loaders: dict[LoaderConfig, RowLoader[Tensors]] = {}  # by what they mean
        self._waiting: list[dict[str, Any]] = []

    def get(self, settings: dict[str, Any]) -> RowLoader[Tensors]:
        """The loader of these settings, always the same keys; a new one goes to the position that waits for it."""
        if not isinstance(settings["skip_rows"], str):  # a text is refused, with what to write
            settings["skip_rows"] = tuple(settings["skip_rows"])
        rank = rank_and_world_size() if settings["rank"] is None else None  # which torch.distributed may come to tell
        tokens = settings["tokens"]
        here = None if tokens is not None and os.path.isabs(tokens) else os.getcwd()
        key = (*settings.values(), rank, here)
        if key not in self._asked:
            self._asked[key] = self._find(LoaderConfig(**settings))
        return self._asked[key]

    def state_dict(self) -> dict[str, Any]:
        loaders = [loader.state_dict() | _told_apart(loader) for loader in self._loaders.values()]
        return {"version": VERSION, "loaders": loaders + self._waiting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """ValueError for a state that `state_dict` did not make."""
        if state.get("version") != VERSION or not isinstance(state.get("loaders"), list):
            raise ValueError(
                f"expected what tokenmill.state_dict() returned, version {VERSION}, found {state.get('version')!r}"
            )
        self._asked.clear()
        self._loaders.clear()
        self._waiting[:] = state["loaders"]

    def _find(self, config: LoaderConfig) -> RowLoader[Tensors]:
        if config.epochs is not None:
            raise ValueError("get_batch is endless; for epochs, iterate over a RowLoader")
        tokens, device = os.path.realpath(config.tokens or find_token_set(TOKENS_ROOT)), find_device(config.device)
        config, (rank, world_size) = replace(config, tokens=tokens, device=device), rank_of(config)
        order = {name: value for name, value in config.order.items() if name in ("seed", "shuffle")}
        meant = replace(config, rank=rank, world_size=world_size, **order)
        if meant not in self._loaders:
            loader = RowLoader[Tensors].of(config)
            self._resume(loader)
            self._loaders[meant] = loader
        return self._loaders[meant]

    def _resume(self, loader: RowLoader[Tensors]) -> None:
        """Gives a new loader the loaded position of its split, the one with its settings where there are several."""
        candidates = [position for position in self._waiting if position["split"] == loader.config.split]
        if not candidates:
            return
        told = _told_apart(loader)
        fitting = [position for position in candidates if loader.identity.items() <= position.items()]
        same = [position for position in fitting if told.items() <= position.items()]
        if len(fitting) > 1 and not same and all(told.keys() <= position.keys() for position in fitting):
            raise ValueError(
                f"{len(fitting)} loaded positions of split {loader.config.split!r} fit this get_batch, and none was "
                f"saved with {told}, so that which is its own cannot be told; call it as before, or use RowLoader"
            )
        position = (same or fitting or candidates)[0]
        loader.load_state_dict(position)  # refuses, with both values, where none fits
        self._waiting.remove(position)


def _told_apart(loader: RowLoader[Tensors]) -> dict[str, Any]:
    """What tells loaders apart whose positions mean the same rows."""
    return {"batch_size": loader.config.batch_size, "documents": loader.config.documents}


_loaders = KeptLoaders()


# fmt: off
@overload
def get_batch(
    split: Split, batch_size: int, seq_len: int, device: str | int | torch.device = "cpu", *,
    tokens: str | os.PathLike[str] | None = None, packing: Packing = "best_fit",
    long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337, skip_rows: Iterable[str] = (),
    documents: Literal[False] = False, prefetch: int = 2, rank: int | None = None, world_size: int | None = None,
) -> Pair: ...


@overload
def get_batch(
    split: Split, batch_size: int, seq_len: int, device: str | int | torch.device = "cpu", *,
    tokens: str | os.PathLike[str] | None = None, packing: Packing = "best_fit",
    long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337, skip_rows: Iterable[str] = (),
    documents: Literal[True], prefetch: int = 2, rank: int | None = None, world_size: int | None = None,
) -> Triple: ...


@overload
def get_batch(
    split: Split, batch_size: int, seq_len: int, device: str | int | torch.device = "cpu", *,
    tokens: str | os.PathLike[str] | None = None, packing: Packing = "best_fit",
    long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337, skip_rows: Iterable[str] = (),
    documents: bool, prefetch: int = 2, rank: int | None = None, world_size: int | None = None,
) -> Tensors: ...
# fmt: on


def get_batch(
    split: Split,
    batch_size: int,
    seq_len: int,
    device: str | int | torch.device = "cpu",
    *,
    tokens: str | os.PathLike[str] | None = None,
    packing: Packing = "best_fit",
    long_documents: LongDocuments = "split",
    shuffle: bool = True,
    seed: int = 1337,
    skip_rows: Iterable[str] = (),
    epochs: None = None,
    documents: bool = False,
    prefetch: int = 2,
    rank: int | None = None,
    world_size: int | None = None,
) -> Tensors:
    """The next (inputs, targets) of a split, each (B, T) int64 on `device`; with documents=True, document_ids too.

    Keeps one `RowLoader` for each distinct set of settings, so training and validation each go on where they were.
    Parameters are RowLoader's, and mean the same; `epochs` is refused, as it is endless.

    Raises what RowLoader does.
    """
    return next(_loaders.get(locals()))


def state_dict() -> dict[str, Any]:
    """The positions of all loaders that get_batch keeps, the same on every rank."""
    return _loaders.state_dict()


def load_state_dict(state: dict[str, Any]) -> None:
    """Makes get_batch go on from `state_dict`, in this process or another, on any number of ranks.

    ValueError for a state that `state_dict` did not make. Whether each position fits is checked when the
    get_batch that it belongs to is called next.
    """
    _loaders.load_state_dict(state)
