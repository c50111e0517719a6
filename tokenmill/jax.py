"""RowLoader for JAX: global arrays of the same rows, with the same positions, as tokenmill.RowLoader.

    from tokenmill.jax import RowLoader

    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    loader = RowLoader("data/tokens/NAME", "train", batch_size=32, seq_len=2048, sharding=sharding)
    for inputs, targets in loader:                    each a jax.Array (32 * world_size, 2048) of int32
        checkpoint["data"] = loader.state_dict()      plain numbers and strings, the same on every process

docs/clients.md says more; examples/train_gpt_jax.py saves the position with Orbax.
"""

import os
from collections.abc import Iterable

from tokenmill.extras import naming_the_extra

with naming_the_extra("jax"):
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding

from tokenmill.batches.base_loader import BaseLoader
from tokenmill.batches.jax_transfer import (
    JaxTransfer,
    default_sharding,
    rank_in_sharding,
    require_connected,
    require_divisible,
    require_not_traced,
    require_sharding,
    spans_all_processes,
)
from tokenmill.batches.numpy_transfer import integer_type
from tokenmill.batches.processes import RankStore, jax_store
from tokenmill.batches.transfer import Transfer
from tokenmill.feed.loader_config import LoaderConfig, Loss, Packing, Tokens
from tokenmill.rows.packing import LongDocuments
from tokenmill.store.shards import Split

__all__ = ["RowLoader", "position_ids", "rank_in_sharding"]


class RowLoader(BaseLoader[tuple[jax.Array, ...]]):
    """Global batches of one split: an iterator of (inputs, targets), each a jax.Array (B * world_size, T) int32.

    The parameters, methods and errors are those of tokenmill.RowLoader, and so are the rows and the positions: a
    position that was saved with torch continues here, and the other way around. There is no `device`, `rank`,
    `world_size`, `mesh` or `drop_last`. Instead:

    | parameter | |
    | --- | --- |
    | batch_size | B, the rows of this process in each global batch; a multiple of the parts that its devices hold |
    | sharding | a NamedSharding of a global batch (B * world_size, T); by default its rows over all devices |

    Processes whose devices hold the same parts of the batch axis are one rank and get the same rows. So with "data" x
    "tensor", where a tensor-parallel group spans processes, world_size is smaller than `jax.process_count()`;
    `rank_in_sharding` tells it before you choose batch_size. If each rank's parts are consecutive, row i of the arrays
    is row i of the global batch; otherwise the same rows are there in another order.

    All processes must create the loader and take the same number of batches. They compare their settings and positions
    in jax.distributed's key-value store, without waiting for each other: if they differ, the process that comes first
    is not told, and the others raise ValueError. With a sharding of some processes only, they are not compared, so you
    can evaluate on one process with a sharding of `jax.local_devices()`.

    The last rows of an iteration are dropped if they are fewer than a global batch, because every device holds as many.
    To evaluate every row, use tokenmill.numpy, which has drop_last=False.

    With documents=True, batches have document_ids, (B * world_size, T) int32, as segment ids for attention. With
    sources=True they have the number of each row's source, (B * world_size,) int32.

    Raises ValueError if the batch cannot be split as the sharding says, or this process has no device in it. `next`
    raises RuntimeError in a function that JAX compiles, where the batch would become a constant.
    """

    def __init__(
        self,
        tokens: Tokens = None,
        split: Split = "train",
        *,
        batch_size: int,
        seq_len: int,
        sharding: NamedSharding | None = None,
        view: str | None = None,
        packing: Packing = "best_fit",
        long_documents: LongDocuments = "split",
        shuffle: bool = True,
        seed: int = 1337,
        skip_rows: Iterable[str] | None = None,
        epochs: int | None = None,
        documents: bool = False,
        sources: bool = False,
        loss: Loss = "all",
        ignore_index: int = -100,
        prefetch: int = 2,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
    ) -> None:
        require_connected()
        device = default_sharding() if sharding is None else require_sharding(sharding)
        self._set_up(LoaderConfig.of(locals()))

    def __next__(self) -> tuple[jax.Array, ...]:
        require_not_traced()
        return super().__next__()

    @property
    def sharding(self) -> NamedSharding:
        """The sharding of inputs and targets."""
        sharding: NamedSharding = self.config.device
        return sharding

    def _find_device(self) -> NamedSharding:
        return self.sharding

    def _find_rank(self) -> tuple[int, int]:
        return rank_in_sharding(self.sharding)

    def _process_now(self) -> tuple[int, int]:
        return jax.process_index(), jax.process_count()

    @property
    def _compares(self) -> bool:
        return jax.process_count() > 1 and spans_all_processes(self.sharding)

    def _store(self) -> RankStore | None:
        return jax_store()

    def _require_fit(self) -> None:
        integer_type("int32", self.vocab_size, self.config.ignore_index if self._feed.is_masked else None)
        require_divisible(self.sharding, self.config.batch_size, self.config.seq_len, self.world_size)

    def _make_transfer(self, shape: tuple[int, int], bos_id: int | None, buffers: int) -> Transfer:
        return JaxTransfer(self.sharding, self.world_size, bos_id, self.config.ignore_index)


def position_ids(document_ids: jax.Array) -> jax.Array:
    """Positions that restart at each document: (B, T) int32 -> (B, T) int32. It can be compiled with jax.jit."""
    places = jnp.broadcast_to(jnp.arange(document_ids.shape[1], dtype=jnp.int32), document_ids.shape)
    same = document_ids[:, 1:] == document_ids[:, :-1]  # as the token before
    begins = jnp.pad(~same, ((0, 0), (1, 0)), constant_values=True)
    return places - jax.lax.cummax(jnp.where(begins, places, 0), axis=1)
