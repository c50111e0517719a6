"""Writes and reads the part of a position that describes a mixture, and checks that it is consistent.

    turns 12288, asked 83ab...                      of the current segment
    segments {tokens, seq_len, weights, places}     one list each, an item for every segment since training began
    sources {name, manifest, epoch, window ...}     one list each, an item for every source

Segments and sources are tables stored by column, so a position has the same keys for every mixture (rows/position.py).
"""

import reprlib
from collections.abc import Mapping
from typing import Any

from tokenmill.checks import LONGEST_ROW, whole_number
from tokenmill.rows.interleave import pattern_of
from tokenmill.rows.position import OF_SOURCE, columns
from tokenmill.rows.row_stream import Cursor
from tokenmill.rows.run_log import split_seq_len
from tokenmill.rows.segments import MixtureState, SegmentStart, SourceState

SEGMENT = ("tokens", "seq_len", "weights", "places")  # the columns of `segments`


def lines_of(table: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """The lines of a table that is stored by column. ValueError if it is not such a table."""
    if not isinstance(table, Mapping) or not all(isinstance(column, list) for column in table.values()):
        raise ValueError(
            f"expected a position, as state_dict made it, found {reprlib.repr(table)}, which is not a table"
        )
    return [dict(zip(table, line, strict=True)) for line in zip(*table.values(), strict=True)]


def write_mixture_state(mixture_state: MixtureState) -> dict[str, Any]:
    """A mixture's state as part of a position, without the cursors of its sources."""
    return {
        "tokens_seen": mixture_state.tokens_seen,
        "turns": mixture_state.turns,
        "asked": mixture_state.weights_key,
        "segments": columns(SEGMENT, map(_line_as_dict, mixture_state.segments)),
    }


def read_sources(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The parts of a position for each source, by name. ValueError if state_dict did not make it."""
    expected = "expected a position, as state_dict made it"
    if not isinstance(state.get("sources"), Mapping) or set(state["sources"]) != set(OF_SOURCE):
        raise ValueError(f"{expected}, found {reprlib.repr(state.get('sources'))} as its sources")
    parts = lines_of(state["sources"])
    names = [str(part["name"]) for part in parts]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{expected}, found sources {names}")
    for part in parts:
        for key in ("tokens_seen", "segment_tokens", "rows"):
            whole_number(f"{key} of source {part['name']!r} of the position", part[key], 0)
    return dict(zip(names, parts, strict=True))


def rename_one_set(state: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The position of one token set, with a name for its source."""
    segments = [
        line | {key: [[name, value] for _, value in line[key]] for key in ("weights", "places")}
        for line in lines_of(state["segments"])
    ]
    return {**state, "sources": {**state["sources"], "name": [name]}, "segments": columns(SEGMENT, segments)}


def segment_tokens(mixture_state: MixtureState) -> dict[str, int]:
    """How many tokens each source gave in the current segment."""
    if not mixture_state.segments:
        return {}
    line = mixture_state.segments[-1]
    pattern = pattern_of(line.weights)
    counts = zip(pattern.names, pattern.counts(mixture_state.turns), strict=True)
    return {name: count * line.seq_len for name, count in counts}


def read_mixture_state(
    state: dict[str, Any], sources: Mapping[str, dict[str, Any]], served: Mapping[str, SourceState]
) -> MixtureState:
    """The state of a position's mixture. Raises ValueError if the position is inconsistent.

    `sources` are the position's parts for each source, and `served` the states of the sources.
    """
    try:
        lines = tuple(_line(line) for line in lines_of(state["segments"]))
        seen = whole_number("tokens_seen of the position", state["tokens_seen"], 0)
        turns = whole_number("turns of the position", state["turns"], 0)
        weights_key = str(state["asked"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"expected a position, as state_dict made it, found {error!r}") from error
    if seen != sum(part["tokens_seen"] for part in sources.values()):
        raise ValueError(
            f"this position does not add up: {seen:,} tokens in all, but another number for its sources together; "
            "load it as state_dict made it"
        )
    mixture_state = MixtureState(served, seen, weights_key, turns, lines)
    used = segment_tokens(mixture_state)
    stated = {name: sources[name]["segment_tokens"] if name in sources else None for name in used}
    if stated != used or (lines and seen != lines[-1].tokens + turns * lines[-1].seq_len):
        raise ValueError(
            f"this position does not add up: after {turns:,} turns of weights {dict(lines[-1].weights)} its sources "
            f"gave {stated} tokens; load it as state_dict made it"
        )
    return mixture_state


def _line_as_dict(line: SegmentStart) -> dict[str, Any]:
    places = [[name, ":".join(map(str, place))] for name, place in line.places.items()]
    weights = [[name, weight] for name, weight in line.weights.items()]
    return {"tokens": line.tokens, "seq_len": line.seq_len, "weights": weights, "places": places}


def _line(line: dict[str, Any]) -> SegmentStart:
    places = {name: Cursor(*map(int, place.split(":"))) for name, place in line["places"]}
    weights = {name: whole_number(f"the weight of {name!r}", weight, 1) for name, weight in line["weights"]}
    if wrong := [name for name in (*places, *weights) if not isinstance(name, str)]:
        raise ValueError(f"a source in segments of the position must be a name, found {wrong[0]!r}")
    tokens = whole_number("tokens of a segment of the position", line["tokens"], 0)
    seq_len, _ = split_seq_len(line["seq_len"])
    seq_len = whole_number("seq_len of a segment of the position", seq_len, 1, LONGEST_ROW)
    return SegmentStart(tokens, seq_len, weights, places)
