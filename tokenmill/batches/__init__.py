"""Rows to tensors: what training imports.

Comes in: a token set, settings (config). Goes out: (inputs, targets) on a device, and a position.

    loader            RowLoader; get_batch and packed_rows are other ways to have one
    chain             rows dealt, transferred, made ahead: how its batches are made
    plans             the plan of each window of a split
    planned           the rows of a split, window by window; nanochat_rows: nanochat's
    window_rows       the rows of one window, copied from memory maps; pieces: what they are made of
    transfer          to a device; ahead: in a thread
    ranks             which rank this is, and whether all agree
    documents         ids, positions and masks of the documents of a batch
    notebook          the next rows, drawn

It must never know text, tokenizers or parquet: numpy and torch are all it loads.
"""
