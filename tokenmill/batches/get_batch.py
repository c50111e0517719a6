"""get_batch, as in many tutorials, and the loaders that it keeps, one for each distinct set of settings.

    inputs, targets = get_batch("train", batch_size=32, seq_len=2048, device="cuda")
    checkpoint["data"] = state_dict()

Settings that mean the same share one loader: two paths to one token set, 32 and np.int64(32), "cuda" and "cuda:0", or a
default that you write out. Symbolic links are resolved at the first call with these settings. A loaded position goes to
the call with the same arguments. A call with another batch_size is another loader, both after loading and while a
program runs.

For evaluation, pass purpose="eval". It does not move the training position, even if only one rank evaluates:

    get_batch("train", 32, 2048)                    the next batch for training
    get_batch("train", 32, 2048, purpose="eval")    from the same text, in a separate order
"""

import json
import os
import warnings
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, get_args, overload

import torch

from tokenmill.addresses import is_address
from tokenmill.batches.loader import Pair, RowLoader, Tensors, Triple
from tokenmill.batches.loader_core import POSITIONS_KEPT, with_rank
from tokenmill.batches.ranks import require_in_step
from tokenmill.batches.torch_devices import find_device
from tokenmill.checks import one_of, whole_number
from tokenmill.feed.loader_config import LoaderConfig, Loss, Packing, Tokens
from tokenmill.feed.mixture import Mixture
from tokenmill.rows.packing import LongDocuments
from tokenmill.rows.position import VERSION
from tokenmill.store.set_names import TOKENS_ROOT, find_token_set
from tokenmill.store.shards import Split

Purpose = Literal["train", "eval"]
EVAL_SEEDS = 1 << 32  # added to the seed for evaluation, so that it is no seed that anybody trains with


