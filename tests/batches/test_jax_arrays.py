"""tokenmill.jax: global arrays of torch's rows, on several processes, for any sharding of a batch."""

import json
import re

import pytest
from jax_processes import global_array, on_jax
from making import make_chat_set
from reference import SEQ_LEN

import tokenmill

B = 2  # rows of each of four ranks


def torch_batches(tokens, ranks, count, state=None, batch_size=B, **settings):
    """(inputs, targets) of `count` global batches, as lists, and the position after them."""
    loaders = [
        tokenmill.RowLoader(
            tokens, batch_size=batch_size, seq_len=SEQ_LEN, rank=rank, world_size=ranks, prefetch=0, **settings
        )
        for rank in range(ranks)
    ]
    for loader in loaders if state else ():
        loader.load_state_dict(state)
    batches = []
    for _ in range(count):
        parts = [next(loader) for loader in loaders]
        batches.append(tuple([row for part in parts for row in part[kind].tolist()] for kind in range(len(parts[0]))))
    assert len({json.dumps(loader.state_dict()) for loader in loaders}) == 1
    return batches, loaders[0].state_dict()


def together(told):
    """The global batches, each a tuple of arrays as lists, from the batches that each process told."""
    return [tuple(global_array(list(parts)) for parts in zip(*batch, strict=True)) for batch in zip(*told, strict=True)]


RUN = """
loader = RowLoader({tokens!r}, batch_size={batch_size}, seq_len={seq_len}, **{settings})
if {state}: loader.load_state_dict({state})
batches = []
for _ in range({count}):
    arrays = next(loader)
    assert all(array.dtype == np.int32 and len(array) == {batch_size} * loader.world_size for array in arrays)
    batches.append([held(array) for array in arrays])
tell([batches, loader.state_dict(), [loader.rank, loader.world_size]])
"""


def jax_batches(tokens, folder, processes, count, state=None, batch_size=B, devices=1, **settings):
    code = RUN.format(
        tokens=str(tokens), batch_size=batch_size, seq_len=SEQ_LEN, count=count, state=state, settings=settings
    )
    told = on_jax(code, folder, processes, devices)
    assert all(state == told[0][1] for _, state, _ in told)
    assert [ranks for _, _, ranks in told] == [[number, processes] for number in range(processes)]
    return together([batches for batches, _, _ in told]), told[0][1]


def test_four_processes_are_torch_s_four_ranks_over_two_epochs_resumed_on_two(token_set, tmp_path):
    """The global batches, bit for bit; and the positions."""
    rows = tokenmill.RowLoader(token_set, batch_size=1, seq_len=SEQ_LEN).rows
    first = rows * 7 // 10 // (4 * B)
    second = 2 * rows // (4 * B) - first + 1
    expected, saved = torch_batches(token_set, 4, first)
    found, position = jax_batches(token_set, tmp_path, 4, first)
    assert (found, position) == (expected, saved)
    expected, saved = torch_batches(token_set, 2, second, saved, batch_size=2 * B)
    found, position = jax_batches(token_set, tmp_path, 2, second, position, batch_size=2 * B, devices=2)
    assert (found, position) == (expected, saved)
    assert saved["sources"]["epoch"] == [2]
    # and torch goes on from JAX's position
    assert torch_batches(token_set, 3, 5, position) == torch_batches(token_set, 3, 5, saved)


def test_documents_and_targets_without_loss_are_those_of_torch(tmp_path):
    chats = make_chat_set(tmp_path / "set", train=[[30, 9, 50, 12] * 20] * 2, val=[[40] * 9])
    settings = {"documents": True, "long_documents": "crop", "ignore_index": -1}
    expected, _ = torch_batches(chats, 1, 5, **settings)
    found, _ = jax_batches(chats, tmp_path, 1, 5, devices=2, **settings)
    assert found == expected
    assert any(-1 in row for _, targets, _ in found for row in targets)


