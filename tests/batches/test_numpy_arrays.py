"""tokenmill.numpy: the rows and positions of torch's loader, as arrays of the caller's own, without torch."""

import inspect
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import ROOT, make_chat_set, make_token_set, on_ranks
from reference import SEQ_LEN

import tokenmill
from tokenmill import Mixture
from tokenmill.numpy import RowLoader, position_ids


def both(tokens, **settings):
    """A loader of NumPy's and one of torch's."""
    settings = {"batch_size": 3, "seq_len": SEQ_LEN} | settings
    of_torch = {name: value for name, value in settings.items() if name != "dtype"}
    return RowLoader(tokens, **settings), tokenmill.RowLoader(tokens, **of_torch)


def assert_same(arrays, tensors):
    assert len(arrays) == len(tensors)
    for array, tensor in zip(arrays, tensors, strict=True):
        assert np.array_equal(array, tensor.numpy())


@pytest.fixture(scope="module")
def chat_set(tmp_path_factory):
    return make_chat_set(tmp_path_factory.mktemp("chats") / "set", train=[[30, 9, 50, 12] * 20] * 2, val=[[40] * 9])


SETTINGS = {
    "by default": {},
    "nanochat": {"packing": "nanochat"},
    "concat": {"packing": "concat"},
    "random": {"packing": "random"},
    "documents": {"documents": True},
    "without a thread": {"prefetch": 0},
    "one rank of three": {"rank": 1, "world_size": 3},
    "validation": {"split": "val"},
    "another seed": {"seed": 5, "shuffle": False, "long_documents": "crop"},
    "loss once": {"loss": "once"},
    "loss once, another index": {"loss": "once", "ignore_index": -1},
    "int64": {"dtype": np.int64},
    "uint16": {"dtype": "uint16"},
    "uint32": {"dtype": np.uint32},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_rows_and_positions_are_those_of_torch_into_the_second_epoch(token_set, settings):
    ours, theirs = both(token_set, **settings)
    while theirs.epoch < 2:
        arrays, tensors = next(ours), next(theirs)
        assert_same(arrays, tensors)
        assert ours.state_dict() == theirs.state_dict()
        assert ours.targets == theirs.targets
    assert {array.dtype for array in arrays[:2]} == {np.dtype(settings.get("dtype", "int32"))}
    assert ours.stats()._replace(waited=0) == theirs.stats()._replace(waited=0)


def test_the_last_short_batches_of_an_epoch_are_those_of_torch(token_set):
    for rank in range(2):
        ours, theirs = both(token_set, epochs=1, drop_last=False, rank=rank, world_size=2)
        batches = list(ours)
        for arrays, tensors in zip(batches, theirs, strict=True):
            assert_same(arrays, tensors)
        assert len(ours) == len(theirs)


def test_a_chat_set_has_the_targets_of_torch(chat_set):
    ours, theirs = both(chat_set, documents=True, long_documents="crop")
    for _ in range(30):
        assert_same(arrays := next(ours), next(theirs))
    assert (arrays[1] == -100).any()


def test_a_mixture_numbers_the_sources_of_its_rows_as_with_torch(token_set, tmp_path):
    other = make_token_set(tmp_path / "other", train=[[50] * 40], val=[[30] * 9], seed=3)
    mixture = Mixture({str(token_set): 2, str(other): 1})
    ours, theirs = both(mixture, sources=True)
    for _ in range(20):
        assert_same(arrays := next(ours), next(theirs))
    assert arrays[2].dtype == np.int64
    assert ours.sources == theirs.sources


@pytest.mark.parametrize("dtype", ["int32", "uint16"])
def test_arrays_are_contiguous_and_writable_and_share_no_memory(token_set, dtype):
    loader = RowLoader(token_set, batch_size=2, seq_len=SEQ_LEN, dtype=dtype, documents=True)
    expected = RowLoader(token_set, batch_size=2, seq_len=SEQ_LEN, dtype=dtype, documents=True)
    held = [array for _ in range(4) for array in next(loader)]
    for number, array in enumerate(held):
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert not any(np.shares_memory(array, other) for other in held[:number])
    for array in held:
        array[:] = 7  # what a caller writes changes no other array, and no batch to come
    for _ in range(4):
        next(expected)
    assert all(map(np.array_equal, next(loader), next(expected)))


# ---------------------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("int8", r"dtype int8 holds numbers up to 127, but this token set's ids go up to 999; pass a wider dtype"),
        ("float32", r"dtype must be an integer type, .* found 'float32'"),
        (bool, r"dtype must be an integer type, .* found 'bool'"),
        ("int3", r"dtype must be an integer type, .* found 'int3'"),
        (torch.int32, r"dtype must be an integer type, .* found torch.int32"),
    ],
)
def test_a_type_that_cannot_hold_the_ids_is_refused(token_set, dtype, message):
    with pytest.raises(ValueError, match=message):
        RowLoader(token_set, batch_size=2, seq_len=SEQ_LEN, dtype=dtype)


