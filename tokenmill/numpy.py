"""RowLoader without torch, for NumPy, MLX, tinygrad, Keras and Grain: the same rows and positions.

from tokenmill.numpy import RowLoader

loader = RowLoader("data/tokens/NAME", "train", batch_size=32, seq_len=2048)
for inputs, targets in loader:                    each (32, 2048) int32
    checkpoint["data"] = loader.state_dict()
"""

import os

import numpy as np

from tokenmill.batches.arrays import NumpyArrays, integer_type
from tokenmill.batches.base_loader import BaseLoader
from tokenmill.batches.ranks import require_known_rank
from tokenmill.feed.config import LoaderConfig, PackingName, Tokens
from tokenmill.feed.table import Loss
from tokenmill.rows.packing import LongDocuments
from tokenmill.store.shards import Split

__all__ = ["RowLoader", "document_ids", "position_ids"]


class RowLoader(BaseLoader[tuple[np.ndarray, np.ndarray]]):
    """Batches of one split for one rank: an iterator of (inputs, targets), NumPy arrays (B, T).

    Arrays are contiguous, writable, and yours. The parameters, methods and errors are those of
    tokenmill.RowLoader, and so are the rows and the positions. There is no `device` and no `mesh`;
    `dtype` is the integer type of both, as "uint16". ValueError if it cannot hold all token ids and
    ignore_index. In a process that multiprocessing has started, such as a worker of Grain's, you
    must pass `rank` and `world_size`.
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
        packing: PackingName = "best_fit",
        long_documents: LongDocuments = "split",
        shuffle: bool = True,
        seed: int = 1337,
        epochs: int | None = None,
        drop_last: bool = True,
        loss: Loss = "all",
        ignore_index: int = -100,
        prefetch: int = 2,
        rank: int | None = None,
        world_size: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
    ) -> None:
        self._set_up(LoaderConfig.of(locals()))

    def _find_rank(self) -> tuple[int, int]:
        if self.config.rank is None:
            require_known_rank()
        return super()._find_rank()

    def _make_arrays(self) -> NumpyArrays:
        ignore_index = self.config.ignore_index if self.is_masked else None
        self.dtype = integer_type(self.config.dtype, self.vocab_size, ignore_index)
        return NumpyArrays(self.dtype, self.config.ignore_index)


def document_ids(inputs: np.ndarray, bos_id: int) -> np.ndarray:
    """Numbers the documents of each row from 0: (B, T) -> (B, T) int32, as tokenmill.document_ids
    for torch.
    """
    begins = inputs == bos_id
    ids: np.ndarray = begins.cumsum(1, dtype=np.int32) - begins[:, :1]
    return ids


def position_ids(document_ids: np.ndarray) -> np.ndarray:
    """Positions that restart at each document: (B, T) int32 -> (B, T) int32, as
    tokenmill.position_ids for torch.
    """
    places = np.arange(document_ids.shape[1], dtype=np.int32)
    begins = np.ones(document_ids.shape, bool)
    begins[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    positions: np.ndarray = places - np.maximum.accumulate(np.where(begins, places, 0), axis=1)
    return positions
