"""The chain behind a loader: rows are dealt, transferred, made ahead; begun anew from any place.

    planned.py or nanochat_rows.py   ->   _batches   ->   transfer.py   ->   ahead.py   ->   RowLoader.__next__

Every batch comes with the state after it, so where the chain stands is where the batch that was returned last left
it, whatever was made ahead. To go elsewhere, or on after an error, a Ctrl-C or a fork, the chain is dropped and begun
anew from that place: nothing else has to be remembered.
"""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tokenmill.batches.ahead import Ahead
from tokenmill.batches.config import LoaderConfig
from tokenmill.batches.nanochat_rows import NanochatRows
from tokenmill.batches.planned import PlannedRows
from tokenmill.batches.plans import WindowPlans
from tokenmill.batches.ranks import is_distributed, rank_and_world_size, rank_in_mesh, require_same_on_all_ranks
from tokenmill.batches.transfer import Batch, Transfer, find_device, make_transfer
from tokenmill.rows.position import Pasts, Position, begun_anew, identity_of
from tokenmill.rows.skipped import Skipped, parse_skipped
from tokenmill.rows.stream import no_such_rows
from tokenmill.store.maps import unmap_dropped
from tokenmill.store.token_sets import TokenSet, find_token_set

TOKENS_ROOT = Path("data/tokens")


class State(NamedTuple):
    """Where a loader stands, in one value: a signal handler may ask at any instant."""

    place: dict[str, int]
    epoch: int
    tokens_seen: int
    begun: bool  # whether a batch was asked for since the iteration began, or was gone to


