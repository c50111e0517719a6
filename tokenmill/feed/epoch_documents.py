"""What each epoch of a split goes over: the documents of the set as it is, of the set as it was, or of several views.

    former = (3, (EpochPart(0, set with view a), EpochPart(12, set with view b)))
    documents = EpochDocuments(token_set, "train", former, ...)
    documents.windows(3, 3)      the windows of epoch 3: the first 12 of view a, then those of view b
    documents.windows(4, 4)      those of `token_set`, with its view if it has one

An epoch that began before the set grew ends as it began. A view holds from the next window on, and dealt.py says what
is not due again.
"""

import sys
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from tokenmill.feed.dealt import Dealt, DealtPart
from tokenmill.feed.window_documents import WindowDocuments, viewed_documents, whole_documents
from tokenmill.rows.joined_epoch import JoinedEpoch
from tokenmill.rows.view_windows import SLICE, ViewEpoch
from tokenmill.rows.windows import Copies, Epoch, Window, WindowSize
from tokenmill.store.shards import Shard, ShardEntry
from tokenmill.store.token_sets import TokenSet

HELD = 2
Key = TypeVar("Key")
Value = TypeVar("Value")


class EpochPart(NamedTuple):
    """The token set, with its view, that an epoch goes over from its window `begin` on."""

    begin: int
    token_set: TokenSet


Former = tuple[int, tuple[EpochPart, ...]]  # an epoch, and what it goes over


def parts_of(epoch: int, token_set: TokenSet, former: Former | None) -> tuple[EpochPart, ...]:
    """What an epoch goes over; more than one part if the view changed on the way."""
    return former[1] if former is not None and epoch == former[0] else (EpochPart(0, token_set),)


