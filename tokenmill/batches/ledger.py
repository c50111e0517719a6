"""A mixture's standing as a position has it: plain numbers and texts, written and read, and whether they add up.

turns 12288, asked 83ab...                      of the segment at hand
segments {tokens, seq_len, weights, places}     a list each, an item for each segment since training began
sources {name, manifest, epoch, window ...}     a list each, of one item a source

Segments and sources are tables by columns, so that a position has the same keys whatever the mixture (position.py).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tokenmill.checks import LONGEST_ROW, whole_number
from tokenmill.rows.segments import Line, Served, Standing
from tokenmill.rows.stream import Place
from tokenmill.rows.turns import pattern_of

SEGMENT = ("tokens", "seq_len", "weights", "places")


def columns(names: Iterable[str], lines: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A table by columns, of lines that have these names."""
    lines = list(lines)
    return {name: [line[name] for line in lines] for name in names}


def lines_of(table: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """The lines of a table by columns. ValueError where it is none."""
    if not isinstance(table, Mapping) or not all(isinstance(column, list) for column in table.values()):
        raise ValueError(f"expected a mixture's position, as state_dict made it, found {table!r}, no table")
    return [dict(zip(table, line, strict=True)) for line in zip(*table.values(), strict=True)]


def told_standing(standing: Standing) -> dict[str, Any]:
    """A standing without its sources' places."""
    return {
        "tokens_seen": standing.tokens_seen,
        "turns": standing.turns,
        "asked": standing.asked,
        "segments": columns(SEGMENT, map(_told, standing.lines)),
    }


def segment_tokens(standing: Standing) -> dict[str, int]:
    """What each source was dealt in the segment at hand."""
    if not standing.lines:
        return {}
    line = standing.lines[-1]
    pattern = pattern_of(line.weights)
    counts = zip(pattern.names, pattern.counts(standing.turns), strict=True)
    return {name: count * line.seq_len for name, count in counts}


def read_standing(
    state: dict[str, Any], sources: Mapping[str, dict[str, Any]], served: Mapping[str, Served]
) -> Standing:
    """Where a position's mixture stood, of its `sources`. ValueError where what it says does not add up."""
    try:
        lines = tuple(_line(told) for told in lines_of(state["segments"]))
        seen = whole_number("tokens_seen of the position", state["tokens_seen"], 0)
        turns = whole_number("turns of the position", state["turns"], 0)
        asked = str(state["asked"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"expected a mixture's position, as state_dict made it, found {error!r}") from error
    if seen != sum(part["tokens_seen"] for part in sources.values()):
        raise ValueError(
            f"this position does not add up: {seen:,} tokens, and not as many of its sources; load it as state_dict "
            "made it"
        )
    standing = Standing(served, seen, asked, turns, lines)
    dealt = segment_tokens(standing)
    told = {name: sources[name]["segment_tokens"] if name in sources else None for name in dealt}
    if told != dealt or (lines and seen != lines[-1].tokens + turns * lines[-1].seq_len):
        raise ValueError(
            f"this position does not add up: after {turns:,} turns of weights {dict(lines[-1].weights)} its sources "
            f"were dealt {told} tokens; load it as state_dict made it"
        )
    return standing


def _told(line: Line) -> dict[str, Any]:
    places = [[name, ":".join(map(str, place))] for name, place in line.places.items()]
    weights = [[name, weight] for name, weight in line.weights.items()]
    return {"tokens": line.tokens, "seq_len": line.seq_len, "weights": weights, "places": places}


def _line(told: dict[str, Any]) -> Line:
    places = {name: Place(*map(int, place.split(":"))) for name, place in told["places"]}
    weights = {name: whole_number(f"the weight of {name!r}", weight, 1) for name, weight in told["weights"]}
    tokens = whole_number("tokens of a segment of the position", told["tokens"], 0)
    return Line(
        tokens, whole_number("seq_len of a segment of the position", told["seq_len"], 1, LONGEST_ROW), weights, places
    )
