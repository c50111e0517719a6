"""BaseLoader: what every RowLoader does, whichever arrays it returns.

    for inputs, targets in loader:
        checkpoint["data"] = loader.state_dict()      # the same on every rank

The way of a batch: a dealer (feed/dealers.py) says where its rows are, `read_batch` joins them, the
arrays (arrays.py) widen them or begin to copy them to a device, all in a thread, ahead. Every batch
carries the run after it, so the position is that of the batch that was returned last. To move
elsewhere, and after an error, it drops everything that runs and starts again.
"""

import os
import time
from collections.abc import Iterator
from typing import Any, Generic, NoReturn, Self, TypeVar

from tokenmill.batches.facts import NO_PARTS, IterationState, LoaderFacts
from tokenmill.batches.made import Made, make_batches
from tokenmill.batches.ranks import (
    rank_and_world_size,
    require_no_other_worker,
    require_same_on_all_ranks,
    torch_rank,
)
from tokenmill.batches.resume import identity_of, order_of, resumed, setting_of
from tokenmill.checks import whole_number
from tokenmill.feed.config import LoaderConfig
from tokenmill.feed.dealers import dealer_of
from tokenmill.feed.mixture import ONE_SET
from tokenmill.feed.prefetch import CLOSED, Prefetch, Stop
from tokenmill.feed.token_files import require_room
from tokenmill.rows.position import write_position
from tokenmill.rows.run import Run
from tokenmill.store.maps import unmap_dropped

MOST_SKIPPED = 10_000_000  # batches; more take minutes, and are a mistake
Arrays = TypeVar("Arrays")  # a batch: (inputs, targets)


