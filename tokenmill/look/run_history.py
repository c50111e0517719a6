"""What a run has taken from each source so far, from a position of its checkpoint: `tokenmill mix --checkpoint`.

    history(position).parts        Part(0, 4000, "web", 0.6, 2400), Part(0, 4000, "code", 0.25, 1008), ...
    history(position).calls        Calls(0, 5760, 4, 1, 16), Calls(5760, 8960, 2, 1, 32)

A position has the legs of its run (rows/run.py), and each says how many rows every source had given when it began.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tokenmill.rows.run import read_position

NAMELESS = "the set"  # what the source of a run without a mixture is called


class Part(NamedTuple):
    """What one source gave in one leg, tokens `begin` to `end` of the run."""

    begin: int
    end: int
    source: str
    share: float
    tokens: int


class Calls(NamedTuple):
    """Tokens `begin` to `end` of the run came in calls of `batch_size` rows on each of `world_size` ranks."""

    begin: int
    end: int
    batch_size: int
    world_size: int
    seq_len: int


class History(NamedTuple):
    """A run up to a checkpoint."""

    tokens: int
    parts: list[Part]
    calls: list[Calls]

    @property
    def totals(self) -> dict[str, int]:
        """The tokens of each source, in the order in which they came into the run."""
        totals: dict[str, int] = {}
        for part in self.parts:
            totals[part.source] = totals.get(part.source, 0) + part.tokens
        return totals


def history(position: Mapping[str, Any]) -> History:
    """The run of a position. ValueError if it is none."""
    run, _ = read_position(position)
    found = History(run.now.tokens, [], [])
    points = [*(leg.begin for leg in run.legs[1:]), run.now]
    for (begin, setting, _), after in zip(run.legs, points, strict=True):
        tokens = after.tokens - begin.tokens
        if not tokens:
            continue
        for name in setting.sets:
            own = (after.rows[name] - begin.rows[name]) * setting.seq_len
            found.parts.append(Part(begin.tokens, after.tokens, name or NAMELESS, own / tokens, own))
        calls = Calls(begin.tokens, after.tokens, setting.batch_size, setting.world_size, setting.seq_len)
        if found.calls and found.calls[-1][2:] == calls[2:]:
            calls = calls._replace(begin=found.calls.pop().begin)
        found.calls.append(calls)
    return found
