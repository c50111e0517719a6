"""The core of a loader: takes rows, transfers them, prefetches batches, and restarts from any place.

    feed.rows (feed/)   ->   _batches   ->   transfer   ->   prefetch thread   ->   RowLoader.__next__

Every batch carries the state after it. The state of the loader is therefore the state after the batch that it returned
last, no matter what was prefetched. To move elsewhere, or to recover from an error, a Ctrl-C or a fork, the loader
drops everything that runs and starts again from that state. Nothing else has to be remembered.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import numpy as np

from tokenmill.batches.processes import RankStore, torch_rank
from tokenmill.batches.ranks import rank_and_world_size, rank_in_mesh, require_same_on_all_ranks, store_of_ranks
from tokenmill.batches.transfer import Batch, Transfer
from tokenmill.feed.background import BackgroundIterator
from tokenmill.feed.feed import make_feed
from tokenmill.feed.loader_config import LoaderConfig
from tokenmill.feed.protocol import Feed, RankRows, RankShare, Resumed
from tokenmill.rows.run_log import LogEntry, continued, log_of, with_log
from tokenmill.store.maps import unmap_dropped
from tokenmill.store.token_sets import TokenSet

POSITIONS_KEPT = 16  # the last batches whose positions are kept, for state_dict(pending=n)


class State(NamedTuple):
    """A loader's position in memory. It is one value, because a signal handler may read it at any instant."""

    feed: Feed
    place: Any  # in the feed's own form
    tokens_seen: int
    begun: bool  # whether a batch was returned since the iteration began or a position was loaded
    log: tuple[LogEntry, ...]  # of the run's settings, since training began
    batches: int  # returned since the loader was made
    counts: np.ndarray  # (number of sources, 4): rows, filler, pieces and tokens of these batches
    targets: int  # that bear loss, in the last global batch

    @property
    def epoch(self) -> int:
        return self.feed.epoch(self.place)

    def position(self) -> dict[str, Any]:
        """The position of this place, for a checkpoint."""
        return with_log(self.feed.position(self.place, self.tokens_seen), self.log)


