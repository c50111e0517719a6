"""What is written of a split: the tokens of its documents, in order, some million at a time, cut into files."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tokenmill.store.documents import ShardDocuments

BLOCK_TOKENS = 1 << 22
FILE_TOKENS = 100_000_000  # at most, of the layouts with several files: build-nanogpt's and llm.c's own size


class SplitFiles(NamedTuple):
    """What a layout writes: the documents of a split."""

    name: str  # "train" or "val"
    dataset: str
    dtype: np.dtype
    shards: list[ShardDocuments]
    file_tokens: int = FILE_TOKENS
    tokenizer: str = ""  # its name
    most_tokens: int | None = None  # that a file may have, whatever its documents

    def ended(self, eos_id: int) -> "SplitFiles":
        """The same documents, ending with EOS."""
        return self._replace(shards=[shard.ended(eos_id) for shard in self.shards])

    def blocks(self) -> Iterator[np.ndarray]:
        """The tokens, some million at a time."""
        for shard in self.shards:
            yield from shard.in_blocks(BLOCK_TOKENS)

    def files(self) -> Iterator[tuple[int, Iterator[np.ndarray]]]:
        """The tokens in files of even size, at least two to train on: of each how many, and their blocks.

        A short last file, and a single one, end other people's loaders: these go from file to file, and expect each
        to hold a batch of all ranks. What lies before a file's first BOS, or after its last EOS, some leave out: so a
        file ends where a document does, but where documents are so long that files would be uneven.
        """
        blocks = _Blocks(self.blocks())
        lengths = [shard.lengths for shard in self.shards]
        for count in file_sizes(lengths, self.file_tokens, self.name == "train", self.most_tokens):
            yield count, blocks.take(count)


def file_sizes(lengths: list[np.ndarray], most: int, trains: bool, limit: int | None = None) -> list[int]:
    """How many tokens each file has, of documents of these lengths: about `most`, and never more than `limit`."""
    ends = np.cumsum(np.concatenate(lengths), dtype=np.int64)
    total = int(ends[-1])
    number = max(-(-total // most), 2 if trains else 1)
    even = np.array([total * file // number for file in range(number + 1)])
    nearest = ends[np.minimum(np.searchsorted(ends, even[1:-1]), len(ends) - 1)]
    cut = np.concatenate([even[:1], nearest, even[-1:]])
    uneven = (np.diff(cut) < np.diff(even) / 2).any() or (np.diff(cut) > 1.5 * np.diff(even)).any()
    uneven |= limit is not None and (np.diff(cut) > limit).any()
    return [int(size) for size in np.diff(even if uneven else cut)]


class _Blocks:
    """Blocks, taken in runs of any size."""

    def __init__(self, blocks: Iterator[np.ndarray]):
        self._blocks = blocks
        self._rest = np.empty(0)

    def take(self, count: int) -> Iterator[np.ndarray]:
        while count:
            block = self._rest if len(self._rest) else next(self._blocks)
            yield block[:count]
            self._rest, count = block[count:], max(0, count - len(block))
