"""Batches: from rows to arrays. This is what training imports.

Comes in: the order of rows (feed/) and settings. Goes out: (inputs, targets) on a device, and a
position.

    loader           RowLoader for torch; tokenmill/numpy.py and tokenmill/jax.py are the others
    base_loader      what all three do: iteration and the position; made: batches, made ahead;
                     facts: what loaders tell; resume: whether a position fits a loader
    batch_pieces     which documents the tokens of a batch are of
    get_batch        get_batch, one function that keeps its own loaders
    packed_rows      a dataset for DataLoader
    arrays           rows as NumPy arrays; torch_arrays: on a device of torch;
                     jax_arrays: as global jax.Arrays
    ranks            finds this process's rank, and compares the settings of all ranks once
    documents        document ids, position ids and attention masks of a batch, for torch

It must never import text, tokenizers or parquet; only `loader.column`, when it is called, reads
parquet. It needs only numpy, and torch or JAX in the modules of their names: jax_arrays imports
JAX; loader, get_batch, packed_rows, documents and torch_arrays import torch.
"""
