"""A run is a list of legs, and a point. Everything that a run remembers of its past follows from its legs.

A leg begins when a loader is made, and when one is resumed with something changed: ranks, batch size, row length,
weights, sources, a set that has grown, skipped batches. For example, a run on 2, then on 4 ranks:

    leg 0    step 0       8 x 2 rows of 2,048    web 3, code 1    web at 0:0:0      code at 0:0:0
    leg 1    step 1,000   8 x 4 rows of 4,096    web 3, code 1    web at 0:2:812    code at 0:0:4000
    now      step 1,400                                           web at 0:3:90     code at 0:1:150

Three questions that the legs answer, and nothing else does:

    which rows of web's window 2 were used at another length?    812, of 2,048: where leg 1 found web (`past_of`)
    which manifest does web's epoch 0 go over?                   that of leg 0, in which the epoch began (`set_of`)
    what did step 1,100 train on?                                go to where leg 1 began, and 100 steps on (`back_to`)

A source's `row` counts the rows dealt of its window whatever their length, so cursors only ever grow, and the row at
which a leg began says how much the legs before it used. This module is pure: numbers and names.
"""

import json
import zlib
from base64 import b85decode, b85encode
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

VERSION = 1
MOST, MOST_TOKENS, MOST_BYTES = (
    1 << 62,
    1 << 26,
    1 << 26,
)  # a count, a row length, and a list of legs, in a position


class Cursor(NamedTuple):
    """Where a source stands: `row` rows of this window, and all windows of this epoch before it, were dealt."""

    epoch: int = 0
    window: int = 0
    row: int = 0


class Point(NamedTuple):
    """A place in a run: after `step` global batches, of `tokens` tokens together. The next turn is number `turn` of the
    pattern of `weights` (interleave.py), which starts over when they change.
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


class Documents(NamedTuple):
    """A source's set: the digests of its manifest and view ("": none); and the name that its order depends on."""

    manifest: str
    view: str
    order: str


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
    """A part of a run with one setting, from a point on. With `restarts`, it begins an epoch again."""

    begin: Point
    setting: Setting
    restarts: bool = False


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
        cursors, rows = dict.fromkeys(setting.sets, Cursor()), dict.fromkeys(setting.sets, 0)
        begin = Point(0, 0, 0, {}, cursors, rows, setting.epochs)
        return cls((Leg(begin, setting),), begin)

    def go_on(self, setting: Setting, now: Point | None = None, restarts: bool = False) -> "Run":
        """The run from here, or another point, on. A change begins a leg, in which new sources start at 0:0:0."""
        here = now or self.now
        if setting == self.setting and here == self.now:
            return self
        begin = here._replace(
            weights=here.weights if setting.seq_len == self.setting.seq_len else {},
            cursors={
                **here.cursors,
                **{name: Cursor() for name in setting.sets if name not in here.cursors},
            },
            rows={**here.rows, **{name: 0 for name in setting.sets if name not in here.rows}},
        )
        last = self.legs[-1]  # if it has made no batch, the new leg takes its place
        legs = (
            self.legs[:-1]
            if begin == last.begin and not restarts and not last.restarts
            else self.legs
        )
        return Run((*legs, Leg(begin, setting, restarts)), begin)

    def begin_epoch(self, epoch: int) -> "Run":
        """The run of one source from the first row of an epoch on, as a new iteration."""
        until = None if self.setting.epochs is None else epoch + self.setting.epochs
        cursors = {**self.now.cursors, **dict.fromkeys(self.setting.sets, Cursor(epoch))}
        return self.go_on(
            self.setting, self.now._replace(cursors=cursors, until=until), restarts=True
        )

    @property
    def has_ended(self) -> bool:
        """Whether the run is at the end of an iteration."""
        until = self.now.until
        return until is not None and all(
            self.now.cursors[name].epoch >= until for name in self.setting.sets
        )

    def at_end(self) -> "Run":
        """The run at the end of this iteration, past its last rows if they were dropped. That begins no leg."""
        cursors = dict.fromkeys(self.setting.sets, Cursor(self.now.until or 0))
        return self._replace(now=self.now._replace(cursors={**self.now.cursors, **cursors}))

    def next_iteration(self) -> "Run":
        """The run in the iteration after this one: a new leg, unless this one is at its end."""
        after = self.at_end().now._replace(until=(self.now.until or 0) + (self.setting.epochs or 0))
        return self._replace(now=after) if self.has_ended else self.go_on(self.setting, after)

    def back_to(self, step: int) -> "Run":
        """The run at the beginning of the leg that made a step's batch. ValueError if the run has not made it."""
        if not 0 <= step < self.now.step:
            raise ValueError(
                f"step {step:,} is not in this run, which has made {self.now.step:,} steps, from 0 on"
            )
        last = max(number for number, leg in enumerate(self.legs) if leg.begin.step <= step)
        return Run(self.legs[: last + 1], self.legs[last].begin)


def past_of(
    legs: Sequence[Leg], name: str, epoch: int, window: int
) -> tuple[list[tuple[int, int]], int]:
    """What was used of a source's window at other row lengths: [(seq_len, rows), ...], and these rows together."""
    # each row length, and the row of this window at which it began
    changes: list[tuple[int, int]] = []
    for begin, setting, restarts in legs:
        cursor = begin.cursors.get(name, Cursor())
        changes = [] if restarts else changes
        if name in setting.sets and (not changes or changes[-1][0] != setting.seq_len):
            changes.append((setting.seq_len, cursor.row if cursor[:2] == (epoch, window) else 0))
    used = [
        (seq_len, after - before)
        for (seq_len, before), (_, after) in pairwise(changes)
        if after > before
    ]
    return used, changes[-1][1]


