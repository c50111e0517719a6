"""What `tokenmill show` prints before the rows: what they depend on, and hints if they may not be those you mean."""

from tokenmill.feed.mixture import ONE_SET
from tokenmill.humanize import counted
from tokenmill.look.show_config import numbers_of
from tokenmill.look.show_query import Ranked, ShowQuery, call_of
from tokenmill.look.trace import TracedRow
from tokenmill.rows.packings import find_packing
from tokenmill.rows.position import documents_of
from tokenmill.rows.segments import SegmentStart
from tokenmill.store.token_sets import TokenSet


def settings(query: ShowQuery) -> str:
    """What the rows depend on."""
    loader, packing = query.loader, find_packing(query.config.packing)
    order = f"seed {loader.order['seed']}" if loader.shuffle else "no shuffling"
    is_chat = any(token_set.is_chat for token_set in query.sets.values())
    says_how = len(packing.labels) > 1 and not (is_chat and loader.long_documents == "split")
    long = f", {loader.long_documents} long documents" if says_how else ""
    says_sizes = query.has_sizes and query.config.checkpoint is None  # else they are those of its end
    ranks = f", {loader.batch_size} rows a rank, {counted(loader.world_size or 1, 'rank')}" if says_sizes else ""
    rows = f"rows of {loader.seq_len:,} + 1 tokens, {loader.packing}{long}, {order}{ranks}"
    if not query.mixture.is_one_set:
        return f"{query.config.tokens}, {loader.split}: {query.mixture!r}; {rows}"
    token_set = query.sets[ONE_SET]
    view = "" if token_set.view is None else f", view {token_set.view.name}"
    return f"{token_set.name}{view}, {loader.split}: {rows}, manifest {_manifest(query, token_set)}"


def _manifest(query: ShowQuery, token_set: TokenSet) -> str:
    if query.config.manifest is not None or query.state is None:
        return query.config.manifest or token_set.digest
    return ", then ".join(part.manifest for part in documents_of(query.state["sources"]["manifest"][0]))


def of_run(query: ShowQuery, rows: list[TracedRow]) -> list[str]:
    """When these rows were used, or will be, and what the checkpoint says of the run at that time."""
    if query.config.checkpoint is None or query.is_per_rank or not rows or rows[0].number is None:
        return []
    first, known = rows[0].number, query.rows_before_state()
    last = first + len(rows) - 1
    which = f"row {first:,}" if last == first else f"rows {first:,} to {last:,}"
    segments, before = query.tracer.segments(), 0
    when = f"after the checkpoint, which is after {known:,} rows; these are the rows if the run continues as it is"
    for number, (line, turns) in enumerate(segments if first < known else []):
        if first < before + turns:
            tokens = line.tokens + (first - before) * line.seq_len
            when = f"after {tokens:,} tokens, with rows of {line.seq_len:,} + 1{shares_of(line)}"
            when = f"in segment {number}, {when}" if len(segments) > 1 else when
            break
        before += turns
    sizes = query.steps().sizes_at(first)
    each = f"; batches of {sizes.batch_size:,} rows on {counted(sizes.world_size, 'rank')}" if sizes.rows else ""
    return [f"{which} of the run, {when}{each}"]


def of_step(query: ShowQuery) -> list[str]:
    """What a step is, unless the command line says how many rows one has."""
    config = query.config
    if config.step is None or config.global_batch_size is not None:
        return []
    return [
        f"step {config.step:,}, one call of `next` on all ranks; if you accumulate gradients, pass --global-batch-size"
    ]


def since_mismatch(query: ShowQuery) -> list[str]:
    """A hint, if --since names a step that the state file is not of."""
    if query.state is None or query.config.since is None:
        return []
    step = query.config.since[0]
    rows = sum(query.state["sources"]["rows"])
    expected = step * query.global_batch
    if rows == expected:
        return []
    return [
        f"the state file is after {rows:,} rows, but {step:,} steps of this batch size have {expected:,}: check "
        "--since, --batch-size and --world-size, unless the batch size or the number of ranks changed before"
    ]


def former_manifests(query: ShowQuery) -> list[str]:
    """A hint, if the set has grown, that rows from before are others."""
    if query.state is not None and query.config.manifest is None:
        return [_grown_since_state(query, name) for name in query.tracer.grown_at_epoch_start()]
    if not query.mixture.is_one_set or query.config.manifest is not None:
        return []
    token_set = query.sets[ONE_SET]
    former = [digest for digest in token_set.digests() if digest != token_set.digest]
    if not former or token_set.view is not None:
        return []
    return [f"this set has grown; for an epoch that began before, pass --manifest {' or '.join(former)}"]


def _grown_since_state(query: ShowQuery, name: str) -> str:
    token_set, epoch = query.sets[name], query.tracer.mixture_state.sources[name].place.epoch
    other = f"; for a run that resumed after that, pass --manifest {token_set.digest}" if name == ONE_SET else ""
    return (
        f"{token_set.display_name} has grown since this state, which is at the first row of epoch {epoch:,}; that "
        f"epoch is shown as the set was then{other}"
    )


def epochs_before(query: ShowQuery) -> int:
    """About how many epochs of one set have to be counted before the first row."""
    config = query.config
    from_start = query.cursor is None and query.state is None and ":" not in (config.row or "")
    if query.is_per_rank or not query.mixture.is_one_set or not from_start:
        return 0
    first = (
        numbers_of("--row", config.row, (1, 3))[0]
        if config.row is not None
        else query.steps().rows_of(call_of(config)).start
    )
    token_set = query.sets[ONE_SET]
    tokens = sum(entry.tokens for entry in token_set.split(config.split))
    if token_set.view is not None:
        tokens = token_set.view.tokens(config.split)
    return first * (query.loader.seq_len + 1) // max(1, tokens)


def of_a_later_epoch(query: ShowQuery, rows: list[Ranked]) -> list[str]:
    """A hint if rows requested by number are in a later epoch, which the user may not expect."""
    place = rows[0][1].place if rows else None
    epoch = int(place.partition(":")[0]) if place is not None and query.mixture.is_one_set else 0
    if not epoch or query.state is not None or query.cursor is not None or ":" in (query.config.row or ""):
        return []
    passes = "1 pass" if epoch == 1 else f"{epoch:,} passes"
    return [f"this is in epoch {epoch:,}, after {passes} over the set"]


def shares_of(line: SegmentStart) -> str:
    """The shares of the sources of a mixture in a segment, in words."""
    total = sum(line.weights.values())
    return "".join(f", {name} {weight / total:.2%}" for name, weight in line.weights.items() if name)
