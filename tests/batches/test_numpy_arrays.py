"""tokenmill.numpy: the rows and positions of torch's loader, as arrays of the caller's own, without
torch.
"""

import json
import subprocess
import sys
from itertools import chain, islice

import numpy as np
import pytest
import torch
from making import ROOT, make_chat_set, make_sources, make_token_set
from reference import SEQ_LEN, rows_of

import tokenmill
from tokenmill import Mixture
from tokenmill.numpy import RowLoader


def both(tokens, **settings):
    """A loader of NumPy's and one of torch's."""
    settings = {"batch_size": 3, "seq_len": SEQ_LEN} | settings
    of_torch = {name: value for name, value in settings.items() if name != "dtype"}
    return RowLoader(tokens, **settings), tokenmill.RowLoader(tokens, **of_torch)


SETTINGS = [
    {},
    {"packing": "nanochat", "dtype": np.int64},
    {"packing": "concat", "dtype": "uint16"},
    {"packing": "random", "prefetch": 0},
    {"rank": 1, "world_size": 3, "split": "val"},
    {"seed": 5, "shuffle": False, "long_documents": "crop", "dtype": np.uint32},
    {"loss": "once", "ignore_index": -1},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_rows_and_positions_are_those_of_torch_and_each_continues_the_other_s(token_set, settings):
    ours, theirs = both(token_set, **settings)
    while theirs.step < 40:
        arrays = next(ours)
        tensors = next(theirs)
        assert [array.tolist() for array in arrays] == [tensor.tolist() for tensor in tensors]
        assert {array.dtype for array in arrays} == {np.dtype(settings.get("dtype", "int32"))}
        assert (ours.state_dict(), ours.targets) == (theirs.state_dict(), theirs.targets)
        if theirs.step % 10 == 0:
            state = json.loads(json.dumps(ours.state_dict()))
            ours, theirs = both(token_set, **settings)
            for loader in (ours, theirs):
                loader.load_state_dict(state)


def test_so_are_those_of_mixtures_with_chats_and_of_large_vocabularies_and_the_last_of_an_epoch(
    tmp_path,
):
    folder = make_sources(tmp_path, documents=20)
    make_chat_set(tmp_path / "chats", train=[[30, 9, 50, 12] * 20], val=[[9]])
    sources = {name: folder / name for name in ("web", "chats")}
    wide = make_token_set(tmp_path / "wide", train=[[50] * 30], val=[[50]], vocab=200_000)
    for tokens, how in (
        (Mixture({"web": 2, "chats": 1}, sources=sources), {"long_documents": "crop"}),
        (wide, {"epochs": 1, "drop_last": False, "rank": 1, "world_size": 2}),
    ):
        ours, theirs = both(tokens, **how)
        for _ in range(40):
            arrays = next(ours, None)
            tensors = next(theirs, None)
            assert (arrays is None) == (tensors is None)
            assert arrays is None or rows_of(arrays) == rows_of(tensors)
            assert ours.row_sources.tolist() == theirs.row_sources.tolist()
        assert (ours.sources, ours.targets) == (theirs.sources, theirs.targets)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_arrays_are_contiguous_and_writable_and_share_no_memory(token_set, prefetch):
    loader, expected = (
        RowLoader(token_set, batch_size=2, seq_len=SEQ_LEN, prefetch=prefetch) for _ in range(2)
    )
    held = [*chain.from_iterable(islice(loader, 4))]
    for number, array in enumerate(held):
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert not any(np.shares_memory(array, earlier) for earlier in held[:number])
    for array in held:
        array[:] = 7  # what a caller writes changes no other array, and no batch to come
    for _ in range(4):
        next(expected)
    assert all(map(np.array_equal, next(loader), next(expected)))


def test_a_type_that_cannot_hold_the_ids_or_the_ignore_index_is_refused(token_set, tmp_path):
    def make(tokens, **settings):
        return RowLoader(tokens, batch_size=9, seq_len=SEQ_LEN, **settings)

    wide = make_token_set(tmp_path / "wide", train=[[50] * 30], val=[[50]], vocab=200_000)
    for tokens, settings, message in (
        (token_set, {"dtype": "int8"}, "dtype int8 cannot hold .* 999"),
        (wide, {"dtype": "uint16"}, "dtype uint16 cannot hold"),
        *(
            (token_set, {"dtype": no}, "dtype must be an integer type")
            for no in ("float32", bool, "int3", torch.int32)
        ),
        (token_set, {"dtype": "uint16", "loss": "once"}, "dtype uint16 cannot hold .*-100"),
    ):
        with pytest.raises(ValueError, match=message):
            make(tokens, **settings)
    assert (
        next(make(token_set, dtype="uint16", loss="once", ignore_index=60_000))[1] == 60_000
    ).any()


CHILD = f"""
import multiprocessing, os, sys
sys.path.insert(0, {str(ROOT)!r})
from tokenmill.numpy import RowLoader
def make(tokens, **ranks):
    try: loader = RowLoader(tokens, batch_size=2, seq_len=16, **ranks)
    except ValueError as error: print(error)
    else: print(loader.rank, loader.world_size)
if __name__ == "__main__":
    for ranks in ({{}}, {{"rank": 1, "world_size": 2}}):
        context = multiprocessing.get_context(sys.argv[1])
        child = context.Process(target=make, args=sys.argv[2:], kwargs=ranks)
        child.start(); child.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_that_multiprocessing_started_must_be_told_its_rank(token_set, tmp_path, method):
    """It would take itself for rank 0 of 1, as in a worker of Grain's, in every process of a JAX
    program.
    """
    (tmp_path / "program.py").write_text(CHILD)
    command = [sys.executable, tmp_path / "program.py", method, token_set]
    refused, message = subprocess.run(
        command, capture_output=True, text=True, timeout=120
    ).stdout.splitlines()
    assert "multiprocessing has started this process" in refused
    assert message == "1 2"
