"""Where documents begin in a batch, compared with loops over its tokens, for every kind of arrays;
and the masks.
"""

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import BOS, make_chat_set
from reference import SEQ_LEN, make_loader
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import tokenmill.numpy
from tokenmill import cu_seqlens, document_ids, document_mask, position_ids

batches = st.integers(1, 12).flatmap(
    lambda seq_len: st.lists(
        st.lists(st.sampled_from([BOS, 7, 8]), min_size=seq_len, max_size=seq_len), max_size=4
    )
)


def slow_ids(row):
    ids = []
    current = 0
    for place, token in enumerate(row):
        current += token == BOS and place > 0
        ids.append(current)
    return ids


@given(batches)
def test_ids_positions_and_offsets_are_those_of_slow_loops(rows):
    seq_len = len(rows[0]) if rows else 5
    inputs = torch.tensor(rows, dtype=torch.int64).reshape(-1, seq_len)
    ids = document_ids(inputs, BOS)
    assert (ids.tolist(), ids.dtype, ids.shape) == (
        [slow_ids(row) for row in rows],
        torch.int32,
        inputs.shape,
    )
    positions = []
    starts = []
    flat = 0
    for row in ids.tolist():
        for place, number in enumerate(row):
            begins = place == 0 or row[place - 1] != number
            starts += [flat] if begins else []
            positions.append(0 if begins else positions[-1] + 1)
            flat += 1
    assert position_ids(ids).flatten().tolist() == positions
    for spare in (0, 3):
        assert cu_seqlens(ids, len(starts) + spare).tolist() == starts + [flat] * (1 + spare)
    most = len(starts) - 1
    if most:
        message = f"at most {most} documents in a batch, found {len(starts)}"
        with pytest.raises(ValueError, match=message):
            cu_seqlens(ids, most)
    of_numpy = tokenmill.numpy.document_ids(inputs.numpy(), BOS)
    assert (of_numpy.tolist(), of_numpy.dtype) == (ids.tolist(), np.int32)
    assert tokenmill.numpy.position_ids(of_numpy).tolist() == position_ids(ids).tolist()


@pytest.mark.filterwarnings("ignore:.* have no target")
def test_padding_is_a_document_of_its_own_and_not_in_the_loss(tmp_path):
    chats = make_chat_set(tmp_path / "chats", train=[[9, 7, 11] * 20], val=[[9]])
    padded = 0
    inputs, targets = next(make_loader(chats, batch_size=20, long_documents="drop"))
    for row, ids, of in zip(
        inputs.tolist(), document_ids(inputs, BOS).tolist(), targets.tolist(), strict=True
    ):
        length = (
            next(number for number, token in enumerate(reversed(row)) if token != 1) + 1
        )  # BOS 1 1 1 ...
        if row[-length] == BOS and length > 1:
            assert set(ids[-length:]) == {ids[-1]}
            assert ids[-1] not in ids[:-length]
            assert of[-length:] == [-100] * length
            padded += 1
    assert padded > 2


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_masked_attention_over_a_row_is_attention_over_each_document_alone(token_set):
    torch.manual_seed(0)
    for inputs, _ in islice(make_loader(token_set, batch_size=4), 5):
        ids = document_ids(inputs, BOS)
        query, key, value = torch.randn(3, 4, 2, SEQ_LEN, 8)  # each (B, heads, T, head_dim)
        mask = create_block_mask(document_mask(ids), 4, None, SEQ_LEN, SEQ_LEN, device="cpu")
        out = flex_attention(query, key, value, block_mask=mask)
        flat = [
            x.transpose(1, 2).flatten(0, 1) for x in (query, key, value)
        ]  # each (B * T, heads, head_dim)
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
        return (
            ids,
            position_ids(ids),
            cu_seqlens(ids, 64),
            flex_attention(query, key, value, block_mask=mask),
        )

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    for inputs, _ in islice(make_loader(token_set, batch_size=4), 3):
        heads = torch.randn(3, 4, 2, SEQ_LEN, 8)
        for got, expected in zip(compiled(inputs, *heads), step(inputs, *heads), strict=True):
            torch.testing.assert_close(got, expected)
