"""BaseLoader: what every RowLoader does, whichever arrays it returns: iteration, properties and the position.

    for inputs, targets in loader:
        checkpoint["data"] = loader.state_dict()      # the same on every rank

The way of a batch: `mixed_rows` says where its rows are, `read_batch` joins them, the arrays (arrays.py) widen them or
begin to copy them to a device, all in a thread, ahead. Every batch carries the run after it, so the position is that of
the batch that was returned last. To move elsewhere, and after an error, it drops everything that runs and starts again.
"""

import os
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Generic, NamedTuple, NoReturn, Self, TypeVar

import numpy as np

from tokenmill.batches.ranks import rank_and_world_size, require_same_on_all_ranks, torch_rank
from tokenmill.batches.resume import identity_of, order_of, resumed, setting_of
from tokenmill.checks import whole_number
from tokenmill.feed.config import LoaderConfig
from tokenmill.feed.conversations import require_conversations
from tokenmill.feed.mixed_rows import advance, mixed_rows, past_empty_windows
from tokenmill.feed.nanochat_rows import nanochat_rows
from tokenmill.feed.prefetch import CLOSED, Prefetch, Stop
from tokenmill.feed.source import Source
from tokenmill.feed.table import read_batch
from tokenmill.feed.token_files import require_room
from tokenmill.rows.position import write_position
from tokenmill.rows.run import Run, past_of
from tokenmill.store.maps import unmap_dropped
from tokenmill.store.token_sets import TokenSet

THREADS = 4  # that plan windows, at most
Arrays = TypeVar("Arrays")  # a batch: (inputs, targets)


class SourceUsage(NamedTuple):
    """How much of a source all ranks together have used since training began."""

    tokens: int
    rows: int
    epochs: float  # including a fraction of the current epoch


