"""Source: one token set in a run. Its windows, planned in threads before they are needed, and its order of rows.

    source = Source("web", token_set, order, run.legs)
    spans, cursor = source.walk(Cursor(0, 0, 0), 100)     the next 100 rows: [Span(epoch, window, first row, last row)]
    source.table(0, 0)                                    where the tokens of a window's rows are

An epoch takes the slices of the split in windows, whose documents are packed together (windows.py, plan.py). A plan is
a pure function of lengths, so it is made when it is needed, and dropped when it is done. What an epoch goes over, and
what of a window was used at other row lengths, follows from the legs of the run.
"""

import warnings
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np

from tokenmill.feed.pieces import Padding, first_targets
from tokenmill.feed.prefetch import Stop
from tokenmill.feed.table import Loss, Table
from tokenmill.messages import counted
from tokenmill.rows import windows
from tokenmill.rows.order import number_of
from tokenmill.rows.packing import LongDocuments, RowPlan
from tokenmill.rows.plan import Content, Packing, count_window, plan_window
from tokenmill.rows.run import Cursor, Leg, past_of, set_of
from tokenmill.rows.windows import SLICE, Epoch, Window, epoch_of_shards, epoch_of_view
from tokenmill.store.shards import Shard, ShardEntry
from tokenmill.store.token_sets import TokenSet
from tokenmill.threads import cancelled_by, raise_if_cancelled

GAP = 1 << 16  # tokens between two documents that are still read ahead together
MUCH_FILLER = 0.1  # of the tokens of a split that has one window


class Order(NamedTuple):
    """What determines the rows of every source: the settings that cannot change within a run.

    `packing` is that of text. `long_chats` says what happens to conversations that are longer than a row.
    """

    split: str
    packing: Packing
    seed: int
    long_chats: LongDocuments = "split"
    loss: Loss = "all"


class Span(NamedTuple):
    """Consecutive rows of one window: those numbered `first` to before `last` in its plan."""

    epoch: int
    window: int
    first: int
    last: int


class EpochDocuments(NamedTuple):
    """What an epoch goes over: the set as it was, its shards and their tokens (shards,), and the epoch's windows."""

    token_set: TokenSet
    entries: list[ShardEntry]
    tokens: np.ndarray
    windows: Epoch


