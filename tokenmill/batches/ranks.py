"""Which rank of how many this process is, and whether all ranks ask for the same."""

import os

import torch.distributed as dist

_told: dict[str, int] = {}  # how often this process told the others each thing


def rank_and_world_size() -> tuple[int, int]:
    """torch.distributed's where it is initialized; else torchrun's environment's; else 0 of 1.

    ValueError where the environment has only one of RANK and WORLD_SIZE, or a rank that is not below it.
    """
    if dist.is_available() and dist.is_initialized():
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


def require_same_on_all_ranks(name: str, loader: str, value: int) -> None:
    """ValueError where another rank gave another `value` for the same loader, the k-th of its kind on each.

    The first rank to come writes its value into torch.distributed's store, the others compare: nobody waits for
    anybody, so a loader that is made on one rank alone hangs nothing. Without torch.distributed nothing is known.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    _told[loader] = _told.get(loader, 0) + 1
    store = dist.distributed_c10d._get_default_store()
    first = store.compare_set(f"tokenmill/{name}/{loader}/{_told[loader]}", "", str(value)).decode()
    if first != str(value):
        raise ValueError(
            f"{name} must be the same on all ranks, so that each deals its share of the same rows: "
            f"found {value} on rank {dist.get_rank()}, {first} on another"
        )
