"""Which data-parallel rank of how many this process is, and whether all ranks ask for the same.

Rank and number are looked up where batches are made: a loader that is made before `init_process_group`, or a dataset
that is pickled by a launcher, must not take all ranks for rank 0.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.utils.data import get_worker_info

PACKAGE = str(Path(__file__).resolve().parents[1])
_told: dict[str, int] = {}  # how often this process told the others each thing


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
            "call torch.distributed.init_process_group first, or give rank= and world_size="
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


def require_same_on_all_ranks(what: dict[str, Any]) -> None:
    """ValueError where another rank came to the same place of the training program with other values.

    The first rank to come writes its values into torch.distributed's store, the others compare: nobody waits for
    anybody, so a loader that is made on one rank alone hangs nothing. Where the user's program called from, and how
    often it came there, tells which belong together. Without torch.distributed nothing is known.
    """
    if not is_distributed() or dist.get_backend() == "fake" or get_worker_info() is not None:
        return  # a worker must leave its parent's connections alone
    place = _place_of_caller()
    _told[place] = _told.get(place, 0) + 1
    here = json.dumps(what, sort_keys=True, default=repr)
    store = dist.distributed_c10d._get_default_store()
    first = store.compare_set(f"tokenmill/{place}/{_told[place]}", "", here).decode()
    if first == here:
        return
    there = json.loads(first)
    differ = [key for key in {**what, **there} if json.dumps(what.get(key), default=repr) != json.dumps(there.get(key))]
    told = "; ".join(
        f"{key} is {what.get(key)!r} on rank {dist.get_rank()}, {there.get(key)!r} on another" for key in differ
    )
    raise ValueError(
        f"all ranks must ask for the same rows, so that each deals its share of them: {told}; give all ranks the same "
        "settings and token set, and load the same position"
    )


def _place_of_caller() -> str:
    """The lines of the program that led here, outside of this package, as a short name."""
    frame, lines = sys._getframe(1), []
    while frame is not None:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