class LoaderCore:
    """Iterates over the rows of a loader's settings for one rank, and keeps the current state."""

    _recent_states: tuple[State, ...]  # after each of the last batches; the last one is current
    _end_epoch: int | None = None  # the iteration ends before this epoch
    _gives_batches = True  # and not single rows, which a DataLoader makes batches of

    def _set_up(self, config: LoaderConfig, worker: tuple[int, int] = (0, 1)) -> None:
        self.given = config  # as the loader was made; `config` has the row length of the present stage
        self.config = config.at(0)
        self.device = self._find_device()
        self.rank, self.world_size = self._find_rank()
        self._process = None if config.rank is not None else self._process_now()
        self._worker, self._workers = worker
        self._batches: Iterator[tuple[Batch, State]] | None = None
        self._rows: RankRows | None = None  # the rows that `_batches` takes from
        self._running_rows: RankRows | None = None  # the same, kept until `_stop` even if `_rows` is replaced
        self._closed, self._ended = False, False
        self._in_next = 0  # the thread that `next` was called in and has not returned from
        self._next_states: tuple[Any, tuple[State, ...]] = (None, ())  # what it sets when it returns: of which batches
        self._pid, self._lock = os.getpid(), threading.RLock()  # reentrant, for a signal handler during `next`
        self._loaded = False  # whether a position was loaded and no iteration was begun since
        self._row_counts: dict[int, int | None] = {}  # by epoch
        self._share = RankShare(self.rank, self.world_size, *worker)
        self._feed = make_feed(self.config, self._share)
        self.token_set = self._feed.token_set
        self._feed.require_rows()
        for self.config in config.of_stages():
            self._require_fit()
        self.config = config.at(0)
        if self._feed.is_masked:
            require_no_token(config.ignore_index, self.token_set)
        if self._compares:
            require_same_on_all_ranks(self._order_inputs(), self._store())
        self._begin(0)

    # ------------------------------------------------------------------------ what each kind of arrays decides

    def _find_device(self) -> Any:
        """Where the arrays go. Raises ValueError if that cannot be used here."""
        raise NotImplementedError

    def _find_rank(self) -> tuple[int, int]:
        """(rank, world_size): which part of each global batch this process gets."""
        return rank_of(self.config)

    def _process_now(self) -> tuple[int, int]:
        """The number of this process and of all, of which the rank is made."""
        return rank_and_world_size() if self.config.mesh is None else torch_rank() or (0, 1)

    @property
    def _compares(self) -> bool:
        """Whether all ranks must have the same settings and positions."""
        return self.config.rank is None

    def _store(self) -> RankStore | None:
        """Where the ranks compare them."""
        return store_of_ranks()

    def _require_fit(self) -> None:
        """Raises ValueError if the arrays cannot hold these rows."""

    def _make_transfer(self, shape: tuple[int, int], bos_id: int | None, buffers: int) -> Transfer:
        """Makes batches of rows of `shape`, (B, T + 1), with document_ids if there is a `bos_id`."""
        raise NotImplementedError

    # ------------------------------------------------------------------------ the state

    @property
    def identity(self) -> dict[str, Any]:
        """What must match for a position to mean the same row."""
        return self._feed.identity

    @property
    def _state(self) -> State:
        return self._recent_states[-1]

    @_state.setter
    def _state(self, state: State) -> None:
        self._recent_states = (state,)

    def _state_before(self, pending: int) -> State:
        """The state before the last `pending` batches. ValueError if there were fewer."""
        states = self._recent_states
        if pending < len(states):
            return states[-1 - pending]
        if pending > POSITIONS_KEPT:
            raise ValueError(f"pending={pending}: only the positions of the last {POSITIONS_KEPT} batches are kept")
        raise ValueError(
            f"pending={pending}: {len(states) - 1} batches were returned since this loader began or loaded a "
            "position, so no more can be pending"
        )

    def _order_inputs(self) -> dict[str, Any]:
        """Everything that determines the order of this loader's rows over all ranks."""
        names = ("batch_size", "seq_len", "epochs", "drop_last", "skip_rows")
        settings = {name: getattr(self.config, name) for name in names}
        return self.identity | settings | self._feed.order_inputs | {"world_size": self.world_size}

    def knows(self, position: dict[str, Any]) -> bool:
        """Whether a position belongs to this token set, or to this mixture's sources."""
        return self._feed.knows(position)

    def _make_rows(self, ahead: bool = True) -> RankRows:
        return self._feed.rows(self._end_epoch, ahead=ahead and self.config.prefetch > 0)

    # ------------------------------------------------------------------------ moving to a place

    def _begin(self, epoch: int) -> None:
        """Moves to the first row of an epoch; in a DataLoader worker, to the first row of its first batch."""
        before = self._state if hasattr(self, "_recent_states") else None
        seen = before.tokens_seen if before else 0
        feed, place = self._feed.begin(epoch, before.place if before else None)
        end_epoch = None if self.config.epochs is None else epoch + self.config.epochs
        with self._restored_on_error():
            self._move_to(feed, place, end_epoch, seen, before.log if before else ())
            if self._worker:
                rows = self._current_rows()
                rows.skip(self._worker * self.config.batch_size)
                seen += rows.passed * self.config.seq_len
                self._state = self._state._replace(place=rows.position, tokens_seen=seen)
        self._loaded = False
        self._row_counts.clear()

    def _move_to(self, feed: Feed, place: Any, end_epoch: int | None, seen: int, log: tuple[LogEntry, ...]) -> None:
        """Moves to a place of a run that has this log until then."""
        self._stop()
        self._feed, self._end_epoch, self._rows = feed, end_epoch, None
        rows = self._current_rows()
        rows.seek(place)
        returned = (
            self._state[-3:] if hasattr(self, "_recent_states") else (0, np.zeros((len(feed.names), 4), np.int64), 0)
        )
        batch_size = self.config.batch_size if self._gives_batches else 0
        epochs = self.config.epochs or 0
        log = continued(log, LogEntry(seen, batch_size, self.world_size, epochs, feed.logged(rows.position)))
        self._state, self._ended = State(feed, rows.position, seen, False, log, *returned), False

    def _resume(self, state: dict[str, Any]) -> None:
        """Continues from a position. If it does not fit, raises ValueError and changes nothing."""
        resumed, config = self._feed.resume(state), self.config
        if self.given.sizes_at(resumed.tokens_seen) != (config.batch_size, config.seq_len):
            config = self.given.at(resumed.tokens_seen)
            resumed = make_feed(config, self._share).resume(state)
        end_epoch = self._end_of_iteration(resumed)
        log = log_of(state, resumed.feed.renamed(state))
        with self._restored_on_error():
            self.config = config
            self._move_to(resumed.feed, resumed.place, end_epoch, resumed.tokens_seen, log)
        self._ended = end_epoch is not None and resumed.epoch >= end_epoch
        self._loaded = True

    @contextlib.contextmanager
    def _restored_on_error(self) -> Iterator[None]:
        """Restores the previous state if moving fails or is interrupted."""
        names = ("config", "_feed", "_loaded", "_end_epoch", "_recent_states", "_ended")
        before = {name: getattr(self, name) for name in names if hasattr(self, name)}
        try:
            yield
        except BaseException:
            vars(self).update(before)
            self._stop()
            self._rows = None
            raise

    def _end_of_iteration(self, resumed: Resumed[Feed]) -> int | None:
        """The epoch before which the resumed iteration ends.

        Iterations cover epochs 0 to N, N to 2 N and so on. A position between two iterations is at the end of the
        first.
        """
        if self.config.epochs is None:
            return None
        done, epochs_into_next = divmod(resumed.epoch, self.config.epochs)
        between = done and not epochs_into_next and resumed.begins_epoch
        return (done if between else done + 1) * self.config.epochs

    def _current_rows(self) -> RankRows:
        if self._closed:
            self._raise_closed()
        self._reset_after_fork()
        if self._rows is None:
            self._rows = self._make_rows()
        return self._rows

    def _raise_closed(self) -> NoReturn:
        raise ValueError(
            f"this RowLoader of {self._feed.display_name}, {self.config.split!r}, is closed; create another one and "
            "load this one's state_dict()"
        )

    # ------------------------------------------------------------------------ running

    def _running_batches(self) -> "Iterator[tuple[Batch, State]]":
        """The iterator of the batches after the current state, each with the state after it; starts it if needed."""
        self._require_rank()
        self._reset_after_fork()
        self._follow_stage()
        if self._batches is None:
            rows = self._current_rows()
            if not self._state.begun and not self._loaded:  # loading a position has checked them
                self._feed.require_skipped(self._state.place)
            rows.seek(self._state.place)
            batches = _batches(rows, self._transfer(), self.config, self._workers, self._state)
            self._batches = BackgroundIterator(batches, self.config.prefetch) if self.config.prefetch else batches
            self._running_rows = rows
        return self._batches

    def _follow_stage(self) -> None:
        """Goes on with rows of another length, if the batch that comes next is the first of a stage that names one.

        It is what a user does by hand: a loader with another seq_len continues from the position of this one.
        """
        sizes = self.given.sizes_at(self._state.tokens_seen)
        if sizes == (self.config.batch_size, self.config.seq_len):
            return
        batch_size, seq_len = sizes
        config = replace(self.given, batch_size=batch_size, seq_len=seq_len, skip_rows=None)  # the position has them
        before, log = self._recent_states, self._state.log
        with self._restored_on_error():
            resumed = make_feed(config, self._share).resume(self._state.position())
            self.config = config
            self._move_to(resumed.feed, resumed.place, self._end_epoch, resumed.tokens_seen, log)
            self._recent_states = (*before[:-1], self._state._replace(begun=True))
        self._row_counts.clear()

    def _reset_after_fork(self) -> None:
        """In a forked child, drops everything that uses the parent's threads, because threads do not survive a fork."""
        if self._pid != os.getpid():
            self._batches, self._rows, self._pid, self._lock = None, None, os.getpid(), threading.RLock()
            self._running_rows, self._next_states = None, (None, ())

    def _stop(self) -> None:
        """Ends the background thread, and drops the rows that it took from, which are past the current state."""
        batches, self._batches = self._batches, None  # first, because a second Ctrl-C may come while `stop` waits
        self._next_states = (None, ())
        if batches is not None:
            self._rows = None
        running, self._running_rows = self._running_rows, None
        if running is not None:
            running.interrupt()  # before `stop`, because the thread may be waiting for a window
        if isinstance(batches, BackgroundIterator):
            batches.stop()
        if running is not None:
            running.interrupt()  # again: the thread may have begun to plan a window meanwhile
        del batches, running
        unmap_dropped()

    def _transfer(self) -> Transfer:
        config, bos_id = self.config, self.token_set.bos_id if self.config.documents else None
        return self._make_transfer((config.batch_size, config.seq_len + 1), bos_id, max(2, config.prefetch))

    def _require_rank(self) -> None:
        """Raises ValueError if this process has another rank than when it made the loader.

        Asked at every batch, because a process group can be destroyed and made again while a loader runs.
        """
        if self._process is not None and (found := self._process_now()) != self._process:
            rank, world_size = self._process
            raise ValueError(
                f"this RowLoader was created by rank {rank} of {world_size}, but this process is now rank "
                f"{found[0]} of {found[1]}; create loaders after torch.distributed.init_process_group or "
                "jax.distributed.initialize"
            )