class LoaderCache:
    """Keeps a loader for each set of settings. A loaded position waits until its loader is first used."""

    def __init__(self) -> None:
        self._by_arguments: dict[tuple[Any, ...], RowLoader[Tensors]] = {}  # by the arguments as the user wrote them
        self._loaders: dict[tuple[LoaderConfig, Purpose], RowLoader[Tensors]] = {}  # by resolved settings
        self._last_trained: deque[RowLoader[Tensors]] = deque(maxlen=POSITIONS_KEPT)  # of each last training batch
        self._waiting: list[dict[str, Any]] = []  # loaded positions that no loader has taken yet
        self._of_state: tuple[dict[str, Any], ...] = ()  # all positions of the state that was loaded
        self._warned = False  # the warning about evaluation is shown once

    def next(self, settings: dict[str, Any]) -> Tensors:
        """The next batch of the loader with these settings."""
        loader = self.get(settings)
        trains = _purpose(settings) == "train"
        if trains and not torch.is_grad_enabled() and not self._warned:
            self._warned = True
            warnings.warn(
                "get_batch returned a training batch while gradients are disabled, as in an evaluation: you will not "
                "train on its rows, and if only one rank evaluates, it gets ahead of the others; use "
                "get_batch(..., purpose='eval')",
                stacklevel=3,
            )
        batch = next(loader)
        if trains:
            self._last_trained.append(loader)
        return batch

    def get(self, settings: dict[str, Any]) -> RowLoader[Tensors]:
        """The loader with these settings; a new one continues from the loaded position that fits, if there is one.

        `settings` always has the same keys in the same order.
        """
        skip_rows = settings["skip_rows"]
        if skip_rows is not None and not isinstance(skip_rows, str):  # LoaderConfig rejects a str
            settings["skip_rows"] = tuple(skip_rows)
        tokens = settings["tokens"]
        absolute = isinstance(tokens, Mixture) or (tokens is not None and (is_address(tokens) or os.path.isabs(tokens)))
        key = (*settings.values(), None if absolute else os.getcwd())
        if key not in self._by_arguments:
            one_of("purpose", settings["purpose"], get_args(Purpose))
            self._by_arguments[key] = self._find(LoaderConfig.of(settings), _purpose(settings))
        return self._by_arguments[key]

    def state_dict(self, pending: int = 0) -> dict[str, Any]:
        """Raises ValueError if ranks are at different rows, or if fewer than `pending` batches are kept."""
        returned = len(self._last_trained)
        if whole_number("pending", pending, 0) > returned:
            raise ValueError(
                f"pending={pending}: get_batch has returned {returned} batches for training since the program began or "
                f"loaded a position, so no more can be pending; only the last {POSITIONS_KEPT} are kept"
            )
        counts = Counter(map(id, list(self._last_trained)[returned - pending :]))
        positions, training = [], {}
        for (_, purpose), loader in self._loaders.items():
            arguments = _arguments(loader, purpose)
            position = loader._position(counts[id(loader)])
            positions.append(position | {"arguments": arguments})
            if purpose == "train":
                name = f"get_batch('train', {loader.given.batch_size}, {loader.given.seq_len})"
                training[name if name not in training else f"{name} of {arguments}"] = position
        if training:
            require_in_step(training, str(pending))
        return {"version": VERSION, "loaders": [json.dumps(position) for position in positions + self._waiting]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError for a state that `state_dict` did not make."""
        if not isinstance(state, dict) or not all(isinstance(p, str) for p in state.get("loaders") or ()):
            raise ValueError(f"expected what tokenmill.state_dict() returned, found {state!r}")
        if state.get("version") not in (2, VERSION) or not isinstance(state.get("loaders"), list):
            hint = "; this is the state of one RowLoader: use its load_state_dict" if "fingerprint" in state else ""
            raise ValueError(
                f"expected what tokenmill.state_dict() returned, version {VERSION}, "
                f"found {state.get('version')!r}{hint}"
            )
        waiting = [json.loads(position) for position in state["loaders"]]
        if not all(isinstance(position, dict) and {"arguments", "split"} <= position.keys() for position in waiting):
            raise ValueError("expected what tokenmill.state_dict() returned, found a position without its arguments")
        self._by_arguments.clear()
        self._loaders.clear()
        self._last_trained.clear()
        self._waiting, self._of_state = waiting, tuple(waiting)

    def _find(self, config: LoaderConfig, purpose: Purpose) -> RowLoader[Tensors]:
        """The loader of a config: an existing one with the same meaning, or a new one."""
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
        meaning = replace(with_rank(config), seed=config.order["seed"], skip_rows=config.skip_rows or ())
        key = meaning, purpose
        if key not in self._loaders:
            loader = RowLoader[Tensors].of(config)
            self._resume(loader, _arguments(loader, purpose))
            self._loaders[key] = loader
        return self._loaders[key]

    def _resume(self, loader: RowLoader[Tensors], arguments: dict[str, Any]) -> None:
        """Moves a new loader to the loaded position with the same arguments, or starts over with a warning.

        Only a position of the loader's own token set, or mixture, is taken. If there is none, evaluation starts over.
        Training raises ValueError, with both values, if the state has a position of another set for these arguments.
        """
        same = _with_arguments(self._waiting, arguments)
        known = [position for position in same if loader.knows(position)]
        if len(known) > 1 and (isinstance(loader.config.tokens, Mixture) or "view" in known[0]["arguments"]):
            what = repr(loader.config.tokens) if isinstance(loader.config.tokens, Mixture) else arguments
            raise ValueError(
                f"the loaded state has {len(known)} positions that {what} could continue from; pass "
                'the right one, json.loads of one of state["loaders"], to RowLoader.load_state_dict'
            )
        trains, of_state = arguments["purpose"] == "train", _with_arguments(self._of_state, arguments)
        if trains and of_state and not any(loader.knows(position) for position in of_state):
            loader._load(of_state[0], compare=True)  # raises ValueError: it is of another set
        for position in known[:1]:
            loader._load(position, compare=trains)
            self._waiting.remove(position)
        others = [position["arguments"] for position in self._of_state if position["split"] == loader.config.split]
        if not known and others:
            found = "of another token set" if of_state else f"for {others}"
            warnings.warn(
                f"get_batch starts over with {arguments} of {loader.token_set.display_name}: the loaded state has no "
                f"position for these, only {found}; call it as before, or change batch_size or seq_len with RowLoader",
                stacklevel=2,
            )


def _purpose(settings: dict[str, Any]) -> Purpose:
    """What a batch is for. Batches of the validation split are always for evaluation."""
    return "train" if settings["split"] == "train" and settings["purpose"] == "train" else "eval"


def _arguments(loader: RowLoader[Tensors], purpose: Purpose) -> dict[str, Any]:
    """The arguments that identify a call of get_batch in a saved state.

    They are those that determine what it returns, except the token set and the rank.
    """
    config = loader.given
    names = ("split", "batch_size", "seq_len", "packing", "documents")
    arguments = {name: getattr(config, name) for name in names} | config.order | {"purpose": purpose}
    if (config.loss, config.ignore_index) != ("all", -100):  # states from before 0.4.0 lack them
        arguments |= {"loss": config.loss, "ignore_index": config.ignore_index}
    if config.view is not None:
        arguments |= {"view": config.view}
    if isinstance(config.tokens, Mixture):
        arguments |= {"mixture": config.tokens.description, "sources": config.sources}
    return arguments | {"skip_rows": list(config.skip_rows or ())}


def _with_arguments(positions: Iterable[dict[str, Any]], arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """The positions with these arguments. If there are none, those that differ only in what may change on resuming."""
    positions = list(positions)
    if same := [position for position in positions if position["arguments"] == arguments]:
        return same
    required = _must_match(arguments)
    return [position for position in positions if _must_match(position["arguments"]) == required]


def _must_match(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments without those that may change when a run resumes: skipped rows, the view, the mixture's weights."""
    found = arguments | {"skip_rows": None} | ({"mixture": None} if "mixture" in arguments else {})
    return {name: value for name, value in found.items() if name != "view"}


_loaders = LoaderCache()


# fmt: off
@overload
def get_batch(
    split: Split, batch_size: int, seq_len: int, device: str | int | torch.device = "cpu", *,
    tokens: Tokens = None, packing: Packing = "best_fit",
    view: str | None = None, long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337,
    skip_rows: Iterable[str] | None = None,
    documents: Literal[False] = False, sources: Literal[False] = False, prefetch: int = 2,
    loss: Loss = "all", ignore_index: int = -100,
    rank: int | None = None, world_size: int | None = None, mesh: Any = None, purpose: Purpose = "train",
    cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | str | None = None,
) -> Pair: ...


@overload
def get_batch(
    split: Split, batch_size: int, seq_len: int, device: str | int | torch.device = "cpu", *,
    tokens: Tokens = None, packing: Packing = "best_fit",
    view: str | None = None, long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337,
    skip_rows: Iterable[str] | None = None,
    documents: Literal[True], sources: Literal[False] = False, prefetch: int = 2,
    loss: Loss = "all", ignore_index: int = -100,
    rank: int | None = None, world_size: int | None = None, mesh: Any = None, purpose: Purpose = "train",
    cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | str | None = None,
) -> Triple: ...


@overload
def get_batch(
    split: Split, batch_size: int, seq_len: int, device: str | int | torch.device = "cpu", *,
    tokens: Tokens = None, packing: Packing = "best_fit",
    view: str | None = None, long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337,
    skip_rows: Iterable[str] | None = None,
    documents: bool = False, sources: bool = False, prefetch: int = 2,
    loss: Loss = "all", ignore_index: int = -100,
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
    view: str | None = None,
    packing: Packing = "best_fit",
    long_documents: LongDocuments = "split",
    shuffle: bool = True,
    seed: int = 1337,
    skip_rows: Iterable[str] | None = None,
    epochs: None = None,
    documents: bool = False,
    sources: bool = False,
    loss: Loss = "all",
    ignore_index: int = -100,
    prefetch: int = 2,
    rank: int | None = None,
    world_size: int | None = None,
    mesh: Any = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
    purpose: Purpose = "train",
) -> Tensors:
    """Returns the next (inputs, targets) of a split, each (B, T) int64 on `device`.

    With documents=True it returns document_ids too. It keeps one `RowLoader` for each distinct set of settings, so
    training and validation each continue where they were. The parameters are those of RowLoader, except `epochs`, which
    is rejected because get_batch is endless.

    With purpose="eval" the training position does not move, so one rank may evaluate alone. On the training split it
    returns the same documents in a separate order. Batches of the validation split are always for evaluation.

    Raises the same errors as RowLoader.
    """
    return _loaders.next(locals())


def state_dict(pending: int = 0) -> dict[str, Any]:
    """See tokenmill.state_dict."""
    return _loaders.state_dict(pending)


def load_state_dict(state: dict[str, Any]) -> None:
    """See tokenmill.load_state_dict."""
    _loaders.load_state_dict(state)
