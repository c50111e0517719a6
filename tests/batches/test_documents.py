"""Where documents begin in a batch, compared with loops over its tokens; and the masks that follow."""

import shutil
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import BOS
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tokenmill import RowLoader
from tokenmill.batches.documents import cu_seqlens, document_ids, document_mask, position_ids

SEQ_LEN = 16
batches = st.integers(1, 12).flatmap(
    lambda seq_len: st.lists(
        st.lists(st.sampled_from([BOS, 7, 8]), min_size=seq_len, max_size=seq_len), min_size=1, max_size=4
    )
)


def slow_ids(row):
    ids, current = [], 0
    for place, token in enumerate(row):
        current += token == BOS and place > 0
        ids.append(current)
    return ids


def test_the_example_of_the_docstring():
    inputs = torch.tensor([[0, 7, 8, 0, 5, 0, 6, 9]])
    ids = document_ids(inputs, bos_id=0)
    assert (ids.tolist(), ids.dtype) == ([[0, 0, 0, 1, 1, 2, 2, 2]], torch.int32)
    assert position_ids(ids).tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    starts = cu_seqlens(ids, max_documents=5)
    assert (starts.tolist(), starts.dtype) == ([0, 3, 5, 8, 8, 8], torch.int32)


@given(batches)
def test_ids_positions_and_offsets_are_those_of_slow_loops(rows):
    ids = document_ids(torch.tensor(rows), BOS)
    assert ids.tolist() == [slow_ids(row) for row in rows]

    positions, starts, flat = [], [], 0
    for row in ids.tolist():
        for place, number in enumerate(row):
            begins = place == 0 or row[place - 1] != number
            starts += [flat] if begins else []
            positions.append(0 if begins else positions[-1] + 1)
            flat += 1
    assert position_ids(ids).flatten().tolist() == positions
    for spare in (0, 3):
        assert cu_seqlens(ids, len(starts) + spare).tolist() == starts + [flat] * (1 + spare)
    if len(starts) > 1:
        with pytest.raises(ValueError, match=f"at most {len(starts) - 1} documents in a batch, found {len(starts)}"):
            cu_seqlens(ids, len(starts) - 1)


@pytest.mark.parametrize("settings", [{}, {"packing": "nanochat"}, {"packing": "concat"}, {"prefetch": 0}])
@pytest.mark.parametrize("split", ["train", "val"])
def test_a_loader_with_documents_gives_the_same_batches_and_their_ids(token_set, settings, split):
    plain = RowLoader(token_set, split, batch_size=3, seq_len=SEQ_LEN, **settings)
    loader = RowLoader(token_set, split, batch_size=3, seq_len=SEQ_LEN, documents=True, **settings)
    for (inputs, targets), (with_ids, same_targets, ids) in zip(islice(plain, 10), loader, strict=False):
        assert torch.equal(inputs, with_ids)
        assert torch.equal(targets, same_targets)
        assert (ids.shape, ids.dtype) == ((3, SEQ_LEN), torch.int32)
        assert ids.tolist() == [slow_ids(row) for row in inputs.tolist()]


def test_best_fit_ids_tell_the_pieces_apart(token_set):
    rows = RowLoader(token_set, batch_size=1, seq_len=SEQ_LEN, documents=True)
    several = 0
    for inputs, _, ids in islice(rows, 30):
        begins = [place for place, token in enumerate(inputs[0].tolist()) if token == BOS]
        assert ids[0, begins].tolist() == list(range(len(begins)))
        several += len(begins) > 1
    assert several > 5


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_masked_attention_over_a_row_is_attention_over_each_document_alone(token_set):
    loader = RowLoader(token_set, batch_size=4, seq_len=SEQ_LEN, documents=True)
    torch.manual_seed(0)
    for _, _, ids in islice(loader, 5):
        query, key, value = torch.randn(3, 4, 2, SEQ_LEN, 8)  # each (B, heads, T, head_dim)
        mask = create_block_mask(document_mask(ids), 4, None, SEQ_LEN, SEQ_LEN, device="cpu")
        out = flex_attention(query, key, value, block_mask=mask)
        flat = [x.transpose(1, 2).flatten(0, 1) for x in (query, key, value)]  # each (B * T, heads, head_dim)
        starts = cu_seqlens(ids, max_documents=4 * SEQ_LEN).tolist()
        for first, last in zip(starts[:-1], starts[1:], strict=True):
            if first < last:
                alone = [x[first:last].transpose(0, 1) for x in flat]
                expected = torch.nn.functional.scaled_dot_product_attention(*alone, is_causal=True)
                got = out.transpose(1, 2).flatten(0, 1)[first:last].transpose(0, 1)
                torch.testing.assert_close(got, expected)


def test_all_of_it_compiles_without_a_break_on_the_cpu(token_set):
    """A step that takes `inputs` alone; how the compiled code runs on CUDA, no test says."""

    def step(inputs, query, key, value):
        ids = document_ids(inputs, BOS)
        mask = create_block_mask(document_mask(ids), 4, None, SEQ_LEN, SEQ_LEN, device="cpu")
        return ids, position_ids(ids), cu_seqlens(ids, 64), flex_attention(query, key, value, block_mask=mask)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    for inputs, _ in islice(RowLoader(token_set, batch_size=4, seq_len=SEQ_LEN), 3):
        heads = torch.randn(3, 4, 2, SEQ_LEN, 8)
        for got, expected in zip(compiled(inputs, *heads), step(inputs, *heads), strict=True):
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_cu_seqlens_that_are_too_many_are_refused_in_compiled_code(token_set, backend):
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler")
    compiled = torch.compile(cu_seqlens, fullgraph=True, backend=backend)
    _, _, ids = next(RowLoader(token_set, batch_size=4, seq_len=SEQ_LEN, documents=True))
    documents = int((ids.max(1).values + 1).sum())
    for too_few in (1, 2, 3):  # one document too many was once left out without a word
        with pytest.raises(RuntimeError, match="more than max_documents documents"):
            compiled(ids, max_documents=documents - too_few)
    assert torch.equal(compiled(ids, max_documents=documents), cu_seqlens(ids, documents))


def test_a_batch_without_rows_has_no_documents():
    ids = document_ids(torch.zeros((0, SEQ_LEN), dtype=torch.int64), BOS)
    assert (ids.shape, position_ids(ids).shape) == ((0, SEQ_LEN), (0, SEQ_LEN))
    assert cu_seqlens(ids, max_documents=3).tolist() == [0, 0, 0, 0]


def test_the_default_device_of_a_program_is_not_the_batches(token_set):
    """`meta` stands for any device that rows must not be made on."""
    expected = next(RowLoader(token_set, batch_size=4, seq_len=SEQ_LEN, documents=True))
    torch.set_default_device("meta")
    try:
        batch = next(RowLoader(token_set, batch_size=4, seq_len=SEQ_LEN, documents=True))
        assert all(torch.equal(one, two) for one, two in zip(batch, expected, strict=True))
        assert torch.equal(cu_seqlens(batch[2], 64), cu_seqlens(expected[2], 64))
    finally:
        torch.set_default_device(None)