SHARDINGS = """
import tokenmill.jax
devices = np.array(sorted(jax.devices(), key=lambda device: device.id))  # of each process two
def batch(mesh, axes, spec, **settings):
    sharding = NamedSharding(Mesh(mesh, axes), spec)
    loader = RowLoader({tokens!r}, sharding=sharding, **{{"batch_size": 4, "seq_len": {seq_len}}} | settings)
    return [loader.rank, loader.world_size, held(next(loader)[0])]
told = {{}}
told["data"] = batch(devices, ("data",), P("data"))
told["data x tensor within processes"] = batch(devices.reshape(4, 2), ("data", "tensor"), P("data"))
told["data x tensor across processes"] = batch(devices.reshape(2, 4), ("data", "tensor"), P("data"))
told["tensor alone"] = batch(devices.reshape(1, 8), ("data", "tensor"), P("data"))
told["fsdp"] = batch(devices.reshape(2, 4), ("data", "fsdp"), P(("data", "fsdp")))
told["sequence"] = batch(devices.reshape(4, 2), ("data", "sequence"), P("data", "sequence"))
told["sequence across processes"] = batch(devices.reshape(2, 4), ("data", "sequence"), P("data", "sequence"))
told["replicated"] = batch(devices, ("data",), P())
told["backwards"] = batch(devices[::-1], ("data",), P("data"))
told["interleaved"] = batch(devices.reshape(4, 2).T.reshape(-1), ("data",), P("data"))
here = np.array(jax.local_devices())
ranks = tokenmill.jax.rank_in_sharding(NamedSharding(Mesh(devices.reshape(2, 4), ("data", "tensor")), P("data")))
told["own devices"] = batch(here, ("data",), P("data"), seed=process)  # not compared
refused = {{}}
try_batch = lambda *arguments, **settings: tried(lambda: batch(*arguments, **settings))
refused["three rows on two devices"] = try_batch(devices, ("data",), P("data"), batch_size=3)
refused["shared in part"] = try_batch(devices[:6].reshape(2, 3), ("data", "tensor"), P("data"))
refused["15 tokens in two parts"] = try_batch(
    devices.reshape(4, 2), ("data", "sequence"), P("data", "sequence"), seq_len=15)
refused["three axes"] = try_batch(devices.reshape(2, 4), ("data", "tensor"), P("data", None, "tensor"))
refused["another process's devices"] = try_batch(devices[:2] if process else devices[2:4], ("data",), P("data"))
of = lambda sharding: tried(lambda: RowLoader({tokens!r}, batch_size=2, seq_len=4, sharding=sharding))
refused["unconstrained"] = try_batch(devices, ("data",), P(P.UNCONSTRAINED))
refused["no sharding"] = of(Mesh(devices, ("data",)))
refused["single device"] = of(jax.sharding.SingleDeviceSharding(here[0]))
tell([told, refused, ranks])
"""


@pytest.fixture(scope="module")
def sharded(token_set, tmp_path_factory):
    """What four processes of two devices each got for each sharding, and how others were refused."""
    code = SHARDINGS.format(tokens=str(token_set), seq_len=SEQ_LEN)
    told = on_jax(code, tmp_path_factory.mktemp("sharded"), 4, devices=2)
    assert [ranks for _, _, ranks in told] == [[0, 2], [0, 2], [1, 2], [1, 2]], "data x tensor across processes"
    return [found for found, _, _ in told], [refused for _, refused, _ in told]


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


@pytest.mark.parametrize("name", RANKS)
def test_row_i_of_a_global_array_is_row_i_of_the_global_batch(token_set, sharded, name):
    found = [told[name] for told in sharded[0]]
    assert [rank for rank, _, _ in found] == RANKS[name]
    ranks = max(RANKS[name]) + 1
    assert {world_size for _, world_size, _ in found} == {ranks}
    ((inputs, _),), _ = torch_batches(token_set, ranks, 1, batch_size=4)
    assert global_array([rows for _, _, rows in found]) == inputs


def test_devices_in_a_mixed_order_get_the_rows_of_the_global_batch_in_another_order(token_set, sharded):
    found = [told["interleaved"] for told in sharded[0]]
    ((inputs, _),), _ = torch_batches(token_set, 4, 1, batch_size=4)
    rows = global_array([rows for _, _, rows in found])
    assert rows != inputs
    assert sorted(rows) == sorted(inputs)


def test_a_process_may_read_alone_on_its_own_devices(token_set, sharded):
    """As in an evaluation. Each had another seed, and none was refused."""
    for process, told in enumerate(sharded[0]):
        rank, world_size, rows = told["own devices"]
        assert (rank, world_size) == (0, 1)
        ((inputs, _),), _ = torch_batches(token_set, 1, 1, batch_size=4, seed=process)
        assert global_array([rows]) == inputs


