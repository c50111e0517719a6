"""Batches: from rows to arrays. This is what training imports.

Comes in: a feed (feed/) and settings. Goes out: (inputs, targets) on a device, and a position.

    loader           RowLoader for torch; tokenmill/numpy.py and tokenmill/jax.py are the others
    base_loader      what all three do: iteration, properties and the position; loader_core: how it runs
    get_batch        get_batch, one function that keeps its own loaders; packed_rows: a dataset for DataLoader
    transfer         what makes arrays of rows: torch_transfer, numpy_transfer, jax_transfer
    torch_batch      what torch_transfer and stream_transfer make on a device; torch_devices: streams and events
    step_times       what a training step takes longer with a loader than with one constant batch
    ranks            finds this process's rank, and checks that all ranks agree
    processes        what torch.distributed and jax.distributed know of this process
    documents        document ids, position ids and attention masks of a batch, for torch

It must never import text, tokenizers or parquet. It needs only numpy, and torch or JAX in the modules of their names:
jax_transfer imports JAX; loader, get_batch, packed_rows, documents, step_times, stream_transfer and torch_* import
torch.
"""
