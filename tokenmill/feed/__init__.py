"""From token sets to rows: which rows come next for a rank, and their tokens, as NumPy arrays.

Comes in: token sets and a LoaderConfig. Goes out: arrays of rows, (B, T + 1), and a position.

    protocol         the interface between a loader and a feed; feed: chooses the feed for a loader's settings
    weighted_feed    weighted sources, one to many (one token set is one source); weighted_rows: their rows, in order
    row_blocks       looks up where rows are; weighted_checks: whether sources and positions fit together
    nanochat_feed    nanochat's per-rank order; nanochat_rows: its rows
    loader_config    a loader's settings, checked and in one normal form
    mixture          several token sets by weight; mixture_file: its TOML file; mixture_state: its part of a position
    targets          weights as shares of tokens that bear loss
    split_cursor     one token set's split, resumable from a position
    epoch_documents  what each epoch goes over, with views; window_documents: the documents of a window
    dealt            what an epoch has dealt, if the run went on with another view
    window_plans     the rows of each window; window_planner: plans windows ahead, in threads
    window_rows      the rows of one window; row_table: where their tokens are; pieces: their pieces, for display
    loss_mask        which tokens of rows bear loss; padding: what closes a row of whole documents
    window_size      the window size, if a remote set's cache is small
    remote_rows      rows of token sets at an address
    background       an iterator that runs ahead, in a thread
    forecast         what a mixture will take from each source
    html_preview     rows and forecasts as HTML, for notebooks

It must never import torch, text, tokenizers or parquet. It needs only NumPy.
"""
