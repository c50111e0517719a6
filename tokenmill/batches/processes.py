"""What torch.distributed and jax.distributed know of this process, asked without importing either.

A framework that nobody has imported has connected no processes, so `sys.modules` is enough to ask. This is how
tokenmill.numpy finds its rank under both frameworks, and works where neither is installed.

    torch_rank(), jax_rank()        (rank, world_size), or None
    torch_store(), jax_store()      the key-value store that the processes share, or None
    is_child_process()              whether multiprocessing has started this process

JAX has no public name for its key-value store. If a version of JAX has moved it, a warning says that ranks are not
compared.
"""

import os
import sys
import warnings
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

MILLISECONDS = 200  # to read back a value that another process has stored
TRIES = 50
_inherited = False  # True in a fork: it has its parent's connections, and must not use them


class RankStore(Protocol):
    """A key-value store that all ranks share."""

    @property
    def rank(self) -> int:
        """The number of this process."""

    def set_once(self, key: str, value: str) -> str:
        """Stores a value unless the key has one. Returns the key's value, without waiting for other ranks.

        Raises RuntimeError if the store is gone.
        """

    def delete(self, key: str) -> None:
        """Deletes a key. Raises RuntimeError if the store cannot do that."""


def is_child_process() -> bool:
    """Whether multiprocessing, or multiprocess, has started this process, so that it may not know its rank."""
    modules: list[Any] = [sys.modules.get(f"{name}.process") for name in ("multiprocessing", "multiprocess")]
    return any(module.parent_process() is not None for module in modules if hasattr(module, "parent_process"))


# ---------------------------------------------------------------------------- torch


def torch_rank() -> tuple[int, int] | None:
    """(rank, world_size) of torch.distributed if it is initialized."""
    dist = _torch_distributed()
    return None if dist is None else (dist.get_rank(), dist.get_world_size())


def torch_store() -> RankStore | None:
    """The store of torch.distributed; None if there is none, or none that this process may use."""
    dist = _torch_distributed()
    if dist is None or dist.get_backend() == "fake" or _inherited or _is_worker():
        return None
    return _TorchStore(dist.get_rank(), dist.distributed_c10d._get_default_store())


def _torch_distributed() -> Any | None:
    """The module if it is initialized, else None."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not hasattr(dist, "is_initialized"):  # a torch that was built without it
        return None
    return dist if dist.is_available() and dist.is_initialized() else None


def _is_worker() -> bool:
    """Whether this is a worker process of a DataLoader, which must not use its parent's connections."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


class _TorchStore(NamedTuple):
    rank: int
    store: Any

    def set_once(self, key: str, value: str) -> str:
        found: bytes = self.store.compare_set(key, "", value)
        return found.decode()

    def delete(self, key: str) -> None:
        self.store.delete_key(key)


# ---------------------------------------------------------------------------- JAX


def jax_rank() -> tuple[int, int] | None:
    """(process_index, process_count) of JAX if jax.distributed is initialized."""
    if not _jax_is_distributed():
        return None
    rank, world_size = getattr(_jax_state(), "process_id", None), getattr(_jax_state(), "num_processes", None)
    if isinstance(rank, int) and isinstance(world_size, int):
        return rank, world_size  # JAX's functions would begin to use its devices, even in a fork
    jax = sys.modules["jax"]
    return jax.process_index(), jax.process_count()


def jax_store() -> RankStore | None:
    """The store of jax.distributed; None if there is none, or none that this process may use."""
    rank = jax_rank()
    if rank is None or _inherited:
        return None
    client = _jax_client()
    if not all(hasattr(client, name) for name in ("key_value_set", "blocking_key_value_get", "key_value_delete")):
        _warn_of_no_store()
        return None
    return _JaxStore(rank[0], client)


def _jax_is_distributed() -> bool:
    distributed = sys.modules.get("jax.distributed")
    if distributed is None:
        return False
    if hasattr(distributed, "is_initialized"):
        return bool(distributed.is_initialized())
    return _jax_client() is not None  # before JAX 0.5.1


def _jax_client() -> Any | None:
    """JAX's connection to the other processes."""
    return getattr(_jax_state(), "client", None)


def _jax_state() -> Any | None:
    """What JAX knows of the processes. JAX has no public name for it."""
    return getattr(sys.modules.get("jax._src.distributed"), "global_state", None)


@lru_cache(1)
def _warn_of_no_store() -> None:
    warnings.warn(
        "this version of JAX has no key-value store where tokenmill looks for it, so settings and positions are not "
        "compared between processes; please report this version to tokenmill",
        stacklevel=2,
    )


class _JaxStore(NamedTuple):
    rank: int
    client: Any  # that of jax.distributed

    def set_once(self, key: str, value: str) -> str:
        for _ in range(TRIES):
            try:
                self.client.key_value_set(key, value)
                return value
            except RuntimeError as error:
                if "ALREADY_EXISTS" not in str(error):
                    raise
            try:
                found: str = self.client.blocking_key_value_get(key, MILLISECONDS)
                return found
            except RuntimeError as error:  # whoever stored it is ahead, and has deleted it meanwhile
                if "DEADLINE_EXCEEDED" not in str(error) and "NOT_FOUND" not in str(error):
                    raise
        raise RuntimeError(f"jax.distributed's key-value store neither takes nor gives a value for {key}")

    def delete(self, key: str) -> None:
        self.client.key_value_delete(key)


def _after_fork() -> None:
    global _inherited
    _inherited = _torch_distributed() is not None or _jax_is_distributed()


os.register_at_fork(after_in_child=_after_fork)
