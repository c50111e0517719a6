"""BaseLoader: what every RowLoader does, whichever arrays it returns: iteration, properties and the position.

    for inputs, targets in loader:
        checkpoint["data"] = loader.state_dict()      # the same dict on every rank

The three RowLoaders are loader.py (torch), tokenmill/numpy.py and tokenmill/jax.py. Each spells out its parameters, and
says how rows become its arrays. loader_core.py makes the batches. The loader stores nothing beside the tokens: a
position is (epoch, window, row) plus everything that must match for it to have a meaning, and resuming plans one window
again. It is therefore the same for all three. For packings see rows/packing.py and rows/nanochat.py; for the order of
rows, rows/windows.py and rows/row_stream.py.
"""

import contextlib
import hashlib
import json
import time
from _thread import get_ident
from collections.abc import Iterator
from typing import Any, Generic, NoReturn, Self, TypeVar

from tokenmill.batches.loader_core import POSITIONS_KEPT, LoaderCore
from tokenmill.batches.ranks import require_in_step, require_same_on_all_ranks
from tokenmill.cancellation import cancelled_by
from tokenmill.checks import whole_number
from tokenmill.feed.html_preview import draw
from tokenmill.feed.loader_config import LoaderConfig
from tokenmill.feed.protocol import LoaderStats, RowCounts, SourceUsage
from tokenmill.rows.packings import find_packing

FEW_DOCUMENTS = 1_000_000  # counting the rows of this many takes 0.1 to 0.2 seconds, so a repr may do it

Arrays = TypeVar("Arrays")  # a batch: (inputs, targets[, document_ids][, sources])


