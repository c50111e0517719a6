"""RowLoader for NumPy: the same rows and positions as tokenmill.RowLoader, without torch.

    from tokenmill.numpy import RowLoader

    loader = RowLoader("data/tokens/NAME", "train", batch_size=32, seq_len=2048)
    for inputs, targets in loader:                    each (32, 2048) int32
        checkpoint["data"] = loader.state_dict()

Use it where torch is not installed, and for libraries that take NumPy arrays: MLX, tinygrad, Keras, Grain. For JAX on
several devices use tokenmill.jax. docs/clients.md has recipes.
"""

import os
from collections.abc import Iterable

import numpy as np

from tokenmill.batches.base_loader import BaseLoader
from tokenmill.batches.numpy_transfer import NumpyTransfer, integer_type
from tokenmill.batches.ranks import require_known_rank
from tokenmill.batches.transfer import Transfer
from tokenmill.feed.loader_config import LoaderConfig, Loss, Packing, Tokens
from tokenmill.rows.packing import LongDocuments
from tokenmill.store.shards import Split

__all__ = ["RowLoader", "position_ids"]


class RowLoader(BaseLoader[tuple[np.ndarray, ...]]):
    """Batches of one split for one rank: an iterator of (inputs, targets), each a NumPy array (B, T).

    Arrays are contiguous, writable, and yours: the loader keeps no reference to them. The parameters, methods and
    errors are those of tokenmill.RowLoader, and so are the rows and the positions. There is no `device` and no `mesh`,
    and one parameter more:

    | parameter | |
    | --- | --- |
    | dtype | the integer type of inputs and targets, "int32" by default; "uint16" takes half as much memory |

    Rank and world_size are, by default, those of torch.distributed or jax.distributed if your program has initialized
    one of them, else of torchrun, else 0 of 1. A process that multiprocessing has started, such as a worker of Grain's,
    cannot know its rank: there you must pass `rank` and `world_size`.

    With documents=True, batches have document_ids, (B, T) int32. With sources=True they have the number of each row's
    source, (B,) int64.

    Raises ValueError if `dtype` cannot hold all token ids, or the ignore_index of tokens that bear no loss.
    """

    def __init__(
        self,
        tokens: Tokens = None,
        split: Split = "train",
        *,
        batch_size: int,
        seq_len: int,
        dtype: str | type | np.dtype = "int32",
        view: str | None = None,
        packing: Packing = "best_fit",
        long_documents: LongDocuments = "split",
        shuffle: bool = True,
        seed: int = 1337,
        skip_rows: Iterable[str] | None = None,
        epochs: int | None = None,
        drop_last: bool = True,
        documents: bool = False,
        sources: bool = False,
        loss: Loss = "all",
        ignore_index: int = -100,
        prefetch: int = 2,
        rank: int | None = None,
        world_size: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
    ) -> None:
        self._set_up(LoaderConfig.of(locals()))

    def _find_device(self) -> None:
        return None

    def _find_rank(self) -> tuple[int, int]:
        if self.config.rank is None:
            require_known_rank()
        return super()._find_rank()

    def _require_fit(self) -> None:
        ignore_index = self.config.ignore_index if self._feed.is_masked else None
        self.dtype = integer_type(self.config.dtype, self.vocab_size, ignore_index)

    def _make_transfer(self, shape: tuple[int, int], bos_id: int | None, buffers: int) -> Transfer:
        return NumpyTransfer(self.dtype, bos_id, self.config.ignore_index)


def position_ids(document_ids: np.ndarray) -> np.ndarray:
    """Positions that restart at each document: (B, T) int32 -> (B, T) int32, as tokenmill.position_ids for torch."""
    places = np.arange(document_ids.shape[1], dtype=np.int32)
    begins = np.ones(document_ids.shape, bool)
    begins[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    positions: np.ndarray = places - np.maximum.accumulate(np.where(begins, places, 0), axis=1)
    return positions
