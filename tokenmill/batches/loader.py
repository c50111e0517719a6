"""RowLoader: batches of a token set for one rank, resumable to the exact row.

    loader = RowLoader("data/tokens/NAME", "train", batch_size=32, seq_len=2048, device="cuda")
    for inputs, targets in loader:
        checkpoint["data"] = loader.state_dict()      # the same dict on every rank

Here is what a user says to it and what it tells; how batches are made is chain.py's. Nothing is stored beside the
tokens: the position is (epoch, window, row) and what must match for it to mean anything, and going there plans one
window anew. Packings and order are told in rows/packing.py, rows/nanochat.py, rows/windows.py and rows/stream.py.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Self, overload

import torch

from tokenmill.batches.chain import KEPT, Chain
from tokenmill.batches.config import LoaderConfig, Packing, Tokens
from tokenmill.batches.frameworks import warn_of_lost_position
from tokenmill.batches.mixed import Mixed, Seen
from tokenmill.batches.notebook import draw
from tokenmill.batches.one_set import OneSet
from tokenmill.batches.ranks import require_in_step, require_same_on_all_ranks
from tokenmill.checks import whole_number
from tokenmill.rows.packing import LongDocuments
from tokenmill.store.shards import Split
from tokenmill.waits import wanted_unless

FEW_DOCUMENTS = 1_000_000  # whose rows are counted at once, in a tenth of a second or two

Pair = tuple[torch.Tensor, torch.Tensor]  # inputs, targets
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # and document_ids
Tensors = tuple[torch.Tensor, ...]  # either
if TYPE_CHECKING:
    from typing_extensions import TypeVar  # Python's own has no default before 3.13

    Item = TypeVar("Item", bound=Tensors, default=Pair)
else:
    from typing import TypeVar

    Item = TypeVar("Item")


class RowLoader(Chain, Iterator[Item], Generic[Item]):
    """Batches of one split for one rank: an iterator of (inputs, targets), each (B, T) int64.

    Inputs are a row's first `seq_len` tokens, targets its last. Batches stay valid for as long as they are held.

    Iterating, in one place:

    - Endless (no `epochs`): one stream. `for` after a `break` goes on, as `next` does.
    - `epochs=N`: as a DataLoader's. Each `for` is an iteration over N epochs; the next `for`, after the end or a
      `break`, is over the N that come next, shuffled otherwise (validation is the same at every epoch). After
      `load_state_dict` the first `for` is the rest of the iteration that the position is in.
    - `set_epoch(e)`: the next row is the first of epoch e. Right after a position within epoch e was loaded it changes
      nothing, so that a loop over epochs may call it always.

    Used as a context manager, or closed, it ends its threads and lets go of its files; so does dropping it.

    | parameter | |
    | --- | --- |
    | tokens | a token set's folder or address (docs/remote.md), a Mixture, or its .toml; None: data/tokens' only one |
    | split | "train" or "val" |
    | batch_size | rows of this rank at each call: B |
    | seq_len | tokens of an input: T; a row has one more |
    | device | where the batches go, as torch names it |
    | packing | how rows are made: "best_fit", "nanochat", "concat" or "random" (docs/packing.md) |
    | long_documents | best_fit: "split" a document longer than a row, or "crop" it |
    | shuffle | slices of all shards in random order; False: shards in order, every epoch the same (docs/order.md) |
    | seed | of every random order but validation's, which is fixed |
    | skip_rows | rows to leave out, these and no others: ["0:12:100-163"]; by default those that a position knows |
    | epochs | how many an iteration has; by default it is endless |
    | drop_last | with epochs: drop the last rows, fewer than a batch of all ranks, or return them in shorter batches |
    | documents | batches are (inputs, targets, document_ids): which document of its row a token is of, (B, T) int32 |
    | sources | of a mixture: batches end with the number of each row's source in loader.sources, (B,) int64 |
    | prefetch | batches that a thread makes ahead; 0 makes each when it is asked for |
    | rank, world_size | by default torch.distributed's, torchrun's, or 0 of 1 |
    | cache_dir | where blocks of sets that lie elsewhere are kept: TOKENMILL_CACHE, or ~/.cache/tokenmill/sets |
    | cache_bytes | that they may take there, as 50_000_000_000 or "50G"; by default nine tenths of what is free |
    | mesh | or the data-parallel part of a DeviceMesh, mesh["dp"]: ranks of one place there get the same rows |

    With drop_last=False the last batch may on some ranks be shorter by a row than on others and even empty, so that all
    ranks make the same number of calls.

    A mixture has no epochs of its own: it is endless, or with on_cap="retire" ends when all sources are used up.

    Raises FileNotFoundError where there is no token set; ValueError where a setting makes no sense, a file is not what
    the manifest says, an iteration would have no batch, rows to skip are not there, ranks ask for different rows, or
    this process's rank is no longer what it was. What goes wrong in a thread is raised
    by the next call; the one after tries again.
    """

    waited: float = 0.0  # seconds that `next` has waited for batches

    # fmt: off
    @overload
    def __init__(
        self: "RowLoader[Pair]", tokens: Tokens = None, split: Split = "train", *,
        batch_size: int, seq_len: int, device: str | int | torch.device = "cpu", packing: Packing = "best_fit",
        long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337,
        skip_rows: Iterable[str] | None = None, epochs: int | None = None, drop_last: bool = True,
        documents: Literal[False] = False, sources: Literal[False] = False, prefetch: int = 2,
        rank: int | None = None, world_size: int | None = None, mesh: Any = None,
        cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | str | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: "RowLoader[Triple]", tokens: Tokens = None, split: Split = "train", *,
        batch_size: int, seq_len: int, device: str | int | torch.device = "cpu", packing: Packing = "best_fit",
        long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337,
        skip_rows: Iterable[str] | None = None, epochs: int | None = None, drop_last: bool = True,
        documents: Literal[True], sources: Literal[False] = False, prefetch: int = 2,
        rank: int | None = None, world_size: int | None = None, mesh: Any = None,
        cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | str | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: "RowLoader[Tensors]", tokens: Tokens = None,
        split: Split = "train", *,
        batch_size: int, seq_len: int, device: str | int | torch.device = "cpu", packing: Packing = "best_fit",
        long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337,
        skip_rows: Iterable[str] | None = None, epochs: int | None = None, drop_last: bool = True,
        documents: bool = False, sources: bool = False, prefetch: int = 2,
        rank: int | None = None, world_size: int | None = None, mesh: Any = None,
        cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | str | None = None,
    ) -> None: ...
    # fmt: on

    def __init__(
        self,
        tokens: Tokens = None,
        split: Split = "train",
        *,
        batch_size: int,
        seq_len: int,
        device: str | int | torch.device = "cpu",
        packing: Packing = "best_fit",
        long_documents: LongDocuments = "split",
        shuffle: bool = True,
        seed: int = 1337,
        skip_rows: Iterable[str] | None = None,
        epochs: int | None = None,
        drop_last: bool = True,
        documents: bool = False,
        sources: bool = False,
        prefetch: int = 2,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
    ) -> None:
        self._set_up(LoaderConfig.of(locals()))

    @classmethod
    def of(cls, config: LoaderConfig, worker: tuple[int, int] = (0, 1)) -> Self:
        """A loader of these settings; the k-th of n DataLoader workers makes every n-th batch, from the k-th on."""
        loader = cls.__new__(cls)
        loader._set_up(config, worker)
        return loader

    # ------------------------------------------------------------------------ what a loader tells

    @property
    def epoch(self) -> int:
        """The epoch of the next row, from 0; with nanochat, that in which this rank reads documents.

        Of a mixture, the epoch of the source that is furthest behind; `seen` tells of each.
        """
        if isinstance(self._feed, Mixed):
            return self._feed.epoch(self._state.place)
        return self._state.epoch

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of a mixture's sources, in the order in which `sources=True` numbers them; none of a token set."""
        return tuple(self._feed.sources) if isinstance(self._feed, Mixed) else ()

    def seen(self) -> dict[str, Seen]:
        """What of each source of a mixture was dealt to all ranks by now: (tokens, rows, epochs) by name.

        Resumed positions included, on whatever mixtures; epochs with a fraction. ValueError where this is no mixture.
        """
        if not isinstance(self._feed, Mixed):
            raise ValueError("seen() tells of a mixture's sources; of one token set, tokens_seen and epoch tell")
        return self._feed.seen(self._state.place)

    @property
    def tokens_seen(self) -> int:
        """Input tokens that all ranks together were given since the first row, resumed positions included."""
        return self._state.tokens_seen

    @property
    def vocab_size(self) -> int:
        """How many ids the tokenizer has: all tokens are below."""
        return int(self.token_set.tokenizer["vocab_size"])

    @property
    def rows(self) -> int | None:
        """Rows of the epoch at hand, of all ranks, with those to skip; None with nanochat and of a mixture.

        Windows hold other documents at each epoch, so it may differ by a few; and where the length of rows changed
        within a window, it is what is left of that. With best_fit all lengths of the split
        are read and packed once for each: about 10 ms for 60,000 documents.
        """
        return None if self._has_no_epochs else self._rows_of(self._state.epoch)

    @property
    def _has_no_epochs(self) -> bool:
        return isinstance(self._feed, Mixed) or self._feed.is_nanochat

    def batches_per_epoch(self, world_size: int | None = None) -> int | None:
        """Calls in which `world_size` ranks (by default as many as there are) take the epoch's rows."""
        rows = self.rows
        return None if rows is None else self._calls(rows, world_size or self.world_size)

    def __len__(self) -> int:
        """Batches of the whole iteration at hand, where `epochs` are counted; TypeError for an endless loader."""
        if self.config.epochs is None or self._until is None:
            raise TypeError("this loader is endless and has no len(); give epochs=, or ask for batches_per_epoch()")
        epochs = range(self._until - self.config.epochs, self._until)
        assert isinstance(self._feed, OneSet), "a mixture is endless"
        gone = self._feed.source.skipped.items()
        skipped = sum(len(rows) for (epoch, _), many in gone if epoch in epochs for rows in many)
        return self._calls(max(0, sum(map(self._rows_of, epochs)) - skipped), self.world_size)

    def _rows_of(self, epoch: int) -> int:
        if epoch not in self._counted:
            self._counted[epoch] = self._make_plans().count(epoch)
        return self._counted[epoch]

    def __bool__(self) -> bool:
        return True  # and not whether it has a len

    def _calls(self, rows: int, world_size: int) -> int:
        rows_a_call = self.config.batch_size * world_size
        return rows // rows_a_call if self.config.drop_last else -(-rows // rows_a_call)

    def __repr__(self) -> str:
        config, counted = self.config, self._counted_rows()
        if isinstance(self._feed, Mixed):
            place = f"after {self.tokens_seen:,} tokens"
        else:
            place = ", ".join(f"{name} {value:,}" for name, value in self._state.place.items())
        return (
            f"RowLoader({self._feed.told!r}, {config.split!r}: {counted} of {config.seq_len:,} + 1 tokens, "
            f"{config.packing}; batches of {config.batch_size:,} for rank {self.rank} of {self.world_size}; "
            f"next: {place}{'; closed' * self._closed})"
        )

    def _repr_html_(self) -> str:
        """The rows of the next batch, drawn, in a notebook."""
        rows = self._make_rows(ahead=False)
        rows.seek(self._state.place)
        return draw(repr(self), rows.pieces(self.config.batch_size))

    def _counted_rows(self) -> str:
        """How many rows an epoch has, or about so many where counting would take long."""
        if self._has_no_epochs:
            return "endless rows"
        entries = self.token_set.split(self.config.split)
        if self._state.epoch in self._counted or sum(entry.documents for entry in entries) <= FEW_DOCUMENTS:
            with contextlib.suppress(OSError, ValueError):  # a file that is gone is told where rows are asked for
                return f"{self.rows:,} rows"
        return f"about {sum(entry.tokens for entry in entries) // self.config.seq_len:,} rows"

    # ------------------------------------------------------------------------ iterating

    def __iter__(self) -> Self:
        warn_of_lost_position(self.config.epochs, self._leaves_out_some)
        if self._until is not None and (self._state.begun or self._ended):
            self._begin(self._until, self._state.tokens_seen)
        return self

    def _leaves_out_some(self) -> bool:
        """Whether the iteration at hand, which is left here, has another batch."""
        if self._until is None or self._ended or not self._state.begun:
            return False
        rows, whole = self._make_rows(ahead=False), self.config.batch_size * self.world_size
        rows.seek(self._state.place)
        rows.skip(whole)
        return rows.passed >= (whole if self.config.drop_last else 1)

    def __next__(self) -> Item:
        asked = time.perf_counter()
        if self._progress is not None:
            self._progress.tell(self._state.tokens_seen)
        self._leave_the_parent_s()  # before its lock is taken, which another thread of the parent's may have held
        with self._lock:
            try:
                if self._asking:  # the call before was interrupted, and may have taken a batch that nobody got
                    self._stop()
                    self._rows = None
                self._asking = True
                with wanted_unless(lambda: self._closed):
                    batch, state = next(self._running())
                tensors = batch.receive()
                self._trail = (*self._trail, state)[-1 - KEPT :]
                self._asking = False
            except BaseException as error:
                self._stop()
                if self._closed:
                    self._raise_closed()  # by another thread, in the middle
                if isinstance(error, StopIteration):
                    self._end()
                raise
            finally:
                self.waited += time.perf_counter() - asked
        return tensors  # type: ignore[return-value]  # two or three tensors, as `documents` says

    def _end(self) -> None:
        """After the last batch: the rows that were dropped, fewer than one, are behind."""
        if self._until is None:
            return  # all sources of a mixture are used up
        place = {"epoch": self._until, "window": 0, "row": 0}
        ended = self._state._replace(place=place, epoch=self._until, begun=True)
        self._trail, self._ended = (*self._trail[:-1], ended), True

    def set_epoch(self, epoch: int) -> None:
        """Makes the first row of an epoch the next; see above. ValueError where iterations do not begin there."""
        epoch = whole_number("epoch", epoch, 0)
        if self._has_no_epochs:
            what = "a mixture" if isinstance(self._feed, Mixed) else "packing 'nanochat'"
            raise ValueError(f"set_epoch: {what} has no epochs to begin, its rows go on from one into the next")
        if self.config.epochs is not None and epoch % self.config.epochs:
            raise ValueError(
                f"set_epoch({epoch}): iterations of {self.config.epochs} epochs begin at multiples of them"
            )
        if self.config.rank is None:
            require_same_on_all_ranks({"set_epoch": epoch})
        within = self._loaded and not self._state.begun and not self._ended
        if not (within and self._state.epoch == epoch):
            self._begin(epoch, self._state.tokens_seen)

    def close(self) -> None:
        """Ends the thread and lets go of the files; the position can still be asked for. Again, it does nothing."""
        self._closed = True  # first: a `next` of another thread that is ended now asks why
        self._rows = None
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ------------------------------------------------------------------------ the position

    def state_dict(self, pending: int = 0) -> dict[str, Any]:
        """The position after the batch that was returned last: plain numbers and strings, the same on every rank.

        A loop that has fetched the next batch already, and has not trained on it, says so: with pending=1 it is the
        position before that, with pending=n before the last n.

        Call it on every rank, even if one saves it: where torch.distributed is initialized, ranks that stand elsewhere
        are refused with ValueError, which says where. Called by one rank alone it can only warn of others that have
        fallen far behind. Validation may stand elsewhere on every rank.
        """
        state = self._position(pending)
        if self.config.rank is None and self.config.split == "train":
            name = f"{self._progress.name if self._progress else ''} {pending}"
            if not require_in_step(state, name):
                self._warn_of_others()
        return state

    def _position(self, pending: int) -> dict[str, Any]:
        return self._state_before(whole_number("pending", pending, 0)).position()

    def _warn_of_others(self) -> None:
        if self._progress is not None:
            self._progress.warn_of_others(self._state.tokens_seen, self.config.batch_size * self.config.seq_len)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with exactly the next row, on this number of ranks or, but for nanochat, another.

        `batch_size` may be another, and `seq_len` (but for nanochat): what is left of the window is packed anew.
        A token set that has grown since goes over the shards that the position knows to the end of the epoch, and
        takes the new ones in with the next. Rows that the position knows to be skipped stay so, unless this loader was
        given skip_rows. ValueError, naming both values, where the position is of another token set or other settings,
        or where a shard that it needs is gone or another.

        A mixture may be another: other weights or stages, sources more, or less where they are named in its removed.
        Every source goes on with its next row, one that comes back where it was; a position of one token set goes on
        as that source.
        """
        self._load(state, compare=self.config.split == "train")

    def _load(self, state: dict[str, Any], compare: bool) -> None:
        if self._closed:
            self._raise_closed()
        self._leave_the_parent_s()
        with self._lock:
            if compare and self.config.rank is None:
                require_same_on_all_ranks(state)
            self._go_to_position(state)
            self._counted.clear()

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "a RowLoader has threads and memory maps, and cannot be pickled or copied; make one in each process, or "
            "give a DataLoader PackedRows"
        )
