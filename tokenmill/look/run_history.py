"""What a run has taken from each source so far, from a position of its checkpoint: `tokenmill mix --checkpoint`.

    history(position).parts        Part(0, 4000, "web", 12, 0.6, 2400), Part(0, 4000, "code", 5, 0.25, 1008), ...
    history(position).calls        Calls(0, 5760, 4, 1, 16), Calls(5760, 8960, 2, 1, 32)

A position has the weights of every segment since training began, and a log of batch sizes and ranks (rows/run_log.py).
The rows of each source in a segment follow from the weights (rows/interleave.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tokenmill.feed.mixture_state import SEGMENT, lines_of
from tokenmill.rows.interleave import pattern_of
from tokenmill.rows.run_log import log_of, split_seq_len

NAMELESS = "the set"  # what the source of a run without a mixture is called


class Part(NamedTuple):
    """What one source gave in one segment, tokens `begin` to `end` of the run, in which the weights did not change."""

    begin: int
    end: int
    source: str
    weight: int
    share: float
    tokens: int


class Calls(NamedTuple):
    """Tokens `begin` to `end` of the run came in calls of `batch_size` rows on each of `world_size` ranks.

    `batch_size` is 0 if the loader gave single rows, which a DataLoader makes batches of.
    """

    begin: int
    end: int
    batch_size: int
    world_size: int
    seq_len: int


@dataclass(frozen=True)
class History:
    """A run up to a checkpoint."""

    tokens: int
    parts: list[Part]
    calls: list[Calls]  # none if the position is of an older version, which had no log
    notes: list[str]

    @property
    def totals(self) -> dict[str, int]:
        """The tokens of each source, in the order in which they came into the run."""
        totals: dict[str, int] = {}
        for part in self.parts:
            totals[part.source] = totals.get(part.source, 0) + part.tokens
        return totals


def history(position: Mapping[str, Any]) -> History:
    """The run of a position. ValueError if it has no segments, as before its first row."""
    segments = position.get("segments", {})
    lines = list(lines_of(segments)) if all(segments.get(column) for column in SEGMENT) else []
    if not lines:
        raise ValueError(
            "this position has no segments: it is from before the first row, of packing nanochat, or of tokenmill 0.3.0"
        )
    total = int(position["tokens_seen"])
    ends = [*(line["tokens"] for line in lines[1:]), total]
    parts = [part for line, end in zip(lines, ends, strict=True) for part in _parts(line, end)]
    found = History(total, parts, _calls(position, lines, total), [])
    for name, tokens in _counted(position).items():
        if (drawn := found.totals.get(name, 0)) != tokens:
            found.notes.append(f"{name}: {tokens:,} tokens by the position's own count, {drawn:,} by the weights")
    return found


def _parts(line: Mapping[str, Any], end: int) -> list[Part]:
    weights, (seq_len, _) = dict(line["weights"]), split_seq_len(line["seq_len"])
    rows = pattern_of(weights).counts((end - line["tokens"]) // seq_len)
    total = sum(weights.values())
    return [
        Part(line["tokens"], end, name or NAMELESS, weight, weight / total, count * seq_len)
        for (name, weight), count in zip(sorted(weights.items()), rows, strict=True)
    ]


def _calls(position: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], total: int) -> list[Calls]:
    """Stretches of equal calls: they end where the log has an entry, or the length of rows changes."""
    log = log_of(position)
    if not log:
        return []
    begins = sorted(
        {entry.tokens for entry in log} | {line["tokens"] for line in lines if line["tokens"] >= log[0].tokens}
    )
    found: list[Calls] = []
    for begin, end in zip(begins, [*begins[1:], total], strict=True):
        entry = [entry for entry in log if entry.tokens <= begin][-1]
        line = [line for line in lines if line["tokens"] <= begin][-1]
        same = (entry.batch_size, entry.world_size, split_seq_len(line["seq_len"])[0])
        if found and found[-1][2:] == same:
            found[-1] = found[-1]._replace(end=end)
        elif begin < end:
            found.append(Calls(begin, end, *same))
    return found


def _counted(position: Mapping[str, Any]) -> dict[str, int]:
    """The tokens of each source as the position counts them."""
    sources = position["sources"]
    return {name or NAMELESS: tokens for name, tokens in zip(sources["name"], sources["tokens_seen"], strict=True)}
