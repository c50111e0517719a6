"""The order of rows: one generator, for one token set as for a mixture of many.

    for batch, targets, run in mixed_rows(sources, run, rank=0):
        read_batch(batch, ...)            this rank's rows of the next global batch, source by source, (B, T + 1)
        batch.places                      the place of each of them in the batch
        run                               the run after it, the same on every rank

Each call takes the next B x W turns. The pattern of the weights (interleave.py) says whose turns they are, so counts
alone move every source's cursor, and the rows of one rank are looked up among them:

    turns            A A A B | A A A B       weights 3 and 1, two ranks of 2 rows
    rows             0 1 2 0 | 3 4 5 1       of each source's window
    rank 1               A B |     A B       its rows 2 and 0, then 5 and 1
    cursors after    A 0:0:3, B 0:0:1 | A 0:0:6, B 0:0:2

A pattern starts over with a new stage and when a source retires, in the middle of a batch if need be; every source
continues where it was, so no row comes twice and none is left out. `skip` and `tokenmill show` move by `advance` alone.
"""

from collections.abc import Iterator, Mapping
from math import gcd
from typing import NamedTuple

import numpy as np

from tokenmill.feed.source import Source, Span
from tokenmill.feed.table import Batch, Part
from tokenmill.rows.interleave import Pattern, pattern_of
from tokenmill.rows.run import Cursor, Point, Run, Setting

AHEAD = 1 << 28  # tokens before a stage at which its sources' windows are planned
Sources = Mapping[str, Source]


class Turns(NamedTuple):
    """Turns `first` to before `last` of a pattern: each source's rows, of which the first has the number `before`."""

    pattern: Pattern
    first: int
    last: int
    before: list[int]
    spans: Mapping[str, list[Span]]


def mixed_rows(sources: Sources, run: Run, rank: int) -> Iterator[tuple[Batch, int, Run]]:
    """This rank's part of each global batch from a run on, how many targets of all ranks are in the loss, and the run
    after it. Ends with an iteration of `epochs`, or when all sources have retired.

    The last rows, if they are fewer than a global batch, are dropped or shared equally, give or take one row.
    """
    later = [stage for stage in run.setting.stages if stage.begin > run.now.tokens]
    is_masked = any(source.is_masked for source in sources.values())
    run = past_empty_windows(sources, run)
    live = _live(run.setting, _caps(run.setting, run.now.until), run.now.tokens, run.now.cursors)
    _expect(sources, run.now.cursors, live)
    try:
        while True:
            if later and later[0].begin - run.now.tokens <= AHEAD:
                _expect(sources, run.now.cursors, later.pop(0).weights)
            turns, run = next_batch(sources, run)
            if not turns and run.now == run.legs[0].begin:
                raise ValueError(
                    f"the mixture has fewer rows than a global batch of {run.setting.global_batch:,}; lower "
                    "batch_size, raise max_epochs, or pass drop_last=False"
                )
            if not turns:
                return
            total = sum(some.last - some.first for some in turns)
            targets = targets_of(sources, turns) if is_masked else total * run.setting.seq_len
            yield batch_of(sources, turns, *range_of_rank(total, rank, run.setting)), targets, run
    finally:
        for source in sources.values():
            source.drop_tables()


def next_batch(sources: Sources, run: Run) -> tuple[list[Turns], Run]:
    """The turns of the next global batch, and the run after it; no turns and the same run at the end."""
    setting = run.setting
    turns, after = advance(sources, run, setting.global_batch)
    total = sum(some.last - some.first for some in turns)
    if not total or (total < setting.global_batch and setting.drop_last):
        return [], run
    return turns, after._replace(now=after.now._replace(step=run.now.step + 1))


def range_of_rank(total: int, rank: int, setting: Setting) -> tuple[int, int]:
    """Which of a global batch's `total` rows are a rank's: first and one after the last."""
    if total == setting.global_batch:
        return rank * setting.batch_size, (rank + 1) * setting.batch_size
    return rank * total // setting.world_size, (rank + 1) * total // setting.world_size


def forward(sources: Sources, run: Run, steps: int) -> Run:
    """The run after some more steps of its leg, by counts. ValueError if it ends before."""
    run, before = past_empty_windows(sources, run), 1
    while steps:
        run = run.next_iteration() if run.has_ended else run
        setting, done = run.setting, run.now.step
        turns, after = advance(sources, run, steps * setting.global_batch)
        total = sum(some.last - some.first for some in turns)
        calls = total // setting.global_batch if setting.drop_last else -(-total // setting.global_batch)
        if calls < steps and (not setting.epochs or not (calls or before)):
            raise ValueError(f"the run ends after {done + calls:,} steps, before step {done + steps:,}")
        if calls < steps:  # an iteration ends on the way
            after = advance(sources, run, calls * setting.global_batch)[1].at_end()
        run, steps, before = after._replace(now=after.now._replace(step=done + calls)), steps - calls, calls
    return run


