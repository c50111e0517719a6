"""A mixture's standing as a position has it: plain numbers and texts, written and read, and whether they add up.

turns 12288, asked 83ab...                      of the segment at hand
segments [{tokens, seq_len, weights, places}]   one a segment since training began, the last at hand
"""

from collections.abc import Mapping
from typing import Any

from tokenmill.checks import whole_number
from tokenmill.rows.segments import Line, Served, Standing
from tokenmill.rows.stream import Place
from tokenmill.rows.turns import pattern_of


def told_standing(standing: Standing) -> dict[str, Any]:
    """A standing without its sources' places."""
    return {
        "tokens_seen": standing.tokens_seen,
        "turns": standing.turns,
        "asked": standing.asked,
        "segments": [_told(line) for line in standing.lines],
    }


def segment_tokens(standing: Standing) -> dict[str, int]:
    """What each source was dealt in the segment at hand."""
    if not standing.lines:
        return {}
    line = standing.lines[-1]
    pattern = pattern_of(line.weights)
    counts = zip(pattern.names, pattern.counts(standing.turns), strict=True)
    return {name: count * line.seq_len for name, count in counts}


def read_standing(state: dict[str, Any], served: Mapping[str, Served]) -> Standing:
    """Where a position's mixture stood. ValueError where what it says of its segment does not add up."""
    try:
        lines = tuple(_line(told) for told in state["segments"])
        seen = whole_number("tokens_seen of the position", state["tokens_seen"], 0)
        turns = whole_number("turns of the position", state["turns"], 0)
        asked = str(state.get("asked", ""))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"expected a mixture's position, as state_dict made it, found {error!r}") from error
    if seen != sum(part.get("tokens_seen", 0) for part in state["sources"].values()):
        raise ValueError(
            f"this position does not add up: {seen:,} tokens, and not as many of its sources; load it as state_dict "
            "made it"
        )
    standing = Standing(served, seen, asked, turns, lines)
    dealt = segment_tokens(standing)
    told = {name: state["sources"].get(name, {}).get("segment_tokens") for name in dealt}
    if told != dealt or (lines and seen != lines[-1].tokens + turns * lines[-1].seq_len):
        raise ValueError(
            f"this position does not add up: after {turns:,} turns of weights {dict(lines[-1].weights)} its sources "
            f"were dealt {told} tokens; load it as state_dict made it"
        )
    return standing


def _told(line: Line) -> dict[str, Any]:
    places = {name: ":".join(map(str, place)) for name, place in line.places.items()}
    return {"tokens": line.tokens, "seq_len": line.seq_len, "weights": dict(line.weights), "places": places}


def _line(told: dict[str, Any]) -> Line:
    places = {name: Place(*map(int, place.split(":"))) for name, place in told["places"].items()}
    weights = {name: whole_number(f"the weight of {name!r}", weight, 1) for name, weight in told["weights"].items()}
    return Line(int(told["tokens"]), int(told["seq_len"]), weights, places)
