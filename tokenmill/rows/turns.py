"""Whose turn it is: one pattern of D turns for whole-number weights of sum D, again and again.

Row j of a source of weight p is due in the turns from floor(j D / p) to before ceil((j + 1) D / p). Each turn is that
of the row whose time ends first, ties by name. (Earliest deadline first, which keeps all of these windows: Liu and
Layland, 1973; Baruah et al., 1996.) With web, code and math at 12, 5 and 3 of 20:

    W C W W M W C W W C W M W W C W W C M W

So at every turn each source is within one row of its share, and exact at every multiple of D. How many rows of a source
come before a turn is looked up, so nothing is replayed.
"""

import heapq
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np


class Turns(NamedTuple):
    """Some turns: the number of the source of each, and which of the source's rows it gives, from 0."""

    source: np.ndarray  # (count,) int64
    row: np.ndarray  # (count,) int64


class Pattern:
    """The turns of sources `names`, in the order of their names, of whole-number `weights`."""

    def __init__(self, names: tuple[str, ...], weights: tuple[int, ...]):
        self.names, self.weights, self.period = names, np.array(weights), sum(weights)
        self._source = _deal(self.weights)  # (period,) uint16
        order = np.argsort(self._source, kind="stable").astype(np.int32)
        ends = np.cumsum(self.weights)
        self._turns = np.split(order, ends[:-1])  # of each source
        self._row = np.empty(self.period, np.int32)
        self._row[order] = np.concatenate([np.arange(weight) for weight in weights])

    def at(self, turns: np.ndarray) -> Turns:
        """The source and its row of each of `turns`, (count,) int64."""
        rounds, place = np.divmod(turns, self.period)
        source = self._source[place].astype(np.int64)
        return Turns(source, self._row[place] + rounds * self.weights[source])

    def counts(self, turn: int) -> list[int]:
        """How many rows each source gives before a turn."""
        rounds, place = divmod(turn, self.period)
        whole = (rounds * self.weights).tolist()
        return [count + int(np.searchsorted(turns, place)) for count, turns in zip(whole, self._turns, strict=True)]

    def turn_of(self, source: int, row: int) -> int:
        """The turn in which a source gives its row."""
        rounds, place = divmod(row, int(self.weights[source]))
        return rounds * self.period + int(self._turns[source][place])


@lru_cache(maxsize=16)
def _pattern(weights: tuple[tuple[str, int], ...]) -> Pattern:
    names, numbers = zip(*weights, strict=True)
    return Pattern(names, numbers)


def pattern_of(weights: Mapping[str, int]) -> Pattern:
    """The pattern of whole-number weights by name."""
    return _pattern(tuple(sorted(weights.items())))


def _deal(weights: np.ndarray) -> np.ndarray:
    """The source of each turn of a pattern: (sum of the weights,) uint16."""
    total, count = int(weights.sum()), len(weights)
    source = np.repeat(np.arange(count), weights)
    row = np.concatenate([np.arange(weight) for weight in weights])
    begins = row * total // weights[source]
    ends = -(-(row + 1) * total // weights[source])
    order = np.argsort(begins, kind="stable")
    comes = np.searchsorted(begins[order], np.arange(total + 1), side="right").tolist()  # rows that are due by a turn
    keys = (ends * count + source)[order].tolist()
    due: list[int] = []
    dealt, came = [], 0
    for turn in range(total):
        for key in keys[came : comes[turn]]:
            heapq.heappush(due, key)
        came = comes[turn]
        dealt.append(heapq.heappop(due) % count)
    return np.array(dealt, np.uint16)
