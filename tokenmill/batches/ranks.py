"""Finds which data-parallel rank this process is, and checks that all ranks ask for the same rows.

The rank is looked up when batches are made. If you create a loader before `init_process_group`, or a launcher pickles a
dataset, every rank would otherwise take itself for rank 0. processes.py asks the frameworks.
"""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from tokenmill.batches.processes import RankStore, is_child_process, jax_rank, jax_store, torch_rank, torch_store

PACKAGE = str(Path(__file__).resolve().parents[1])
COMPARISONS_KEPT = 8  # per call site; older ones are deleted from the store
_calls: dict[str, int] = {}  # how often this process has reached each call site


def rank_and_world_size() -> tuple[int, int]:
    """(rank, world_size) of torch.distributed or jax.distributed if initialized, else of torchrun, else (0, 1).

    torchrun sets RANK and WORLD_SIZE. Raises ValueError if only one of them is set, if RANK is not below WORLD_SIZE, or
    if torch and JAX name different ranks.
    """
    of_torch, of_jax = torch_rank(), jax_rank()
    if of_torch and of_jax and of_torch != of_jax:
        raise ValueError(
            f"torch.distributed says that this is rank {of_torch[0]} of {of_torch[1]}, and jax.distributed that it is "
            f"process {of_jax[0]} of {of_jax[1]}; give rank= and world_size="
        )
    if found := of_torch or of_jax:
        return found
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and world_size in (None, "1"):
        return 0, 1
    if rank is None or world_size is None or not 0 <= int(rank) < int(world_size):
        raise ValueError(
            f"RANK={rank} and WORLD_SIZE={world_size} in the environment do not tell which rank this is; "
            "call torch.distributed.init_process_group first (with Lightning, make it in train_dataloader()), or give "
            "rank= and world_size="
        )
    return int(rank), int(world_size)


def is_distributed() -> bool:
    """Whether torch.distributed or jax.distributed is initialized, so that this process's rank is known."""
    return torch_rank() is not None or jax_rank() is not None


def require_known_rank() -> None:
    """Raises ValueError in a process that multiprocessing has started and that nothing tells its rank.

    It would take itself for rank 0 of 1, like the workers of all other ranks.
    """
    if is_child_process() and not is_distributed() and "RANK" not in os.environ:
        raise ValueError(
            "multiprocessing has started this process, which does not know the rank of the process that it belongs to; "
            "pass rank= and world_size= (0 and 1 if your program is not distributed)"
        )


def rank_in_mesh(mesh: Any) -> tuple[int, int]:
    """(rank, world_size) of this process in a DeviceMesh whose dimensions are all data-parallel.

    Processes that differ only in other dimensions of the whole mesh (tensor, pipeline, context) have the same rank
    here.
    """
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError(f"this process is not part of {mesh}; create the loader only on the ranks of the mesh")
    rank = 0
    for index, size in zip(coordinate, mesh.mesh.shape, strict=True):
        rank = rank * size + index
    return rank, mesh.mesh.numel()


def store_of_ranks() -> RankStore | None:
    """The key-value store that all ranks share; None if this process has none that it may use."""
    return torch_store() or jax_store()


def require_same_on_all_ranks(values: dict[str, Any], store: RankStore | None = None) -> None:
    """Raises ValueError if another rank reached the same call site with other `values`.

    The first rank to arrive writes its values into the store of torch.distributed or jax.distributed, and the others
    compare theirs. No rank waits for another, so a loader that is created on one rank alone does not hang. Calls are
    matched by the line of the user's program that they come from, and by how often that line was reached. Without one
    of these two nothing is compared. `store` is another store than that of `store_of_ranks`.
    """
    if differences := _compare(values, store or store_of_ranks()):
        raise ValueError(
            f"all ranks must ask for the same rows, so that each deals its share of them: {differences}; give all "
            "ranks the same settings and token set, and load the same position"
        )


def require_in_step(position: dict[str, Any], name: str, store: RankStore | None = None) -> None:
    """Raises ValueError if another rank took its position of this name at the same line, but at another row.

    If the store is gone, as in an emergency shutdown, nothing is compared.
    """
    try:
        differences = _compare(position, store or store_of_ranks(), name)
    except RuntimeError:
        return
    if differences:
        raise ValueError(
            f"all ranks must be at the same row when you take a position: {differences}; one rank has taken batches "
            "that others have not, for example to evaluate on that rank alone, and after a resume the others would "
            "never train on their share of these batches; evaluate with get_batch(..., purpose='eval') or with a "
            "separate RowLoader. (If instead one rank reaches this line more often than others, take positions on "
            "every rank at the same steps, or on one rank only)"
        )


def _compare(values: dict[str, Any], store: RankStore | None, name: str = "") -> str:
    """How `values` differ from those of another rank at this call site; "" if they do not, or if it is the first."""
    if store is None:
        return ""
    site = _call_site() + name
    call = _calls[site] = _calls.get(site, 0) + 1
    rank, ours = store.rank, json.dumps(values, sort_keys=True, default=repr)
    first, _, theirs = store.set_once(f"tokenmill/{site}/{call}", f"{rank} {ours}").partition(" ")
    if int(first) == rank and call > COMPARISONS_KEPT:
        with contextlib.suppress(RuntimeError):  # some stores cannot delete
            store.delete(f"tokenmill/{site}/{call - COMPARISONS_KEPT}")
    different = _differences("", json.loads(ours), json.loads(theirs))
    return "; ".join(f"{key} is {own!r} on rank {rank}, {other!r} on rank {first}" for key, own, other in different)


def _differences(name: str, ours: Any, theirs: Any) -> Iterator[tuple[str, Any, Any]]:
    """(name, our value, their value) of everything that differs; nested dicts are compared key by key."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in {**ours, **theirs}:
            yield from _differences(f"{name}'s {key}" if name else key, ours.get(key), theirs.get(key))
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs) == 1:
        yield from _differences(name, ours[0], theirs[0])
    elif ours != theirs:
        yield name, ours, theirs


def _call_site() -> str:
    """A short hash of the lines of the user's program, outside this package, that led here.

    A counter alone could not match calls: ranks may compare a different number of times, for example if rank 0 alone
    creates a loader to print a sample.
    """
    lines: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
