"""tokenmill.jax: global arrays of torch's rows, on several processes, for any sharding."""

import inspect
import json
import re

import pytest
import torch
from jax_processes import global_array, on_jax
from making import make_chat_set
from reference import SEQ_LEN

import tokenmill.numpy

B = 2  # rows of each of four ranks


def torch_batches(tokens, ranks, count, state=None, batch_size=B, **settings):
    """(inputs, targets) of `count` global batches, as lists, and the position after them."""
    sizes = {"batch_size": batch_size, "seq_len": SEQ_LEN, "world_size": ranks, "prefetch": 0}
    loaders = [tokenmill.RowLoader(tokens, rank=rank, **sizes, **settings) for rank in range(ranks)]
    for loader in loaders:
        if state:
            loader.load_state_dict(state)
    batches = []
    for _ in range(count):
        arrays = zip(*map(next, loaders), strict=True)
        batches.append(tuple(torch.cat(parts).tolist() for parts in arrays))
    return batches, loaders[0].state_dict()


RUN = """
loader = RowLoader(TOKENS, batch_size=SIZE, seq_len=16, **SETTINGS)
if STATE: loader.load_state_dict(STATE)
batches = []
for _ in range(COUNT):
    arrays = next(loader)
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}
    assert {len(array) for array in arrays} == {SIZE * loader.world_size}
    batches.append([held(array) for array in arrays])
tell([batches, loader.state_dict(), [loader.rank, loader.world_size], loader.targets])
"""


def jax_batches(tokens, folder, processes, count, state=None, batch_size=B, devices=1, **settings):
    code = f"TOKENS, SIZE, COUNT = {str(tokens)!r}, {batch_size}, {count}\n"
    code += f"SETTINGS, STATE = {settings!r}, {state!r}"
    printed = on_jax(code + RUN, folder, processes, devices)
    assert all(state == printed[0][1] for _, state, *_ in printed)
    assert [ranks for _, _, ranks, _ in printed] == [
        [number, processes] for number in range(processes)
    ]
    dealt = []
    for batch in zip(*(batches for batches, *_ in printed), strict=True):
        dealt.append(tuple(global_array(list(parts)) for parts in zip(*batch, strict=True)))
    return dealt, printed[0][1]


@pytest.mark.slow
def test_four_processes_are_torch_s_four_ranks_over_two_epochs_resumed_on_two(token_set, tmp_path):
    """The global batches, bit for bit; and the positions."""
    rows = tokenmill.RowLoader(token_set, batch_size=1, seq_len=SEQ_LEN).rows
    first = rows * 7 // 10 // (4 * B)
    second = 2 * rows // (4 * B) - first + 1
    expected, saved = torch_batches(token_set, 4, first)
    assert jax_batches(token_set, tmp_path, 4, first) == (expected, saved)
    expected, then = torch_batches(token_set, 2, second, saved, batch_size=2 * B)
    resumed = jax_batches(token_set, tmp_path, 2, second, saved, batch_size=2 * B, devices=2)
    assert resumed == (expected, then)
    assert json.loads(then["tokenmill"])["now"]["cursors"][""][0] == 2, "epochs"


def test_targets_that_are_not_in_the_loss_are_those_of_torch(tmp_path):
    chats = make_chat_set(tmp_path / "set", train=[[30, 9, 50, 12] * 20] * 2, val=[[40] * 9])
    settings = {"long_documents": "crop", "ignore_index": -1}
    expected = torch_batches(chats, 1, 5, **settings)
    assert jax_batches(chats, tmp_path, 1, 5, devices=2, **settings) == expected
    assert any(-1 in sum(targets, []) for _, targets in expected[0])


