"""Source: one token set in a run. Its windows, planned ahead in threads, and its order of rows.

    source = Source("web", token_set, order, run.legs)
    spans, cursor = source.walk(Cursor(0, 0, 0), 100)     the next 100 rows, as RowRanges
    source.table(0, 0)                                    where the tokens of a window's rows are

An epoch takes the slices of the split in windows, whose documents are packed together (windows.py,
plan.py). A plan is a pure function of lengths, so it is made when it is needed, and dropped when it
is done. What an epoch goes over, and what of a window was used at other row lengths, follows from
the legs of the run.
"""

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

from tokenmill.feed.conversations import Padding
from tokenmill.feed.order import Order
from tokenmill.feed.prefetch import Stop
from tokenmill.feed.table import Table
from tokenmill.feed.window_documents import EpochDocuments, WindowTexts, open_window
from tokenmill.messages import counted
from tokenmill.rows.order import number_of
from tokenmill.rows.packing import RowPlan
from tokenmill.rows.plan import Past, count_window, plan_window
from tokenmill.rows.run import Cursor, Leg, past_of, set_of
from tokenmill.store.shards import Shard, ShardEntry
from tokenmill.store.token_sets import TokenSet
from tokenmill.threads import cancelled_by, raise_if_cancelled

MUCH_FILLER = 0.1  # of the tokens of a split that has one window


class RowRange(NamedTuple):
    """Consecutive rows of one window: those numbered `first` to before `last` in its plan."""

    epoch: int
    window: int
    first: int
    last: int