class Chain:
    """The rows of a loader's settings for one rank, and where it stands in them."""

    _state: State
    _until: int | None = None  # the epoch before which the iteration ends
    _skipped: Skipped
    _pasts: Pasts  # of the windows that were begun with rows of another length

    def _set_up(self, config: LoaderConfig, worker: tuple[int, int] = (0, 1)) -> None:
        self.config = config
        self.device = find_device(config.device)
        self.rank, self.world_size = rank_of(config)
        self._distributed = is_distributed()
        self.token_set = TokenSet(config.tokens or find_token_set(TOKENS_ROOT))
        self._worker, self._workers = worker
        self._batches: Iterator[tuple[Batch, State]] | None = None
        self._rows: PlannedRows | NanochatRows | None = None  # what `_batches` deals from
        self._closed, self._ended, self._asking = False, False, False
        self._pid, self._lock = os.getpid(), threading.RLock()  # reentrant: for a signal handler in `next`
        self._former: tuple[int, TokenSet] | None = None  # the set as it was in an epoch that began before it grew
        self._began: tuple[int, int] | None = None  # (epoch, row_len) where an epoch of cut rows began with another
        self._loaded = False  # a position, and nothing was dealt since
        self._skipped, self._pasts = parse_skipped(config.skip_rows or ()), {}
        self._counted: dict[int, int] = {}  # rows of the epochs that were counted
        self._require_rows()
        if config.rank is None:
            require_same_on_all_ranks(self._followed())
        self._begin(0, 0)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What must match for a position to mean the same row."""
        config, nanochat = self.config, self.config.packing == "nanochat"
        fingerprint = self.token_set.tokenizer["fingerprint"]
        identity = identity_of(fingerprint, config.split, config.packing, {} if nanochat else config.order)
        strict = {"manifest": self.token_set.digest, "seq_len": config.seq_len}
        if nanochat:
            return identity | strict | {"world_size": self.world_size}
        if self._workers == 1:
            return identity
        # each of several workers knows of its own batches alone, so a resumed run must make the same ones
        calls = {"rows_a_call": config.batch_size * self.world_size, "worker": self._worker, "workers": self._workers}
        return identity | strict | calls

    def _followed(self) -> dict[str, Any]:
        """All that the order of this loader's rows follows from, over all ranks."""
        names = ("batch_size", "seq_len", "epochs", "drop_last", "skip_rows")
        told = {name: getattr(self.config, name) for name in names}
        return self.identity | told | {"manifest": self.token_set.digest, "world_size": self.world_size}

    def _make_rows(self, ahead: bool = True) -> PlannedRows | NanochatRows:
        config = self.config
        if config.packing == "nanochat":
            return NanochatRows(
                self.token_set, config.split, config.seq_len + 1, rank=self.rank, world_size=self.world_size
            )
        return PlannedRows(
            self._make_plans(),
            rank=self.rank,
            world_size=self.world_size,
            until=self._until,
            skipped=self._skipped,
            ahead=ahead and config.prefetch > 0,
        )

    def _make_plans(self) -> WindowPlans:
        config = self.config
        return WindowPlans(
            self.token_set,
            config.split,
            config.seq_len + 1,
            packing=config.packing,
            former=self._former,
            pasts=self._pasts,
            began=self._began,
            **config.order,
        )

    # ------------------------------------------------------------------------ going to a place

    def _begin(self, epoch: int, seen: int) -> None:
        """Goes to the first row of an epoch, in a DataLoader worker to that of its first batch."""
        self._until = None if self.config.epochs is None else epoch + self.config.epochs
        same_set = self._former is None or self._former[0] != epoch
        self._pasts = begun_anew(self._pasts, epoch if same_set else epoch + 1)
        self._former, self._began, self._loaded = None, None, False  # all of the epoch, and of the set as it is
        self._counted.clear()
        nanochat = self.config.packing == "nanochat"
        self._go_to({"rows": 0} if nanochat else {"epoch": epoch, "window": 0, "row": 0}, seen)
        if self._worker:
            rows = self._rows_at_hand()
            rows.skip(self._worker * self.config.batch_size)
            seen += rows.passed * self.config.seq_len
            self._state = State(rows.position, rows.epoch, seen, begun=False)

    def _go_to(self, place: dict[str, int], seen: int) -> None:
        self._stop()
        self._rows = None
        rows = self._rows_at_hand()
        rows.seek(place)
        self._state, self._ended = State(place, rows.epoch, seen, begun=False), False

    def _go_to_position(self, position: Position) -> None:
        """Goes on from a position that fits; one that does not changes nothing, and raises ValueError."""
        names = ("_former", "_began", "_loaded", "_skipped", "_pasts", "_until", "_state", "_ended")
        before = {name: getattr(self, name) for name in names}
        try:
            self._follow(position)
        except BaseException:
            vars(self).update(before)
            self._stop()
            self._rows = None
            raise

    def _follow(self, position: Position) -> None:
        config = self.config
        if config.packing != "nanochat":
            position = position if config.skip_rows is None else position.skipping({})
            position = position.at_length(config.seq_len, cut=config.packing == "concat")
            if config.skip_rows is not None:  # named as rows are here
                position = position.skipping(parse_skipped(config.skip_rows))
            self._former = self._former_set(position)
            self._skipped, self._pasts = position.skipped, dict(position.pasts)
            self._began = None if position.began is None else (position.place["epoch"], position.began + 1)
            self._until = self._end_of_iteration(position)
            plans = self._make_plans()
            self._require_skipped(plans, position.window)
            for epoch, window in self._pasts:
                if window >= plans.count_windows(epoch):
                    raise ValueError(f"no such window: {window} of epoch {epoch}, in the pasts of this position")
                plans.count_rows(epoch, window)  # which refuses what cannot be
        self._go_to(position.place, position.tokens_seen)
        self._ended = self._until is not None and position.place["epoch"] >= self._until
        self._loaded = True

    def _former_set(self, position: Position) -> tuple[int, TokenSet] | None:
        """The set as it was, for the epoch that a position is in, where that has begun."""
        was = self.token_set.as_it_was(position.manifest, self.config.split)
        if was is self.token_set:
            return None
        epoch = position.place["epoch"]
        as_new = epoch if position.begins_epoch else epoch + 1  # from here on the grown set is gone over
        named = [] if self.config.skip_rows is not None else [*position.skipped, *position.pasts]
        if named := [window for window in named if window[0] >= as_new]:
            raise ValueError(
                f"{self.token_set.path} has grown since this position, whose skip_rows name rows of epoch "
                f"{named[0][0]}, which goes over the new shards too, so that these are other rows now; give the "
                "loader skip_rows=[...] as `tokenmill show` names them today, or [] to skip none"
            )
        return None if position.begins_epoch else (epoch, was)

    def _end_of_iteration(self, position: Position) -> int | None:
        """Iterations are epochs 0 to N, N to 2 N ...; between two of them the one before has ended."""
        if self.config.epochs is None:
            return None
        done, some = divmod(position.place["epoch"], self.config.epochs)
        between = done and not some and position.begins_epoch
        return (done if between else done + 1) * self.config.epochs

    def _rows_at_hand(self) -> PlannedRows | NanochatRows:
        if self._closed:
            self._raise_closed()
        self._leave_the_parent_s()
        if self._rows is None:
            self._rows = self._make_rows()
        return self._rows

    def _raise_closed(self) -> NoReturn:
        raise ValueError(
            f"this RowLoader of {self.token_set.path}, {self.config.split!r}, is closed; make another, and give it "
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
            if self._skipped and not self._state.begun and not self._loaded:  # a position's were checked with it
                self._require_skipped(self._make_plans(), (self._state.place["epoch"], self._state.place["window"]))
            rows.seek(self._state.place)
            batches = _batches(rows, self._transfer(), self.config, self._workers, self._state.tokens_seen)
            self._batches = Ahead(batches, self.config.prefetch) if self.config.prefetch else batches
        return self._batches

    def _leave_the_parent_s(self) -> None:
        """In a fork: threads did not come along, so nothing of what uses them is used."""
        if self._pid != os.getpid():
            self._batches, self._rows, self._pid, self._lock = None, None, os.getpid(), threading.RLock()

    def _stop(self) -> None:
        """Ends what runs ahead, and leaves it the rows that it dealt from: they are past the position."""
        batches, self._batches = self._batches, None  # first, as a second Ctrl-C may come while this one waits
        if batches is not None:
            self._rows = None
        if isinstance(batches, Ahead):
            batches.stop()
        del batches
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

    def _require_rows(self) -> None:
        """ValueError where there is nothing to deal, or where rows that are to be skipped are not there."""
        config = self.config
        if config.packing == "nanochat":
            NanochatRows(self.token_set, config.split, config.seq_len + 1, rank=self.rank, world_size=self.world_size)
            return  # endless wherever the rank has a document
        plans, whole = self._make_plans(), config.batch_size * self.world_size
        needed = whole if config.epochs is not None and config.drop_last else 1
        found = plans.count(0, up_to=needed)
        if found * (config.epochs or 1) < needed:
            raise ValueError(
                f"{self.token_set.path}: split {config.split!r} has {found} rows of {config.seq_len} + 1 "
                f"tokens, fewer than one batch of {config.batch_size} on each of {self.world_size} ranks; "
                "lower batch_size or seq_len, take drop_last=False, or prepare more text"
            )
        # a position may come, of a window that was packed anew: with fewer than twice the rows
        self._require_skipped(plans, (0, 0), leeway=2)

    def _require_skipped(self, plans: WindowPlans, since: tuple[int, int], leeway: int = 1) -> None:
        """ValueError where rows that are to be skipped, from a window on, are not there, nor so many times the rows."""
        for (epoch, window), ranges in self._skipped.items():
            if (epoch, window) < since:
                continue
            windows = plans.count_windows(epoch)
            rows = plans.count_rows(epoch, window) if window < windows else 0
            if ranges[-1].stop > leeway * rows:
                raise no_such_rows(epoch, window, ranges[-1], rows)


def _batches(
    rows: PlannedRows | NanochatRows, transfer: Transfer, config: LoaderConfig, workers: int, seen: int
) -> Iterator[tuple[Batch, State]]:
    """Deals and transfers batch after batch, each with the state after it. `seen` tokens came before the first."""
    size = config.batch_size
    whole = size * rows.world_size
    while True:
        dealt = rows.take(size)
        if dealt.total < whole and (config.drop_last or not dealt.total):
            return
        batch = transfer.send(rows.read(dealt))  # type: ignore[arg-type]  # what its own take gave
        rows.skip(size * (workers - 1))  # the other workers' batches
        yield batch, State(rows.position, rows.epoch, seen + rows.passed * config.seq_len, begun=True)


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
