"""Which data-parallel rank of how many this process is, and whether all ranks ask for the same.

Rank and number are looked up where batches are made: a loader that is made before `init_process_group`, or a dataset
that is pickled by a launcher, must not take all ranks for rank 0.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.utils.data import get_worker_info

from tokenmill.batches.callers import PACKAGE, frames

TURNS_KEPT = 8  # what was told longer ago than so many times is forgotten
_told: dict[str, int] = {}  # how often this process told the others each thing
_inherited = False  # a fork has its parent's connections, which it must leave alone


def _after_fork() -> None:
    global _inherited
    _inherited = is_distributed()


def rank_and_world_size() -> tuple[int, int]:
    """torch.distributed's where it is initialized; else torchrun's environment's; else 0 of 1.

    ValueError where the environment has only one of RANK and WORLD_SIZE, or a rank that is not below it.
    """
    if is_distributed():
        return dist.get_rank(), dist.get_world_size()
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
    """Whether torch.distributed knows which rank this process is."""
    return dist.is_available() and dist.is_initialized()


def rank_in_mesh(mesh: Any) -> tuple[int, int]:
    """This process's place in a DeviceMesh, whose dimensions are all data-parallel, and how many places it has.

    Ranks that differ in other dimensions of the whole mesh (tensor, pipeline, context) have the same place.
    """
    place = mesh.get_coordinate()
    if place is None:
        raise ValueError(f"this process is in no place of {mesh}; make the loader on its ranks alone")
    rank = 0
    for at, size in zip(place, mesh.mesh.shape, strict=True):
        rank = rank * size + at
    return rank, mesh.mesh.numel()


def store_of_ranks() -> dist.Store | None:
    """What torch.distributed's ranks tell each other by; None where there is nobody to tell."""
    if not is_distributed() or dist.get_backend() == "fake" or get_worker_info() is not None or _inherited:
        return None  # a worker must leave its parent's connections alone
    return dist.distributed_c10d._get_default_store()


def require_same_on_all_ranks(what: dict[str, Any]) -> None:
    """ValueError where another rank came to the same place of the training program with other values.

    The first rank to come writes its values into torch.distributed's store, the others compare: nobody waits for
    anybody, so a loader that is made on one rank alone hangs nothing. Where the user's program called from, and how
    often it came there, tells which belong together. Without torch.distributed nothing is known.
    """
    if told := _compare(what)[1]:
        raise ValueError(
            f"all ranks must ask for the same rows, so that each deals its share of them: {told}; give all ranks the "
            "same settings and token set, and load the same position"
        )


def require_in_step(position: dict[str, Any], name: str) -> bool:
    """Whether another rank took its position of this name at the same place of the program.

    ValueError where it stands elsewhere. Where the store is gone, as in an emergency, nobody is compared.
    """
    try:
        compared, told = _compare(position, name)
    except RuntimeError:
        return False
    if told:
        raise ValueError(
            f"all ranks must stand at the same row where a position is taken: {told}; a rank has taken batches that "
            "others have not, as in an evaluation on one rank alone, and after a resume the others would never train "
            "on their share of these: evaluate with get_batch(..., purpose='eval') or a RowLoader of its own. (Or it "
            "came to this line more often: take positions on every rank at the same steps, or on one alone)"
        )
    return compared


def _compare(what: dict[str, Any], name: str = "") -> tuple[bool, str]:
    """Whether another rank has come here, and how what it said differs."""
    store = store_of_ranks()
    if store is None:
        return False, ""
    place = _place_of_caller() + name
    turn = _told[place] = _told.get(place, 0) + 1
    rank, here = dist.get_rank(), json.dumps(what, sort_keys=True, default=repr)
    first, _, said = store.compare_set(f"tokenmill/{place}/{turn}", "", f"{rank} {here}").decode().partition(" ")
    if int(first) == rank and turn > TURNS_KEPT:
        with contextlib.suppress(RuntimeError):  # a store that cannot
            store.delete_key(f"tokenmill/{place}/{turn - TURNS_KEPT}")
    different = _differ("", json.loads(here), json.loads(said))
    told = [f"{key} is {ours!r} on rank {rank}, {other!r} on rank {first}" for key, ours, other in different]
    return int(first) != rank, "; ".join(told)


def _differ(name: str, here: Any, there: Any) -> Iterator[tuple[str, Any, Any]]:
    """(name, value here, value there) of all that differ, of nested dicts by their keys."""
    if isinstance(here, dict) and isinstance(there, dict):
        for key in {**here, **there}:
            yield from _differ(f"{name}'s {key}" if name else key, here.get(key), there.get(key))
    elif here != there:
        yield name, here, there


def _place_of_caller() -> str:
    """The lines of the program that led here, outside of this package, as a short name."""
    outside = [frame for frame in frames() if not frame.f_code.co_filename.startswith(PACKAGE)]
    lines = [f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in outside]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


os.register_at_fork(after_in_child=_after_fork)
