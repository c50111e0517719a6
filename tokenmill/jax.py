"""RowLoader for JAX: global arrays of the rows and positions of tokenmill.RowLoader.

from tokenmill.jax import RowLoader

mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
sharding = NamedSharding(mesh, PartitionSpec("data"))
loader = RowLoader("data/tokens/NAME", "train", batch_size=32, seq_len=2048, sharding=sharding)
for inputs, targets in loader:                    each a jax.Array (32 * world_size, 2048) of int32
    checkpoint["data"] = loader.state_dict()      one text, the same on every process
"""

import os

from tokenmill.extras import naming_the_extra

with naming_the_extra("jax"):
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding

from tokenmill.batches.arrays import integer_type
from tokenmill.batches.base_loader import BaseLoader
from tokenmill.batches.jax_arrays import (
    JaxArrays,
    default_sharding,
    rank_in_sharding,
    require_connected,
    require_divisible,
    require_sharding,
)
from tokenmill.feed.config import LoaderConfig, PackingName, Tokens
from tokenmill.feed.table import Loss
from tokenmill.rows.packing import LongDocuments
from tokenmill.store.shards import Split

__all__ = ["RowLoader", "document_ids", "position_ids", "rank_in_sharding"]


class RowLoader(BaseLoader[tuple[jax.Array, jax.Array]]):
    """Global batches of one split: an iterator of (inputs, targets).

    Each is a jax.Array (B * world_size, T) int32.

    The parameters, methods and errors are those of tokenmill.RowLoader, and so are the rows and the
    positions: a position that was saved with torch continues here, and the other way around. There
    is no `device`, `rank`, `world_size`, `mesh` or `drop_last`. `sharding` is a NamedSharding of a
    global batch (B * world_size, T), by default its rows over all devices; B, the rows of this
    process, is a multiple of the parts that its devices hold.

    Processes whose devices hold the same parts of the batch axis are one rank and get the same
    rows. So with "data" x "tensor", where a tensor-parallel group spans processes, world_size is
    smaller than `jax.process_count()`; `rank_in_sharding` tells it before you choose batch_size. If
    each rank's parts are consecutive, row i of the arrays is row i of the global batch; otherwise
    the same rows are there in another order.

    All processes of the sharding must create the loader, with the same settings and token sets,
    which are not compared, and take the same number of batches. To evaluate on one process, pass a
    sharding of `jax.local_devices()`.

    The last rows of an iteration are dropped if fewer than a global batch. Call `next` outside of
    functions that JAX compiles. ValueError if the batch cannot be split as the sharding says, or
    this process has no device in it.
    """

    _is_compared = False

    def __init__(
        self,
        tokens: Tokens = None,
        split: Split = "train",
        *,
        batch_size: int,
        seq_len: int,
        sharding: NamedSharding | None = None,
        view: str | None = None,
        packing: PackingName = "best_fit",
        long_documents: LongDocuments = "split",
        shuffle: bool = True,
        seed: int = 1337,
        epochs: int | None = None,
        loss: Loss = "all",
        ignore_index: int = -100,
        prefetch: int = 2,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
    ) -> None:
        require_connected()
        chosen = default_sharding() if sharding is None else require_sharding(sharding)
        self._set_up(LoaderConfig.of(locals() | {"device": chosen}))

    @property
    def sharding(self) -> NamedSharding:
        """The sharding of inputs and targets."""
        return self.config.device  # type: ignore[no-any-return]

    def _find_rank(self) -> tuple[int, int]:
        return rank_in_sharding(self.sharding)

    def _make_arrays(self) -> JaxArrays:
        integer_type("int32", self.vocab_size, self.config.ignore_index if self.is_masked else None)
        require_divisible(
            self.sharding, self.config.batch_size, self.config.seq_len, self.world_size
        )
        return JaxArrays(self.sharding, self.world_size, self.config.ignore_index)


def document_ids(inputs: jax.Array, bos_id: int) -> jax.Array:
    """Numbers the documents of each row from 0, as segment ids for attention: (B, T) int32."""
    begins = (inputs == bos_id).astype(jnp.int32)
    return jnp.cumsum(begins, axis=1) - begins[:, :1]


def position_ids(document_ids: jax.Array) -> jax.Array:
    """Positions that restart at each document: (B, T) int32 -> (B, T) int32.

    It can be compiled with jax.jit.
    """
    columns = jnp.arange(document_ids.shape[1], dtype=jnp.int32)
    places = jnp.broadcast_to(columns, document_ids.shape)
    same = document_ids[:, 1:] == document_ids[:, :-1]  # as the token before
    begins = jnp.pad(~same, ((0, 0), (1, 0)), constant_values=True)
    return places - jax.lax.cummax(jnp.where(begins, places, 0), axis=1)
