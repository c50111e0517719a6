"""Decides whose turn it is: a repeating pattern of D turns for whole-number weights with sum D.

Row j of a source with weight p is due between turns floor(j D / p) and ceil((j + 1) D / p). Each turn goes to the row
whose time ends first, ties by name. This is earliest deadline first, which meets all these deadlines (Liu and Layland,
1973; Baruah et al., 1996). With web, code and math at 12, 5 and 3 of 20:

    W C W W M W C W W C W M W W C W W C M W

At every turn each source is within one row of its share. How many rows come before a turn is looked up, not replayed.
"""

import heapq
from collections.abc import Mapping
from functools import lru_cache

import numpy as np


class Pattern:
    """The turns of the sources `names`, in the order of their names, with whole-number `weights`."""

    def __init__(self, names: tuple[str, ...], weights: tuple[int, ...]):
        self.names, self.weights, self.period = names, np.array(weights), sum(weights)
        self._source = _earliest_deadline_first(self.weights)  # (period,) uint16
        order = np.argsort(self._source, kind="stable").astype(np.int32)
        ends = np.cumsum(self.weights)
        self._turns = np.split(order, ends[:-1])  # the turns of each source
        self._before = (
            ends - self.weights
        )  # their place in the line of all sources' turns, which ascends by these keys
        self._begin = np.arange(len(names)) * self.period
        self._keys = np.repeat(self._begin, self.weights) + order
        self._counted: tuple[int, list[int]] = (-1, [])
        self._row = np.empty(self.period, np.int32)
        self._row[order] = np.concatenate([np.arange(weight) for weight in weights])

    def at(self, turns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The number of the source, and of the source's row, of each of `turns`: each (count,) int64."""
        rounds, place = np.divmod(turns, self.period)
        source = self._source[place].astype(np.int64)
        return source, self._row[place] + rounds * self.weights[source]

    def counts(self, turn: int) -> list[int]:
        """How many rows each source gives before a turn."""
        known, found = self._counted  # those of the turn that was asked about last
        if known != turn:
            rounds, place = divmod(turn, self.period)
            found = (
                self._keys.searchsorted(self._begin + place) - self._before + rounds * self.weights
            ).tolist()
            self._counted = turn, found
        return found

    def turn_of(self, source: int, row: int) -> int:
        """The turn in which a source gives this row."""
        rounds, place = divmod(row, int(self.weights[source]))
        return rounds * self.period + int(self._turns[source][place])


@lru_cache(maxsize=16)
def _pattern(weights: tuple[tuple[str, int], ...]) -> Pattern:
    return Pattern(*zip(*weights, strict=True))


def pattern_of(weights: Mapping[str, int]) -> Pattern:
    """The pattern for whole-number weights by name. Patterns are cached."""
    return _pattern(tuple(sorted(weights.items())))


def _earliest_deadline_first(weights: np.ndarray) -> np.ndarray:
    """The source of each turn of a pattern: (sum of the weights,) uint16."""
    total, count = int(weights.sum()), len(weights)
    source, row = (
        np.repeat(np.arange(count), weights),
        np.concatenate([np.arange(weight) for weight in weights]),
    )
    begins, ends = row * total // weights[source], -(-(row + 1) * total // weights[source])
    order = np.argsort(begins, kind="stable")
    available = np.searchsorted(begins[order], np.arange(total + 1), side="right").tolist()
    keys = (ends * count + source)[order].tolist()
    due: list[int] = []
    turns, pushed = [], 0
    for turn in range(total):
        for key in keys[pushed : available[turn]]:
            heapq.heappush(due, key)
        pushed = available[turn]
        turns.append(heapq.heappop(due) % count)
    return np.array(turns, np.uint16)
