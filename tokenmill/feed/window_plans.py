"""WindowPlans: the plan of each window of a split, from a token set's manifest and offsets to rows that can be read.

    plans = WindowPlans(token_set, "train", 2049, packing="best_fit", ...)
    plans.count_windows(0)        the windows of epoch 0
    plans.rows(0, 3)              the rows of its window 3
    plans.count_rows(0, 3)        how many rows that window has

A plan is a pure function of lengths and settings (rows/packers.py), so only the last few are kept. No token is read.
If the token set has a view, a plan is of the view's documents, each as often as it counts (window_documents.py).
"""

import copy
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from tokenmill.feed.epoch_documents import EpochDocuments, Former, keep_last
from tokenmill.feed.padding import Padding
from tokenmill.feed.remote_rows import BlockOrder
from tokenmill.feed.window_documents import WindowDocuments
from tokenmill.feed.window_rows import WindowRows
from tokenmill.remote.sets import RemoteTokenSet
from tokenmill.rows.joined_epoch import JoinedEpoch
from tokenmill.rows.order import ORDER_VERSION, number_of
from tokenmill.rows.packers import Packer, Past, WindowContent, count_window, plan_window
from tokenmill.rows.packing import CUTS, LongDocuments
from tokenmill.rows.packings import PACKINGS, Packing, find_packing
from tokenmill.rows.position import Pasts, cut_by
from tokenmill.rows.row_stream import Cursor, End
from tokenmill.rows.view_windows import ViewEpoch
from tokenmill.rows.windows import DEFAULT_WINDOW_SIZE as DEFAULT_WINDOW_SIZE
from tokenmill.rows.windows import Epoch, Window, WindowSize
from tokenmill.store.shards import Shard, ShardEntry
from tokenmill.store.token_sets import TokenSet

SAMPLE_ROWS = 30_000  # how many rows are counted if an estimate is enough


def require_whole(token_set: TokenSet, packing: Packing) -> None:
    """ValueError if this is a chat set, and the packing does not keep conversations whole."""
    if token_set.is_chat and packing.whole_packer is None:
        known = ", ".join(name for name, one in PACKINGS.items() if one.whole_packer is not None)
        raise ValueError(
            f"{token_set.display_name} is a chat set, whose conversations stay whole, which packing "
            f"{packing.name!r} does not do; use packing={known!r}"
        )