def advance(sources: Sources, run: Run, count: int) -> tuple[list[Turns], Run]:
    """The next `count` turns, fewer if all sources retire, and the run after them, in which the step is unchanged."""
    setting, found = run.setting, list[Turns]()
    step, tokens, turn, weights, cursors, rows, until = run.now
    cursors, rows = dict(cursors), dict(rows)
    caps = _caps(setting, until)
    while count and (live := _live(setting, caps, tokens, cursors)):
        if live != weights:
            weights, turn = live, 0
        pattern = pattern_of(weights)
        last = turn + min(count, _before_next_stage(setting, tokens))
        if caps:
            last = _reach(sources, caps, pattern, turn, last, cursors)
        before, after, spans = pattern.counts(turn), pattern.counts(last), {}
        for name, first, stop in zip(pattern.names, before, after, strict=True):
            if stop > first:
                spans[name], cursors[name] = sources[name].walk(cursors[name], stop - first, caps.get(name))
                rows[name] += stop - first
        found.append(Turns(pattern, turn, last, before, spans))
        tokens, count, turn = tokens + (last - turn) * setting.seq_len, count - (last - turn), last
    return found, run._replace(now=Point(step, tokens, turn, weights, cursors, rows, until))


def batch_of(sources: Sources, turns: list[Turns], first: int, last: int) -> Batch:
    """Rows number `first` to before `last` of these turns."""
    if len(turns) == 1 and len(turns[0].spans) == 1:  # one source: its rows are in order
        ((name, own),) = turns[0].spans.items()
        return Batch(_parts(sources[name], own, first, last - first), slice(None))
    parts, places, done = list[Part](), list[np.ndarray](), 0
    for pattern, begin, end, before, spans in turns:
        low, high = begin + max(0, first - done), begin + min(last - done, end - begin)
        if low < high:
            number, row = pattern.at(np.arange(low, high))
            order = np.argsort(number, kind="stable")
            counts = np.bincount(number, minlength=len(before)).tolist()
            places.append(order + max(0, done - first))
            firsts, taken = row[order].tolist(), 0
            for name, count, known in zip(pattern.names, counts, before, strict=True):
                if count:
                    parts += _parts(sources[name], spans[name], firsts[taken] - known, count)
                    taken += count
        done += end - begin
    return Batch(parts, places[0] if len(places) == 1 else np.concatenate([np.zeros(0, np.int64), *places]))


def targets_of(sources: Sources, turns: list[Turns]) -> int:
    """How many targets of all rows of these turns are in the loss."""
    dealt = [(sources[name], span) for some in turns for name, spans in some.spans.items() for span in spans]
    return sum(source.table(*span[:2]).targets(span.first, span.last) for source, span in dealt)


def _parts(source: Source, spans: list[Span], first: int, count: int) -> list[Part]:
    """`count` rows of some spans from their row `first` on."""
    found = []
    for epoch, window, begin, end in spans:
        if count > 0 and begin + first < end:
            stop = min(end, begin + first + count)
            found.append(Part(source.number, source.table(epoch, window), begin + first, stop))
            first, count = 0, count - (stop - begin - first)
        else:
            first -= end - begin
    return found


def _caps(setting: Setting, until: int | None) -> Mapping[str, int]:
    """The epoch before which each source retires, or the iteration ends."""
    return setting.caps if until is None else dict.fromkeys(setting.sets, until)


def _live(setting: Setting, caps: Mapping[str, int], tokens: int, cursors: Mapping[str, Cursor]) -> Mapping[str, int]:
    """The weights after some tokens, in lowest terms: those of the stage, without sources that have retired."""
    stage = [stage for stage in setting.stages if stage.begin <= tokens][-1]
    retired = {name for name, cap in caps.items() if name in stage.weights and cursors[name].epoch >= cap}
    if not retired:
        return stage.weights
    live = {name: weight for name, weight in stage.weights.items() if name not in retired}
    if not live and stage != setting.stages[-1]:
        raise ValueError(
            f"all sources of the stage from {stage.begin:,} tokens on are used up after {tokens:,} tokens, before "
            "the next stage begins; raise a max_epochs, or begin the next stage earlier"
        )
    divisor = gcd(*live.values())
    return {name: weight // divisor for name, weight in live.items()}


def _before_next_stage(setting: Setting, tokens: int) -> int:
    """The turns before the next stage's first token is reached."""
    later = [stage.begin for stage in setting.stages if stage.begin > tokens]
    return -((tokens - later[0]) // setting.seq_len) if later else 1 << 62


def _reach(
    sources: Sources, caps: Mapping[str, int], pattern: Pattern, turn: int, last: int, cursors: Mapping[str, Cursor]
) -> int:
    """How far the pattern goes, up to `last`: to the last row of a source that retires."""
    for number, name in enumerate(pattern.names):
        cap = caps.get(name)
        if cap is not None:
            first, stop = pattern.counts(turn)[number], pattern.counts(last)[number]
            spans, after = sources[name].walk(cursors[name], stop - first, cap)
            if spans and after.epoch == cap:
                given = sum(span.last - span.first for span in spans)
                last = min(last, pattern.turn_of(number, first + given - 1) + 1)
    return last


def past_empty_windows(sources: Sources, run: Run) -> Run:
    """The run with capped sources past windows that have no rows left, so that one without rows has retired."""
    caps, cursors = _caps(run.setting, run.now.until), dict(run.now.cursors)
    for name, cap in caps.items():
        if cursors[name].epoch < cap:
            _, cursors[name] = sources[name].walk(cursors[name], 0, cap)
    return run._replace(now=run.now._replace(cursors=cursors))


def _expect(sources: Sources, cursors: Mapping[str, Cursor], weights: Mapping[str, int]) -> None:
    """Has the windows planned that some sources are in, first those whose turns come first."""
    for name in sorted(weights, key=lambda name: -weights[name]):
        sources[name].expect(*cursors[name][:2])
