"""packing="nanochat" deals nanochat's rows, token for token: those of its steps done slowly, from
parquet files.
"""

import json
from itertools import chain, count, islice

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import nanochat_row, rows_in, rows_of

from tokenmill.look.steps import RunRows
from tokenmill.numpy import RowLoader
from tokenmill.rows.nanochat_buffer import BestFitBuffer
from tokenmill.tokenize.tokenizer import Tokenizer


def reference_rows(files, encode, row_len, rank, world_size):
    """Rows straight from parquet files: `files` in name order."""

    def refills():
        while True:
            for path in files:
                parquet = pq.ParquetFile(path)
                for group in range(rank, parquet.num_row_groups, world_size):
                    texts = parquet.read_row_group(group).column("text").to_pylist()
                    for start in range(0, len(texts), 128):
                        yield [encode(text) for text in texts[start : start + 128]]

    buffer = []
    stream = refills()
    while True:
        yield nanochat_row(buffer, stream, row_len)


@pytest.fixture(scope="module")
def train_files_and_encode(prepared):
    corpus, token_set = prepared
    tokenizer = Tokenizer.load(token_set / "tokenizer.json")
    known = {}

    def encode(text):
        if text not in known:
            known[text] = [tokenizer.bos_id, *tokenizer.encode(text).tolist()]
        return known[text]

    assert len(list((token_set / "shards").glob("shard_0*.bin"))) > 1, (
        "a source file is in several shards"
    )
    return sorted(corpus.glob("*.parquet"))[:-1], encode


def make_loader(token_set, seq_len=63, batch_size=4, **settings):
    return RowLoader(
        token_set, packing="nanochat", batch_size=batch_size, seq_len=seq_len, **settings
    )


@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (0, 2), (1, 2), (2, 3)])
def test_rows_are_nanochats_own_over_several_epochs(
    prepared, train_files_and_encode, rank, world_size
):
    loader = make_loader(prepared[1], rank=rank, world_size=world_size)
    dealt = rows_in(islice(loader, 300))
    assert dealt == list(
        islice(reference_rows(*train_files_and_encode, 64, rank, world_size), 1200)
    )
    assert loader.epoch is None, "ranks are in epochs of their own"
    assert loader.rows is None


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=300), st.integers(2, 40), st.integers(1, 200)
)
def test_picks_are_those_of_a_scanned_buffer(lengths, row_len, refill):
    places = count()
    numbers = count()

    def refills(document):
        while True:
            for start in range(0, len(lengths), refill):
                yield [document(length) for length in lengths[start : start + refill]]

    ours = BestFitBuffer(refills(lambda length: (length, next(places))), row_len)
    buffer = []
    stream = refills(lambda length: [next(numbers)] * length)  # each token knows its document
    for _ in range(20):
        pieces = ours.next_row()
        assert sum(taken for _, taken in pieces) == row_len
        tokens = chain.from_iterable([place] * taken for place, taken in pieces)
        assert list(tokens) == nanochat_row(buffer, stream, row_len)


def test_it_resumes_at_every_step_with_any_batch_size_and_a_position_tells_each_step(prepared):
    ranks = [make_loader(prepared[1], rank=rank, world_size=2) for rank in range(2)]
    states = []
    dealt = []
    for _ in range(10):
        states.append(json.loads(json.dumps(ranks[0].state_dict())))
        dealt.append([rows_of(next(loader)) for loader in ranks])
        assert ranks[0].state_dict() == ranks[1].state_dict()
    for step, state in enumerate(states):
        for rank in range(2):
            resumed = make_loader(prepared[1], rank=rank, world_size=2, batch_size=2)
            resumed.load_state_dict(state)
            assert rows_of(next(resumed)) + rows_of(next(resumed)) == dealt[step][rank]
        shown = RunRows.of_position(ranks[1].state_dict(), {"": ranks[0].token_set}).step(step)
        for row, expected in zip(shown, dealt[step][0] + dealt[step][1], strict=True):
            tokens = [piece.tokens(ranks[0].bos_id) for piece in row.pieces]
            assert np.concatenate(tokens).tolist() == expected


def test_what_cannot_be_is_refused(prepared):
    make_loader(prepared[1], rank=2, world_size=4)  # row groups of 300, 300 and 100 documents
    with pytest.raises(ValueError, match="rank 3 of 4 gets none of split 'train'; use fewer ranks"):
        make_loader(prepared[1], rank=3, world_size=4)
    state = make_loader(prepared[1], rank=0, world_size=2).state_dict()
    with pytest.raises(ValueError, match="world_size is 2 in the position, 1 here"):
        make_loader(prepared[1]).load_state_dict(state)
    with pytest.raises(ValueError, match="seq_len is 63 in the position, 40 here"):
        make_loader(prepared[1], 40, rank=0, world_size=2).load_state_dict(state)