class Source:
    """A token set's rows at the row length of the last of `legs`, for one thread. With `pool`, windows that are
    expected are planned there, until `stop`. With `counts_only`, they are counted, which costs a third.
    """

    def __init__(
        self,
        name: str,
        token_set: TokenSet,
        order: Order,
        legs: Sequence[Leg],
        pool: Executor | None = None,
        stop: Stop | None = None,
        counts_only: bool = False,
        number: int = 0,
    ):
        self.name, self.number, self._legs, self.seq_len = (
            name,
            number,
            legs,
            legs[-1].setting.seq_len,
        )
        self.token_set, self._order, self._key_name = (
            token_set,
            order,
            legs[-1].setting.sets[name].order,
        )
        self._packing = order.packing
        if token_set.is_chat:
            self._packing = order.packing._replace(long_documents=order.long_chats, keep_whole=True)
        self.is_masked = token_set.is_chat or order.loss == "once"
        self._repeats = order.split == "val" or not order.packing.shuffle  # every epoch is the same
        self._pool, self._stop, self._counts_only = pool, stop or Stop(), counts_only
        self._epochs: dict[int, EpochDocuments] = {}
        self._tables: dict[tuple[int, int], Any] = {}  # by window: its Table, or a Future of it
        self._counts: dict[tuple[int, int], tuple[int, int]] = {}  # by window: see `count_window`

    # ------------------------------------------------------------------------ the order of rows

    def walk(
        self, cursor: Cursor, count: int, until: int | None = None
    ) -> tuple[list[Span], Cursor]:
        """The next `count` rows and the cursor after them; fewer rows if epoch `until` comes."""
        if len(self._tables) > 2:  # drop windows that are done
            self._tables = {
                place: table for place, table in self._tables.items() if place >= cursor[:2]
            }
            self._counts = {
                place: counts for place, counts in self._counts.items() if place >= cursor[:2]
            }
        spans: list[Span] = []
        epoch, window, row = cursor
        empty = 0
        while epoch != until:
            before, end = self.count_window(epoch, window)
            stop = min(row + count, end)
            if stop > row:
                spans.append(Span(epoch, window, row - before, stop - before))
                count, row = count - (stop - row), stop
            if row < end:
                if end - row <= (end - before) // 4:
                    self.expect(*self._next(epoch, window))
                break
            empty = empty + 1 if before == end else 0
            if empty > self.count_windows(epoch):
                raise ValueError(
                    f"{self.token_set.display_name}: split {self._order.split!r} has no row this long"
                )
            (epoch, window), row = self._next(epoch, window), 0
            if (
                not count and until is None
            ):  # else go past windows without rows, to see whether the source ends here
                break
        return spans, Cursor(epoch, window, row)

    def _next(self, epoch: int, window: int) -> tuple[int, int]:
        return (epoch, window + 1) if window + 1 < self.count_windows(epoch) else (epoch + 1, 0)

    def count_windows(self, epoch: int) -> int:
        """The windows of an epoch."""
        return len(self.documents(epoch).windows)

    def count(self, epoch: int, up_to: int | None = None) -> int:
        """The rows of an epoch at this row length, less what was used of it at others. Stops counting at `up_to`."""
        rows = 0
        for window in range(self.count_windows(epoch)):
            before, end = self.count_window(epoch, window)
            rows += end - before
            if up_to is not None and rows >= up_to:
                break
        return rows

    def count_window(self, epoch: int, window: int) -> tuple[int, int]:
        """The rows of a window at this row length: they come after those dealt at others, `before` to before `end`."""
        found = self._counts.get((epoch, window))
        if found is None:
            past, before = past_of(self._legs, self.name, epoch, window)
            if self._counts_only:
                content, *_ = self._content(epoch, window, past)
                rows = count_window(
                    self._packing, content, self.seq_len, self._key(epoch, window), past
                )
            else:
                rows = self.table(epoch, window).num_rows
            found = self._counts[epoch, window] = before, before + rows
        return found

    # ------------------------------------------------------------------------ windows

    def table(self, epoch: int, window: int) -> Table:
        """A window's rows; waits for the plan."""
        place, tables = (epoch, window), self._tables
        if not isinstance(
            tables.get(place), Table
        ):  # no variable for the plan: its error refers to this frame
            tables[place] = (
                tables.pop(place).result() if place in tables else self._make(epoch, window)
            )
        found: Table = tables[place]
        return found

    def expect(self, epoch: int, window: int) -> None:
        """Has a window planned that will be needed."""
        if self._pool is not None and (epoch, window) not in self._tables:
            self.documents(epoch)  # made here, as the thread only reads it
            self._tables[epoch, window] = self._pool.submit(self._make, epoch, window)

    def drop_tables(self) -> None:
        """Forgets all plans. One that failed has a traceback that refers to this source, so neither would be freed."""
        self._tables = {}

    def _make(self, epoch: int, window: int) -> Table:
        with cancelled_by(lambda: self._stop.stopped):
            raise_if_cancelled()
            past, _ = past_of(self._legs, self.name, epoch, window)
            content, shards, shard, begin = self._content(epoch, window, past)
            plan = plan_window(self._packing, content, self.seq_len, self._key(epoch, window), past)
            if (epoch, window) == (0, 0) and self.count_windows(0) == 1:
                self._warn(plan)
            slices, opened = content.slices, list(shards.values())
            lengths = (
                content.lengths if self._packing.packs_documents else slices.end - slices.begin
            )
            _read_ahead(opened, shard, begin, begin + lengths)
            if self._packing.keep_whole:  # padding is the document after the last
                opened.append(
                    Padding(plan.row_len, self.token_set.bos_id, self.token_set.numpy_dtype)
                )
                shard, begin = np.append(shard, len(shards)), np.append(begin, 0)
            bos_id = self.token_set.bos_id if self._packing.packs_documents else None
            table = Table((epoch, window), plan, opened, (shard, begin), bos_id, self._order.loss)
            before = [
                one
                for at, one in list(self._tables.items())
                if isinstance(one, Table) and at < (epoch, window)
            ]
            table.files.fetch(after=sum(len(one.files.missing) for one in before))
            return table

    def _warn(self, plan: RowPlan) -> None:
        """Warns of an epoch of one window with too little text for rows of this length, or for a global batch."""
        setting, filler = (
            self._legs[-1].setting,
            plan.length[plan.filler].sum() / max(1, plan.num_rows * plan.row_len),
        )
        is_few = (
            setting.epochs is None
            and len(setting.sets) == 1
            and plan.num_rows < setting.global_batch
        )
        if is_few or (filler > MUCH_FILLER and not self._packing.keep_whole):
            told = (
                f"of {self.seq_len:,} + 1 tokens, {filler:.0%} of them filler; a global batch takes"
            )
            has = f"{self.token_set.display_name}: an epoch of {self._order.split} has {counted(plan.num_rows, 'row')}"
            remedy = "use shorter rows, smaller batches or more text"
            warnings.warn(f"{has} {told} {setting.global_batch:,}; {remedy}", stacklevel=2)

    def _key(self, epoch: int, window: int) -> tuple[int, ...]:
        """The seed of a window's plan."""
        return (
            self._order.seed,
            self._drawn(epoch),
            window,
            *([number_of(self._key_name)] if self._key_name else []),
        )

    def _drawn(self, epoch: int) -> int:
        """The epoch that random orders are drawn for."""
        return 0 if self._repeats else epoch

    def documents(self, epoch: int) -> EpochDocuments:
        """What an epoch goes over, and its windows."""
        found = self._epochs.get(epoch)
        if found is None:
            manifest, view, _ = set_of(self._legs, self.name, epoch)
            was = self.token_set.as_it_was(manifest, self._order.split)
            was = was if was.view_digest == view else was.viewed(view)
            size, entries = windows.DEFAULT_WINDOW_SIZE, was.split(self._order.split)
            key = (
                (self._order.seed, self._key_name, self._drawn(epoch))
                if self._order.packing.shuffle
                else None
            )
            tokens = np.array([entry.tokens for entry in entries], np.int64)
            if was.view is None:
                order = epoch_of_shards(tokens, key, size)
            else:
                order = epoch_of_view(was.view.slices_of(self._order.split, SLICE), key, size)
            found = self._epochs[epoch] = EpochDocuments(was, entries, tokens, order)
            for old in sorted([*self._epochs])[:-2]:  # a copy, as another thread may add one
                self._epochs.pop(old, None)
        return found

    def _content(
        self, epoch: int, window: int, past: Sequence[tuple[int, int]]
    ) -> tuple[Content, dict[int, Shard], np.ndarray, np.ndarray]:
        """What a window's plan is made from; its shards by number; the place among these, and the first token, of each
        document, or of each slice if the packing does not pack documents.
        """
        token_set, entries, tokens, order = self.documents(epoch)
        slices = order.window(window)
        numbers = (
            np.unique(slices.shard).tolist() or [*range(len(entries))][:1]
        )  # a small view has empty windows
        token_set.bring([entries[number] for number in numbers])
        # a small set has the same shards in every window, so their memory maps are reused
        held = {
            s.entry: s
            for t in list(self._tables.values())
            if isinstance(t, Table)
            for s in t.shards
        }
        shards = {
            number: held.get(entries[number]) or token_set.open(entries[number])
            for number in numbers
        }
        for one in shards.values():
            one.expect_random_reads()
        if not self._packing.packs_documents:
            content = Content(np.zeros(0, np.int64), slices, tokens)
            return content, shards, np.searchsorted(numbers, slices.shard), slices.begin
        number, begin, length = _documents(token_set, entries, slices, shards)
        content, shard = Content(length, slices, tokens), np.searchsorted(numbers, number)
        if self._packing.keep_whole:
            lengths = [self.seq_len, *(seq_len for seq_len, _ in past)]
            row_len = min(lengths) + 1 if self._packing.long_documents == "crop" else None
            content = content._replace(
                first_target=first_targets([*shards.values()], shard, begin, length, row_len)
            )
        return content, shards, shard, begin


