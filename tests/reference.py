"""The slow, obvious reference of what a loader deals, and how to look at batches and positions."""

from itertools import count, islice, pairwise

from tokenmill.feed.config import VAL_SEED
from tokenmill.rows import windows as window_sizes
from tokenmill.rows.order import number_of, permutation, random_bits
from tokenmill.rows.packing import plan_rows
from tokenmill.rows.position import read_position
from tokenmill.rows.run import Cursor
from tokenmill.store.token_sets import TokenSet

PACKINGS = [
    {"packing": "best_fit"},
    {"packing": "best_fit", "long_documents": "crop"},
    {"packing": "concat"},
    {"packing": "random"},
    {"packing": "best_fit", "shuffle": False},
    {"packing": "concat", "shuffle": False},
]
SEQ_LEN = 16
SEED = 1337


def reference_rows(
    path,
    split="train",
    packing="best_fit",
    long_documents="split",
    shuffle=True,
    seed=SEED,
    name="",
    epochs=None,
):
    """All rows of the global order, one list of row_len ids after the other, without end or for
    some epochs. `name` is that of a mixture's source.
    """
    token_set = TokenSet(path)
    shards = [token_set.open(entry) for entry in token_set.split(split)]
    shards = [(shard.tokens.tolist(), shard.offsets.tolist()) for shard in shards]
    shard_tokens = [len(tokens) for tokens, _ in shards]
    seed = seed if split == "train" else VAL_SEED
    of_source = [number_of(name)] if name else []
    for epoch in islice(count(), epochs):
        drawn = epoch if shuffle and split == "train" else 0
        windows = reference_windows(shard_tokens, seed if shuffle else None, drawn, name)
        for window, slices in enumerate(windows):
            key = (seed, drawn, window, *of_source)
            if packing == "best_fit":
                documents = documents_of(shards, slices)
                yield from packed(documents, long_documents, key, token_set.bos_id)
            else:
                yield from cut(shards, slices, packing, shuffle, key)


def documents_of(shards, slices):
    """The documents that begin in the slices."""
    documents = []
    for shard, first, last in slices:
        tokens, offsets = shards[shard]
        for begin, end in pairwise(offsets):
            if first <= begin < last:
                documents.append(tokens[begin:end])
    return documents


def reference_windows(shard_tokens, seed, drawn, name=""):
    """The windows of an epoch: lists of slices (shard, its first token, one after the last that
    begins it).
    """
    size = window_sizes.DEFAULT_WINDOW_SIZE
    slices = []
    for shard, tokens in enumerate(shard_tokens):
        for begin in range(0, tokens, size.slice):
            slices.append((shard, begin, min(begin + size.slice, tokens)))
    total = sum(shard_tokens)
    windows = [[] for _ in range(max(1, round(total / size.window)))]
    order = range(len(slices))
    if seed is not None:
        order = permutation(len(slices), "slices", seed, name, drawn)
        order = systematic(list(order), len(windows))
    done = number = 0
    for i in order:
        done += slices[i][2] - slices[i][1]
        while number < len(windows) - 1 and done > total * (number + 1) // len(windows):
            number += 1
        windows[number].append(slices[i])
    return [sorted(window) for window in windows]


def systematic(drawn, windows):
    """Slices in an order whose windows each have one of every so many neighbors; `drawn` says
    which.
    """
    mixed = sorted(drawn, key=lambda i: i // windows)  # neighbors as they were drawn
    order = []
    for window in range(windows):
        order += mixed[window::windows]
    return order


def cut(shards, slices, packing, shuffle, key):
    """Rows that ignore documents, of the shards that they begin in."""
    row_len = SEQ_LEN + 1
    places = []
    for shard, begin, end in slices:
        tokens = shards[shard][0]
        end = min(end, len(tokens) - row_len + 1)
        for at in range(0, end, SEQ_LEN):
            if begin <= at:
                places.append((tokens, begin, end, at))
    if shuffle or packing == "random":
        places = [places[n] for n in permutation(len(places), "rows", *key)]
    bits = random_bits(len(places), "places", *key).tolist()
    for (tokens, begin, end, at), luck in zip(places, bits, strict=True):
        if packing == "random":
            at = begin + luck % (end - begin)
        yield tokens[at : at + row_len]


def packed(documents, long_documents, key, bos_id):
    plan = plan_rows(
        [len(d) for d in documents], SEQ_LEN + 1, long_documents=long_documents, seed=key
    )
    for first, last in pairwise(plan.row_offsets):
        row = []
        for piece in range(first, last):
            start = int(plan.start[piece])
            end = start + int(plan.length[piece])
            if plan.bos[piece]:
                row.append(bos_id)
            row += documents[plan.document[piece]][start:end]
        yield row


def rows_of(batch):
    """A batch of any kind of arrays as rows again: inputs and the last target."""
    inputs, targets = batch
    return [[*row, last] for row, (*_, last) in zip(inputs.tolist(), targets.tolist(), strict=True)]


def rows_in(batches):
    """The rows of all batches."""
    rows = []
    for batch in batches:
        rows += rows_of(batch)
    return rows


def make_loader(path, batch_size=2, **settings):
    """A RowLoader of torch with the reference's row length and seed."""
    from tokenmill import RowLoader  # here, because the tests of rows and feed need no torch

    return RowLoader(path, batch_size=batch_size, seq_len=SEQ_LEN, seed=SEED, **settings)


def cursor_of(state, name="") -> Cursor:
    """Where a source stands in a position: by default a loader's one token set."""
    return read_position(state)[0].now.cursors[name]


def nanochat_row(buffer, refills, row_len):
    """../shared/nanochat_rows.md, line by line; a document is a list of tokens."""
    row = []
    while len(row) < row_len:
        while len(buffer) < 1000:
            buffer += next(refills)
        remaining = row_len - len(row)
        fitting = [index for index, document in enumerate(buffer) if len(document) <= remaining]
        if fitting:
            best = max(
                fitting, key=lambda index: len(buffer[index])
            )  # of equally long ones the first
            row += buffer.pop(best)
        else:
            shortest = min(range(len(buffer)), key=lambda index: len(buffer[index]))
            row += buffer.pop(shortest)[:remaining]
    return row
