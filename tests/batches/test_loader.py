"""What a loader gives and tells: contiguous pairs, the rows of the reference, its targets, sources
and parameters.
"""

import inspect
from dataclasses import fields
from itertools import islice

import pytest
import torch
from making import BOS, make_chat_set, make_token_set
from reference import PACKINGS, SEQ_LEN, make_loader, reference_rows, rows_of

import tokenmill.numpy
from tokenmill import PackedRows, RowLoader, get_batch
from tokenmill.feed.config import LoaderConfig


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_a_batch_is_a_contiguous_pair_of_int64_that_stays_as_it_is(tmp_path, prefetch):
    folder = make_token_set(tmp_path / "wide", train=[[50] * 30], val=[[50]], vocab=200_000)
    loader = make_loader(folder, batch_size=3, prefetch=prefetch)
    held = []
    for _ in range(10):
        inputs, targets = batch = next(loader)
        for tensor in batch:
            assert (tensor.dtype, tensor.shape, tensor.device.type) == (
                torch.int64,
                (3, SEQ_LEN),
                "cpu",
            )
            assert tensor.is_contiguous()
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        held.append((batch, rows_of(batch)))
    assert all(rows_of(batch) == then for batch, then in held)
    assert max(int(inputs.max()) for (inputs, _), _ in held) > 65_536
    inputs[:] = 7  # it is the caller's
    assert sum((rows for _, rows in held), []) == list(islice(reference_rows(folder), 30))


@pytest.mark.filterwarnings("ignore:.* have no target")
@pytest.mark.parametrize("prefetch", [0, 2])
def test_targets_are_the_number_of_those_in_the_loss_of_all_ranks(tmp_path, token_set, prefetch):
    chats = make_chat_set(tmp_path / "chats", train=[[30, 9, 12, 5] * 20] * 2, val=[[40] * 9])
    for tokens, settings in (
        (chats, {"long_documents": "crop"}),
        (token_set, {"loss": "once"}),
        (token_set, {"loss": "skip_cuts"}),
        (token_set, {}),
    ):
        ranks = [
            make_loader(tokens, rank=rank, world_size=2, prefetch=prefetch, **settings)
            for rank in range(2)
        ]
        for _ in range(12):
            position = ranks[0].state_dict()
            counted = sum(int((next(loader)[1] != -100).sum()) for loader in ranks)
            assert [loader.targets for loader in ranks] == [counted] * 2
        assert (counted < 4 * SEQ_LEN) == bool(settings)
        ranks[0].load_state_dict(position)
        assert (ranks[0].targets, ranks[0].row_sources.tolist()) == (0, []), (
            "nothing was returned since"
        )
        next(ranks[0])
        assert (ranks[0].targets, ranks[0].step) == (counted, 12)


def test_every_way_to_a_loader_spells_out_the_same_parameters_with_the_same_defaults():
    def parameters(function):
        return {
            name: p
            for name, p in inspect.signature(function).parameters.items()
            if name not in ("self", "dtype")
        }

    expected = parameters(RowLoader.__init__)
    assert {field.name for field in fields(LoaderConfig)} == {*expected, "dtype"}
    ways = {PackedRows.__init__: {"device"}, get_batch: {"epochs", "drop_last"}}
    ways |= {tokenmill.numpy.RowLoader.__init__: {"device", "mesh"}}
    for way, without in ways.items():
        spelled = parameters(way)
        assert spelled.keys() - {"purpose"} == expected.keys() - without
        for name in spelled.keys() - {"purpose", "batch_size", "split", "device"}:
            assert spelled[name] == expected[name].replace(kind=spelled[name].kind)
    for name in (*expected, "dtype"):
        rows_of_table = f"| {name} |", f"| {name}, ", f", {name} |", f"`{name}`"
        assert any(
            row in RowLoader.__doc__ + tokenmill.numpy.RowLoader.__doc__ for row in rows_of_table
        ), name


@pytest.mark.parametrize("settings", [*PACKINGS[::3], {"packing": "nanochat"}], ids=str)
def test_its_properties_tell_the_truth_and_disturb_nothing(token_set, settings):
    loader = make_loader(token_set, **settings)
    silent = make_loader(token_set, **settings)
    for step in range(4):
        assert (
            f"'{token_set}', 'train': 2 rows of 16 + 1 tokens, {settings['packing']}; rank 0 of 1; "
            in repr(loader)
        )
        tokens = step * 2 * SEQ_LEN
        assert f"{step} steps and {tokens} tokens" in repr(loader)
        assert (loader.vocab_size, loader.bos_id, loader.sources) == (1000, BOS, ())
        assert (loader.step, loader.tokens_seen) == (step, tokens)
        assert (loader.epoch is None, loader.rows is None) == (
            (settings["packing"] == "nanochat"),
        ) * 2
        waited = loader.waited
        assert rows_of(next(loader)) == rows_of(next(silent))
        assert loader.waited > waited
        assert loader.row_sources.tolist() == [0, 0]
    with pytest.raises(
        ValueError, match=r"seen\(\) is for a mixture; for one token set, use tokens_seen and epoch"
    ):
        loader.seen()
