"""The documents of a window: which shards they are in, where, and how long they are.

    documents = EpochDocuments(token_set, entries, tokens, windows)     what an epoch goes over
    texts = open_window(documents, 3, packing, held={}, row_len=None)   its window 3
    texts.content                                                       what a plan is made from
    texts.shard, texts.begin                                            where each document is

Only offsets are read. A view's documents are there as often as the view counts them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tokenmill.feed.conversations import Padding, first_targets
from tokenmill.rows import windows
from tokenmill.rows.plan import Content, Packing
from tokenmill.rows.windows import SLICE, Epoch, Window, epoch_of_shards, epoch_of_view
from tokenmill.store.shards import Shard, ShardEntry
from tokenmill.store.token_sets import TokenSet

GAP = 1 << 16  # tokens between two documents that are still read ahead together


class EpochDocuments(NamedTuple):
    """What an epoch goes over: the set as it was then, its shards, and the epoch's windows."""

    token_set: TokenSet
    entries: list[ShardEntry]
    tokens: np.ndarray  # of each shard
    windows: Epoch

    @classmethod
    def of(
        cls, token_set: TokenSet, split: str, key: tuple[int, str, int] | None
    ) -> "EpochDocuments":
        """All of a split, or of its view, in the order of `key`; None: in the order on disk."""
        entries = token_set.split(split)
        tokens = np.array([entry.tokens for entry in entries], np.int64)
        size = windows.DEFAULT_WINDOW_SIZE
        if token_set.view is None:
            epoch = epoch_of_shards(tokens, key, size)
        else:
            epoch = epoch_of_view(token_set.view.slices_of(split, SLICE), key, size)
        return cls(token_set, entries, tokens, epoch)


class WindowTexts(NamedTuple):
    """What a window's rows are made from: documents, or slices if the packing does not pack these.

    `shard` is the place of each one's shard among `shards`, and `begin` its first token there.
    """

    content: Content
    shards: list[Shard]
    shard: np.ndarray
    begin: np.ndarray
    end: np.ndarray

    def with_padding(self, padding: Padding) -> "WindowTexts":
        """These documents, and after the last one another, which is padding."""
        return self._replace(
            shards=[*self.shards, padding],
            shard=np.append(self.shard, len(self.shards)),
            begin=np.append(self.begin, 0),
            end=np.append(self.end, 0),
        )

    def read_ahead(self) -> None:
        """Asks the kernel to read these texts, with what is between those that are close."""
        if not len(self.begin):
            return
        is_far = self.begin[1:] - self.end[:-1] > GAP
        is_back = self.begin[1:] < self.begin[:-1]
        is_last = np.append((self.shard[1:] != self.shard[:-1]) | is_far | is_back, True)
        is_first = np.append(True, is_last[:-1])
        columns = (self.shard[is_first], self.begin[is_first], self.end[is_last])
        for number, begin, end in zip(*(column.tolist() for column in columns), strict=True):
            self.shards[number].read_ahead(begin, end)


class _Located(NamedTuple):
    """Documents: the number of each one's shard in the split, its first token, and its length."""

    number: np.ndarray
    begin: np.ndarray
    length: np.ndarray


NOTHING = _Located(*np.zeros((3, 0), np.int64))


def open_window(
    documents: EpochDocuments,
    window: int,
    packing: Packing,
    held: Mapping[ShardEntry, Shard],
    row_len: int | None,
) -> WindowTexts:
    """The texts of a window. `held` are shards that are open already.

    `row_len` is that of the shortest rows that crop conversations; None if none are cropped.
    """
    slices = documents.windows.window(window)
    numbers = np.unique(slices.shard).tolist()
    if not numbers and documents.entries:  # a small view has empty windows; they have a shard too
        numbers = [0]
    shards = _open_shards(documents, numbers, held)
    opened = [*shards.values()]
    if not packing.packs_documents:
        content = Content(np.zeros(0, np.int64), slices, documents.tokens)
        shard = np.searchsorted(numbers, slices.shard)
        return WindowTexts(content, opened, shard, slices.begin, slices.end)
    number, begin, length = _locate(documents, slices, shards)
    shard = np.searchsorted(numbers, number)
    content = Content(length, slices, documents.tokens)
    if packing.keep_whole:
        targets = first_targets(opened, shard, begin, length, row_len)
        content = content._replace(first_target=targets)
    return WindowTexts(content, opened, shard, begin, begin + length)


def _open_shards(
    documents: EpochDocuments, numbers: Sequence[int], held: Mapping[ShardEntry, Shard]
) -> dict[int, Shard]:
    entries = {number: documents.entries[number] for number in numbers}
    documents.token_set.fetch([*entries.values()])
    shards = {}
    for number, entry in entries.items():
        shards[number] = held.get(entry) or documents.token_set.open(entry)
        shards[number].expect_random_reads()
    return shards


def _locate(
    documents: EpochDocuments, slices: Window, shards: Mapping[int, Shard]
) -> Sequence[np.ndarray]:
    """The documents of a window's slices."""
    if slices.copies is None:
        located = _in_slices(slices, shards)
    else:
        located = _in_view(documents, slices, slices.copies, shards)
    columns = zip(NOTHING, *located, strict=True)
    return [np.concatenate(column) for column in columns]


def _in_slices(slices: Window, shards: Mapping[int, Shard]) -> Iterator[_Located]:
    """The documents that begin in each slice."""
    columns = (slices.shard, slices.begin, slices.end)
    for number, begin, end in zip(*(column.tolist() for column in columns), strict=True):
        shard = shards[number]
        first, last = shard.documents_between(begin, end)
        begins = shard.offsets[first:last].astype(np.int64)
        yield _Located(np.full(len(begins), number), begins, shard.lengths_of(first, last))


def _in_view(
    documents: EpochDocuments,
    slices: Window,
    copies: Sequence[np.ndarray],
    shards: Mapping[int, Shard],
) -> Iterator[_Located]:
    """The documents of a view's slices: in slice i, those that count more than its copy."""
    view = documents.token_set.view
    assert view is not None, "slices with copies are a view's"
    by_shard: dict[int, list[np.ndarray]] = {}
    columns = (slices.shard, *copies)
    for number, first, last, copy in zip(*(column.tolist() for column in columns), strict=True):
        counts = view.repeats_of(documents.entries[number])[first:last]
        by_shard.setdefault(number, []).append(first + np.flatnonzero(counts > copy))
    for number in sorted(by_shard):
        in_shard = np.sort(np.concatenate(by_shard[number]))
        begins, lengths = shards[number].spans_of(in_shard)
        yield _Located(np.full(len(begins), number), begins, lengths)
