"""Rows to tensors: what training imports.

Comes in: a token set, settings (config). Goes out: (inputs, targets) on a device, and a position.

    loader            RowLoader; get_batch and packed_rows are other ways to have one
    chain             rows dealt, transferred, made ahead: how its batches are made
    mixture           several token sets by weight, as a user says it; mixture_file: as a TOML file says it
    forecast          what a mixture will give of each source
    one_set           what a loader deals, and what a position of it is; mixed: the same of a mixture, ledger: written
    source            a token set's split from a place on, as a position says; plans: the plan of each of its windows
    planned           the rows of a split, window by window; mixed_rows: a mixture's; nanochat_rows: nanochat's
    windows           windows planned ahead, by threads
    window_rows       the rows of one window; table: where their tokens lie; pieces: what they are made of
    transfer          to a device; ahead: in a thread
    frameworks        what they do around a dataset, and should not; callers: who called
    ranks             which rank this is, and whether all agree; progress: how far the others are
    elsewhere         rows whose tokens lie elsewhere; grain: how large windows are, where their cache is small
    documents         ids, positions and masks of the documents of a batch
    notebook          the next rows, drawn

It must never know text, tokenizers or parquet: numpy and torch are all it loads.
"""