REFUSED = {
    "three rows on two devices": "batch_size must be a multiple of 2, the parts .* on this process's devices, found 3",
    "shared in part": "the processes of a sharding must hold either the same parts .* process 1: \\[0, 1\\]",
    "15 tokens in two parts": "seq_len must be a multiple of 2, .* found 15",
    "three axes": "sharding must name axes of the mesh for a batch's two axes",
    "another process's devices": "process \\d has no device in .*; create the loader on processes \\[\\d\\] only",
    "unconstrained": "sharding must name axes of the mesh",
    "no sharding": "sharding must be a jax.sharding.NamedSharding",
    "single device": "sharding must be a jax.sharding.NamedSharding",
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_batch_that_cannot_be_split_so_is_refused(sharded, what):
    said = [refused[what] for refused in sharded[1]]
    alone = what in ("shared in part",)  # the fourth process has no device in that mesh
    for one in said[:3] if alone else said:
        assert re.search(REFUSED[what], one)
    assert all(said)


COMPARED = """
def make(**settings):
    return RowLoader({tokens!r}, **{{"batch_size": 2, "seq_len": {seq_len}}} | settings)
told = {{}}
told["seed"] = tried(lambda: make(seed=process))
told["batch_size"] = tried(lambda: make(batch_size=2 + 2 * process))
if process == 0:
    told["alone"] = tried(lambda: make(split="val"))  # nobody waits
loader = make()
next(loader)
told["in step"] = tried(loader.state_dict)
if process == 0:
    next(loader)
told["ahead"] = tried(loader.state_dict)
told["another position"] = tried(lambda: make().load_state_dict(loader._position(0)))
tell(told)
"""


def test_processes_that_ask_for_other_rows_or_stand_elsewhere_are_refused_and_nobody_waits(token_set, tmp_path):
    told = on_jax(COMPARED.format(tokens=str(token_set), seq_len=SEQ_LEN), tmp_path, 2)
    for what, message in {
        "seed": r"all ranks must ask for the same rows.* seed is [01] on rank [01], [01] on rank [01]",
        "batch_size": r"batch_size is [24] on rank [01]",
        "ahead": r"all ranks must be at the same row when you take a position",
        "another position": r"all ranks must ask for the same rows",
    }.items():
        said = sorted(process[what] for process in told)
        assert said[0] == ""  # of the process that was there first
        assert re.search(message, said[1])
    assert [process["in step"] for process in told] == ["", ""]
    assert told[0]["alone"] == ""


def test_a_value_that_its_writer_deletes_while_it_is_read_is_stored_again(tmp_path):
    """As by a process that is many comparisons ahead."""
    code = """
from jax._src import distributed
from tokenmill.batches.processes import jax_store
jax.distributed.initialize(f"127.0.0.1:{port}", 1, 0)
client = distributed.global_state.client
class Deleted:
    def __getattr__(self, name):
        return getattr(client, name)
    def blocking_key_value_get(self, key, milliseconds):
        client.key_value_delete(key)
        return client.blocking_key_value_get(key, milliseconds)
client.key_value_set("one", "theirs")
store = jax_store()
found = [store.set_once("one", "ours"), store._replace(client=Deleted()).set_once("one", "ours")]
client.key_value_delete("one")
tell([*found, store.set_once("one", "ours"), store.set_once("one", "others")])
"""
    assert on_jax(code, tmp_path) == [["theirs", "ours", "ours", "ours"]]


def test_a_fork_before_jax_uses_its_devices_knows_its_rank(token_set, tmp_path):
    code = f"""
import os
import tokenmill.numpy
if not (child := os.fork()):
    loader = tokenmill.numpy.RowLoader({str(token_set)!r}, batch_size=2, seq_len={SEQ_LEN})
    os._exit(10 + loader.rank + 4 * loader.world_size)
tell(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert on_jax(code, tmp_path, 2) == [18, 19]


def test_jax_compares_in_its_own_store_even_if_torch_has_another(token_set, tmp_path):
    code = f"""
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
tell(tried(lambda: RowLoader({str(token_set)!r}, batch_size=2, seq_len={SEQ_LEN}, seed=process)))
dist.destroy_process_group()
"""
    assert "all ranks must ask for the same rows" in "".join(on_jax(code, tmp_path, 2))


def test_a_mesh_of_torch_is_enough_where_jax_has_other_ranks(token_set, tmp_path):
    code = f"""
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
import tokenmill
dist.init_process_group("gloo", init_method=f"file://{{folder}}/meeting", rank=1 - process, world_size=2)
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
loader = tokenmill.RowLoader({str(token_set)!r}, batch_size=2, seq_len={SEQ_LEN}, mesh=mesh["dp"])
next(loader)
tell([loader.rank, loader.world_size])
dist.barrier()
dist.destroy_process_group()
"""
    assert on_jax(code, tmp_path, 2) == [[1, 2], [0, 2]]


def test_an_ignore_index_that_int32_cannot_hold_is_refused_when_the_loader_is_made(tmp_path):
    chats = make_chat_set(tmp_path / "set", train=[[30, 9] * 20], val=[[40] * 9])
    code = f"tell(tried(lambda: RowLoader({str(chats)!r}, batch_size=2, seq_len=64, ignore_index=2**31)))"
    assert "dtype int32 cannot hold ignore_index=2147483648" in on_jax(code, tmp_path)[0]


def test_numpy_finds_its_rank_in_jax(token_set, tmp_path):
    """So that a JAX program that takes NumPy arrays does not train on the same rows in every process."""
    code = f"""
from tokenmill.numpy import RowLoader
make = lambda **settings: RowLoader({str(token_set)!r}, batch_size=2, seq_len={SEQ_LEN}, **settings)
loader = make()
rows = next(loader)[0].tolist()
tell([loader.rank, loader.world_size, rows, tried(lambda: make(seed=process)), "torch" in sys.modules])
"""
    first, second = on_jax(code, tmp_path, 2)
    assert [first[:2], second[:2]] == [[0, 2], [1, 2]]
    ((inputs, _),), _ = torch_batches(token_set, 2, 1)
    assert first[2] + second[2] == inputs
    assert "all ranks must ask for the same rows" in first[3] + second[3]
    assert not first[4]


def test_a_process_that_jax_does_not_connect_is_refused_under_a_launcher(token_set, tmp_path):
    make = f"RowLoader({str(token_set)!r}, batch_size=2, seq_len={SEQ_LEN}"
    code = f"""
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
tell([tried(lambda: {make})), tried(lambda: {make}, sharding=sharding))])
"""
    for said in on_jax(code, tmp_path, WORLD_SIZE="4", RANK="1")[0]:
        assert re.search(r"WORLD_SIZE=4 .* call jax.distributed.initialize\(\) first, or, if this process", said)


def test_python_ends_while_a_thread_still_makes_batches(token_set, tmp_path):
    """JAX clears its devices at the end; `on_jax` fails if it tells of an error."""
    code = f"""
