"""What is written of a split: the tokens of its documents, in order, some million at a time, cut into files."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tokenmill.store.documents import ShardDocuments

BLOCK_TOKENS = 1 << 22
FILE_TOKENS = 100_000_000  # about, of the layouts with several files: build-nanogpt's and llm.c's own size


class SplitFiles(NamedTuple):
    """What a layout writes: the documents of a split."""

    name: str  # "train" or "val"
    dataset: str
    dtype: np.dtype
    shards: list[ShardDocuments]
    file_tokens: int = FILE_TOKENS
    tokenizer: str = ""  # its name

    def lengths(self) -> np.ndarray:  # of its documents: (num_documents,)
        return np.concatenate([shard.lengths for shard in self.shards])

    def blocks(self) -> Iterator[np.ndarray]:
        """The tokens, some million at a time."""
        for shard in self.shards:
            yield from shard.in_blocks(BLOCK_TOKENS)

    def files(self) -> Iterator[tuple[int, Iterator[np.ndarray]]]:
        """The tokens in files of even size: of each how many, and their blocks."""
        blocks, rest = self.blocks(), np.empty(0)

        def take(count: int) -> Iterator[np.ndarray]:
            nonlocal rest
            while count:
                block = rest if len(rest) else next(blocks)
                yield block[:count]
                rest, count = block[count:], max(0, count - len(block))

        for count in file_sizes(self.lengths(), self.file_tokens, self.name == "train"):
            yield count, take(count)


def file_sizes(lengths: np.ndarray, most: int, trains: bool) -> list[int]:
    """How many tokens each file has, of documents of these lengths: about `most`.

    A short last file, and a single one, end other people's loaders: these go from file to file, and expect each to hold
    a batch of all ranks. What lies before a file's first BOS, or after its last EOS, some leave out: so a file ends
    where a document does, but where documents are so long that files would be uneven.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    number = max(-(-int(ends[-1]) // most), 2 if trains else 1)
    even = np.array([int(ends[-1]) * file // number for file in range(number + 1)])
    nearest = ends[np.minimum(np.searchsorted(ends, even[1:-1]), len(ends) - 1)]
    sizes = np.diff([0, *nearest, even[-1]])
    is_uneven = (sizes < np.diff(even) / 2).any() or (sizes > 1.5 * np.diff(even)).any()
    return [int(size) for size in (np.diff(even) if is_uneven else sizes)]