class BaseLoader(LoaderFacts, Iterator[Arrays], Generic[Arrays]):
    """An iterator of batches with a position. RowLoader's docstring (loader.py) explains it."""

    device: Any = None  # where the arrays go, with torch
    _is_compared = True  # whether all ranks must have the same settings

    @classmethod
    def of(cls, config: LoaderConfig, is_compared: bool = True) -> Self:
        """A loader with these settings.

        They are compared on all ranks, unless only some of these make it.
        """
        loader = cls.__new__(cls)
        loader._is_compared = is_compared
        loader._set_up(config)
        return loader

    def _set_up(self, config: LoaderConfig) -> None:
        """Finds the rank, opens the token sets and stands at the first row.

        Raises what RowLoader's docstring says.
        """
        self.config = config
        self._is_closed = False
        self._pid = os.getpid()
        self._iteration: IterationState = "fresh"
        self._batches: Prefetch | None = None
        self._counted = {}
        self._columns = {}
        self.rank, self.world_size = self._find_rank()
        self._sets = config.mixture.open(config.cache)
        self.token_set = next(iter(self._sets.values()))
        self._order = order_of(config, self._sets)
        self._dealer = dealer_of(self._sets, self._order)
        has_chats = any(token_set.is_chat for token_set in self._sets.values())
        self.is_masked = config.loss != "all" or has_chats
        self._dealer.require_supported(config.seq_len)
        self._require_no_token(config.ignore_index)
        self._arrays = self._make_arrays()
        self._setting = setting_of(config, self._sets, self.world_size)
        self._identity = identity_of(config, self._setting, self._sets, self._order)
        self.run = Run.start(self._setting)
        require_room(self._sets.values(), config.split)
        self._dealer.require_rows(self.run, self.rank)
        if self._is_compared and config.rank is None:
            require_same_on_all_ranks(self._identity | self._setting._asdict())

    def _find_rank(self) -> tuple[int, int]:
        """(rank, world_size): which part of each global batch this process gets."""
        if self.config.rank is None:
            return rank_and_world_size(self.config.mesh)
        return self.config.rank, self.config.world_size or 1

    def _make_arrays(self) -> Any:
        """What makes the arrays of a batch (arrays.py).

        Raises ValueError if they cannot hold these rows.
        """
        raise NotImplementedError

    def _require_no_token(self, ignore_index: int) -> None:
        if self.is_masked and 0 <= ignore_index < self.vocab_size:
            last = self.vocab_size - 1
            raise ValueError(
                f"ignore_index={ignore_index} is a token id of {self.token_set.display_name}, of 0 "
                f"to {last:,}; pass a negative number"
            )

    # -------------------------------------------------------------------- iteration

    def __iter__(self) -> Self:
        if self.config.epochs is not None and self._is_over():
            self._move(self.run.next_iteration())
        self._iteration = "fresh"
        return self

    def _is_over(self) -> bool:
        """Whether a `for` begins the next iteration."""
        if self._iteration == "kept":
            return False
        if self._iteration == "begun" or self.run.has_ended:
            return True
        # after a position, only the rows may be left that its iteration drops
        return self._iteration == "resumed" and not self._dealer.has_batch(self.run)

    def __next__(self) -> Arrays:
        started = time.perf_counter()
        try:
            if self._batches is None or self._has_other_process():
                self._start()
            batches: Any = self._batches
            made: Made = next(batches)
            if batches is not self._batches:
                raise ValueError(CLOSED)
            arrays: Arrays = self._arrays.receive(made.sent)
            self._batch = made.batch
            self._parts = made.batch.sources, made.batch.places
            self.targets = made.targets
            self._iteration = "begun"
            self.run = made.run  # last, so that an interrupt before repeats the batch
        except StopIteration:
            self._move(self.run if self.run.now.until is None else self.run.at_end())
            self._iteration = "fresh"
            raise
        except BaseException:
            self._move(self.run)  # the next call tries again
            raise
        finally:
            self.waited += time.perf_counter() - started
        return arrays

    def _has_other_process(self) -> bool:
        """Whether this is a fork of the process that began, or has become one of several ranks."""
        if self._pid != os.getpid():
            return True
        is_alone = self.world_size == 1 and self.config.rank is None and self.config.mesh is None
        return is_alone and torch_rank() not in (None, (0, 1))

    def _start(self) -> None:
        """Makes batches from the run on."""
        self._require_open()
        if self.config.rank is None:
            require_no_other_worker()
            self._require_rank(*self._find_rank())
        self._pid = os.getpid()
        stop = Stop()
        depth = self.config.prefetch
        rows = self._dealer.deal(self.run, self.rank, stop, in_threads=depth > 0)
        shape = (self.config.batch_size, self.config.seq_len + 1)
        dtype = self.token_set.numpy_dtype
        self._batches = Prefetch(make_batches(rows, self._arrays, shape, dtype, depth), depth, stop)

    def _require_rank(self, rank: int, world_size: int) -> None:
        if (rank, world_size) != (self.rank, self.world_size):
            raise ValueError(
                f"rank {self.rank} of {self.world_size} made this RowLoader, but this process is "
                f"now rank {rank} of {world_size}; make loaders after init_process_group or "
                "jax.distributed.initialize"
            )

    def _move(self, run: Run) -> None:
        """Drops everything that runs; the next batch is made from this run on."""
        batches = self._batches
        self._batches = None
        self._batch = None  # whose shards would stay mapped
        if run is not self.run:
            self.run = run
            self._counted = {}
        if batches is not None:
            batches.stop()
        del batches
        unmap_dropped()

    def with_state(self) -> Iterator[tuple[Arrays, dict[str, Any]]]:
        """Iterates as the loader does, and returns each batch with the position after it.

        ((inputs, targets), position). Use it if something between the loader and your training step
        fetches batches ahead, as Keras and tf.data do.
        """
        for batch in self:
            yield batch, self.state_dict()

    # -------------------------------------------------------------------- moving

    def set_epoch(self, epoch: int) -> None:
        """Moves to the first row of an epoch (see the class docstring).

        ValueError if no iteration begins there.
        """
        self._require_open()
        epoch = whole_number("epoch", epoch, 0)
        epochs = self.config.epochs
        if not self._dealer.has_epochs:
            raise ValueError(
                "set_epoch: rows of a mixture and of nanochat continue from one epoch into the next"
            )
        if epochs is not None and epoch % epochs:
            raise ValueError(
                f"set_epoch({epoch}): iterations of {epochs} epochs begin at multiples of {epochs}"
            )
        if self.run.has_ended and epoch == self.run.now.until:
            self._move(self.run.next_iteration())
        if self._iteration in ("resumed", "kept") and self._is_in(epoch):
            self._iteration = "kept"
            return
        if self.run.now.cursors[ONE_SET] != (epoch, 0, 0):
            self._move(self.run.begin_epoch(epoch))
        self._iteration = "fresh"

    def _is_in(self, epoch: int) -> bool:
        """Whether the loader is in this epoch, or in the iteration that begins with it."""
        if self.config.epochs is None:
            return self.epoch == epoch
        return self.run.now.until == epoch + self.config.epochs

    def skip(self, batches: int) -> None:
        """Leaves out the next global batches, which count as no step and no tokens.

        Call it on every rank. ValueError if an iteration of `epochs`, or the mixture, ends before.
        """
        self._require_open()
        count = whole_number("batches", batches, 0, MOST_SKIPPED)
        self._move(self._dealer.skip(self.run, count))

    def close(self) -> None:
        """Ends the thread and releases the files. You can still call state_dict()."""
        self._is_closed = True
        self._move(self.run)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a RowLoader cannot be copied or pickled; make another one and load this one's "
            "state_dict()"
        )

    def _require_open(self) -> None:
        if self._is_closed:
            raise ValueError(
                f"{self!r} is closed; create another one and load this one's state_dict()"
            )

    # -------------------------------------------------------------------- the position

    def state_dict(self) -> dict[str, str]:
        """The position after the batch that was returned last: one text, the same on every rank."""
        return write_position(self.run, self._identity)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues with exactly the next row of a position.

        The number of ranks (except with nanochat) and `batch_size` may differ, and with best_fit
        `seq_len`. A mixture may have other weights, stages and sources. If the token set has grown,
        or has another view, the current epoch ends as it began. ValueError if the position does not
        fit; then nothing changes.
        """
        self._require_open()
        run, self._identity = resumed(state, self.config, self._setting, self._sets, self._order)
        self._move(run)
        self._iteration = "resumed"
        self.targets = 0
        self._parts = NO_PARTS