def test_a_type_that_cannot_hold_the_ignore_index_is_refused_where_there_may_be_one(token_set, chat_set):
    message = r"dtype uint16 cannot hold ignore_index=-100, .* pass a signed dtype, or an ignore_index above all"
    for tokens, settings in ((chat_set, {"long_documents": "crop"}), (token_set, {"loss": "once"})):
        with pytest.raises(ValueError, match=message):
            RowLoader(tokens, batch_size=2, seq_len=SEQ_LEN, dtype="uint16", **settings)
        loader = RowLoader(tokens, batch_size=9, seq_len=SEQ_LEN, dtype="uint16", ignore_index=60_000, **settings)
        assert (next(loader)[1] == 60_000).any()


@pytest.mark.parametrize("kind", [RowLoader, tokenmill.RowLoader])
def test_an_ignore_index_that_is_a_token_is_refused_where_there_may_be_one(token_set, chat_set, kind):
    for index in (0, 5, 999):
        for tokens, settings in ((chat_set, {"long_documents": "crop"}), (token_set, {"loss": "once"})):
            with pytest.raises(ValueError, match=f"ignore_index={index} is a token id of .*, whose ids are 0 to 999"):
                kind(tokens, batch_size=2, seq_len=SEQ_LEN, ignore_index=index, **settings)
        kind(token_set, batch_size=2, seq_len=SEQ_LEN, ignore_index=index)  # every target bears loss
    kind(chat_set, batch_size=2, seq_len=SEQ_LEN, ignore_index=1000, long_documents="crop")


def test_a_large_vocabulary_has_int32_and_its_ids_are_whole(tmp_path):
    wide = make_token_set(tmp_path / "wide", train=[[50] * 30], val=[[50]], vocab=200_000)
    ours, theirs = both(wide)
    assert_same(arrays := next(ours), next(theirs))
    assert arrays[0].max() > 65_536
    with pytest.raises(ValueError, match="dtype uint16 holds numbers up to 65,535"):
        RowLoader(wide, batch_size=2, seq_len=SEQ_LEN, dtype="uint16")


# ---------------------------------------------------------------------------- positions


def test_a_position_of_torch_continues_with_numpy_and_back(token_set):
    whole = tokenmill.RowLoader(token_set, batch_size=3, seq_len=SEQ_LEN)
    expected = [next(whole) for _ in range(12)]
    state = None
    for turn in range(4):  # three batches with each
        kind = RowLoader if turn % 2 else tokenmill.RowLoader
        loader = kind(token_set, batch_size=3, seq_len=SEQ_LEN)
        if state is not None:
            loader.load_state_dict(json.loads(state))
        for inputs, targets in expected[3 * turn : 3 * turn + 3]:
            found = [np.asarray(array) for array in next(loader)]
            assert_same(found, (inputs, targets))
        state = json.dumps(loader.state_dict())


def test_pending_and_with_state_are_those_of_every_loader(token_set):
    loader = RowLoader(token_set, batch_size=2, seq_len=SEQ_LEN)
    states = [state for _, (_, state) in zip(range(3), loader.with_state(), strict=False)]
    assert loader.state_dict(pending=1) == states[1]


# ---------------------------------------------------------------------------- document boundaries


@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=1, max_size=4))
def test_position_ids_are_those_of_torch(ids):
    ids = np.sort(np.array(ids, np.int32), axis=1)
    found = position_ids(ids)
    assert found.dtype == np.int32
    assert np.array_equal(found, tokenmill.position_ids(torch.from_numpy(ids)).numpy())


# ---------------------------------------------------------------------------- without torch

ABSENT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "jax"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


def python(code, check=True):
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert not check or done.returncode == 0, done.stderr
    return done


