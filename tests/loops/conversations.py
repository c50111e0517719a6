"""The conversations of the chat set of these tests, as they lie on disk, and those that are in a batch."""

import numpy as np

from tokenmill import TokenSet, document_ids
from tokenmill.store.set_names import find_token_set


def conversations(ignore_index=-100):
    """Every conversation of the training split: its first tokens -> (ids, labels), which are not shifted."""
    token_set, found = TokenSet(find_token_set("data/tokens")), {}
    for entry in token_set.split("train"):
        shard = token_set.open(entry)
        bits = np.unpackbits(shard.column("mask"), bitorder="little")[: entry.tokens]
        for first, last in zip(shard.offsets[:-1].tolist(), shard.offsets[1:].tolist(), strict=True):
            ids = shard.tokens[first:last].tolist()
            labels = [token if bears else ignore_index for token, bears in zip(ids, bits[first:last], strict=True)]
            assert found.setdefault(tuple(ids[:5]), (ids, labels)) == (ids, labels)
    return found


def whole_ones(inputs, known, bos_id):
    """The (ids, labels) of the conversations in the inputs of a batch, row by row."""
    for row, of_token in zip(inputs.tolist(), document_ids(inputs, bos_id).tolist(), strict=True):
        for document in dict.fromkeys(of_token):
            tokens = [token for token, of in zip(row, of_token, strict=True) if of == document]
            if tuple(tokens[:5]) in known:  # else it is padding
                yield known[tuple(tokens[:5])]
