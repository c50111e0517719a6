"""The slow, obvious reference of what a loader deals, and how to look at batches."""

from itertools import count, pairwise

import torch

from tokenmill import RowLoader
from tokenmill.feed import window_plans
from tokenmill.feed.loader_config import VAL_SEED
from tokenmill.rows.order import permutation, random_bits
from tokenmill.rows.packing import plan_rows
from tokenmill.store.token_sets import TokenSet

PACKINGS = [
    {"packing": "best_fit"},
    {"packing": "best_fit", "long_documents": "crop"},
    {"packing": "concat"},
    {"packing": "random"},
    {"packing": "best_fit", "shuffle": False},
    {"packing": "concat", "shuffle": False},
]
SEQ_LEN, SEED = 16, 1337


def reference_rows(path, split="train", packing="best_fit", long_documents="split", shuffle=True, seed=SEED):
    """All rows of the global order, one list of row_len ids after the other, for ever."""
    token_set = TokenSet(path)
    shards = [token_set.open(entry) for entry in token_set.split(split)]
    shards = [(shard.tokens.tolist(), shard.offsets.tolist()) for shard in shards]
    seed = seed if split == "train" else VAL_SEED
    for epoch in count():
        drawn = epoch if shuffle and split == "train" else 0
        for window, slices in enumerate(
            reference_windows([len(t) for t, _ in shards], seed if shuffle else None, drawn)
        ):
            key = (seed, drawn, window)
            if packing == "best_fit":
                documents = [t[a:b] for i, x, y in slices for t, o in [shards[i]] for a, b in pairwise(o) if x <= a < y]
                yield from packed(documents, long_documents, key, token_set.bos_id)
            else:
                yield from cut(shards, slices, packing, shuffle, key)


def reference_windows(shard_tokens, seed, drawn):
    """The windows of an epoch: lists of slices (shard, its first token, one after the last that begins it)."""
    grain = window_plans.DEFAULT_WINDOW_SIZE
    slices = [(i, a, min(a + grain.slice, n)) for i, n in enumerate(shard_tokens) for a in range(0, n, grain.slice)]
    total = sum(shard_tokens)
    windows = [[] for _ in range(max(1, round(total / grain.window)))]
    order = range(len(slices)) if seed is None else permutation(len(slices), "slices", seed, "", drawn)
    order = list(order) if seed is None else systematic(list(order), len(windows))
    done = number = 0
    for i in order:
        done += slices[i][2] - slices[i][1]
        while number < len(windows) - 1 and done > total * (number + 1) // len(windows):
            number += 1
        windows[number].append(slices[i])
    return [sorted(window) for window in windows]


def systematic(drawn, windows):
    """Slices in an order whose windows each have one of every so many neighbors; `drawn` says which."""
    groups = [[i for i in drawn if i // windows == number] for number in range(-(-len(drawn) // windows))]
    mixed = [i for group in groups for i in group]
    return [i for window in range(windows) for i in mixed[window::windows]]


def cut(shards, slices, packing, shuffle, key):
    """Rows that ignore documents, of the shards that they begin in."""
    row_len = SEQ_LEN + 1
    places = []
    for i, begin, end in slices:
        found = [at for at in range(0, len(shards[i][0]) - row_len + 1, SEQ_LEN) if begin <= at < end]
        places += [(i, begin, min(end, len(shards[i][0]) - row_len + 1), at) for at in found]
    order = permutation(len(places), "rows", *key) if shuffle or packing == "random" else range(len(places))
    places = [places[n] for n in order]
    if packing == "random":
        bits = random_bits(len(places), "places", *key).tolist()
        places = [
            (i, 0, 0, begin + luck % (end - begin)) for (i, begin, end, _), luck in zip(places, bits, strict=True)
        ]
    for i, _, _, at in places:
        yield shards[i][0][at : at + row_len]


def packed(documents, long_documents, key, bos_id):
    plan = plan_rows([len(d) for d in documents], SEQ_LEN + 1, long_documents=long_documents, seed=key)
    for first, last in pairwise(plan.row_offsets):
        row = []
        for piece in range(first, last):
            start, length = int(plan.start[piece]), int(plan.length[piece])
            row += [bos_id] * bool(plan.bos[piece]) + documents[plan.document[piece]][start : start + length]
        yield row


def rows_of(batch):
    """A batch as rows again: inputs and the last target."""
    inputs, targets = batch
    return torch.cat([inputs, targets[:, -1:]], dim=1).tolist()


def make_loader(path, batch_size=2, **settings):
    return RowLoader(path, batch_size=batch_size, seq_len=SEQ_LEN, seed=SEED, **settings)


def of_source(state, key, number=0):
    """What a position says of a source: by default of a loader's one token set."""
    return state["sources"][key][number]


def changed(state, **values):
    """A position with other values: of its one source, or of the whole."""
    sources = {key: [values.pop(key)] if key in values else column for key, column in state["sources"].items()}
    return state | {"sources": sources} | values


def cursor_of(state):
    """epoch:window:row of a position of one token set."""
    return ":".join(str(of_source(state, key)) for key in ("epoch", "window", "row"))


def without_log(state):
    """A position as tokenmill wrote it before positions had a log of their run."""
    lengths = [item[0] if isinstance(item, list) else item for item in state["segments"]["seq_len"]]
    return state | {"segments": state["segments"] | {"seq_len": lengths}}
