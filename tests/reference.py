"""The slow, obvious reference of what a loader deals, and how to look at batches."""

from itertools import count

import torch

from tokenmill import RowLoader
from tokenmill.batches.config import VAL_SEED
from tokenmill.rows.order import permutation
from tokenmill.rows.packing import plan_rows, plan_windows
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
    shuffle, seed = (shuffle, seed) if split == "train" else (False, VAL_SEED)
    for epoch in count():
        order = permutation(len(shards), "shards", seed, epoch) if shuffle else range(len(shards))
        for number in order:
            stream = shards[number].tokens.tolist()
            key = (seed, epoch if shuffle else 0, int(number))
            if packing == "best_fit":
                yield from packed(stream, shards[number].offsets.tolist(), long_documents, key, token_set.bos_id)
            else:
                for start in plan_windows(len(stream), SEQ_LEN + 1, seed=key if packing == "random" else None):
                    yield stream[start : start + SEQ_LEN + 1]


def packed(stream, offsets, long_documents, key, bos_id):
    documents = [stream[a:b] for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
    plan = plan_rows([len(d) for d in documents], SEQ_LEN + 1, long_documents=long_documents, seed=key)
    for first, last in zip(plan.row_offsets[:-1], plan.row_offsets[1:], strict=True):
        row = []
        for piece in range(first, last):
            start, length = int(plan.start[piece]), int(plan.length[piece])
            row += [bos_id] * (start > 0) + documents[plan.document[piece]][start : start + length]
        yield row


def rows_of(batch):
    """A batch as rows again: inputs and the last target."""
    inputs, targets = batch
    return torch.cat([inputs, targets[:, -1:]], dim=1).tolist()


def make_loader(path, batch_size=2, **settings):
    return RowLoader(path, batch_size=batch_size, seq_len=SEQ_LEN, seed=SEED, **settings)