def _read_ahead(
    shards: Sequence[Shard], shard: np.ndarray, begin: np.ndarray, end: np.ndarray
) -> None:
    """Asks the kernel to start reading a window: its documents, with what is between those that are close."""
    if len(begin):
        is_last = np.append(
            (shard[1:] != shard[:-1]) | (begin[1:] - end[:-1] > GAP) | (begin[1:] < begin[:-1]),
            True,
        )
        is_first = np.append(True, is_last[:-1])
        spans = zip(
            shard[is_first].tolist(), begin[is_first].tolist(), end[is_last].tolist(), strict=True
        )
        for number, first, last in spans:
            shards[number].read_ahead(first, last)


def _documents(
    token_set: TokenSet, entries: Sequence[ShardEntry], slices: Window, shards: dict[int, Shard]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The documents of a window's slices: the number of each one's shard, its first token there, and its length.

    Those of a view are as often as it counts them: slice i has the documents that count more than copies.copy[i].
    """
    found: list[tuple[int, np.ndarray, np.ndarray]] = []
    if slices.copies is None:
        for number, begin, end in zip(
            slices.shard.tolist(), slices.begin.tolist(), slices.end.tolist(), strict=True
        ):
            first, last = shards[number].documents_between(begin, end)
            begins = shards[number].offsets[first:last].astype(np.int64)
            found.append((number, begins, shards[number].lengths_of(first, last)))
    else:
        assert token_set.view is not None, "slices with copies are a view's"
        by_shard: dict[int, list[np.ndarray]] = {}
        copies = zip(
            slices.shard.tolist(), *(column.tolist() for column in slices.copies), strict=True
        )
        for number, first, last, copy in copies:
            counts = token_set.view.counts_of(entries[number])[first:last]
            by_shard.setdefault(number, []).append(first + np.flatnonzero(counts > copy))
        for number in sorted(by_shard):
            found.append(
                (number, *shards[number].spans_of(np.sort(np.concatenate(by_shard[number]))))
            )
    empty = np.zeros(0, np.int64)
    numbers = (
        np.repeat([n for n, *_ in found], [len(begins) for _, begins, _ in found])
        if found
        else empty
    )
    return (
        numbers,
        np.concatenate([empty, *(b for _, b, _ in found)]),
        np.concatenate([empty, *(n for *_, n in found)]),
    )
