"""get_batch, as in every tutorial, and the loaders that it keeps: one for each distinct set of settings.

    inputs, targets = get_batch("train", batch_size=32, seq_len=2048, device="cuda")
    checkpoint["data"] = state_dict()

Settings that mean the same are one loader: a token set by two paths, 32 and np.int64(32), "cuda" and "cuda:0", a
default that is written out. Which folder a link leads to is looked up when it is asked for first. A loaded position
goes to the call of the same arguments: another batch_size is another loader here, as it is while a program runs.

An evaluation takes its batches with purpose="eval", which moves nobody's training, also on one rank alone:

    get_batch("train", 32, 2048)                    the training's next batch
    get_batch("train", 32, 2048, purpose="eval")    of the same text, in an order of its own
"""

import json
import os
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, get_args, overload

import torch

from tokenmill.batches.callers import warn
from tokenmill.batches.chain import KEPT, TOKENS_ROOT, of_this_rank
from tokenmill.batches.config import LoaderConfig, Packing, Tokens
from tokenmill.batches.loader import Pair, RowLoader, Tensors, Triple
from tokenmill.batches.mixture import Mixture
from tokenmill.batches.ranks import require_in_step
from tokenmill.batches.transfer import find_device
from tokenmill.checks import one_of, whole_number
from tokenmill.remote.addresses import is_address
from tokenmill.rows.packing import LongDocuments
from tokenmill.rows.position import VERSION
from tokenmill.store.shards import Split
from tokenmill.store.token_sets import find_token_set

Purpose = Literal["train", "eval"]
EVAL_SEEDS = 1 << 32  # the seed of an evaluation's order is so many further: none that anybody trains with


