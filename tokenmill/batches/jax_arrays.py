"""Makes global jax.Arrays of rows of token ids, each process adding the rows of its own devices.

    sharding    NamedSharding of a global batch (B * world_size, T): its first axis is the batch's

Each process copies its B rows to its devices, in a thread, ahead of training. The devices of each
process hold some parts of the batch axis. Processes that hold the same parts, as in tensor
parallelism, get the same rows. With 2 devices a process, and "data" x "tensor":

    mesh 4 x 2, P("data")     process 0 holds part 0, 1: part 1, 2: part 2, 3: part 3      4 ranks
    mesh 2 x 4, P("data")     processes 0, 1 hold part 0; processes 2, 3 hold part 1       2 ranks
"""

import atexit
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tokenmill.batches.arrays import Places, widen
from tokenmill.feed.prefetch import stop_all

# JAX clears its devices when Python ends. This module has imported JAX, so Python calls `stop_all`
# before that.
atexit.register(stop_all)


class JaxArrays:
    """Makes int32 arrays of this sharding. `world_size` is that of ranks."""

    def __init__(self, sharding: NamedSharding, world_size: int, ignore_index: int):
        self._sharding = sharding
        self._world_size = world_size
        self._ignore_index = ignore_index

    def send(
        self, rows: np.ndarray, mask: np.ndarray | None, places: Places
    ) -> tuple[jax.Array, ...]:
        num_rows, row_len = rows.shape
        shape = num_rows * self._world_size, row_len - 1
        local = widen(rows, mask, places, np.dtype(np.int32), self._ignore_index)
        make = jax.make_array_from_process_local_data
        return tuple(make(self._sharding, array, shape) for array in local)

    def receive(self, sent: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return sent  # JAX itself waits for copies that are under way


def require_connected() -> None:
    """ValueError if torchrun's environment has several processes and JAX knows only this one."""
    world_size = os.environ.get("WORLD_SIZE", "1")
    if jax.process_count() == 1 and world_size != "1":
        raise ValueError(
            f"WORLD_SIZE={world_size} in the environment, but JAX knows only this process: call "
            "jax.distributed.initialize() first, or, if this process trains alone, remove "
            "WORLD_SIZE"
        )


def default_sharding() -> NamedSharding:
    """The batch axis over all devices of all processes, in the order of the processes."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    return NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"))


def require_sharding(sharding: Any) -> NamedSharding:
    """The sharding of a batch. ValueError if it is none that batches can have."""
    has_devices = isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh)
    if not has_devices or len(sharding.spec) > 2:
        raise ValueError(
            "sharding must be a NamedSharding of devices for (batch, sequence), as "
            f"NamedSharding(mesh, PartitionSpec('data')), found {sharding!r}"
        )
    named: NamedSharding = sharding
    return named


def parts_of_processes(sharding: NamedSharding) -> dict[int, frozenset[int]]:
    """Which parts of the batch axis the devices of each process hold, by process.

    Only processes that hold any.
    """
    num_parts = number_of_parts(sharding)
    along_batch = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1]))
    of_devices: Mapping[Any, Any] = along_batch.devices_indices_map((num_parts,))
    parts: dict[int, set[int]] = {}
    for device, (part,) in of_devices.items():
        of_process = parts.setdefault(device.process_index, set())
        of_process.update(range(*part.indices(num_parts)))
    return {process: frozenset(held) for process, held in parts.items()}


def number_of_parts(sharding: NamedSharding, axis: int = 0) -> int:
    """Into how many parts an axis is split: 0 is the batch axis, 1 that of tokens."""
    names = sharding.spec[axis] if len(sharding.spec) > axis else None
    if isinstance(names, str):
        names = (names,)
    sizes = [sharding.mesh.shape[name] for name in names or ()]
    return int(np.prod(sizes, dtype=np.int64))


def rank_in_sharding(sharding: NamedSharding) -> tuple[int, int]:
    """(rank, world_size) of this process; processes with the same parts of the batch are one rank.

    Use it to choose a batch_size, or to pass them to tokenmill.numpy.RowLoader if your program
    makes global arrays itself.

    ValueError if the process has no device of the sharding, or if processes share some parts and
    not others.
    """
    parts = parts_of_processes(require_sharding(sharding))
    process = jax.process_index()
    if process not in parts:
        raise ValueError(
            f"process {process} has no device in {sharding}; create the loader on processes "
            f"{sorted(parts)} only"
        )
    ranks = sorted(set(parts.values()), key=min)
    sizes = [len(rank) for rank in ranks]
    if sum(sizes) != number_of_parts(sharding) or len(set(sizes)) > 1:
        items = sorted(parts.items())
        listed = ", ".join(f"process {number}: {sorted(held)}" for number, held in items)
        raise ValueError(
            "processes must hold either the same parts of the batch axis or different ones, as "
            f"many each, found {listed}; make the mesh of devices in another order"
        )
    return ranks.index(parts[process]), len(ranks)


def require_divisible(
    sharding: NamedSharding, batch_size: int, seq_len: int, world_size: int
) -> None:
    """ValueError if a batch cannot be split into equal parts."""
    of_rank = number_of_parts(sharding) // world_size
    along = number_of_parts(sharding, axis=1)
    for name, size, parts in (("batch_size", batch_size, of_rank), ("seq_len", seq_len, along)):
        if size % parts:
            raise ValueError(
                f"{name} must be a multiple of {parts}, its parts on this process's devices, "
                f"found {size}"
            )
