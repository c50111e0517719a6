"""How others make batches on the CPU, by their own methods: endless iterators of (inputs, targets), int64, (B, T).

    nanogpt         nanoGPT train.py get_batch: a fresh memmap a batch, a stack of random windows
    build_nanogpt   build-nanogpt DataLoaderLite: a shard loaded into a long tensor, consecutive views of it
    nanochat        nanochat dataloader.py: tokenize on the fly with 2 threads, scan a buffer of 1,000 documents

Written from their published methods, to be measured beside tokenmill in one run; none of it is used by tokenmill.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow.parquet as pq
import torch

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


def nanogpt(path, batch_size: int, seq_len: int) -> Batches:
    """`path` is one .bin of uint16."""
    while True:
        data = np.memmap(
            path, dtype=np.uint16, mode="r"
        )  # anew each time, "to avoid a memory leak"
        starts = torch.randint(len(data) - seq_len, (batch_size,))
        inputs = torch.stack(
            [torch.from_numpy(data[i : i + seq_len].astype(np.int64)) for i in starts]
        )
        targets = torch.stack(
            [torch.from_numpy(data[i + 1 : i + 1 + seq_len].astype(np.int64)) for i in starts]
        )
        yield inputs, targets


def build_nanogpt(paths: list, batch_size: int, seq_len: int) -> Batches:
    """`paths` are .bin files of uint16, one held at a time as a long tensor."""
    size = batch_size * seq_len
    while True:
        for path in paths:
            tokens = torch.tensor(np.fromfile(path, np.uint16).astype(np.int32), dtype=torch.long)
            for position in range(0, len(tokens) - size, size):
                stretch = tokens[position : position + size + 1]
                yield stretch[:-1].view(batch_size, seq_len), stretch[1:].view(batch_size, seq_len)


def nanochat(paths: list, encoding, bos_id: int, batch_size: int, seq_len: int) -> Batches:
    """`paths` are parquet files, `encoding` a tiktoken encoding."""

    def refills():
        while True:
            for path in paths:
                file = pq.ParquetFile(path)
                for group in range(file.num_row_groups):
                    texts = file.read_row_group(group, columns=["text"]).column("text").to_pylist()
                    for start in range(0, len(texts), 128):
                        encoded = encoding.encode_ordinary_batch(
                            texts[start : start + 128], num_threads=2
                        )
                        yield [[bos_id, *ids] for ids in encoded]

    row_len, buffer, stream = seq_len + 1, [], refills()
    rows = torch.empty((batch_size, row_len), dtype=torch.long)
    while True:
        for row in rows:
            position = 0
            while position < row_len:
                while len(buffer) < 1000:
                    buffer += next(stream)
                remaining, best, best_length = row_len - position, -1, 0
                for index, document in enumerate(buffer):
                    if best_length < len(document) <= remaining:
                        best, best_length = index, len(document)
                if best < 0:
                    best = min(range(len(buffer)), key=lambda index: len(buffer[index]))
                document = buffer.pop(best)[:remaining]
                row[position : position + len(document)] = torch.tensor(document, dtype=torch.long)
                position += len(document)
        yield rows[:, :-1].clone(), rows[:, 1:].clone()
