"""Finds which data-parallel rank this process is; compares the settings of all ranks once.

torch.distributed and jax.distributed are asked without importing them, so tokenmill.numpy works
without either.
"""

import json
import os
import sys
from itertools import count
from typing import Any

_loaders = count()  # of this process: all ranks make theirs in the same order
_inherited = False  # whether a fork has its parent's connections, which it must not use


def _note_connections() -> None:
    global _inherited
    _inherited = is_distributed()


os.register_at_fork(after_in_child=_note_connections)


def rank_and_world_size(mesh: Any = None) -> tuple[int, int]:
    """(rank, world_size) in a mesh, or else of torch.distributed or jax.distributed.

    If these are not initialized, torchrun's, or else (0, 1). ValueError if RANK and WORLD_SIZE make
    no sense, or if torch and JAX name different ranks.
    """
    if mesh is not None:
        return rank_in_mesh(mesh)
    of_torch = torch_rank()
    of_jax = jax_rank()
    if of_torch and of_jax and of_torch != of_jax:
        raise ValueError(
            f"(rank, world_size) is {of_torch} in torch and {of_jax} in JAX; "
            "pass rank and world_size"
        )
    return of_torch or of_jax or _rank_in_environment()


def _rank_in_environment() -> tuple[int, int]:
    rank = os.environ.get("RANK")
    world_size = os.environ.get("WORLD_SIZE")
    if rank is None and world_size in (None, "1"):
        return 0, 1
    try:
        numbers = int(rank or ""), int(world_size or "")
    except ValueError:
        numbers = 0, 0
    if not 0 <= numbers[0] < numbers[1]:
        raise ValueError(
            f"RANK={rank} and WORLD_SIZE={world_size} in the environment do not tell which rank "
            "this is; call init_process_group first (with Lightning, make it in "
            "train_dataloader()), or pass rank and world_size"
        )
    return numbers


def torch_rank() -> tuple[int, int] | None:
    """(rank, world_size) of torch.distributed if it is initialized."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


def jax_rank() -> tuple[int, int] | None:
    """(process_index, process_count) of JAX if jax.distributed is initialized."""
    if not _is_jax_connected():
        return None
    if _inherited:  # JAX would wait for a thread that a fork does not have
        raise ValueError(
            "a fork of a process that JAX has connected cannot ask for its rank; "
            "pass rank and world_size"
        )
    jax = sys.modules["jax"]
    return jax.process_index(), jax.process_count()


def _is_jax_connected() -> bool:
    distributed = sys.modules.get("jax.distributed")
    return distributed is not None and bool(distributed.is_initialized())


def is_distributed() -> bool:
    """Whether torch.distributed or jax.distributed is initialized, so that the rank is known."""
    return torch_rank() is not None or _is_jax_connected()


def require_known_rank() -> None:
    """ValueError in a process of multiprocessing that knows no rank.

    It would be rank 0 of 1, like all others.
    """
    if is_distributed() or "RANK" in os.environ:
        return
    for name in ("multiprocessing", "multiprocess"):
        module: Any = sys.modules.get(f"{name}.process")
        if hasattr(module, "parent_process") and module.parent_process() is not None:
            raise ValueError(
                "multiprocessing has started this process, which does not know its rank; pass rank "
                "and world_size, which are 0 and 1 if your program is not distributed"
            )


def rank_in_mesh(mesh: Any) -> tuple[int, int]:
    """(rank, world_size) of this process in a DeviceMesh whose dimensions are data-parallel."""
    if not hasattr(mesh, "get_coordinate"):
        raise ValueError(f"mesh must be a DeviceMesh, not {mesh!r}")
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError(
            f"this process is not part of {mesh}; create the loader only on the ranks of the mesh"
        )
    rank = 0
    for index, size in zip(coordinate, mesh.mesh.shape, strict=True):
        rank = rank * size + index
    return rank, mesh.mesh.numel()


def require_same_on_all_ranks(values: dict[str, Any]) -> None:
    """ValueError if another rank of torch.distributed made this loader with other `values`.

    The first rank to arrive writes its values into the process group's store, and the others
    compare theirs, so no rank waits. Loaders are matched by the order in which a process makes
    them.
    """
    ranks = torch_rank()
    if ranks is None or _inherited or _count_data_workers() > 0:
        return
    dist = sys.modules["torch.distributed"]
    if dist.get_backend() == "fake":
        return
    rank, _ = ranks
    ours = json.loads(json.dumps(values, default=repr))
    number = next(_loaders)
    store = dist.distributed_c10d._get_default_store()  # torch has no public name for it
    stored = store.compare_set(f"tokenmill/loader/{number}", "", json.dumps([rank, ours]))
    first, theirs = json.loads(stored.decode())
    differences = []
    for key in {**ours, **theirs}:
        here = ours.get(key)
        there = theirs.get(key)
        if here != there:
            differences.append(f"{key} is {here!r} on rank {rank}, {there!r} on rank {first}")
    if differences:
        listed = "; ".join(differences)
        raise ValueError(
            "all ranks must ask for the same rows, so that each deals its share of them: "
            f"{listed} (loader {number} of each); give all ranks the same settings and token set. "
            "A loader that only some ranks make needs rank=0, world_size=1"
        )


def require_no_other_worker() -> None:
    """ValueError in one of several worker processes of a DataLoader, which all deal all rows."""
    num_workers = _count_data_workers()
    if num_workers > 1:
        raise ValueError(
            f"a RowLoader in {num_workers} workers of a DataLoader would deal every row so many "
            "times; iterate over the RowLoader itself, which makes batches ahead in a thread; or "
            "give PackedRows to the DataLoader, with num_workers=1; or pass rank and world_size"
        )


def _count_data_workers() -> int:
    """How many worker processes a DataLoader has, in one of them; 0 elsewhere."""
    data = sys.modules.get("torch.utils.data")
    worker = data.get_worker_info() if data is not None else None
    return 0 if worker is None else int(worker.num_workers)
