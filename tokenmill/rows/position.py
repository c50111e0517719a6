"""A position: a run as one JSON text, which a checkpoint keeps.

    {"tokenmill": '{"version": 1, "must_match": {"seed": 1337, ...}, "now": {...}, "legs": "..."}'}

It has one key, so torch.distributed.checkpoint takes it whatever it holds. Its legs are compressed.
A leg is written as what changed since the one before: how many rows each source has given, which
only a cursor that has not moved on by as many in its window follows; and what is new in the
setting.
"""

import json
import zlib
from base64 import b85decode, b85encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tokenmill.rows.run import Cursor, Documents, Leg, Point, Run, Setting, Stage

VERSION = 1
MOST = 1 << 62  # of a count
MOST_TOKENS = 1 << 26  # of a row
MOST_TURNS = 1 << 16  # of a pattern: the sum of weights
MOST_BYTES = 1 << 26  # of a list of legs
BEFORE_ALL = Point(0, 0, 0, {}, {}, {}, None)
NOT_A_POSITION = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    zlib.error,
)


class WrittenPoint(NamedTuple):
    """A point as it is written in a leg: see `_written_cursor` for its sources."""

    step: int
    tokens: int
    turn: int
    weights: Mapping[str, int]
    sources: Sequence[int | list[int]]
    until: int | None


def write_position(run: Run, must_match: Mapping[str, Any]) -> dict[str, str]:
    """The position of a run, and what must match to go on from it."""
    content = [list(run.now.cursors), list(_written_legs(run))]
    text = json.dumps(content, separators=(",", ":"))
    legs = b85encode(zlib.compress(text.encode(), 9)).decode()
    position = {
        "version": VERSION,
        "must_match": must_match,
        "now": run.now._asdict(),
        "legs": legs,
    }
    return {"tokenmill": json.dumps(position)}


def _written_legs(run: Run) -> Iterator[list[Any]]:
    before = BEFORE_ALL
    known: dict[str, Any] = {}
    for begin, setting, restarts in run.legs:
        facts = setting._asdict()
        changed = {
            key: fact for key, fact in facts.items() if key not in known or fact != known[key]
        }
        sources = [_written_cursor(name, before, begin) for name in begin.cursors]
        point = WrittenPoint(
            step=begin.step,
            tokens=begin.tokens,
            turn=begin.turn,
            weights=begin.weights,
            sources=sources,
            until=begin.until,
        )
        yield [point, changed, restarts]
        before = begin
        known = facts


def _written_cursor(name: str, before: Point, begin: Point) -> int | list[int]:
    """How many rows a source gave between two points, and its cursor unless that follows."""
    num_rows = begin.rows[name] - before.rows.get(name, 0)
    cursor = begin.cursors[name]
    if cursor == _moved(name, before, num_rows):
        return num_rows
    return [num_rows, *cursor]


def _moved(name: str, before: Point, num_rows: int) -> Cursor:
    """A source's cursor after as many rows of the same window."""
    epoch, window, row = before.cursors.get(name, Cursor())
    return Cursor(epoch, window, row + num_rows)


def read_position(state: Any) -> tuple[Run, dict[str, Any]]:
    """The run of a position, and what must match. ValueError if it is no position."""
    if isinstance(state, Mapping) and "tokenmill" not in state:
        keys = ", ".join(map(repr, state))[:80]
        raise ValueError(
            "expected a position, the dict that state_dict made, found one with the keys "
            f"{keys or 'none'}; of a checkpoint, pass what you saved it under, as "
            'checkpoint["data"]'
        )
    try:
        position = json.loads(state["tokenmill"])
        version = position["version"]
        if version == VERSION:
            return _read_run(position), dict(position["must_match"])
    except NOT_A_POSITION as error:
        raise ValueError(
            "expected a position, the dict that state_dict made, found "
            f"{str(state)[:80]!r} ({type(error).__name__}: {error})"
        ) from error
    raise ValueError(
        f"expected a position of version {VERSION}, found {version!r}: "
        "start again from its first row"
    )


def _read_run(position: Mapping[str, Any]) -> Run:
    content = zlib.decompressobj().decompress(b85decode(position["legs"]), MOST_BYTES)
    point = Point(**position["now"])
    cursors = {name: Cursor._make(cursor) for name, cursor in point.cursors.items()}
    run = Run(tuple(_read_legs(*json.loads(content))), point._replace(cursors=cursors))
    _require_counts(run.now, run.setting)
    return run


def _read_legs(names: list[str], legs: list[Any]) -> Iterator[Leg]:
    before = BEFORE_ALL
    facts: dict[str, Any] = {}
    for point, changed, restarts in legs:
        begin = _read_point(WrittenPoint._make(point), names, before)
        facts = facts | changed
        setting = Setting(**facts)
        sets = {name: Documents(*documents) for name, documents in setting.sets.items()}
        setting = setting._replace(stages=[Stage(*stage) for stage in setting.stages], sets=sets)
        _require_counts(begin, setting)
        yield Leg(begin, setting, bool(restarts))
        before = begin


def _read_point(written: WrittenPoint, names: list[str], before: Point) -> Point:
    cursors = {}
    rows = {}
    for name, source in zip(names, written.sources, strict=False):
        num_rows, *cursor = [source] if isinstance(source, int) else source
        cursors[name] = Cursor._make(cursor) if cursor else _moved(name, before, num_rows)
        rows[name] = before.rows.get(name, 0) + num_rows
    return Point(
        step=written.step,
        tokens=written.tokens,
        turn=written.turn,
        weights=written.weights,
        cursors=cursors,
        rows=rows,
        until=written.until,
    )


def _require_counts(point: Point, setting: Setting) -> None:
    """ValueError for what are no counts, or lack a source of the setting."""
    counts = [point.step, point.tokens, point.turn]
    positive = [setting.batch_size, setting.world_size, setting.seq_len]
    positive += [*setting.caps.values(), *point.weights.values()]
    texts: list[str] = []
    for name, documents in setting.sets.items():
        counts += [*point.cursors[name], point.rows[name]]
        texts += documents
    patterns = [point.weights]
    for stage in setting.stages:
        counts.append(stage.begin)
        positive += stage.weights.values()
        patterns.append(stage.weights)
    if setting.epochs is not None:
        positive.append(setting.epochs)
    if point.until is not None:
        counts.append(point.until)
    counts += [number - 1 for number in positive]
    are_counts = all(type(number) is int and 0 <= number <= MOST for number in counts)
    if not are_counts or setting.seq_len > MOST_TOKENS:
        raise ValueError("expected whole numbers of a run")
    if any(sum(weights.values()) > MOST_TURNS for weights in patterns):
        raise ValueError(f"expected weights whose sum is at most {MOST_TURNS:,}")
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("expected digests of sets")
    if setting.stages[0].begin != 0:
        raise ValueError("expected a stage that begins at 0 tokens")