def set_of(legs: Sequence[Leg], name: str, epoch: int) -> Documents:
    """What an epoch goes over: the documents of the last leg that began before the epoch's second row."""
    found = None
    for begin, setting, restarts in legs:
        if found is None or restarts or begin.cursors.get(name, Cursor()) <= (epoch, 0, 0):
            found = setting.sets.get(name, found)
    assert found is not None, "a source is in the sets of the leg in which it joined"
    return found


# ------------------------------------------------------------------------ the position


def write_position(run: Run, must_match: Mapping[str, Any]) -> dict[str, str]:
    """A run as {"tokenmill": JSON}. One key, so that torch.distributed.checkpoint takes it whatever it holds.

    A leg is written as what changed since the one before: how many rows each source has given, which only a cursor that
    has not moved on by that many in its window follows, and what is new in the setting.
    """
    legs, before, said = [], Point(0, 0, 0, {}, {}, {}, None), dict[str, Any]()
    for begin, setting, restarts in run.legs:
        sources: list[Any] = []
        for name, cursor in begin.cursors.items():
            given = begin.rows[name] - before.rows.get(name, 0)
            epoch, window, row = before.cursors.get(name, Cursor())
            sources.append(given if cursor == (epoch, window, row + given) else [given, *cursor])
        facts, point = (
            setting._asdict(),
            [begin.step, begin.tokens, begin.turn, begin.weights, sources, begin.until],
        )
        legs.append(
            [
                point,
                {key: facts[key] for key in facts if not said or facts[key] != said[key]},
                restarts,
            ]
        )
        before, said = begin, facts
    packed = zlib.compress(
        json.dumps([list(run.now.cursors), legs], separators=(",", ":")).encode(), 9
    )
    position = {"version": VERSION, "must_match": must_match, "now": run.now._asdict()}
    return {"tokenmill": json.dumps(position | {"legs": b85encode(packed).decode()})}


def read_position(state: Any) -> tuple[Run, dict[str, Any]]:
    """The run of a position, and what must match. ValueError if it is no position."""
    try:
        found = json.loads(state["tokenmill"])
        if (version := found["version"]) == VERSION:
            listed = zlib.decompressobj().decompress(b85decode(found["legs"]), MOST_BYTES)
            now = Point(**found["now"])
            now = now._replace(
                cursors={name: Cursor._make(cursor) for name, cursor in now.cursors.items()}
            )
            run = Run(_read_legs(*json.loads(listed)), now)
            _require_counts(run.now, run.setting)
            return run, dict(found["must_match"])
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
        zlib.error,
    ) as error:
        raise ValueError(
            f"expected a position, the dict that state_dict made, found {str(state)[:80]!r} "
            f"({type(error).__name__}: {error})"
        ) from error
    raise ValueError(
        f"expected a position of version {VERSION}, found {version!r}: start again from its first row"
    )


def _read_legs(names: list[str], listed: list[Any]) -> tuple[Leg, ...]:
    legs, before, facts = list[Leg](), Point(0, 0, 0, {}, {}, {}, None), dict[str, Any]()
    for (step, tokens, turn, weights, sources, until), changed, restarts in listed:
        cursors, rows = dict[str, Cursor](), dict[str, int]()
        for name, item in zip(names, sources, strict=False):
            given, *cursor = [item] if isinstance(item, int) else item
            epoch, window, row = before.cursors.get(name, Cursor())
            cursors[name] = Cursor._make(cursor) if cursor else Cursor(epoch, window, row + given)
            rows[name] = before.rows.get(name, 0) + given
        before = Point(step, tokens, turn, weights, cursors, rows, until)
        facts = facts | changed
        setting = Setting(**facts)
        sets = {name: Documents(*documents) for name, documents in setting.sets.items()}
        setting = setting._replace(stages=[Stage(*stage) for stage in setting.stages], sets=sets)
        legs.append(Leg(before, setting, bool(restarts)))
        _require_counts(before, setting)
    return tuple(legs)


def _require_counts(point: Point, setting: Setting) -> None:
    """ValueError for what are no counts, or lack a source of the setting."""
    cursors, stages = (
        [point.cursors[name] for name in setting.sets],
        [stage.weights for stage in setting.stages],
    )
    counts = [point.step, point.tokens, point.turn, *(point.rows[name] for name in setting.sets)]
    counts += [n for cursor in cursors for n in cursor] + [stage.begin for stage in setting.stages]
    counts += [weight - 1 for weights in (point.weights, *stages) for weight in weights.values()]
    counts += [
        size - 1
        for size in (
            setting.batch_size,
            setting.world_size,
            setting.seq_len,
            *setting.caps.values(),
        )
    ]
    counts += [
        0 if setting.epochs is None else setting.epochs - 1,
        0 if point.until is None else point.until,
    ]
    texts = [text for documents in setting.sets.values() for text in documents]
    if (
        not all(type(number) is int and 0 <= number < MOST for number in counts)
        or setting.seq_len > MOST_TOKENS
    ):
        raise ValueError("expected whole numbers of a run")
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("expected digests of sets")
    if setting.stages[0].begin != 0:
        raise ValueError("expected a stage that begins at 0 tokens")
