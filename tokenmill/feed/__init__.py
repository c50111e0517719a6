"""From token sets to rows: which rows come next for a rank, and their tokens, as NumPy arrays.

Comes in: token sets and a LoaderConfig. Goes out: arrays of rows, (B, T + 1), and the run after
each batch.

    config           a loader's settings, checked and in one normal form
    mixture          several token sets by weight; weights: these as whole numbers; mixture_file:
                     its TOML file
    compatible_sets  which token sets can be the sources of one mixture
    source           one token set in a run: its windows, planned ahead, and its order of rows;
                     order: the settings that all sources of a run share
    window_documents the documents of a window
    dealers          what a loader asks of an order of rows, whichever it has
    mixed_rows       the order of rows, for one token set as for many; turns: a rank's part of it;
                     nanochat_rows: nanochat's
    table            where the tokens of a window's rows are; batch: rows of some tables, joined
    conversations    what rows keep of chats, and what of them is in the loss
    pieces           the pieces of a row, for display
    token_files      the files that rows are in, and the parts of token sets at an address
    prefetch         an iterator that runs ahead, in a thread
    forecast         what a mixture will take from each source

It must never import torch, text, tokenizers or parquet. It needs only NumPy.
"""