class BaseLoader(LoaderCore, Iterator[Arrays], Generic[Arrays]):
    """An iterator of batches with a position. RowLoader's docstring (loader.py) explains iteration."""

    waited: float = 0.0  # seconds spent waiting in `next`

    @classmethod
    def of(cls, config: LoaderConfig, worker: tuple[int, int] = (0, 1)) -> Self:
        """A loader with these settings. As `worker` (k, n), it makes every n-th batch starting with batch k."""
        loader = cls.__new__(cls)
        loader._set_up(config, worker)
        return loader

    # ------------------------------------------------------------------------ properties

    @property
    def epoch(self) -> int:
        """The epoch of the next row, from 0. With nanochat, the epoch of the documents that this rank is reading.

        For a mixture, the epoch of the source that is furthest behind; `seen` has each source's epochs.
        """
        return self._state.epoch

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of a mixture's sources, in the order that `sources=True` numbers them; () for one token set."""
        return tuple(name for name in self._feed.names if name)

    def seen(self) -> dict[str, SourceUsage]:
        """How much of each source of a mixture all ranks have used: (tokens, rows, epochs) by name.

        This includes everything before a resumed position, in whatever mixture. Epochs are fractional. Raises
        ValueError if the loader reads one token set, not a mixture.
        """
        if not self.sources:
            raise ValueError("seen() is for a mixture; for one token set, use tokens_seen and epoch")
        return dict(self._feed.used(self._state.place))

    def stats(self) -> LoaderStats:
        """What this rank was given since the loader was made, for logs. It does not wait for the other ranks.

        Seconds waited in `next`, batches, rows, input tokens, filler tokens and pieces (documents, or parts of them),
        in all and by source. Subtract two to get those of the steps between them.
        """
        state = self._state
        sources = {
            name: RowCounts(rows, tokens, filler, pieces)
            for name, (rows, filler, pieces, tokens) in zip(self._feed.names, state.counts.tolist(), strict=True)
        }
        rows, filler, pieces, tokens = state.counts.sum(0).tolist()
        return LoaderStats(self.waited, state.batches, rows, tokens, filler, pieces, sources)

    @property
    def tokens_seen(self) -> int:
        """Input tokens that all ranks have received since the first row, including those before a resumed position."""
        return self._state.tokens_seen

    @property
    def targets(self) -> int:
        """How many targets bear loss in the global batch that was returned last, the same on every rank.

        Divide the sum of the losses of all ranks, over all batches of a step, by the sum of these. 0 before the first
        batch.
        """
        return self._state.targets

    @property
    def vocab_size(self) -> int:
        """The number of token ids of the tokenizer; all tokens are below it."""
        return int(self.token_set.tokenizer["vocab_size"])

    @property
    def rows(self) -> int | None:
        """Rows of the current epoch, of all ranks, including skipped ones; None with nanochat and with several sources.

        It may change by a few rows from epoch to epoch, because windows hold other documents. If the row length changed
        within a window, only what was left of that window counts. With best_fit, the lengths of all documents of the
        split are packed once for each epoch you ask about, which takes about 10 ms for 60,000 documents.
        """
        return self._rows_of(self._state.epoch) if self._has_epochs else None

    @property
    def _has_epochs(self) -> bool:
        return len(self._feed.names) == 1 and not find_packing(self.config.packing).per_rank

    def batches_per_epoch(self, world_size: int | None = None) -> int | None:
        """Calls in which `world_size` ranks (by default the current number) take the rows of the epoch."""
        rows = self.rows
        return None if rows is None else self._calls(rows, world_size or self.world_size)

    def __len__(self) -> int:
        """Batches of the whole current iteration if you set `epochs`; after its end, those of the next one.

        Raises TypeError if the loader is endless.
        """
        if self.config.epochs is None or self._end_epoch is None:
            raise TypeError("this loader is endless and has no len(); pass epochs=, or use batches_per_epoch()")
        end = self._end_epoch + self.config.epochs if self._ended else self._end_epoch
        epochs = range(end - self.config.epochs, end)
        rows = sum(self._rows_of(epoch) or 0 for epoch in epochs)
        return self._calls(max(0, rows - self._feed.count_skipped(epochs)), self.world_size)

    def _rows_of(self, epoch: int) -> int | None:
        if epoch not in self._row_counts:
            self._row_counts[epoch] = self._feed.count_rows(epoch)
        return self._row_counts[epoch]

    def __bool__(self) -> bool:
        return True  # otherwise Python would call __len__

    def _calls(self, rows: int, world_size: int) -> int:
        global_batch = self.config.batch_size * world_size
        return rows // global_batch if self.config.drop_last else -(-rows // global_batch)

    def __repr__(self) -> str:
        config, counted = self.config, self._counted_rows()
        place = self._feed.describe(self._state.place, self.tokens_seen)
        return (
            f"RowLoader({self._feed.display_name!r}, {config.split!r}: {counted} of {config.seq_len:,} + 1 tokens, "
            f"{config.packing}; batches of {config.batch_size:,} for rank {self.rank} of {self.world_size}; "
            f"next: {place}{'; closed' * self._closed})"
        )

    def _repr_html_(self) -> str:
        """A drawing of the rows of the next batch, for notebooks."""
        rows = self._make_rows(ahead=False)
        rows.seek(self._state.place)
        return draw(repr(self), rows.pieces(self.config.batch_size))

    def _counted_rows(self) -> str:
        """The number of rows of an epoch, or an estimate if counting would take long."""
        if not self._has_epochs:
            return "endless rows"
        entries = self.token_set.split(self.config.split)
        if self._state.epoch in self._row_counts or sum(entry.documents for entry in entries) <= FEW_DOCUMENTS:
            with contextlib.suppress(OSError, ValueError):  # a missing file is reported when rows are read
                return f"{self.rows:,} rows"
        return f"about {sum(entry.tokens for entry in entries) // self.config.seq_len:,} rows"

    # ------------------------------------------------------------------------ iterating

    def __iter__(self) -> Self:
        if self._end_epoch is not None and (self._state.begun or self._ended):
            self._begin(self._end_epoch)
        return self

    def __next__(self) -> Arrays:
        started, thread = time.perf_counter(), get_ident()
        self._reset_after_fork()  # before taking the lock, which another thread of the parent may have held
        with self._lock:
            try:
                if self._in_next == thread:  # the last call was interrupted, and may have taken a batch unreturned
                    self._stop()
                    self._rows = None
                elif self._in_next and self._batches and self._next_states[0] is self._batches:
                    # another thread has left the lock, and is about to do this itself
                    self._recent_states = self._next_states[1]
                self._in_next = thread
                with cancelled_by(lambda: self._closed):
                    batches = self._running_batches()
                    batch, state = next(batches)
                arrays = batch.receive()
                states = (*self._recent_states, state)[-1 - POSITIONS_KEPT :]
                self._next_states = (batches, states)
            except BaseException as error:
                self._stop()
                if self._closed:
                    self._raise_closed()  # another thread closed the loader during this call
                if isinstance(error, StopIteration):
                    self._end()
                raise
            finally:
                self.waited += time.perf_counter() - started
        # Python runs signal handlers and other threads after calls, so none runs between the lines from here on. After
        # a Ctrl-C, the position is not past the batch that was returned last.
        if self._in_next == thread:  # else the next thread has set the states
            if self._batches is batches:  # no other thread has moved the loader since
                self._recent_states = states
            self._in_next = 0
        return arrays  # type: ignore[return-value]  # `documents` and `sources` decide how many arrays

    def _end(self) -> None:
        """Ends the iteration: moves past the dropped last rows, which are fewer than a global batch."""
        if self._end_epoch is None:
            return  # all sources of a mixture are used up
        feed, place = self._feed.begin(self._end_epoch, self._state.place)
        ended = self._state._replace(feed=feed, place=place, begun=True)
        self._recent_states, self._ended = (*self._recent_states[:-1], ended), True

    def with_state(self) -> Iterator[tuple[Arrays, dict[str, Any]]]:
        """Iterates as the loader does, and returns each batch with the position after it.

        Use it if something between the loader and your training step fetches batches ahead, such as Keras or tf.data:
        save the position that came with the batch you trained on last. Nothing has to be counted then. Positions are
        not compared between ranks.

            for (inputs, targets), position in loader.with_state(): ...
        """
        for batch in self:
            yield batch, self._position(0)

    def set_epoch(self, epoch: int) -> None:
        """Moves to the first row of an epoch (see the class docstring). ValueError if no iteration begins there."""
        epoch = whole_number("epoch", epoch, 0)
        if not self._has_epochs:
            what = "a mixture of several sources" if len(self._feed.names) > 1 else f"packing {self.config.packing!r}"
            raise ValueError(f"set_epoch: {what} has no epochs to begin; its rows continue from one into the next")
        if self.config.epochs is not None and epoch % self.config.epochs:
            raise ValueError(
                f"set_epoch({epoch}): iterations of {self.config.epochs} epochs begin at multiples of "
                f"{self.config.epochs}"
            )
        if self._compares:
            require_same_on_all_ranks({"set_epoch": epoch}, self._store())
        resumed_within = self._loaded and not self._state.begun and not self._ended
        if not (resumed_within and self._state.epoch == epoch):
            self._begin(epoch)

    def close(self) -> None:
        """Ends the thread and releases the files. You can still call state_dict(). A second call does nothing."""
        self._closed = True  # set first, because it tells a `next` in another thread why it is interrupted
        self._rows = None
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ------------------------------------------------------------------------ the position

    def state_dict(self, pending: int = 0) -> dict[str, Any]:
        """The position after the last returned batch: plain numbers and strings, the same on every rank.

        If your loop has already fetched the next batch but has not trained on it, pass pending=1 to get the position
        before that batch. With pending=n you get the position before the last n batches.

        Call it on every rank, even if only one rank saves the result. If torch.distributed or jax.distributed is
        initialized and ranks are at different rows, it raises ValueError with the difference. If only one rank calls
        it, nothing is compared. Validation loaders may be at different rows on every rank.
        """
        state = self._position(pending)
        if self._compares and self.config.split == "train":
            require_in_step(state, f"{self._name} {pending}", self._store())
        return state

    def _position(self, pending: int) -> dict[str, Any]:
        return self._state_before(whole_number("pending", pending, 0)).position()

    @property
    def _name(self) -> str:
        """A hash that tells this loader from loaders of other rows, the same on every rank."""
        return hashlib.sha256(json.dumps(self._order_inputs(), sort_keys=True, default=repr).encode()).hexdigest()[:16]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues with exactly the next row of a position, on this or (except with nanochat) another number of ranks.

        `batch_size` may differ, and so may `seq_len` (except with nanochat): the rest of the window is then packed
        again. If the token set has grown since, the current epoch finishes with the shards that the position knows, and
        the next epoch includes the new ones. Rows that the position skips stay skipped, unless you passed skip_rows to
        this loader. Raises ValueError, with both values, if the position belongs to another token set or other
        settings, or if a shard that it needs is gone or has changed.

        A mixture may differ: other weights or stages, more sources, or fewer if you name those that are gone in
        `removed`. Every source continues with its next row, and a source that returns continues where it was. A
        position of one token set continues as that source of the mixture.
        """
        self._load(state, compare=self.config.split == "train")

    def _load(self, state: dict[str, Any], compare: bool) -> None:
        if self._closed:
            self._raise_closed()
        self._reset_after_fork()
        with self._lock:
            if compare and self._compares:
                require_same_on_all_ranks(state, self._store())
            self._resume(state)
            self._row_counts.clear()

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "a RowLoader has threads and memory maps, and cannot be pickled or copied; create one in each process, or, "
            "with torch, pass PackedRows to a DataLoader"
        )