SHARDINGS = """
import tokenmill.jax
devices = np.array(sorted(jax.devices(), key=lambda device: device.id))  # of each process two
def batch(mesh, axes, spec, **settings):
    sharding = NamedSharding(Mesh(mesh, axes), spec)
    loader = RowLoader(TOKENS, sharding=sharding, **{"batch_size": 4, "seq_len": 16} | settings)
    return [loader.rank, loader.world_size, held(next(loader)[0])]
told, refused = {}, {}
told["data"] = batch(devices, ("data",), P("data"))
told["data x tensor within processes"] = batch(devices.reshape(4, 2), ("data", "tensor"), P("data"))
told["data x tensor across processes"] = batch(devices.reshape(2, 4), ("data", "tensor"), P("data"))
told["tensor alone"] = batch(devices.reshape(1, 8), ("data", "tensor"), P("data"))
told["fsdp"] = batch(devices.reshape(2, 4), ("data", "fsdp"), P(("data", "fsdp")))
told["sequence"] = batch(devices.reshape(4, 2), ("data", "sequence"), P("data", "sequence"))
told["sequence across processes"] = batch(
    devices.reshape(2, 4), ("data", "sequence"), P("data", "sequence"))
told["replicated"] = batch(devices, ("data",), P())
told["backwards"] = batch(devices[::-1], ("data",), P("data"))
told["interleaved"] = batch(devices.reshape(4, 2).T.reshape(-1), ("data",), P("data"))
here = np.array(jax.local_devices())
mesh = Mesh(devices.reshape(2, 4), ("data", "tensor"))
ranks = tokenmill.jax.rank_in_sharding(NamedSharding(mesh, P("data")))
told["own devices"] = batch(here, ("data",), P("data"), seed=process)
try_batch = lambda *arguments, **settings: tried(lambda: batch(*arguments, **settings))
refused["batch_size must be a multiple of 2"] = try_batch(
    devices, ("data",), P("data"), batch_size=3)
if process < 3:  # the fourth has no device in that mesh
    refused["the same parts"] = try_batch(devices[:6].reshape(2, 3), ("data", "tensor"), P("data"))
refused["seq_len must be a multiple of 2"] = try_batch(
    devices.reshape(4, 2), ("data", "sequence"), P("data", "sequence"), seq_len=15)
refused["sharding must be"] = try_batch(
    devices.reshape(2, 4), ("data", "tensor"), P("data", None, "tensor"))
refused["has no device"] = try_batch(devices[:2] if process else devices[2:4], ("data",), P("data"))
of = lambda sharding: tried(lambda: RowLoader(TOKENS, batch_size=2, seq_len=4, sharding=sharding))
refused["must be a NamedSharding"] = of(Mesh(devices, ("data",)))
refused["a NamedSharding"] = of(jax.sharding.SingleDeviceSharding(here[0]))
tell([told, refused, ranks])
"""
RANKS = {  # of the four processes
    "data": [0, 1, 2, 3],
    "data x tensor within processes": [0, 1, 2, 3],
    "data x tensor across processes": [0, 0, 1, 1],
    "tensor alone": [0, 0, 0, 0],
    "fsdp": [0, 1, 2, 3],
    "sequence": [0, 1, 2, 3],
    "sequence across processes": [0, 0, 1, 1],
    "replicated": [0, 0, 0, 0],
    "backwards": [3, 2, 1, 0],
}


def test_each_sharding_has_the_rows_of_the_global_batch_or_is_refused(token_set, tmp_path):
    """Row i of a global array is row i of the global batch, unless its devices are in a mixed
    order.
    """
    printed = on_jax(SHARDINGS.replace("TOKENS", repr(str(token_set))), tmp_path, 4, devices=2)
    assert [ranks for *_, ranks in printed] == [[0, 2], [0, 2], [1, 2], [1, 2]], (
        "data x tensor across processes"
    )
    for name in [*RANKS, "interleaved"]:
        expected = RANKS.get(name, [0, 1, 2, 3])
        by_name = [batches[name] for batches, *_ in printed]
        assert [rank for rank, *_ in by_name] == expected, name
        assert {world_size for _, world_size, _ in by_name} == {max(expected) + 1}
        ((inputs, _),), _ = torch_batches(token_set, max(expected) + 1, 1, batch_size=4)
        rows = global_array([rows for *_, rows in by_name])
        assert (rows if name in RANKS else sorted(rows)) == (
            inputs if name in RANKS else sorted(inputs)
        ), name
    for process, (batches, refused, _) in enumerate(printed):
        ((inputs, _),), _ = torch_batches(token_set, 1, 1, batch_size=4, seed=process)
        assert batches["own devices"][:2] == [0, 1], "as in an evaluation on one process"
        assert global_array([batches["own devices"][2]]) == inputs
        assert not [
            (expected, message) for expected, message in refused.items() if expected not in message
        ]


