"""The plan of each window of a split: from a token set's manifest and offsets to rows that can be read.

    plans = WindowPlans(token_set, "train", 2049, packing="best_fit", ...)
    plans.count_windows(0)        of epoch 0
    plans.rows(0, 3)              the rows of its window 3
    plans.count_rows(0, 3)        how many these are

A plan is a pure function of lengths and settings (rows/repack.py), so the last ones alone are held. Which documents a
slice holds follows from two bisections in its shard's offsets; no token is read.
"""

import copy
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from tokenmill.batches.elsewhere import Order
from tokenmill.batches.window_rows import WindowRows
from tokenmill.remote.sets import RemoteTokenSet
from tokenmill.rows.order import number_of
from tokenmill.rows.packing import LongDocuments
from tokenmill.rows.position import Pasts, cut_by
from tokenmill.rows.repack import BestFit, Concat, Packer, Past, Random, count_window, plan_window
from tokenmill.rows.stream import End, Place
from tokenmill.rows.windows import GRAIN, Epoch, Grain, Window
from tokenmill.store.shards import Shard, ShardEntry
from tokenmill.store.token_sets import TokenSet

PLANS_HELD = 2
SAMPLE_ROWS = 30_000  # that are counted, where about as many as there are will do


class WindowPlans:
    """The planned rows of each window of a split, `row_len` tokens each, in an order drawn from seed and `name`.

    `former` is (epoch, token set as it was): a set that has grown since takes the new shards in after that epoch.
    `pasts` are of the windows that were begun with rows of another length, `began` the (epoch, row_len) with which
    an epoch was, by which all its windows are cut first. ValueError where a shard
    is too short for a row of a packing that joins no shards' tokens.
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
        former: tuple[int, TokenSet] | None = None,
        pasts: Pasts | None = None,
        began: tuple[int, int] | None = None,
        grain: Grain | None = None,
    ):
        self.token_set, self.split, self.row_len = token_set, split, row_len
        self.packing, self.long_documents = packing, long_documents
        self.shuffle, self.seed, self.name = shuffle, seed, name
        self.former, self.pasts, self.began, self.grain = former, dict(pasts or {}), began, grain or GRAIN
        self._repeats = split == "val" or not shuffle  # every epoch is the same
        self._entries: dict[str, list[ShardEntry]] = {}  # of each manifest's digest
        self._epochs: dict[tuple[str, int], Epoch] = {}  # those used last
        self._plans: dict[tuple[Any, ...], WindowRows] = {}  # those used last
        self._require_shards_of_a_row()

    def set_of(self, epoch: int) -> TokenSet:
        """The token set as it is in an epoch."""
        return self.former[1] if self.former is not None and epoch == self.former[0] else self.token_set

    def entries(self, epoch: int) -> list[ShardEntry]:
        """The shards of an epoch, in the order of the manifest."""
        token_set = self.set_of(epoch)
        if token_set.digest not in self._entries:
            self._entries[token_set.digest] = token_set.split(self.split)
        return self._entries[token_set.digest]

    def epoch(self, epoch: int) -> Epoch:
        """The windows of an epoch."""
        key = (self.set_of(epoch).digest, self.drawn(epoch))
        found = self._epochs.get(key)
        if found is None:
            drawn = (self.seed, self.name, key[1]) if self.shuffle else None
            found = Epoch([entry.tokens for entry in self.entries(epoch)], drawn, self.grain)
        kept: Epoch = _kept(self._epochs, key, found)
        return kept

    def order(self) -> Order | None:
        """When what lies elsewhere is needed; None of a set on this disk."""
        if not isinstance(self.token_set, RemoteTokenSet):
            return None
        cache = self.token_set.cache
        order = Order(self, cache.number, self.token_set.numpy_dtype.itemsize)
        cache.add(order)
        return order

    def count_windows(self, epoch: int) -> int:
        return len(self.epoch(epoch))

    def share(self, place: Place) -> Fraction:
        """The epochs that are done at a place, about, from the tokens of the rows before it."""
        epoch, window, row = place
        tokens = self.epoch(epoch).tokens.tolist()
        dealt = sum(past.dealt * past.row_len for past in self.pasts.get((epoch, window), ())) + row * self.row_len
        done = sum(tokens[:window]) + min(dealt, tokens[window])
        return epoch + Fraction(done, max(1, sum(tokens)))

    def end(self, epochs: Fraction) -> End:
        """Where a number of epochs is over: a fraction of one after as many of its windows, and of one window's rows.

        Of a window that was begun with rows of another length it is that share less what these took.
        """
        epoch = int(epochs)
        windows = (epochs - epoch) * self.count_windows(epoch)
        window, share = int(windows), windows - int(windows)
        gone = self._gone(epoch, window)
        if gone and gone < 1:
            share = (share - gone) / (1 - gone)  # less than nothing where more was dealt already
        return End(epoch, window, share)

    def _gone(self, epoch: int, window: int) -> Fraction:
        """The share of a window's rows that were dealt when they were of other lengths."""
        left, pasts = Fraction(1), self.pasts.get((epoch, window), ())
        for number, past in enumerate(pasts):
            before = copy.copy(self)
            before.row_len, before.pasts = past.row_len, {(epoch, window): pasts[:number]}
            left *= 1 - Fraction(past.dealt, max(1, before.count_rows(epoch, window)))
        return 1 - left

    def about_rows(self) -> int:
        """The rows of an epoch: those of its first windows, and as many for the tokens of the others."""
        whole, rows, window = copy.copy(self), 0, 0
        whole.pasts, whole.began = {}, None  # of which some were dealt already
        tokens = whole.epoch(0).tokens.tolist()
        while window < len(tokens) and rows < SAMPLE_ROWS:
            rows += whole.count_rows(0, window)
            window += 1
        return rows * sum(tokens) // max(1, sum(tokens[:window]))

    def rows(self, epoch: int, window: int) -> WindowRows:
        """The rows of a window."""
        key = (self.set_of(epoch).digest, self.drawn(epoch), window, self.row_len, tuple(self._past(epoch, window)))
        found = self._plans.get(key)
        kept: WindowRows = _kept(self._plans, key, self._plan(epoch, window) if found is None else found)
        return kept

    def count_rows(self, epoch: int, window: int) -> int:
        """The rows of a window, at a fifth of the cost of planning them where they are not planned."""
        slices = self.epoch(epoch).window(window)
        documents = self._documents(self._open(epoch, slices), slices) if self.packing == "best_fit" else []
        packer = self._packer(epoch, slices, documents)
        return count_window(packer, self.row_len, self._key(epoch, window), self._past(epoch, window))

    def count(self, epoch: int, up_to: int | None = None) -> int:
        """Rows of all windows of an epoch, from their lengths; stops counting at `up_to`."""
        if up_to is not None and sum(map(self._fewest_rows, self.entries(epoch))) >= up_to:
            return up_to
        rows = 0
        for window in range(self.count_windows(epoch)):
            rows += self.count_rows(epoch, window)
            if up_to is not None and rows >= up_to:
                return up_to
        return rows

    def drawn(self, epoch: int) -> int:
        """The epoch that random orders are drawn for."""
        return 0 if self._repeats else epoch

    def _key(self, epoch: int, window: int) -> tuple[int, ...]:
        named = (number_of(self.name),) if self.name else ()
        return (self.seed, self.drawn(epoch), window, *named)

    def _past(self, epoch: int, window: int) -> Sequence[Past]:
        if past := self.pasts.get((epoch, window)):
            return past
        first = cut_by(epoch, self.began, self.pasts) if self.packing == "concat" else None
        return [] if first in (None, self.row_len) else [Past(first, 0)]

    def _open(self, epoch: int, slices: Window) -> dict[int, Shard]:
        """The shards that slices are of, by their places in the split."""
        entries, token_set = self.entries(epoch), self.set_of(epoch)
        # a small set has the same in every window: mapped once, their pages stay as they are
        held = {shard.entry: shard for rows in list(self._plans.values()) for shard in rows.shards}
        places = np.unique(slices.shard).tolist()
        token_set.bring([entries[i] for i in places if entries[i] not in held])
        return {i: held.get(entries[i]) or token_set.open(entries[i]) for i in places}

    def _documents(self, shards: dict[int, Shard], slices: Window) -> list[tuple[int, int, np.ndarray]]:
        """The documents of each slice: (shard's place in the split, first document, their lengths)."""
        found = []
        for shard, begin, end in zip(slices.shard.tolist(), slices.begin.tolist(), slices.end.tolist(), strict=True):
            first, last = shards[shard].documents_between(begin, end)
            found.append((shard, first, shards[shard].lengths_of(first, last)))
        return found

    def _packer(self, epoch: int, slices: Window, documents: list) -> Packer:
        if self.packing == "best_fit":
            lengths = [lengths for *_, lengths in documents]
            return BestFit(np.concatenate([np.zeros(0, np.int64), *lengths]), self.long_documents)
        tokens = np.array([entry.tokens for entry in self.entries(epoch)])
        return Concat(slices, tokens, self.shuffle) if self.packing == "concat" else Random(slices, tokens)

    def _plan(self, epoch: int, window: int) -> WindowRows:
        slices = self.epoch(epoch).window(window)
        shards = self._open(epoch, slices)
        documents = self._documents(shards, slices) if self.packing == "best_fit" else []
        packer = self._packer(epoch, slices, documents)
        plan = plan_window(packer, self.row_len, self._key(epoch, window), self._past(epoch, window))
        places = {shard: place for place, shard in enumerate(shards)}
        at = [places[shard] for shard in slices.shard.tolist()]
        if self.packing == "best_fit":
            shard = np.repeat([places[i] for i, *_ in documents], [len(lengths) for *_, lengths in documents])
            begins = [shards[i].offsets[first : first + len(lengths)] for i, first, lengths in documents]
            begin = np.concatenate([np.zeros(0, np.int64), *begins]).astype(np.int64)
        else:  # in the plan a slice is a document
            shard, begin = np.array(at, dtype=np.int64), slices.begin
        return WindowRows(
            list(shards.values()),
            list(zip(at, slices.begin.tolist(), slices.end.tolist(), strict=True)),
            plan,
            shard[plan.document],
            begin[plan.document] + plan.start,
            self.token_set.bos_id,
            self.packing == "best_fit",
        )

    def _fewest_rows(self, entry: ShardEntry) -> int:
        """What is known of a shard's rows without opening it, whatever it is packed with."""
        if self.packing == "best_fit":  # "split" keeps every token, "crop" at least one of a document
            return (entry.tokens if self.long_documents == "split" else entry.documents) // self.row_len
        return max(0, (entry.tokens - 1) // (self.row_len - 1))

    def _require_shards_of_a_row(self) -> None:
        for entry in self.entries(-1) if self.packing != "best_fit" else ():
            if 0 < entry.tokens < self.row_len:
                raise ValueError(
                    f"{self.token_set.told}: shard {entry.name} has {entry.tokens} tokens, fewer than a row of "
                    f"{self.row_len - 1} + 1, and packing {self.packing!r} joins no shards, so all of it would be "
                    "left out; use packing='best_fit' or a smaller seq_len"
                )


def _kept(held: dict[Any, Any], key: Any, value: Any) -> Any:
    """Holds a value as the last that was used, and lets go of those not used for longest; several threads may."""
    held.pop(key, None)
    held[key] = value
    for old in list(held)[:-PLANS_HELD]:
        held.pop(old, None)
    return value