class EpochDocuments:
    """The documents of each epoch. `order` is (seed, name) of random orders; None for the order of the shards."""

    def __init__(
        self,
        token_set: TokenSet,
        split: str,
        former: Former | None,
        order: tuple[int, str] | None,
        window_size: WindowSize,
        order_version: int,
    ):
        self._token_set, self._split, self._former = token_set, split, former
        self._order, self._window_size, self._order_version = order, window_size, order_version
        self._members: dict[str, list[tuple[TokenSet, ShardEntry]]] = {}  # by `key`
        self._windows: dict[tuple[str, int], Epoch | ViewEpoch | JoinedEpoch] = {}  # the last ones used
        self._dealt: dict[tuple[str, int, int], Dealt] = {}  # the last ones used

    def parts(self, epoch: int) -> tuple[EpochPart, ...]:
        """What an epoch goes over."""
        return parts_of(epoch, self._token_set, self._former)

    def key(self, epoch: int) -> str:
        """Differs between epochs that go over other documents: the manifest's digest, and what views there are."""
        parts = self.parts(epoch)
        if len(parts) == 1 and parts[0].token_set.view is None:
            return parts[0].token_set.digest
        return ",".join(f"{part.begin}:{part.token_set.digest}/{part.token_set.view_digest}" for part in parts)

    def members(self, epoch: int) -> list[tuple[TokenSet, ShardEntry]]:
        """The shards of an epoch, each with its token set, in the order of the manifest, part after part."""
        key = self.key(epoch)
        if key not in self._members:
            sets = [part.token_set for part in self.parts(epoch)]
            self._members[key] = [(one, entry) for one in sets for entry in one.split(self._split)]
        return self._members[key]

    def windows(self, epoch: int, order_epoch: int) -> Epoch | ViewEpoch | JoinedEpoch:
        """The windows of an epoch, in the random order of `order_epoch`."""
        key = (self.key(epoch), order_epoch)
        found = self._windows.get(key)
        if found is None:
            parts = self.parts(epoch)
            windows = [self._windows_of(part.token_set, order_epoch) for part in parts]
            shards = [len(part.token_set.split(self._split)) for part in parts]
            found = JoinedEpoch(windows, [part.begin for part in parts], shards) if len(parts) > 1 else windows[0]
        return keep_last(self._windows, key, found)

    def _windows_of(self, token_set: TokenSet, order_epoch: int) -> Epoch | ViewEpoch:
        key = None if self._order is None else (*self._order, order_epoch)
        if token_set.view is None:
            tokens = [entry.tokens for entry in token_set.split(self._split)]
            return Epoch(tokens, key, self._window_size, self._order_version)
        slices = token_set.view.slices_of(self._split, SLICE)
        return ViewEpoch(slices, key, self._window_size.window, self._order_version)

    def of_window(
        self, epoch: int, order_epoch: int, window: int, slices: Window, shards: dict[int, Shard]
    ) -> WindowDocuments:
        """The documents of a window that has these slices, of shards by their number in the epoch."""
        parts, members = self.parts(epoch), self.members(epoch)
        begins = parts[1].begin if len(parts) > 1 else sys.maxsize
        if slices.copies is None and window < begins:
            return whole_documents(slices, shards)
        dealt = self._dealt_before(epoch, order_epoch, window)
        return viewed_documents(
            _as_copies(slices, shards),
            shards,
            lambda shard: _counts_of(*members[shard]),
            lambda shard, first, last: dealt.of(shards[shard], first, last),
        )

    def windows_with(self, epoch: int, order_epoch: int, shard: str, document: int, tokens: set[int]) -> set[int]:
        """The windows of an epoch that may have a document of a shard. `tokens` are its tokens of each of its slices,
        or of others whose rows may reach into it. None if the shard is not part of the epoch.
        """
        parts, found = self.parts(epoch), set[int]()
        ends = [*(part.begin for part in parts[1:]), sys.maxsize]
        for part, end in zip(parts, ends, strict=True):
            places = [n for n, entry in enumerate(part.token_set.split(self._split)) if entry.name == shard]
            windows = self.windows(epoch, order_epoch) if len(parts) == 1 else None
            if windows is None or isinstance(windows, JoinedEpoch):
                windows = self._windows_of(part.token_set, order_epoch)
            for place in places:
                if isinstance(windows, Epoch):
                    own = {windows.window_of(place, token) for token in tokens}
                else:
                    slices = windows.slices_of(place)
                    first, last, _ = windows.copies_of(slices)
                    own = {windows.window_of_slice(n) for n in slices[(first <= document) & (document < last)].tolist()}
                found |= {part.begin + number for number in own if part.begin + number < end}
        return found

    def _dealt_before(self, epoch: int, order_epoch: int, window: int) -> Dealt:
        """What the parts of an epoch before that of a window have dealt."""
        before = [pair for pair in pairwise(self.parts(epoch)) if pair[1].begin <= window]
        key = (self.key(epoch), order_epoch, len(before))
        found = self._dealt.get(key)
        if found is None:
            found = Dealt(
                [
                    DealtPart(
                        part.token_set,
                        part.token_set.split(self._split),
                        self._windows_of(part.token_set, order_epoch),
                        following.begin - part.begin,
                    )
                    for part, following in before
                ]
            )
        return keep_last(self._dealt, key, found)


def _counts_of(token_set: TokenSet, entry: ShardEntry) -> np.ndarray:
    """How often each document of a shard counts: (documents,)."""
    return np.ones(entry.documents, np.uint8) if token_set.view is None else token_set.view.counts_of(entry)


def _as_copies(slices: Window, shards: dict[int, Shard]) -> Window:
    """Slices of a whole set in the form of a view's: by the numbers of their documents."""
    if slices.copies is not None:
        return slices
    ends = zip(slices.shard.tolist(), slices.begin.tolist(), slices.end.tolist(), strict=True)
    documents = np.array([shards[shard].documents_between(begin, end) for shard, begin, end in ends], np.int64)
    first, last = documents.reshape(-1, 2).T
    return Window(slices.shard, slices.begin, slices.end, Copies(first, last, np.zeros(len(first), np.int64)))


def keep_last(held: dict[Key, Value], key: Key, value: Value) -> Value:
    """Stores a value as the one used last, and drops all but the last HELD. Several threads may call it."""
    held.pop(key, None)
    held[key] = value
    for old in list(held)[:-HELD]:
        held.pop(old, None)
    return value