from tokenmill.feed.forecast import forecast  # the thread's module, before JAX has anything to end
loader = RowLoader({str(token_set)!r}, batch_size=64, seq_len=8, prefetch=50)
next(loader)
tell(1)
"""
    for _ in range(3):
        on_jax(code, tmp_path)


def test_a_batch_is_never_compiled_in(token_set, tmp_path):
    """In jax.jit it would be a constant, the same at every step, without an error."""
    code = f"""
loader, other = (RowLoader({str(token_set)!r}, batch_size=2, seq_len={SEQ_LEN}) for _ in range(2))
try:
    jax.jit(lambda x: x + next(loader)[0].sum())(1)
    told = ""
except RuntimeError as error:
    told = str(error)
loss = lambda weight: (weight * next(other)[0]).sum()  # not compiled: takes a batch at each call
slopes = [int(jax.grad(loss)(1.0)) for _ in range(3)]
tell([told, slopes, [int(next(loader)[0].sum()) for _ in range(3)]])
"""
    ((told, slopes, sums),) = on_jax(code, tmp_path)
    assert "call it outside, and pass the batch as an argument" in told
    assert slopes == sums
    assert len(set(sums)) == 3


def test_sources_positions_and_parameters(token_set, tmp_path):
    code = f"""
import inspect
import tokenmill.numpy
from tokenmill import Mixture
mixture = Mixture({{{str(token_set)!r}: 1}})
loader = RowLoader(mixture, batch_size=4, seq_len={SEQ_LEN}, documents=True, sources=True)
inputs, targets, ids, sources = next(loader)
assert sources.shape == (4,) and sources.dtype == ids.dtype == np.int32
expected = tokenmill.numpy.position_ids(np.asarray(ids))
assert np.array_equal(jax.jit(position_ids)(ids), expected) and np.array_equal(position_ids(ids), expected)
assert position_ids(ids).dtype == np.int32
tell([[str(p) for p in inspect.signature(kind).parameters.values()] for kind in (RowLoader, tokenmill.numpy.RowLoader)])
"""
    ((own, of_numpy),) = on_jax(code, tmp_path, devices=2)
    names = [{parameter.partition(":")[0] for parameter in some} for some in (own, of_numpy)]
    assert names[0] - names[1] == {"sharding"}
    assert names[1] - names[0] == {"dtype", "drop_last", "rank", "world_size"}
    assert {parameter for parameter in own if "sharding" not in parameter} <= set(of_numpy), "the same defaults"


def test_ranks_of_torch_and_of_jax_that_differ_are_refused(token_set, tmp_path):
    code = f"""
import torch.distributed as dist
import tokenmill.numpy
dist.init_process_group("gloo", init_method=f"file://{{folder}}/meeting {{process}}", rank=0, world_size=1)
make = lambda **ranks: tokenmill.numpy.RowLoader({str(token_set)!r}, batch_size=2, seq_len={SEQ_LEN}, **ranks)
tell([tried(make), tried(lambda: make(rank=process, world_size=2))])
dist.destroy_process_group()
"""
    for process, (said, with_ranks) in enumerate(on_jax(code, tmp_path, 2)):
        assert f"rank 0 of 1, and jax.distributed that it is process {process} of 2; give rank=" in said
        assert with_ranks == ""