class Source:
    """A token set's rows at the row length of the last of `legs`, for one thread.

    With `pool`, windows that are expected are planned there, until `stop`. With `counts_only`, they
    are counted, which costs a third.
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
        self.name = name
        self.number = number
        self.token_set = token_set
        self._legs = legs
        self._setting = legs[-1].setting
        self.seq_len = self._setting.seq_len
        self._key_name = self._setting.sets[name].order
        self._order = order
        self._packing = order.packing
        if token_set.is_chat:
            self._packing = order.packing._replace(long_documents=order.long_chats, keep_whole=True)
        self.is_masked = token_set.is_chat or order.loss != "all"
        # every epoch of these is the same
        self._repeats = order.split == "val" or not order.packing.shuffle
        self._pool = pool
        self._stop = stop or Stop()
        self._counts_only = counts_only
        self._epochs: dict[int, EpochDocuments] = {}
        self._tables: dict[tuple[int, int], Any] = {}  # by window: its Table, or a Future of it
        self._rows: dict[tuple[int, int], range] = {}  # by window: see `rows_of_window`

    def walk(
        self, cursor: Cursor, count: int, until: int | None = None
    ) -> tuple[list[RowRange], Cursor]:
        """The next `count` rows and the cursor after them; fewer rows if epoch `until` comes.

        With `until`, the cursor goes past windows without rows, and so says whether the source has
        ended.
        """
        self._drop_before(cursor)
        ranges: list[RowRange] = []
        for begin, rows in self._windows_from(cursor, until):
            num_dealt = max(0, min(count, rows.stop - begin.row))
            if num_dealt:
                first = begin.row - rows.start
                ranges.append(RowRange(begin.epoch, begin.window, first, first + num_dealt))
                count -= num_dealt
            cursor = begin._replace(row=begin.row + num_dealt)
            if cursor.row < rows.stop:
                self._expect_next(cursor, rows)
                break
            cursor = self._next(begin)
            if not count and until is None:
                break
        return ranges, cursor

    def _windows_from(self, cursor: Cursor, until: int | None) -> Iterator[tuple[Cursor, range]]:
        """The windows from that of a cursor on, before epoch `until`, and each one's rows.

        ValueError if more of them in turn are empty than an epoch has.
        """
        num_empty = 0
        while cursor.epoch != until:
            rows = self.rows_of_window(cursor.epoch, cursor.window)
            yield cursor, rows
            num_empty = 0 if rows else num_empty + 1
            if num_empty > self.count_windows(cursor.epoch):
                raise ValueError(
                    f"{self.token_set.display_name}: split {self._order.split!r} has no row this "
                    "long"
                )
            cursor = self._next(cursor)

    def _expect_next(self, cursor: Cursor, rows: range) -> None:
        """Has the next window planned once three quarters of this one's rows are dealt."""
        if rows.stop - cursor.row <= len(rows) // 4:
            following = self._next(cursor)
            self.expect(following.epoch, following.window)

    def _drop_before(self, cursor: Cursor) -> None:
        """Drops windows that are done."""
        if len(self._tables) > 2:
            here = cursor[:2]
            self._tables = {at: table for at, table in self._tables.items() if at >= here}
            self._rows = {at: rows for at, rows in self._rows.items() if at >= here}

    def _next(self, cursor: Cursor) -> Cursor:
        """The beginning of the window after that of a cursor."""
        if cursor.window + 1 < self.count_windows(cursor.epoch):
            return Cursor(cursor.epoch, cursor.window + 1)
        return Cursor(cursor.epoch + 1)

    def count_windows(self, epoch: int) -> int:
        """The windows of an epoch."""
        return len(self.documents(epoch).windows)

    def count(self, epoch: int, up_to: int | None = None) -> int:
        """The rows of an epoch at this row length, less what was used of it at others.

        Stops counting at `up_to`.
        """
        num_rows = 0
        for window in range(self.count_windows(epoch)):
            num_rows += len(self.rows_of_window(epoch, window))
            if up_to is not None and num_rows >= up_to:
                break
        return num_rows

    def rows_of_window(self, epoch: int, window: int) -> range:
        """The numbers of a window's rows at this row length.

        They come after those that were dealt at other lengths.
        """
        rows = self._rows.get((epoch, window))
        if rows is None:
            past, before = past_of(self._legs, self.name, epoch, window)
            if self._counts_only:
                content = self._texts(epoch, window, past).content
                key = self._key(epoch, window)
                num_rows = count_window(self._packing, content, self.seq_len, key, past)
            else:
                num_rows = self.table(epoch, window).num_rows
            rows = range(before, before + num_rows)
            self._rows[epoch, window] = rows
        return rows

    # -------------------------------------------------------------------- windows

    def table(self, epoch: int, window: int) -> Table:
        """A window's rows; waits for the plan."""
        place = (epoch, window)
        tables = self._tables
        if place not in tables:
            tables[place] = self._make(epoch, window)
        elif not isinstance(tables[place], Table):
            # no variable for the Future: its error refers to this frame
            tables[place] = tables.pop(place).result()
        table: Table = tables[place]
        return table

    def expect(self, epoch: int, window: int) -> None:
        """Has a window planned that will be needed."""
        if self._pool is not None and (epoch, window) not in self._tables:
            self.documents(epoch)  # made here, as the thread only reads it
            self._tables[epoch, window] = self._pool.submit(self._make, epoch, window)

    def drop_tables(self) -> None:
        """Forgets all plans.

        One that failed has a traceback that refers to this source, so neither would be freed.
        """
        self._tables = {}

    def _planned(self) -> Iterator[Table]:
        """The tables that are there; another thread may add one meanwhile."""
        return (table for table in list(self._tables.values()) if isinstance(table, Table))

    def _make(self, epoch: int, window: int) -> Table:
        with cancelled_by(lambda: self._stop.stopped):
            raise_if_cancelled()
            past, _ = past_of(self._legs, self.name, epoch, window)
            texts = self._texts(epoch, window, past)
            key = self._key(epoch, window)
            plan = plan_window(self._packing, texts.content, self.seq_len, key, past)
            if (epoch, window) == (0, 0) and self.count_windows(0) == 1:
                self._warn(plan)
            texts.read_ahead()
            bos_id = self.token_set.bos_id
            if self._packing.keep_whole:
                padding = Padding(plan.row_len, bos_id, self.token_set.numpy_dtype)
                texts = texts.with_padding(padding)
            first_id = bos_id if self._packing.packs_documents else None
            starts = (texts.shard, texts.begin)
            table = Table((epoch, window), plan, texts.shards, starts, first_id, self._order.loss)
            self._fetch(table)
            return table

    def _fetch(self, table: Table) -> None:
        """Has parts of a set at an address fetched, after those of the windows before."""
        num_before = 0
        for planned in self._planned():
            if planned.place < table.place:
                num_before += len(planned.files.missing)
        table.files.fetch(after=num_before)

    def _warn(self, plan: RowPlan) -> None:
        """Warns of an epoch of one window with too little text for such rows, or for a batch."""
        setting = self._setting
        is_endless = setting.epochs is None and len(setting.sets) == 1
        is_few = is_endless and plan.num_rows < setting.global_batch
        filler = plan.length[plan.filler].sum() / max(1, plan.num_rows * plan.row_len)
        is_filler = filler > MUCH_FILLER and not self._packing.keep_whole
        if is_few or is_filler:
            warnings.warn(
                f"{self.token_set.display_name}: an epoch of {self._order.split} has "
                f"{counted(plan.num_rows, 'row')} of {self.seq_len:,} + 1 tokens, {filler:.0%} of "
                f"them filler; a global batch takes {setting.global_batch:,}; "
                "use shorter rows, smaller batches or more text",
                stacklevel=2,
            )

    def _key(self, epoch: int, window: int) -> tuple[int, ...]:
        """The seed of a window's plan."""
        key = (self._order.seed, self._drawn(epoch), window)
        return (*key, number_of(self._key_name)) if self._key_name else key

    def _drawn(self, epoch: int) -> int:
        """The epoch that random orders are drawn for."""
        return 0 if self._repeats else epoch

    def documents(self, epoch: int) -> EpochDocuments:
        """What an epoch goes over, and its windows."""
        documents = self._epochs.get(epoch)
        if documents is None:
            documents = self._documents(epoch)
            self._epochs[epoch] = documents
            for old in sorted([*self._epochs])[:-2]:  # a copy, as another thread may add one
                self._epochs.pop(old, None)
        return documents

    def _documents(self, epoch: int) -> EpochDocuments:
        manifest, view, _ = set_of(self._legs, self.name, epoch)
        split = self._order.split
        token_set = self.token_set.as_it_was(manifest, split)
        if token_set.view_digest != view:
            token_set = token_set.viewed(view)
        key = None
        if self._order.packing.shuffle:
            key = (self._order.seed, self._key_name, self._drawn(epoch))
        return EpochDocuments.of(token_set, split, key)

    def _texts(self, epoch: int, window: int, past: Past) -> WindowTexts:
        """What a window's rows are made from."""
        documents = self.documents(epoch)
        row_len = None
        if self._packing.long_documents == "crop":
            row_len = min([self.seq_len, *(seq_len for seq_len, _ in past)]) + 1
        # a small set has the same shards in every window, so their memory maps are reused
        held: dict[ShardEntry, Shard] = {}
        for table in self._planned():
            held |= {shard.entry: shard for shard in table.shards}
        return open_window(documents, window, self._packing, held, row_len)