def test_it_works_without_torch_and_imports_none_where_it_is(token_set):
    code = f"""
from tokenmill.numpy import RowLoader
loader = RowLoader({str(token_set)!r}, batch_size=2, seq_len=16, documents=True)
for _ in range(50): inputs, targets, ids = next(loader)
loader.load_state_dict(loader.state_dict())
print(inputs.tolist(), "torch" in sys.modules)
"""
    expected = RowLoader(token_set, batch_size=2, seq_len=16, documents=True)
    for _ in range(50):
        inputs = next(expected)[0]
    assert python(ABSENT + code).stdout == python("import sys\n" + code).stdout == f"{inputs.tolist()} False\n"


@pytest.mark.parametrize("name", ["RowLoader", "PackedRows", "get_batch", "position_ids"])
def test_without_torch_an_error_of_one_line_says_what_to_install_or_import(name):
    done = python(ABSENT + f"from tokenmill import {name}", check=False)
    last = done.stderr.splitlines()[-1]
    assert "torch is not installed; pip install 'tokenmill[torch]'" in last
    instead = "or use RowLoader and position_ids of tokenmill.numpy or tokenmill.jax, which do not need torch"
    assert last.endswith(instead)


def test_without_jax_an_error_of_one_line_says_what_to_install():
    done = python(ABSENT + "import tokenmill.jax", check=False)
    assert "jax is not installed; pip install 'tokenmill[jax]'" in done.stderr.splitlines()[-1]


# ---------------------------------------------------------------------------- ranks


def test_ranks_are_those_of_torch_distributed_and_are_compared(token_set, tmp_path):
    code = (
        "from tokenmill.numpy import RowLoader\n"
        f"loader = RowLoader({str(token_set)!r}, batch_size=2, seq_len={SEQ_LEN})\n"
        "told = [loader.rank, loader.world_size, next(loader)[0].tolist()]\n"
        "def tried():\n"
        f"    try: RowLoader({str(token_set)!r}, batch_size=2, seq_len={SEQ_LEN}, seed=dist.get_rank())\n"
        "    except ValueError as error: return str(error)\n"
        "    return ''\n"
        "tell([*told, tried()])\n"
    )
    expected = RowLoader(token_set, batch_size=4, seq_len=SEQ_LEN)
    first, second = on_ranks(code, tmp_path)
    assert [first[:2], second[:2]] == [[0, 2], [1, 2]]
    assert first[2] + second[2] == next(expected)[0].tolist()
    assert "all ranks must ask for the same rows" in first[3] + second[3]


CHILD = """
import os, sys
import multiprocessing
sys.path.insert(0, {root!r})
from tokenmill.numpy import RowLoader

def make(out, **ranks):
    try:
        loader = RowLoader({tokens!r}, batch_size=2, seq_len=16, **ranks)
        out.put([loader.rank, loader.world_size])
    except ValueError as error:
        out.put(str(error))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    out = context.Queue()
    for ranks in ({{}}, {{"rank": 1, "world_size": 2}}, None):
        if ranks is None:
            os.environ |= {{"RANK": "2", "WORLD_SIZE": "3"}}
        child = context.Process(target=make, args=(out,), kwargs=ranks or {{}})
        child.start()
        print(out.get(timeout=60))
        child.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_process_that_multiprocessing_started_must_be_told_its_rank(token_set, tmp_path, method):
    """It would take itself for rank 0 of 1, as in a worker of Grain's, in every process of a JAX program."""
    (tmp_path / "program.py").write_text(CHILD.format(root=str(ROOT), tokens=str(token_set)))
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py", method], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    refused, told, of_torchrun = done.stdout.splitlines()
    assert "multiprocessing has started this process" in refused
    assert told == "[1, 2]"
    assert of_torchrun == ("[2, 3]" if method != "forkserver" else refused), (
        "the server has the environment of its start"
    )


def test_ranks_are_those_of_torchrun_s_environment(token_set, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = RowLoader(token_set, batch_size=2, seq_len=SEQ_LEN)
    assert (loader.rank, loader.world_size) == (1, 2)


# ---------------------------------------------------------------------------- its parameters


def test_what_it_says_of_its_parameters_is_complete():
    of_torch = set(inspect.signature(tokenmill.RowLoader).parameters)
    own = set(inspect.signature(RowLoader).parameters)
    assert of_torch - own == {"device", "mesh"}
    assert own - of_torch == {"dtype"}
    assert "| dtype |" in RowLoader.__doc__