class WindowPlans:
    """The planned rows of each window of a split, `row_len` tokens each, in an order that depends on seed and `name`.

    If the token set has grown, or has another view, since an epoch began, `former` is that epoch and what it goes over;
    later epochs go over the set as it is. `pasts` belong to windows that were begun with rows of another length.
    `began` is (epoch, row_len) if an epoch of `concat` began with another row length, which then cuts all its windows
    first. Raises ValueError if a shard is too short for a row and the packing does not join shards, or if the set has a
    view and the packing takes none.
    """

    def __init__(
        self,
        token_set: TokenSet,
        split: str,
        row_len: int,
        *,
        packing: str,
        long_documents: LongDocuments,
        shuffle: bool,
        seed: int,
        name: str = "",
        former: Former | None = None,
        pasts: Pasts | None = None,
        began: tuple[int, int] | None = None,
        window_size: WindowSize | None = None,
        order_version: int = ORDER_VERSION,
        loss: str = "all",
    ):
        self.token_set, self.split, self.row_len = token_set, split, row_len
        self.packing, self.loss = find_packing(packing), loss
        self.long_documents = long_documents if token_set.is_chat or long_documents in CUTS else "split"
        self.is_masked = token_set.is_chat or loss == "once"  # else every token bears loss
        self.shuffle, self.seed, self.name = shuffle, seed, name
        self.pasts, self.began = dict(pasts or {}), began
        self.window_size, self.order_version = window_size or DEFAULT_WINDOW_SIZE, order_version
        self._repeats = split == "val" or not shuffle  # whether every epoch is the same
        order = (seed, name) if shuffle else None
        self.documents = EpochDocuments(token_set, split, former, order, self.window_size, order_version)
        self._plans: dict[tuple[Any, ...], WindowRows] = {}  # the last ones used
        self._counts: dict[tuple[int, int], int] = {}  # the rows of the window that was counted last
        self._require_rows_in_shards()

    def documents_key(self, epoch: int) -> str:
        """Differs between epochs that go over other documents: the manifest's digest, and what views there are."""
        return self.documents.key(epoch)

    def entries(self, epoch: int) -> list[ShardEntry]:
        """The shards of an epoch, in the order of the manifest."""
        return [entry for _, entry in self.documents.members(epoch)]

    def epoch(self, epoch: int) -> Epoch | ViewEpoch | JoinedEpoch:
        """The windows of an epoch."""
        return self.documents.windows(epoch, self.order_epoch(epoch))

    def block_order(self) -> BlockOrder | None:
        """When the blocks of a remote set are needed; None for a set on this disk."""
        if not isinstance(self.token_set, RemoteTokenSet):
            return None
        cache = self.token_set.cache
        order = BlockOrder(self, cache.number, self.token_set.numpy_dtype.itemsize)
        cache.add(order)
        return order

    def count_windows(self, epoch: int) -> int:
        return len(self.epoch(epoch))

    def epochs_at(self, place: Cursor) -> Fraction:
        """The epochs that are done at a place: the tokens of whole windows, and of its window the share of the rows."""
        epoch, window, row = place
        used = self._used_before(epoch, window)
        if row:
            used += (1 - used) * Fraction(row, max(row, self._count_again(epoch, window)))
        tokens: list[int] = self.epoch(epoch).tokens.tolist()
        done: Fraction = sum(tokens[:window]) + tokens[window] * used
        return epoch + done / max(1, sum(tokens))

    def _count_again(self, epoch: int, window: int) -> int:
        """The rows of a window that may have been counted before: whoever logs usage asks at every step."""
        if (epoch, window) not in self._counts:
            self._counts = {(epoch, window): self.count_rows(epoch, window)}
        return self._counts[epoch, window]

    def end(self, epochs: Fraction) -> End:
        """The place where a number of epochs ends.

        A fraction of an epoch ends after that share of its windows, and of one window's rows. If that window was begun
        with rows of another length, the share is reduced by the rows that were used then.
        """
        epoch = int(epochs)
        if epoch == epochs:
            return End(epoch)
        windows = (epochs - epoch) * self.count_windows(epoch)
        window, share = int(windows), windows - int(windows)
        used = self._used_before(epoch, window)
        if used and used < 1:
            share = (share - used) / (1 - used)  # negative if more was used already
        return End(epoch, window, share)

    def _used_before(self, epoch: int, window: int) -> Fraction:
        """The share of a window that was used when its rows had other lengths."""
        left, pasts = Fraction(1), self.pasts.get((epoch, window), ())
        for number, past in enumerate(pasts):
            before = copy.copy(self)
            before.row_len, before.pasts = past.row_len, {(epoch, window): pasts[:number]}
            left *= 1 - Fraction(past.used, max(1, before.count_rows(epoch, window)))
        return 1 - left

    def about_rows(self) -> int:
        """An estimate of the rows of an epoch: the first windows are counted, and the others have as many per token."""
        whole, rows, window = copy.copy(self), 0, 0
        whole.pasts, whole.began = {}, None  # count whole windows
        tokens = whole.epoch(0).tokens.tolist()
        while window < len(tokens) and rows < SAMPLE_ROWS:
            rows += whole.count_rows(0, window)
            window += 1
        return int(rows * sum(tokens) // max(1, sum(tokens[:window])))

    def rows(self, epoch: int, window: int) -> WindowRows:
        """The rows of a window."""
        key = (
            self.documents_key(epoch),
            self.order_epoch(epoch),
            window,
            self.row_len,
            tuple(self._past(epoch, window)),
        )
        found = self._plans.get(key)
        return keep_last(self._plans, key, self._plan(epoch, window) if found is None else found)

    def count_rows(self, epoch: int, window: int) -> int:
        """The number of rows of a window, at a fifth of the cost of planning it."""
        slices = self.epoch(epoch).window(window)
        documents = self._documents(epoch, window, slices, self._open(epoch, slices))
        packer = self._packer(epoch, slices, documents)
        return count_window(packer, self.row_len, self._key(epoch, window), self._past(epoch, window))

    def count(self, epoch: int, up_to: int | None = None) -> int:
        """The number of rows of all windows of an epoch, from document lengths. Stops counting at `up_to`."""
        if up_to is not None and sum(map(self._fewest_rows, self.documents.members(epoch))) >= up_to:
            return up_to
        rows = 0
        for window in range(self.count_windows(epoch)):
            rows += self.count_rows(epoch, window)
            if up_to is not None and rows >= up_to:
                return up_to
        return rows

    def order_epoch(self, epoch: int) -> int:
        """The epoch that random orders are drawn for: 0 if every epoch repeats the same order."""
        return 0 if self._repeats else epoch

    def _key(self, epoch: int, window: int) -> tuple[int, ...]:
        named = (number_of(self.name),) if self.name else ()
        return (self.seed, self.order_epoch(epoch), window, *named)

    def _past(self, epoch: int, window: int) -> Sequence[Past]:
        if past := self.pasts.get((epoch, window)):
            return past
        first = cut_by(epoch, self.began, self.pasts) if self.packing.cuts_epoch_once else None
        return [] if first in (None, self.row_len) else [Past(first, 0)]

    def _open(self, epoch: int, slices: Window) -> dict[int, Shard]:
        """The shards that slices belong to, by their number in the epoch."""
        members = self.documents.members(epoch)
        # a small set has the same shards in every window, so their memory maps are reused
        held = {s.entry: s for rows in list(self._plans.values()) for s in rows.shards if isinstance(s, Shard)}
        numbers = np.unique(slices.shard).tolist() or [*range(len(members))][:1]  # a small view has windows of nothing
        missing = [members[i] for i in numbers if members[i][1] not in held]
        for token_set in {id(one): one for one, _ in missing}.values():
            token_set.bring([entry for one, entry in missing if one is token_set])
        return {i: held.get(members[i][1]) or members[i][0].open(members[i][1]) for i in numbers}

    def _documents(self, epoch: int, window: int, slices: Window, shards: dict[int, Shard]) -> WindowDocuments | None:
        """The documents of a window's slices; None if the packing does not pack documents."""
        if not self.packing.packs_documents:
            return None
        return self.documents.of_window(epoch, self.order_epoch(epoch), window, slices, shards)

    def _packer(self, epoch: int, slices: Window, documents: WindowDocuments | None) -> Packer:
        tokens = np.array([entry.tokens for _, entry in self.documents.members(epoch)])
        content = WindowContent(
            np.zeros(0, np.int64) if documents is None else documents.lengths,
            slices,
            tokens,
            self.long_documents,
            self.shuffle,
            self.order_version,
        )
        make = self.packing.whole_packer if self.token_set.is_chat else self.packing.packer
        assert make is not None, "only packings with one global order are planned, and of chat sets whole documents"
        return make(content)

    def _plan(self, epoch: int, window: int) -> WindowRows:
        slices = self.epoch(epoch).window(window)
        shards = self._open(epoch, slices)
        documents = self._documents(epoch, window, slices, shards)
        packer = self._packer(epoch, slices, documents)
        plan = plan_window(packer, self.row_len, self._key(epoch, window), self._past(epoch, window))
        places = {shard: place for place, shard in enumerate(shards)}
        joined: list[Any] = list(shards.values())
        if documents is None:  # the documents of this plan are slices
            numbers, begin = slices.shard, slices.begin
            stretches = np.stack([slices.shard, slices.begin, slices.end], axis=1)
        else:
            (numbers, begin), stretches = documents.places(), documents.stretches
        at = np.zeros(len(self.documents.members(epoch)), np.int64)
        at[list(places)] = list(places.values())
        shard = at[numbers]
        if self.token_set.is_chat:  # padding is the document after the last
            shard, begin = np.append(shard, len(joined)), np.append(begin, 0)
            joined.append(Padding(self.row_len, self.token_set.bos_id, self.token_set.numpy_dtype))
        return WindowRows(
            joined,
            np.stack([at[stretches[:, 0]], stretches[:, 1], stretches[:, 2]], axis=1),
            plan,
            shard[plan.document],
            begin[plan.document] + plan.start,
            self.token_set.bos_id,
            self.packing.begins_with_bos,
            self.loss,
        )

    def _fewest_rows(self, member: tuple[TokenSet, ShardEntry]) -> int:
        """The fewest rows that a shard can give, known without opening it."""
        token_set, entry = member
        if token_set.is_chat or token_set.view is not None:
            return 0  # all of its documents may be longer than a row, or not be in the view
        return self.packing.fewest_rows(entry.tokens, entry.documents, self.row_len, self.long_documents)

    def _require_rows_in_shards(self) -> None:
        require_whole(self.token_set, self.packing)
        if self.token_set.view is not None and not self.packing.takes_views:
            known = ", ".join(repr(name) for name, one in PACKINGS.items() if one.takes_views)
            raise ValueError(
                f"packing {self.packing.name!r} is not supported with a view, as it cuts the token stream and not "
                f"documents; use packing={known}, or write the view's documents as a token set of their own by "
                "`tokenmill convert`"
            )
        for entry in [] if self.packing.joins_shards else self.entries(-1):
            if 0 < entry.tokens < self.row_len:
                raise ValueError(
                    f"{self.token_set.display_name}: shard {entry.name} has {entry.tokens} tokens, fewer than a row of "
                    f"{self.row_len - 1} + 1, and packing {self.packing.name!r} does not join shards, so all of it "
                    "would be left out; use packing='best_fit' or a smaller seq_len"
                )
