"""Makes global jax.Arrays of rows of token ids, each process adding the rows of its own devices.

    sharding    NamedSharding of a global batch (B * world_size, T): its first axis is the batch axis

Each process makes NumPy arrays of its B rows (numpy_transfer.py), and `jax.make_array_from_process_local_data` copies
them to its devices. No process waits for another. A thread does this ahead of training.

Which rows a process needs follows from the sharding. The devices of each process hold some parts of the batch axis.
Processes that hold the same parts get the same rows, which is the case if the mesh splits a batch's rows, or the
model, across processes. Here with 2 devices a process, and a mesh of "data" x "tensor":

    mesh 4 x 2, P("data")     process 0 holds part 0, 1: part 1, 2: part 2, 3: part 3      4 ranks
    mesh 2 x 4, P("data")     processes 0, 1 hold part 0; processes 2, 3 hold part 1       2 ranks
"""

import atexit
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tokenmill.batches.numpy_transfer import NumpyTransfer
from tokenmill.feed.background import stop_all

# JAX clears its devices when Python ends. This module has imported JAX, so Python calls `stop_all` before that.
atexit.register(stop_all)


class JaxBatch(NamedTuple):
    """`arrays` (inputs, targets[, document_ids][, sources]); JAX itself waits for copies that are under way."""

    arrays: tuple[jax.Array, ...]

    def receive(self) -> tuple[jax.Array, ...]:
        return self.arrays


class JaxTransfer:
    """Makes int32 arrays of this sharding; of `sources` only its first axis is used. `world_size` is that of ranks."""

    def __init__(self, sharding: NamedSharding, world_size: int, bos_id: int | None, ignore_index: int):
        self._rows = NumpyTransfer(np.dtype(np.int32), bos_id, ignore_index)
        of_rows = PartitionSpec(*sharding.spec[:1])
        self._shardings = {2: sharding, 1: NamedSharding(sharding.mesh, of_rows, memory_kind=sharding.memory_kind)}
        self._world_size = world_size

    def send(self, rows: np.ndarray, sources: np.ndarray | None = None, mask: np.ndarray | None = None) -> JaxBatch:
        numbers = None if sources is None else sources.astype(np.int32)
        return JaxBatch(tuple(map(self._to_devices, self._rows.send(rows, numbers, mask).arrays)))

    def _to_devices(self, local: np.ndarray) -> jax.Array:
        shape = (len(local) * self._world_size, *local.shape[1:])
        return jax.make_array_from_process_local_data(self._shardings[local.ndim], local, shape)


def require_connected() -> None:
    """Raises ValueError if torchrun's environment has several processes and JAX knows only this one."""
    if jax.process_count() == 1 and os.environ.get("WORLD_SIZE", "1") != "1":
        raise ValueError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} in the environment, but JAX knows only this process, so every "
            "process would get the same rows; call jax.distributed.initialize() first, or, if this process trains "
            "alone, remove WORLD_SIZE from its environment"
        )


def default_sharding() -> NamedSharding:
    """The batch axis over all devices of all processes, in the order of the processes."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    return NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"))


def require_sharding(sharding: Any) -> NamedSharding:
    """The sharding of a batch. Raises ValueError if it is none that batches can have."""
    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh):
        raise ValueError(
            "sharding must be a jax.sharding.NamedSharding of devices, whose first axis is the batch axis, as "
            f"NamedSharding(mesh, PartitionSpec('data')), found {sharding!r}"
        )
    axes = [name for axis in sharding.spec for name in (axis if isinstance(axis, tuple) else (axis,))]
    if len(sharding.spec) > 2 or not all(name is None or isinstance(name, str) for name in axes):
        raise ValueError(
            "sharding must name axes of the mesh for a batch's two axes, (batch, sequence), as "
            f"PartitionSpec('data'), found {sharding.spec}"
        )
    return sharding


def parts_of_processes(sharding: NamedSharding) -> dict[int, frozenset[int]]:
    """Which parts of the batch axis the devices of each process hold, by process; only processes that hold some."""
    count = number_of_parts(sharding)
    along_batch = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1]))
    of_devices: Mapping[Any, Any] = along_batch.devices_indices_map((count,))
    parts: dict[int, set[int]] = {}
    for device, (part,) in of_devices.items():
        parts.setdefault(device.process_index, set()).update(range(*part.indices(count)))
    return {process: frozenset(held) for process, held in parts.items()}


def number_of_parts(sharding: NamedSharding, axis: int = 0) -> int:
    """Into how many parts an axis is split: 0 is the batch axis, 1 that of tokens."""
    axes = sharding.spec[axis] if len(sharding.spec) > axis else None
    names = () if axes is None else (axes,) if isinstance(axes, str) else axes
    return int(np.prod([sharding.mesh.shape[name] for name in names], dtype=np.int64))


def rank_in_sharding(sharding: NamedSharding) -> tuple[int, int]:
    """(rank, world_size) of this process, where processes that hold the same parts of the batch axis are one rank.

    Ranks are numbered in the order of their first parts. Use it to choose a batch_size for a global batch, or to pass
    rank and world_size to tokenmill.numpy.RowLoader if your program makes global arrays itself.

        rank, world_size = rank_in_sharding(sharding)
        loader = RowLoader(..., batch_size=512 // world_size, sharding=sharding)

    Raises ValueError if the process has no device of the sharding, or if processes share some parts and not others.
    """
    parts, process = parts_of_processes(require_sharding(sharding)), jax.process_index()
    if process not in parts:
        raise ValueError(
            f"process {process} has no device in {sharding}; create the loader on processes {sorted(parts)} only"
        )
    ranks = sorted(set(parts.values()), key=min)
    if sum(map(len, ranks)) != number_of_parts(sharding) or len(set(map(len, ranks))) > 1:
        held = ", ".join(f"process {number}: {sorted(held)}" for number, held in sorted(parts.items()))
        raise ValueError(
            "the processes of a sharding must hold either the same parts of the batch axis or different ones, as many "
            f"each; found {held}; make the mesh of devices in another order"
        )
    return ranks.index(parts[process]), len(ranks)


def require_not_traced() -> None:
    """Raises RuntimeError under jax.jit, which would take a batch for a constant and compile it in."""
    clean = getattr(sys.modules.get("jax._src.core"), "trace_state_clean", None)  # takes 0.2 us, what follows 40
    if (clean is None or not clean()) and isinstance(jnp.zeros(()), jax.core.Tracer):
        raise RuntimeError(
            "next() of a RowLoader was called in a function that JAX compiles, which would compile in this one batch; "
            "call it outside, and pass the batch as an argument"
        )


def spans_all_processes(sharding: NamedSharding) -> bool:
    """Whether every process has a device of the sharding."""
    return len({device.process_index for device in sharding.mesh.devices.flat}) == jax.process_count()


def require_divisible(sharding: NamedSharding, batch_size: int, seq_len: int, world_size: int) -> None:
    """Raises ValueError if a batch cannot be split into equal parts."""
    of_rank = number_of_parts(sharding) // world_size
    if batch_size % of_rank:
        raise ValueError(
            f"batch_size must be a multiple of {of_rank}, the parts of the batch axis on this process's devices, found "
            f"{batch_size}; each device holds as many rows"
        )
    if seq_len % (along := number_of_parts(sharding, axis=1)):
        raise ValueError(
            f"seq_len must be a multiple of {along}, the parts of the second axis in {sharding.spec}, found {seq_len}"
        )
