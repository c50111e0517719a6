"""The plan of each window of a split: from a token set's manifest and offsets to rows that can be read.

    plans = WindowPlans(token_set, "train", 2049, packing="best_fit", ...)
    plans.count_windows(0)        of epoch 0
    plans.rows(0, 3)              the rows of its window 3
    plans.count_rows(0, 3)        how many these are

A plan is a pure function of lengths and settings (rows/repack.py), so the last ones alone are held. Which documents a
slice holds follows from two bisections in its shard's offsets; no token is read.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenmill.batches.window_rows import WindowRows
from tokenmill.rows.packing import LongDocuments
from tokenmill.rows.position import Pasts, cut_by
from tokenmill.rows.repack import BestFit, Concat, Packer, Past, Random, count_window, plan_window
from tokenmill.rows.windows import GRAIN, Epoch, Window
from tokenmill.store.shards import Shard, ShardEntry
from tokenmill.store.token_sets import TokenSet

PLANS_HELD = 2


class WindowPlans:
    """The planned rows of each window of a split, `row_len` tokens each.

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
        former: tuple[int, TokenSet] | None = None,
        pasts: Pasts | None = None,
        began: tuple[int, int] | None = None,
    ):
        self.token_set, self.split, self.row_len = token_set, split, row_len
        self.packing, self.long_documents = packing, long_documents
        self.shuffle, self.seed = shuffle, seed
        self.former, self.pasts, self.began, self.grain = former, dict(pasts or {}), began, GRAIN
        self._repeats = split == "val" or not shuffle  # every epoch is the same
        self._entries: dict[str, list[ShardEntry]] = {}  # of each manifest's digest
        self._epochs: OrderedDict[tuple[str, int], Epoch] = OrderedDict()
        self._plans: OrderedDict[tuple[Any, ...], WindowRows] = OrderedDict()
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
        if key not in self._epochs:
            drawn = (self.seed, "", key[1]) if self.shuffle else None
            self._epochs[key] = Epoch([entry.tokens for entry in self.entries(epoch)], drawn, self.grain)
        return _kept(self._epochs, key)

    def count_windows(self, epoch: int) -> int:
        return len(self.epoch(epoch))

    def rows(self, epoch: int, window: int) -> WindowRows:
        """The rows of a window."""
        key = (self.set_of(epoch).digest, self.drawn(epoch), window, self.row_len, tuple(self._past(epoch, window)))
        if key not in self._plans:
            self._plans[key] = self._plan(epoch, window)
        return _kept(self._plans, key)

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
        return (self.seed, self.drawn(epoch), window)

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
        return {i: held.get(entries[i]) or token_set.open(entries[i]) for i in np.unique(slices.shard).tolist()}

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
                    f"{self.token_set.path}: shard {entry.name} has {entry.tokens} tokens, fewer than a row of "
                    f"{self.row_len - 1} + 1, and packing {self.packing!r} joins no shards, so all of it would be "
                    "left out; use packing='best_fit' or a smaller seq_len"
                )


def _kept(held: OrderedDict, key: Any) -> Any:
    """What is held under a key, which was used last; lets go of what was not used for longest."""
    held.move_to_end(key)
    while len(held) > PLANS_HELD:
        held.popitem(last=False)
    return held[key]