class KeptLoaders:
    """Loaders, kept by their settings. Loaded positions wait until the loader that they belong to is asked for."""

    def __init__(self) -> None:
        self._asked: dict[tuple[Any, ...], RowLoader[Tensors]] = {}  # by the settings as they were written
        self._loaders: dict[tuple[LoaderConfig, Purpose], RowLoader[Tensors]] = {}  # by what they mean
        self._trained: deque[RowLoader[Tensors]] = deque(maxlen=KEPT)  # whose the last batches of training were
        self._waiting: list[dict[str, Any]] = []
        self._warned = False  # of an evaluation, once

    def next(self, settings: dict[str, Any]) -> Tensors:
        """The next batch of the loader of these settings."""
        loader = self.get(settings)
        trains = _purpose(settings) == "train"
        if trains and not torch.is_grad_enabled() and not self._warned:
            self._warned = True
            warn(
                "get_batch gives a batch of training where no gradient is taken: an evaluation, it seems, whose rows "
                "will never be trained on, and on one rank alone will set it apart from the others; write "
                "get_batch(..., purpose='eval')"
            )
        batch = next(loader)
        if trains:
            self._trained.append(loader)
        return batch

    def get(self, settings: dict[str, Any]) -> RowLoader[Tensors]:
        """The loader of these settings, always the same keys; a new one goes to the position that waits for it."""
        skip_rows = settings["skip_rows"]
        if skip_rows is not None and not isinstance(skip_rows, str):  # a text is refused, with what to write
            settings["skip_rows"] = tuple(skip_rows)
        tokens = settings["tokens"]
        named = isinstance(tokens, Mixture) or (tokens is not None and (is_address(tokens) or os.path.isabs(tokens)))
        here = None if named else os.getcwd()
        key = (*settings.values(), here)
        if key not in self._asked:
            one_of("purpose", settings["purpose"], get_args(Purpose))
            self._asked[key] = self._find(LoaderConfig.of(settings), _purpose(settings))
        return self._asked[key]

    def state_dict(self, pending: int = 0) -> dict[str, Any]:
        """ValueError where ranks stand elsewhere, or where fewer batches can be pending."""
        if whole_number("pending", pending, 0) > len(self._trained):
            raise ValueError(
                f"pending={pending}: get_batch has returned {len(self._trained)} batches for training since it began, "
                f"or a position was loaded, so that no more can be pending; of more than {KEPT} none are kept"
            )
        counts = Counter(map(id, list(self._trained)[len(self._trained) - pending :]))
        positions, training = [], {}
        for (_, purpose), loader in self._loaders.items():
            arguments = _arguments(loader, purpose)
            position = loader._position(counts[id(loader)])
            positions.append(position | {"arguments": arguments})
            if purpose == "train":
                name = f"get_batch('train', {loader.config.batch_size}, {loader.config.seq_len})"
                training[name if name not in training else f"{name} of {arguments}"] = position
        if training and not require_in_step(training, str(pending)):
            for (_, purpose), loader in self._loaders.items():
                if purpose == "train":
                    loader._warn_of_others()
        return {"version": VERSION, "loaders": [json.dumps(position) for position in positions + self._waiting]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """ValueError for a state that `state_dict` did not make."""
        if not isinstance(state, dict) or not all(isinstance(p, str) for p in state.get("loaders") or ()):
            raise ValueError(f"expected what tokenmill.state_dict() returned, found {state!r}")
        if state.get("version") != VERSION or not isinstance(state.get("loaders"), list):
            hint = "; this is a loader's own, for its load_state_dict" if "fingerprint" in state else ""
            raise ValueError(
                f"expected what tokenmill.state_dict() returned, version {VERSION}, "
                f"found {state.get('version')!r}{hint}"
            )
        waiting = [json.loads(position) for position in state["loaders"]]
        if not all(isinstance(one, dict) and {"arguments", "split"} <= one.keys() for one in waiting):
            raise ValueError("expected what tokenmill.state_dict() returned, found a position without its arguments")
        self._asked.clear()
        self._loaders.clear()
        self._trained.clear()
        self._waiting = waiting

    def _find(self, config: LoaderConfig, purpose: Purpose) -> RowLoader[Tensors]:
        if config.epochs is not None:
            raise ValueError("get_batch is endless; for epochs, iterate over a RowLoader")
        if isinstance(config.tokens, Mixture):
            tokens: Mixture | str = config.tokens.resolved()
        elif config.tokens is not None and is_address(config.tokens):
            tokens = str(config.tokens)
        else:
            tokens = os.path.realpath(config.tokens or find_token_set(TOKENS_ROOT))
        config = replace(config, tokens=tokens, device=find_device(config.device))
        config = replace(config, seed=config.seed + EVAL_SEEDS) if purpose == "eval" else config
        same = replace(of_this_rank(config), seed=config.order["seed"], skip_rows=config.skip_rows or ())
        meant = same, purpose
        if meant not in self._loaders:
            loader = RowLoader[Tensors].of(config)
            self._resume(loader, _arguments(loader, purpose))
            self._loaders[meant] = loader
        return self._loaders[meant]

    def _resume(self, loader: RowLoader[Tensors], arguments: dict[str, Any]) -> None:
        """Gives a new loader the loaded position of the same arguments: of several, as of two token sets, its own.

        Where there is none it begins anew, and says so.
        """
        same = [position for position in self._waiting if position["arguments"] == arguments]
        if not same:  # rows to skip may be given with the position that is gone back to, or other weights
            loose = _loosely(arguments)
            same = [position for position in self._waiting if _loosely(position["arguments"]) == loose]
        known = [position for position in same if loader.knows(position)]
        if len(known) > 1 and isinstance(loader.config.tokens, Mixture):
            raise ValueError(
                f"the loaded state has {len(known)} positions that {loader.config.tokens!r} could go on from; give "
                'the one that is meant, json.loads of one of state["loaders"], to RowLoader.load_state_dict'
            )
        for position in (known or same)[:1]:
            # refuses, with both values, where it does not fit
            loader._load(position, compare=arguments["purpose"] == "train")
            self._waiting.remove(position)
        others = [position["arguments"] for position in self._waiting if position["split"] == loader.config.split]
        if not same and others:
            warn(
                f"get_batch begins anew with {arguments}: the loaded state has no position of these "
                f"arguments, but of {others}; call it as before, or change batch_size or seq_len with RowLoader",
            )


def _purpose(settings: dict[str, Any]) -> Purpose:
    """What a batch is for: validation evaluates, whatever is said."""
    return "train" if settings["split"] == "train" and settings["purpose"] == "train" else "eval"


def _arguments(loader: RowLoader[Tensors], purpose: Purpose) -> dict[str, Any]:
    """What a call of get_batch is known by again: what decides what it returns, but for the token set and the rank."""
    config = loader.config
    names = ("split", "batch_size", "seq_len", "packing", "documents")
    told = {name: getattr(config, name) for name in names} | config.order | {"purpose": purpose}
    if isinstance(config.tokens, Mixture):
        told |= {"mixture": config.tokens.told, "sources": config.sources}
    return told | {"skip_rows": list(config.skip_rows or ())}


def _loosely(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same, whatever rows are skipped, and whatever the mixture's weights."""
    return arguments | {"skip_rows": None} | ({"mixture": None} if "mixture" in arguments else {})


_loaders = KeptLoaders()


# fmt: off
@overload
def get_batch(
    split: Split, batch_size: int, seq_len: int, device: str | int | torch.device = "cpu", *,
    tokens: Tokens = None, packing: Packing = "best_fit",
    long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337,
    skip_rows: Iterable[str] | None = None,
    documents: Literal[False] = False, sources: Literal[False] = False, prefetch: int = 2,
    rank: int | None = None, world_size: int | None = None, mesh: Any = None, purpose: Purpose = "train",
    cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | str | None = None,
) -> Pair: ...


@overload
def get_batch(
    split: Split, batch_size: int, seq_len: int, device: str | int | torch.device = "cpu", *,
    tokens: Tokens = None, packing: Packing = "best_fit",
    long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337,
    skip_rows: Iterable[str] | None = None,
    documents: Literal[True], sources: Literal[False] = False, prefetch: int = 2,
    rank: int | None = None, world_size: int | None = None, mesh: Any = None, purpose: Purpose = "train",
    cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | str | None = None,
) -> Triple: ...


@overload
def get_batch(
    split: Split, batch_size: int, seq_len: int, device: str | int | torch.device = "cpu", *,
    tokens: Tokens = None, packing: Packing = "best_fit",
    long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337,
    skip_rows: Iterable[str] | None = None,
    documents: bool = False, sources: bool = False, prefetch: int = 2,
    rank: int | None = None, world_size: int | None = None, mesh: Any = None, purpose: Purpose = "train",
    cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | str | None = None,
) -> Tensors: ...
# fmt: on


def get_batch(
    split: Split,
    batch_size: int,
    seq_len: int,
    device: str | int | torch.device = "cpu",
    *,
    tokens: Tokens = None,
    packing: Packing = "best_fit",
    long_documents: LongDocuments = "split",
    shuffle: bool = True,
    seed: int = 1337,
    skip_rows: Iterable[str] | None = None,
    epochs: None = None,
    documents: bool = False,
    sources: bool = False,
    prefetch: int = 2,
    rank: int | None = None,
    world_size: int | None = None,
    mesh: Any = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
    purpose: Purpose = "train",
) -> Tensors:
    """The next (inputs, targets) of a split, each (B, T) int64 on `device`; with documents=True, document_ids too.

    Keeps one `RowLoader` for each distinct set of settings, so training and validation each go on where they were.
    Parameters are RowLoader's, and mean the same; `epochs` is refused, as it is endless.

    With purpose="eval" training stays where it is, so that a rank may evaluate alone: of the training split these are
    the same documents in an order of their own. Validation is evaluation, whatever `purpose` says.

    Raises what RowLoader does.
    """
    return _loaders.next(locals())


def state_dict(pending: int = 0) -> dict[str, Any]:
    """What tokenmill.state_dict tells."""
    return _loaders.state_dict(pending)


def load_state_dict(state: dict[str, Any]) -> None:
    """What tokenmill.load_state_dict does."""
    _loaders.load_state_dict(state)
