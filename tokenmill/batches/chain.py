"""The chain behind a loader: rows are dealt, transferred, made ahead; begun anew from any place.

    planned, mixed_rows or nanochat_rows   ->   _batches   ->   transfer   ->   ahead   ->   RowLoader.__next__

Every batch comes with the state after it, so where the chain stands is where the batch that was returned last left
it, whatever was made ahead. To go elsewhere, or on after an error, a Ctrl-C or a fork, the chain is dropped and begun
anew from that place: nothing else has to be remembered.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tokenmill.batches.ahead import Ahead
from tokenmill.batches.config import LoaderConfig
from tokenmill.batches.mixed import Mixed
from tokenmill.batches.mixed_rows import MixedRows
from tokenmill.batches.mixture import Mixture
from tokenmill.batches.nanochat_rows import NanochatRows
from tokenmill.batches.one_set import Gone, OneSet, Part
from tokenmill.batches.planned import PlannedRows
from tokenmill.batches.plans import WindowPlans
from tokenmill.batches.progress import Progress
from tokenmill.batches.ranks import is_distributed, rank_and_world_size, rank_in_mesh, require_same_on_all_ranks
from tokenmill.batches.transfer import Batch, Transfer, find_device, make_transfer
from tokenmill.remote.sets import open_set
from tokenmill.store.maps import unmap_dropped
from tokenmill.store.token_sets import find_token_set

SomeRows = PlannedRows | NanochatRows | MixedRows
TOKENS_ROOT = Path("data/tokens")
KEPT = 16  # batches whose positions are kept, for callers that hold some


class State(NamedTuple):
    """Where a loader stands, in one value: a signal handler may ask at any instant."""

    feed: OneSet | Mixed
    place: Any  # as the feed has it
    epoch: int
    tokens_seen: int
    begun: bool  # whether a batch was asked for since the iteration began, or was gone to

    def position(self) -> dict[str, Any]:
        """The position of this place."""
        return self.feed.position(self.place, self.tokens_seen)


class Chain:
    """The rows of a loader's settings for one rank, and where it stands in them."""

    _trail: tuple[State, ...]  # after each of the last batches, the last at hand; one value, as a State is
    _until: int | None = None  # the epoch before which the iteration ends

    def _set_up(self, config: LoaderConfig, worker: tuple[int, int] = (0, 1)) -> None:
        self.config = config
        self.device = find_device(config.device)
        self.rank, self.world_size = rank_of(config)
        self._distributed = is_distributed()
        self._worker, self._workers = worker
        self._batches: Iterator[tuple[Batch, State]] | None = None
        self._rows: SomeRows | None = None  # what `_batches` deals from
        self._dealing: SomeRows | None = None  # the same, whatever becomes of `_rows` meanwhile
        self._closed, self._ended, self._asking = False, False, False
        self._pid, self._lock = os.getpid(), threading.RLock()  # reentrant: for a signal handler in `next`
        self._loaded = False  # a position, and nothing was dealt since
        self._counted: dict[int, int] = {}  # rows of the epochs that were counted
        part = Part(self.rank, self.world_size, *worker)
        if isinstance(config.tokens, Mixture):
            self._feed: OneSet | Mixed = Mixed.of(config.tokens, config, part)
        else:
            token_set = open_set(config.tokens or find_token_set(TOKENS_ROOT), config.kept)
            self._feed = OneSet.of(token_set, config, part)
        self.token_set = self._feed.token_set
        self._feed.require_rows()
        self._progress = None
        if config.rank is None:
            require_same_on_all_ranks(self._followed())
            if config.split == "train" and not worker[0]:
                self._progress = Progress.of(self._followed())
        self._begin(0, 0)

    @property
    def identity(self) -> dict[str, Any]:
        """What must match for a position to mean the same row."""
        return self._feed.identity

    @property
    def _state(self) -> State:
        return self._trail[-1]

    @_state.setter
    def _state(self, state: State) -> None:
        self._trail = (state,)

    def _state_before(self, pending: int) -> State:
        """Where it stood before the last batches. ValueError where there were not as many."""
        trail = self._trail
        if pending < len(trail):
            return trail[-1 - pending]
        if pending > KEPT:
            raise ValueError(f"pending={pending}: the positions of the last {KEPT} batches are kept, and no more")
        raise ValueError(
            f"pending={pending}: {len(trail) - 1} batches were returned since this loader began, or went to a "
            "position, so that no more can be pending"
        )

    def _followed(self) -> dict[str, Any]:
        """All that the order of this loader's rows follows from, over all ranks."""
        names = ("batch_size", "seq_len", "epochs", "drop_last", "skip_rows")
        told = {name: getattr(self.config, name) for name in names}
        return self.identity | told | self._feed.followed | {"world_size": self.world_size}

    def knows(self, position: dict[str, Any]) -> bool:
        """Whether a position is of this token set, or this mixture's sources."""
        return self._feed.knows(position)

    def _make_rows(self, ahead: bool = True) -> SomeRows:
        return self._feed.rows(self._until, ahead=ahead and self.config.prefetch > 0)

    def _make_plans(self) -> WindowPlans:
        assert isinstance(self._feed, OneSet), "a mixture has plans of each source"
        return self._feed.source.plans()

    # ------------------------------------------------------------------------ going to a place

    def _begin(self, epoch: int, seen: int) -> None:
        """Goes to the first row of an epoch, in a DataLoader worker to that of its first batch."""
        feed, place = self._feed.begin(epoch)
        until = None if self.config.epochs is None else epoch + self.config.epochs
        with self._as_before_if_it_fails():
            self._go_to(feed, place, until, seen)
            if self._worker:
                rows = self._rows_at_hand()
                rows.skip(self._worker * self.config.batch_size)
                seen += rows.passed * self.config.seq_len
                self._state = State(feed, rows.position, rows.epoch, seen, begun=False)
        self._loaded = False
        self._counted.clear()

    def _go_to(self, feed: OneSet | Mixed, place: Any, until: int | None, seen: int) -> None:
        self._stop()
        self._feed, self._until, self._rows = feed, until, None
        rows = self._rows_at_hand()
        rows.seek(place)
        self._state, self._ended = State(feed, place, rows.epoch, seen, begun=False), False

    def _go_to_position(self, state: dict[str, Any]) -> None:
        """Goes on from a position that fits; one that does not changes nothing, and raises ValueError."""
        if not isinstance(state, dict):
            raise ValueError(f"expected a position, the dict that state_dict made, found {state!r}")
        gone = self._feed.following(state)
        until = self._end_of_iteration(gone)
        with self._as_before_if_it_fails():
            self._go_to(gone.feed, gone.place, until, gone.tokens_seen)
        self._ended = until is not None and gone.epoch >= until
        self._loaded = True

    @contextlib.contextmanager
    def _as_before_if_it_fails(self) -> Iterator[None]:
        """Goes nowhere where going somewhere fails, or is interrupted."""
        names = ("_feed", "_loaded", "_until", "_trail", "_ended")
        before = {name: getattr(self, name) for name in names if hasattr(self, name)}
        try:
            yield
        except BaseException:
            vars(self).update(before)
            self._stop()
            self._rows = None
            raise

    def _end_of_iteration(self, gone: Gone) -> int | None:
        """Iterations are epochs 0 to N, N to 2 N ...; between two of them the one before has ended."""
        if self.config.epochs is None:
            return None
        done, some = divmod(gone.epoch, self.config.epochs)
        between = done and not some and gone.begins_epoch
        return (done if between else done + 1) * self.config.epochs

    def _rows_at_hand(self) -> SomeRows:
        if self._closed:
            self._raise_closed()
        self._leave_the_parent_s()
        if self._rows is None:
            self._rows = self._make_rows()
        return self._rows

    def _raise_closed(self) -> NoReturn:
        raise ValueError(
            f"this RowLoader of {self._feed.told}, {self.config.split!r}, is closed; make another, and give it "
            "this one's state_dict()"
        )

    # ------------------------------------------------------------------------ running

    def _running(self) -> "Iterator[tuple[Batch, State]]":
        """The batches from the position on, each with the state after it."""
        if self._batches is None or is_distributed() != self._distributed:
            self._require_rank()
        self._leave_the_parent_s()
        if self._batches is None:
            rows = self._rows_at_hand()
            if not self._state.begun and not self._loaded:  # a position's were checked with it
                self._feed.require_skipped(self._state.place)
            rows.seek(self._state.place)
            batches = _batches(rows, self._transfer(), self.config, self._workers, self._state)
            self._batches = Ahead(batches, self.config.prefetch) if self.config.prefetch else batches
            self._dealing = rows
        return self._batches

    def _leave_the_parent_s(self) -> None:
        """In a fork: threads did not come along, so nothing of what uses them is used."""
        if self._pid != os.getpid():
            self._batches, self._rows, self._pid, self._lock = None, None, os.getpid(), threading.RLock()
            self._dealing = None

    def _stop(self) -> None:
        """Ends what runs ahead, and leaves it the rows that it dealt from: they are past the position."""
        batches, self._batches = self._batches, None  # first, as a second Ctrl-C may come while this one waits
        if batches is not None:
            self._rows = None
        dealing, self._dealing = self._dealing, None
        if dealing is not None:
            dealing.interrupt()  # first, as the thread may wait for a window
        if isinstance(batches, Ahead):
            batches.stop()
        del batches, dealing
        unmap_dropped()

    def _transfer(self) -> Transfer:
        config, bos_id = self.config, self.token_set.bos_id if self.config.documents else None
        shape = (config.batch_size, config.seq_len + 1)
        return make_transfer(self.device, shape, self.token_set.numpy_dtype, bos_id, max(2, config.prefetch))

    # ------------------------------------------------------------------------ what must be

    def _require_rank(self) -> None:
        if self.config.rank is None and (found := rank_of(self.config)) != (self.rank, self.world_size):
            raise ValueError(
                f"this RowLoader was made by rank {self.rank} of {self.world_size}, and this process is rank "
                f"{found[0]} of {found[1]} by now; make loaders after torch.distributed.init_process_group"
            )