MISCELLANY = """
import inspect, os
import tokenmill.numpy
from tokenmill.jax import document_ids, position_ids
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
import tokenmill
how = {"tokens": TOKENS, "batch_size": 2, "seq_len": 16}
loader = tokenmill.numpy.RowLoader(**how)  # finds its rank in JAX
told = {"numpy": [loader.rank, loader.world_size, next(loader)[0].tolist()]}
inputs = jax.numpy.array(next(loader)[0])
ids = document_ids(inputs, loader.bos_id)
of_numpy = tokenmill.numpy.document_ids(np.asarray(inputs), loader.bos_id)
assert ids.dtype == position_ids(ids).dtype == np.int32
assert np.array_equal(ids, of_numpy)
assert np.array_equal(jax.jit(document_ids)(inputs, loader.bos_id), of_numpy)
assert np.array_equal(jax.jit(position_ids)(ids), tokenmill.numpy.position_ids(of_numpy))
told["parameters"] = [str(one) for one in inspect.signature(RowLoader).parameters.values()]
told["int32"] = tried(lambda: RowLoader(**how, loss="once", ignore_index=2**31))
meeting = f"file://{folder}/meeting"
dist.init_process_group("gloo", init_method=meeting, rank=1 - process, world_size=2)
told["differ"] = tried(lambda: tokenmill.numpy.RowLoader(**how))
told["given"] = tried(lambda: tokenmill.numpy.RowLoader(**how, rank=process, world_size=2))
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
loader = tokenmill.RowLoader(**how, mesh=mesh["dp"])
told["a mesh of torch is enough"] = [loader.rank, loader.world_size]
dist.barrier()
dist.destroy_process_group()
last = RowLoader(TOKENS, batch_size=64, seq_len=8, prefetch=50)
next(last)  # its thread makes batches while Python ends, when JAX clears its devices
tell(told)
"""


@pytest.mark.slow
def test_ranks_parameters_document_ids_and_the_end(token_set, tmp_path):
    printed = on_jax(MISCELLANY.replace("TOKENS", repr(str(token_set))), tmp_path, 2)
    ((inputs, _),), _ = torch_batches(token_set, 2, 1)
    assert printed[0]["numpy"] == [0, 2, inputs[:B]]
    assert printed[1]["numpy"] == [1, 2, inputs[B:]]
    of_numpy = [
        str(parameter)
        for parameter in inspect.signature(tokenmill.numpy.RowLoader).parameters.values()
    ]
    for process, facts in enumerate(printed):
        of_jax = {parameter for parameter in facts["parameters"] if "sharding" not in parameter}
        names = {parameter.partition(":")[0] for parameter in set(of_numpy) - of_jax}
        assert of_jax <= set(of_numpy), "the same defaults"
        assert names == {"dtype", "drop_last", "rank", "world_size"}
        assert "dtype int32 cannot hold" in facts["int32"]
        assert (
            f"({1 - process}, 2) in torch and ({process}, 2) in JAX; pass rank and world_size"
            in facts["differ"]
        )
        assert (facts["given"], facts["a mesh of torch is enough"]) == ("", [1 - process, 2])


def test_a_process_that_jax_does_not_connect_is_refused_under_a_launcher(token_set, tmp_path):
    code = f"tell(tried(lambda: RowLoader({str(token_set)!r}, batch_size=2, seq_len=16)))"
    (message,) = on_jax(code, tmp_path, WORLD_SIZE="4", RANK="1")
    assert re.search(r"WORLD_SIZE=4 .* call jax.distributed.initialize\(\) first", message)
