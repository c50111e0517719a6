"""When the model saw a document: `tokenmill show --document`."""

from collections.abc import Iterator

from tokenmill.look.run_steps import StepPlace, rows_before
from tokenmill.look.show_notes import former_manifests, settings, shares_of
from tokenmill.look.show_query import ShowQuery
from tokenmill.look.trace import Sighting, find_document, named_place, of_one_length
from tokenmill.rows.segments import SegmentStart


def when(query: ShowQuery) -> Iterator[str]:
    """Lines that say what the rows depend on, and when the document was seen."""
    if query.config.seq_len is None:
        yield "when it was seen depends on the length of rows: pass --seq-len, as in training"
        return
    yield settings(query)
    if query.is_per_rank:
        yield f"packing {query.config.packing} does not record when a document is seen: its rows have no places"
        return
    source, number = query.document()
    yield from former_manifests(query)
    until = query.cursor if query.config.until is not None else None
    lines, tokens = query.tracer.history(source, until, of_state=query.is_bounded)
    if len(lines) > 1 or not query.mixture.is_one_set:
        for index, line in enumerate(lines):
            yield f"segment {index}, from {line.tokens:,} tokens on: rows of {line.seq_len:,} + 1{shares_of(line)}"
    yield from _unknown_history(query, source, lines)
    yield from _sightings(query, source, number, lines, tokens)


def _sightings(query: ShowQuery, source: str, number: int, lines: list[SegmentStart], tokens: int) -> Iterator[str]:
    entry, document = find_document(number, query.sets[source], query.config.split)
    seen, steps = None, query.steps() if (query.log or query.has_sizes) and lines[0].tokens == 0 else None
    for seen in query.tracer.sightings(source, entry, document, lines, tokens, query.whole_log):
        if not query.is_bounded and seen.place.epoch:
            return  # only the first epoch of the source is searched
        of_step = None if steps is None else steps.place_of(rows_before(lines, seen.tokens))
        yield _seen(query, seen, source, of_step)
    if seen is None:
        before = f"in the first {tokens:,} tokens of the run"
        yield f"not seen {before if query.cursor is None else 'before ' + ':'.join(map(str, query.cursor))}"


def _seen(query: ShowQuery, seen: Sighting, source: str, of_step: StepPlace | None) -> str:
    where = f"segment {seen.segment}, after {seen.tokens:,} tokens"
    line = f"seen in {f'epoch {seen.place.epoch}' if query.mixture.is_one_set else where}"
    if of_step is not None:
        line += f", step {of_step.step:,}, rank {of_step.rank}, row {of_step.row} of its batch"
    place = named_place(source, ":".join(map(str, seen.place)))
    length = "" if seen.seq_len == query.loader.seq_len else f", when rows were of {seen.seq_len:,} + 1 tokens"
    return f"{line}, at {place}{length}{', as filler' if seen.filler else ''}"


def _unknown_history(query: ShowQuery, source: str, lines: list[SegmentStart]) -> Iterator[str]:
    """Says so if a position from an older tokenmill does not contain the whole history of the run."""
    if query.state is None or query.whole_log:
        return
    split, served = query.tracer.feed.sources[source], query.tracer.mixture_state.sources[source]
    if served.place.epoch and len(split.token_set.digests()) > 1:
        yield "this set has grown: if that was during this run, its earlier epochs had fewer shards than shown here"
    if served.place.epoch and split.token_set.view_stems():
        yield (
            "this set has views: if an earlier epoch of this run went over another view than its present epoch, "
            "that epoch is not shown as it was"
        )
    if not of_one_length(lines):
        yield "rows had several lengths: rows that were skipped before the length changed may be listed as seen"
    if lines[0].tokens:
        yield f"the position does not say which rows the first {lines[0].tokens:,} tokens of the run were"
    elif not query.tracer.mixture_state.segments:
        rows = query.tracer.count_before(source, served.place)
        if split.pasts or split.began or rows * query.loader.seq_len != served.tokens:
            yield (
                f"but the run saw {served.tokens:,} tokens by then, and these {rows:,} rows hold "
                f"{rows * query.loader.seq_len:,}: some rows had another length, were skipped, were dropped at the "
                "end of an epoch, or were of another token set, so what follows may be incomplete or at other steps"
            )