def _batches(
    rows: RankRows, transfer: Transfer, config: LoaderConfig, workers: int, start: State
) -> Iterator[tuple[Batch, State]]:
    """Takes and transfers batch after batch from state `start` on, and yields each with the state after it."""
    size, feed, seen, batches, counts = config.batch_size, start.feed, start.tokens_seen, start.batches, start.counts
    global_batch = size * rows.world_size
    while True:
        taken = rows.take(size)
        if taken.total < global_batch and (config.drop_last or not taken.total):
            return
        found = rows.read(taken)
        batch = transfer.send(found, rows.sources(taken) if config.sources else None, rows.loss_mask(taken, found))
        rows.skip(size * (workers - 1))  # the batches of the other workers
        batches, counts = batches + 1, counts + rows.counts(taken)
        passed = seen + rows.passed * config.seq_len
        yield batch, State(feed, rows.position, passed, True, start.log, batches, counts, taken.targets)


def require_no_token(ignore_index: int, token_set: TokenSet) -> None:
    """Raises ValueError if `ignore_index` is a token id, so that a target of this token would bear no loss."""
    vocab_size = int(token_set.tokenizer["vocab_size"])
    if 0 <= ignore_index < vocab_size:
        raise ValueError(
            f"ignore_index={ignore_index} is a token id of {token_set.display_name}, whose ids are 0 to "
            f"{vocab_size - 1:,}, so targets that are this token would bear no loss; pass a negative number"
        )


def rank_of(config: LoaderConfig) -> tuple[int, int]:
    """(rank, world_size) from the settings, or else of this process."""
    if config.mesh is not None:
        return rank_in_mesh(config.mesh)
    if config.rank is None or config.world_size is None:
        return rank_and_world_size()
    return config.rank, config.world_size


def with_rank(config: LoaderConfig) -> LoaderConfig:
    """The settings with this process's rank filled in, for another process that cannot find it out itself."""
    rank, world_size = rank_of(config)
    return replace(config, rank=rank, world_size=world_size, mesh=None)