def _batches(
    rows: SomeRows, transfer: Transfer, config: LoaderConfig, workers: int, since: State
) -> Iterator[tuple[Batch, State]]:
    """Deals and transfers batch after batch since a state, each with the state after it."""
    size, feed, seen = config.batch_size, since.feed, since.tokens_seen
    whole = size * rows.world_size
    while True:
        dealt = rows.take(size)
        if dealt.total < whole and (config.drop_last or not dealt.total):
            return
        numbers = rows.sources(dealt) if isinstance(rows, MixedRows) and config.sources else None  # type: ignore[arg-type]
        batch = transfer.send(rows.read(dealt), numbers)  # type: ignore[arg-type]  # what its own take gave
        rows.skip(size * (workers - 1))  # the other workers' batches
        yield batch, State(feed, rows.position, rows.epoch, seen + rows.passed * config.seq_len, begun=True)


def rank_of(config: LoaderConfig) -> tuple[int, int]:
    """(rank, world_size): those that were given, or this process's."""
    if config.mesh is not None:
        return rank_in_mesh(config.mesh)
    if config.rank is None or config.world_size is None:
        return rank_and_world_size()
    return config.rank, config.world_size


def of_this_rank(config: LoaderConfig) -> LoaderConfig:
    """The same settings for a process that cannot ask which rank it works for."""
    rank, world_size = rank_of(config)
    return replace(config, rank=rank, world_size=world_size, mesh=None)
