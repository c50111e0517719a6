"""Batches: from rows to tensors. This is what training imports.

Comes in: a feed (feed/) and settings. Goes out: (inputs, targets) on a device, and a position.

    loader         RowLoader, the public class; loader_core: how it runs
    get_batch      get_batch, one function that keeps its own loaders; packed_rows: a dataset for DataLoader
    transfer       copies rows to a device
    ranks          finds this process's rank, and checks that all ranks agree
    documents      document ids, position ids and attention masks of a batch

It must never import text, tokenizers or parquet. It needs only numpy and torch.
"""
