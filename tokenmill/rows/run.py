"""A run is a list of legs, and a point. What a run remembers of its past follows from its legs.

A leg begins when a loader is made, and when one is resumed with something changed: ranks, batch
size, row length, weights, sources, a set that has grown, skipped batches. For example, a run on 2,
then on 4 ranks:

    leg 0   step 0      8 x 2 rows of 2,048   web 3, code 1   web at 0:0:0     code at 0:0:0
    leg 1   step 1,000  8 x 4 rows of 4,096   web 3, code 1   web at 0:2:812   code at 0:0:4000
    now     step 1,400                                        web at 0:3:90    code at 0:1:150

Three questions that the legs answer, and nothing else does:

    which rows of web's window 2 were used at another length?   `past_of`: 812, of 2,048, which is
                                                                where leg 1 found web
    which manifest does web's epoch 0 go over?                  `set_of`: that of leg 0, in which
                                                                the epoch began
    what did step 1,100 train on?                               `back_to` where leg 1 began, and
                                                                100 steps on

A source's `row` counts the rows dealt of its window whatever their length, so cursors only ever
grow, and the row at which a leg began says how much the legs before it used. This module is pure:
numbers and names.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple


class Cursor(NamedTuple):
    """Where a source stands: `row` rows of this window, and all windows before it, were dealt."""

    epoch: int = 0
    window: int = 0
    row: int = 0


class Point(NamedTuple):
    """A place in a run: after `step` global batches, of `tokens` tokens together.

    The next turn is number `turn` of the pattern of `weights` (interleave.py), which starts over
    when they change.
    """

    step: int
    tokens: int
    turn: int
    weights: Mapping[str, int]
    cursors: Mapping[str, Cursor]  # of every source that the run ever had
    rows: Mapping[str, int]  # how many each of them has given
    until: int | None  # the epoch before which this iteration ends; None: endless


class Stage(NamedTuple):
    """Whole-number weights from a number of tokens on."""

    begin: int
    weights: Mapping[str, int]


def stage_at(stages: Sequence[Stage], tokens: int) -> Stage:
    """The stage of a run after some tokens."""
    begun = [stage for stage in stages if stage.begin <= tokens]
    return begun[-1]


class Documents(NamedTuple):
    """A source's set: the digests of its manifest and view ("": none), and its name in an order."""

    manifest: str
    view: str
    order: str  # the name that the order of rows depends on


class Setting(NamedTuple):
    """What stays the same within a leg."""

    batch_size: int
    world_size: int
    seq_len: int
    stages: Sequence[Stage]
    caps: Mapping[str, int]  # the epoch before which a source retires
    sets: Mapping[str, Documents]
    epochs: int | None = None  # of one iteration
    drop_last: bool = True

    @property
    def global_batch(self) -> int:
        """The rows of all ranks in one step."""
        return self.batch_size * self.world_size


class Leg(NamedTuple):
    """A part of a run with one setting, from a point on. With `restarts`, it repeats an epoch."""

    begin: Point
    setting: Setting
    restarts: bool = False

    def cursor_of(self, name: str) -> Cursor:
        """Where a source stood when the leg began."""
        return self.begin.cursors.get(name, Cursor())


