"""Decides whose turn it is: a repeating pattern of D turns for whole-number weights with sum D.

Row j of a source with weight p is due between turns floor(j D / p) and ceil((j + 1) D / p). Each
turn goes to the row whose time ends first, ties by name. This is earliest deadline first, which
meets all these deadlines (Liu and Layland, 1973; Baruah et al., 1996). With web, code and math at
12, 5 and 3 of 20:

    W C W W M W C W W C W M W W C W W C M W

At every turn each source is within one row of its share. How many rows come before a turn is looked
up, not replayed.
"""

import heapq
from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from tokenmill.rows.groups import within_groups


class Pattern:
    """The turns of the sources `names`, in the order of their names, with these weights."""

    def __init__(self, names: tuple[str, ...], weights: tuple[int, ...]):
        self.names = names
        self.weights = np.array(weights)
        self.period = sum(weights)
        self._source = _earliest_deadline_first(self.weights)  # of each turn: (period,) uint16
        # the turns of the first source, ascending, then those of the second ...
        by_source = np.argsort(self._source, kind="stable")
        self._row = np.empty(self.period, np.int32)  # of each turn, among those of its source
        self._row[by_source] = within_groups(self.weights)
        ends = np.cumsum(self.weights)[:-1]
        self._turns: list[list[int]] = [turns.tolist() for turns in np.split(by_source, ends)]
        self._last_counts: tuple[int, list[int]] = (-1, [])  # a turn, and its counts

    def at(self, turns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The number of the source, and of its row, of each of `turns`: each (count,) int64."""
        rounds, place = np.divmod(turns, self.period)
        source = self._source[place].astype(np.int64)
        return source, self._row[place] + rounds * self.weights[source]

    def counts(self, turn: int) -> list[int]:
        """How many rows each source gives before a turn."""
        last_turn, counts = self._last_counts
        if last_turn != turn:
            rounds, place = divmod(turn, self.period)
            counts = []
            for turns in self._turns:
                num_in_round = bisect_left(turns, place)
                counts.append(rounds * len(turns) + num_in_round)
            self._last_counts = turn, counts
        return counts

    def turn_of(self, source: int, row: int) -> int:
        """The turn in which a source gives this row."""
        turns = self._turns[source]
        rounds, place = divmod(row, len(turns))
        return rounds * self.period + turns[place]


@lru_cache(maxsize=16)
def _pattern(weights: tuple[tuple[str, int], ...]) -> Pattern:
    return Pattern(*zip(*weights, strict=True))


def pattern_of(weights: Mapping[str, int]) -> Pattern:
    """The pattern for whole-number weights by name. Patterns are cached."""
    return _pattern(tuple(sorted(weights.items())))


def _earliest_deadline_first(weights: np.ndarray) -> np.ndarray:
    """The source of each turn of a pattern: (sum of the weights,) uint16."""
    period = int(weights.sum())
    num_sources = len(weights)
    source = np.repeat(np.arange(num_sources), weights)
    row = within_groups(weights)
    begins = row * period // weights[source]
    ends = -(-(row + 1) * period // weights[source])
    order = np.argsort(begins, kind="stable")
    num_available = np.searchsorted(begins[order], np.arange(period), side="right").tolist()
    keys = (ends * num_sources + source)[order].tolist()
    due: list[int] = []
    turns = []
    num_pushed = 0
    for num_keys in num_available:
        for key in keys[num_pushed:num_keys]:
            heapq.heappush(due, key)
        num_pushed = num_keys
        turns.append(heapq.heappop(due) % num_sources)
    return np.array(turns, np.uint16)