class BaseLoader(Iterator[Arrays], Generic[Arrays]):
    """An iterator of batches with a position. RowLoader's docstring (loader.py) explains iteration."""

    device: Any = None  # where the arrays go, with torch
    waited: float = 0.0  # seconds spent waiting in `next`
    targets: int = 0  # of the global batch that was returned last, those in the loss
    _row_parts: Any = ((), slice(None))  # of the rows that were returned last: `row_sources`
    _is_compared = True  # whether all ranks must have the same settings

    @classmethod
    def of(cls, config: LoaderConfig, is_compared: bool = True) -> Self:
        """A loader with these settings, which are compared on all ranks, unless only some of these make it."""
        loader = cls.__new__(cls)
        loader._is_compared = is_compared
        loader._set_up(config)
        return loader

    def _set_up(self, config: LoaderConfig) -> None:
        """Finds the rank, opens the token sets and stands at the first row. Raises what RowLoader's docstring says."""
        self.config, self._closed, self._begun, self._pid = config, False, False, os.getpid()
        self._resumed = self._stays = (
            False  # a position was loaded; its iteration was asked for, even if it has ended
        )
        self._batches: Prefetch | None = None
        self.rank, self.world_size = self._find_rank()
        self._sets = config.mixture.open(config.cache)
        self.token_set = next(iter(self._sets.values()))
        self._order = order_of(config, self._sets)
        self.is_masked = config.loss == "once" or any(one.is_chat for one in self._sets.values())
        self._require_supported()
        self._arrays = self._make_arrays()
        self._setting = setting_of(config, self._sets, self.world_size)
        self._identity = identity_of(config, self._setting, self._sets, self._order)
        self._counted: dict[int, int] = {}  # rows of epochs, which take time to count
        self.run = Run.start(self._setting)
        require_room(self._sets.values(), config.split)
        for name, one in self._sets.items():
            self._require_rows(name, one)
        if self._is_compared and config.rank is None:
            require_same_on_all_ranks(self._identity | self._setting._asdict())

    def _find_rank(self) -> tuple[int, int]:
        """(rank, world_size): which part of each global batch this process gets."""
        config = self.config
        return (
            rank_and_world_size(config.mesh)
            if config.rank is None
            else (config.rank, config.world_size or 1)
        )

    def _make_arrays(self) -> Any:
        """What makes the arrays of a batch (arrays.py). Raises ValueError if they cannot hold these rows."""
        raise NotImplementedError

    def __iter__(self) -> Self:
        if (
            self.config.epochs is not None
            and (self._begun or self.run.has_ended)
            and not self._stays
        ):
            self._move(self.run.next_iteration())
        self._stays = self._resumed = self._begun = False
        return self

    def __next__(self) -> Arrays:
        started = time.perf_counter()
        try:
            alone = self.world_size == 1 and self.config.rank is None and self.config.mesh is None
            if (
                self._batches is None
                or self._pid != os.getpid()
                or (alone and torch_rank() not in (None, (0, 1)))
            ):
                self._start()
            batches: Any = self._batches
            sent, sources, targets, run = next(batches)
            if batches is not self._batches:
                raise ValueError(CLOSED)
            arrays: Arrays = self._arrays.receive(sent)
            self._row_parts, self.targets, self._begun, self.run = (
                sources,
                targets,
                True,
                run,
            )  # the run is set last
        except StopIteration:
            self._move(self.run if self.run.now.until is None else self.run.at_end())
            self._begun = False
            raise
        except BaseException:
            self._move(self.run)  # the next call tries again
            raise
        finally:
            self.waited += time.perf_counter() - started
        return arrays

    def _start(self) -> None:
        """Makes batches from the run on."""
        self._require_open()
        if self.config.rank is None and (now := self._find_rank()) != (self.rank, self.world_size):
            raise ValueError(
                f"rank {self.rank} of {self.world_size} made this RowLoader, but this process is now rank {now[0]} of "
                f"{now[1]}; make loaders after init_process_group or jax.distributed.initialize"
            )
        self._pid, stop = os.getpid(), Stop()
        if self.config.packing == "nanochat":
            rows = nanochat_rows(self.token_set, self.config.split, self.run, self.rank)
        else:
            pool = (
                ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "tokenmill")
                if self.config.prefetch
                else None
            )
            sources = self._sources(self.run, pool=pool, stop=stop)
            for (
                name,
                source,
            ) in (
                sources.items()
            ):  # here, as malloc is slower with arrays of this size in other threads
                source.documents(self.run.now.cursors[name].epoch)
            rows = mixed_rows(sources, self.run, self.rank)
        shape, dtype = (self.config.batch_size, self.config.seq_len + 1), self.token_set.numpy_dtype
        ahead = self.config.prefetch
        self._batches = Prefetch(
            _make_batches(rows, self._arrays, shape, dtype, ahead), ahead, stop
        )

    def _sources(self, run: Run, **more: Any) -> dict[str, Source]:
        return {
            name: Source(name, one, self._order, run.legs, number=number, **more)
            for number, (name, one) in enumerate(self._sets.items())
        }

    def _move(self, run: Run) -> None:
        """Drops everything that runs; the next batch is made from this run on."""
        batches, self._batches = self._batches, None
        if run is not self.run:
            self.run = run
            self._counted = {}
        if batches is not None:
            batches.stop()
        del batches
        unmap_dropped()

    def with_state(self) -> Iterator[tuple[Arrays, dict[str, Any]]]:
        """Iterates as the loader does, and returns each batch with the position after it: (inputs, targets), position.
        Use it if something between the loader and your training step fetches batches ahead, as Keras and tf.data do.
        """
        for batch in self:
            yield batch, self.state_dict()

    def set_epoch(self, epoch: int) -> None:
        """Moves to the first row of an epoch (see the class docstring). ValueError if no iteration begins there."""
        self._require_open()
        epoch, epochs = whole_number("epoch", epoch, 0), self.config.epochs
        if not self.config.is_one_set or self.config.packing == "nanochat":
            raise ValueError(
                "set_epoch: rows of a mixture and of nanochat continue from one epoch into the next"
            )
        if epochs is not None and epoch % epochs:
            raise ValueError(
                f"set_epoch({epoch}): iterations of {epochs} epochs begin at multiples of {epochs}"
            )
        if self.run.has_ended and epoch == self.run.now.until:
            self._move(self.run.next_iteration())
        within = self.run.now.until == epoch + epochs if epochs is not None else self.epoch == epoch
        self._stays = self._resumed and within and not self._begun
        if not self._stays and self.run.now.cursors[""] != (epoch, 0, 0):
            self._move(self.run.begin_epoch(epoch))
        self._begun = False

    def skip(self, batches: int) -> None:
        """Leaves out the next global batches, which count as no step and no tokens. Call it on every rank. ValueError
        if an iteration of `epochs`, or the mixture, ends before.
        """
        self._require_open()
        count = whole_number(
            "batches", batches, 0, 10_000_000
        )  # more take minutes, and are a mistake
        if self.config.packing == "nanochat":
            raise ValueError(
                "skip is not supported with packing='nanochat'; use packing='best_fit'"
            )
        now, total = self.run.now, count * self._setting.global_batch
        sources = self._sources(self.run, counts_only=True)
        turns, after = advance(sources, past_empty_windows(sources, self.run), total)
        if (found := sum(some.last - some.first for some in turns)) < total:
            raise ValueError(
                f"skip({count}): only {found // self._setting.global_batch:,} batches are left"
            )
        moved = after.now._replace(step=now.step, tokens=now.tokens, rows=now.rows)
        self._move(self.run.go_on(self.run.setting, moved))

    def close(self) -> None:
        """Ends the thread and releases the files. You can still call state_dict()."""
        self._closed = True
        self._move(self.run)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a RowLoader cannot be copied or pickled; make another one and load this one's state_dict()"
        )

    def _require_open(self) -> None:
        if self._closed:
            raise ValueError(
                f"{self!r} is closed; create another one and load this one's state_dict()"
            )

    # ------------------------------------------------------------------------ the position

    def state_dict(self) -> dict[str, str]:
        """The position after the batch that was returned last: one text, the same on every rank."""
        return write_position(self.run, self._identity)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues with exactly the next row of a position, on this or (except with nanochat) another number of ranks.

        `batch_size` may differ, and with best_fit `seq_len`. A mixture may have other weights, stages and sources. If
        the token set has grown, or has another view, the current epoch ends as it began. ValueError if the position
        does not fit; then nothing changes.
        """
        self._require_open()
        run, self._identity = resumed(state, self.config, self._setting, self._sets, self._order)
        self._move(run)
        self._resumed, self._begun, self._stays = True, False, False
        self.targets, self._row_parts = 0, ((), slice(None))

    # ------------------------------------------------------------------------ properties

    @property
    def epoch(self) -> int | None:
        """The epoch of the next row, from 0; of a mixture, of the source that is last. None with nanochat."""
        return (
            None
            if self.config.packing == "nanochat"
            else min(self.run.now.cursors[n] for n in self._sets).epoch
        )

    @property
    def step(self) -> int:
        """The global batches that were returned since training began."""
        return self.run.now.step

    @property
    def tokens_seen(self) -> int:
        """Input tokens that all ranks have received since the first row, including those before a resumed position."""
        return self.run.now.tokens

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of a mixture's sources, in the order in which `row_sources` numbers them; () for one token set."""
        return tuple(name for name in self._sets if name)

    @property
    def row_sources(self) -> np.ndarray:
        """The number in `sources` of each row that was returned last: (B,) int64; zeros for one token set."""
        parts, places = self._row_parts
        found = np.empty(sum(count for _, count in parts), np.int64)
        found[places] = np.repeat([number for number, _ in parts], [count for _, count in parts])
        return found

    def seen(self) -> dict[str, SourceUsage]:
        """(tokens, rows, about how many epochs) that all ranks have used, by source. ValueError for one token set."""
        if not self.sources:
            raise ValueError(
                "seen() is for a mixture; for one token set, use tokens_seen and epoch"
            )
        found, points = (
            dict[str, SourceUsage](),
            [*(leg.begin.rows for leg in self.run.legs), self.run.now.rows],
        )
        for name, source in self._sources(self.run, counts_only=True).items():
            given = [after.get(name, 0) - before.get(name, 0) for before, after in pairwise(points)]
            tokens = sum(
                rows * leg.setting.seq_len for rows, leg in zip(given, self.run.legs, strict=True)
            )
            epoch, window, row = self.run.now.cursors[name]
            windows = source.documents(
                epoch
            ).windows.tokens.tolist()  # of this one, as many as its rows have inputs
            past, before = past_of(self.run.legs, name, epoch, window)
            inputs = (row - before) * self.config.seq_len + sum(
                seq_len * rows for seq_len, rows in past
            )
            done = sum(windows[:window]) + min(windows[window], inputs)
            found[name] = SourceUsage(
                tokens, self.run.now.rows[name], epoch + done / max(1, sum(windows))
            )
        return found

    @property
    def vocab_size(self) -> int:
        """The number of token ids of the tokenizer; all tokens are below it."""
        return int(self.token_set.tokenizer["vocab_size"])

    @property
    def bos_id(self) -> int:
        """The id of the token that every row and every document begins with, for `document_ids`."""
        return self.token_set.bos_id

    @property
    def rows(self) -> int | None:
        """Rows of this epoch, of all ranks; others may have a few more or fewer. None with nanochat, or a mixture."""
        has_epochs = self.config.is_one_set and self.config.packing != "nanochat"
        return self._rows_of(self.run.now.cursors[""].epoch) if has_epochs else None

    def _rows_of(self, epoch: int) -> int:
        if epoch not in self._counted:
            (source,) = self._sources(self.run, counts_only=True).values()
            self._counted[epoch] = source.count(epoch)
        return self._counted[epoch]

    def __len__(self) -> int:
        """Batches of the whole iteration of `epochs`, skipped ones too; after its end, of the next one. TypeError if
        the loader is endless.
        """
        until, epochs = self.run.now.until, self.config.epochs
        if epochs is None or until is None:
            raise TypeError(
                "this loader is endless and has no len(); pass epochs=, or use loader.rows"
            )
        end = until + epochs if self.run.has_ended and not self._begun else until
        rows, global_batch = (
            sum(map(self._rows_of, range(end - epochs, end))),
            self._setting.global_batch,
        )
        return rows // global_batch if self.config.drop_last else -(-rows // global_batch)

    def __bool__(self) -> bool:
        return True  # otherwise Python would call __len__

    def __repr__(self) -> str:
        config, now, name = self.config, self.run.now, self.sources or self.token_set.display_name
        return (
            f"RowLoader({name!r}, {config.split!r}: {config.batch_size:,} rows of {config.seq_len:,} + 1 tokens, "
            f"{config.packing}; rank {self.rank} of {self.world_size}; {now.step:,} steps and {now.tokens:,} tokens on)"
        )

    def _require_supported(self) -> None:
        """ValueError if the packing cannot make rows of these sets, or `ignore_index` is a token."""
        config = self.config
        for one in self._sets.values() if config.packing != "best_fit" else ():
            if one.is_chat or one.view is not None:
                what = "chat sets" if one.is_chat else "views"
                raise ValueError(
                    f"{one.display_name}: packing {config.packing!r} is not for {what}; use 'best_fit'"
                )
            short = [
                entry for entry in one.split(config.split) if 0 < entry.tokens <= config.seq_len
            ]
            if short and config.packing != "nanochat":
                raise ValueError(
                    f"{one.display_name}: packing {config.packing!r} would leave out shard {short[0].name}, which has "
                    f"fewer tokens than a row, {short[0].tokens}; use packing='best_fit' or a smaller seq_len"
                )
        if self.is_masked and 0 <= config.ignore_index < self.vocab_size:
            raise ValueError(
                f"ignore_index={config.ignore_index} is a token id of {self.token_set.display_name}, of 0 to "
                f"{self.vocab_size - 1:,}; pass a negative number"
            )

    def _require_rows(self, name: str, one: TokenSet) -> None:
        """ValueError if a set cannot give what is asked for: rows, or enough of them for a batch."""
        config, row_len, entries, tokens = (
            self.config,
            self.config.seq_len + 1,
            one.split(self.config.split),
            0,
        )
        if config.packing == "nanochat":
            next(
                nanochat_rows(one, config.split, self.run, self.rank)
            )  # ValueError if the rank has no document
            return
        needed = self._setting.global_batch if config.epochs is not None and config.drop_last else 1
        if one.is_chat:  # tokens that are surely in rows, known without planning them
            tokens = require_conversations(
                one, config.split, row_len, self._order.long_chats, stacklevel=5
            )
        elif one.view is None and self._order.packing.long_documents == "split":
            tokens = sum(entry.tokens for entry in entries)
        if tokens // row_len >= needed:
            return
        source = Source(name, one, self._order, self.run.legs, counts_only=True)
        found = source.count(0, up_to=needed) if entries else 0
        if found * (config.epochs or 1) < needed:
            view = "" if one.view is None else f", view {one.view.name!r}"
            raise ValueError(
                f"{f'source {name!r}, ' if name else ''}{one.display_name}{view}: split {config.split!r} has {found} "
                f"rows of {config.seq_len} + 1 tokens, fewer than a batch of {config.batch_size} on {self.world_size} "
                f"ranks; lower {'batch_size or seq_len, pass drop_last=False' if found else 'seq_len'}, or prepare "
                "more text (for val, with a larger --val-fraction)"
            )


def _make_batches(
    rows: Any, arrays: Any, shape: tuple[int, int], dtype: np.dtype[Any], ahead: int
) -> Iterator[Any]:
    """(what the arrays have sent, the sources of its rows, targets of all ranks, the run after it) of each batch."""
    kept: deque[Any] = deque(
        maxlen=ahead + 2
    )  # so that the thread frees them, and not the caller's `next`
    for batch, targets, run in rows:
        kept.append((batch.sources, run))
        tokens, mask = read_batch(batch, shape, dtype)
        yield arrays.send(tokens, mask, batch.places), (batch.sources, batch.places), targets, run