class Run(NamedTuple):
    """The legs so far, and where the run is now, which is in the last of them."""

    legs: tuple[Leg, ...]
    now: Point

    @property
    def setting(self) -> Setting:
        return self.legs[-1].setting

    @classmethod
    def start(cls, setting: Setting) -> "Run":
        """The run before its first batch."""
        cursors = dict.fromkeys(setting.sets, Cursor())
        rows = dict.fromkeys(setting.sets, 0)
        begin = Point(0, 0, 0, {}, cursors, rows, setting.epochs)
        return cls((Leg(begin, setting),), begin)

    def go_on(self, setting: Setting, now: Point | None = None, restarts: bool = False) -> "Run":
        """The run from here, or another point, on. A change begins a leg.

        New sources start at 0:0:0 in it.
        """
        here = now or self.now
        if setting == self.setting and here == self.now:
            return self
        weights = here.weights if setting.seq_len == self.setting.seq_len else {}
        new = [name for name in setting.sets if name not in here.cursors]
        cursors = {**here.cursors, **dict.fromkeys(new, Cursor())}
        rows = {**here.rows, **dict.fromkeys(new, 0)}
        begin = here._replace(weights=weights, cursors=cursors, rows=rows)
        legs = self.legs
        last = legs[-1]
        made_no_batch = begin == last.begin
        if made_no_batch and not restarts and not last.restarts:
            legs = legs[:-1]  # the new leg takes its place
        return Run((*legs, Leg(begin, setting, restarts)), begin)

    def begin_epoch(self, epoch: int) -> "Run":
        """The run of one source from the first row of an epoch on, as a new iteration."""
        epochs = self.setting.epochs
        until = None if epochs is None else epoch + epochs
        begin = self._with_all_at(Cursor(epoch))._replace(until=until)
        return self.go_on(self.setting, begin, restarts=True)

    def _with_all_at(self, cursor: Cursor) -> Point:
        """The point now, but with every source of the setting at this cursor."""
        cursors = {**self.now.cursors, **dict.fromkeys(self.setting.sets, cursor)}
        return self.now._replace(cursors=cursors)

    @property
    def has_ended(self) -> bool:
        """Whether the run is at the end of an iteration."""
        until = self.now.until
        if until is None:
            return False
        return all(self.now.cursors[name].epoch >= until for name in self.setting.sets)

    def at_end(self) -> "Run":
        """The run at the end of this iteration, past its last rows if they were dropped.

        That begins no leg.
        """
        return self._replace(now=self._with_all_at(Cursor(self.now.until or 0)))

    def next_iteration(self) -> "Run":
        """The run in the iteration after this one: a new leg, unless this one is at its end."""
        after = self.at_end().now
        after = after._replace(until=(after.until or 0) + (self.setting.epochs or 0))
        if self.has_ended:
            return self._replace(now=after)
        return self.go_on(self.setting, after)

    def back_to(self, step: int) -> "Run":
        """The run at the beginning of the leg that made a step's batch.

        ValueError if the run has not made it.
        """
        if not 0 <= step < self.now.step:
            raise ValueError(
                f"step {step:,} is not in this run, which has made {self.now.step:,} steps, "
                "from 0 on"
            )
        last = max(number for number, leg in enumerate(self.legs) if leg.begin.step <= step)
        return Run(self.legs[: last + 1], self.legs[last].begin)


def past_of(
    legs: Sequence[Leg], name: str, epoch: int, window: int
) -> tuple[list[tuple[int, int]], int]:
    """What was used of a source's window at other row lengths, and these rows together.

    [(seq_len, rows), ...], the number of rows.
    """
    changes: list[tuple[int, int]] = []  # each row length, and the row at which it began
    for leg in legs:
        seq_len = leg.setting.seq_len
        if leg.restarts:
            changes = []
        if name not in leg.setting.sets or (changes and changes[-1][0] == seq_len):
            continue
        cursor = leg.cursor_of(name)
        in_window = (cursor.epoch, cursor.window) == (epoch, window)
        changes.append((seq_len, cursor.row if in_window else 0))
    used = []
    for (seq_len, begin), (_, end) in pairwise(changes):
        if end > begin:
            used.append((seq_len, end - begin))
    return used, changes[-1][1]


def set_of(legs: Sequence[Leg], name: str, epoch: int) -> Documents:
    """What an epoch goes over: the documents of the last leg that began before its second row."""
    documents = None
    for leg in legs:
        if documents is None or leg.restarts or leg.cursor_of(name) <= (epoch, 0, 0):
            documents = leg.setting.sets.get(name, documents)
    assert documents is not None, "a source is in the sets of the leg in which it joined"
    return documents
