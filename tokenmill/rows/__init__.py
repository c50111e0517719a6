"""Pure functions of numbers: which pieces make up each row, and in which order rows come.

Comes in: numbers (document lengths, row length, seed, epoch). Goes out: numbers.

    windows       the slices of all shards, taken in windows: the order of an epoch
    view_windows  the slices of a view
    joined_epoch  an epoch whose documents change on the way
    packing       best-fit rows of a window; bundles: joins short pieces at random first
    whole_documents  rows of whole documents and padding, for chat sets
    gap_cuts      cuts pieces to fill large gaps; filler: fills the others with copies
    concat        rows cut from a token stream, without regard to documents
    nanochat      nanochat's rule, pick for pick
    packers       how each packing plans a window, even if its first rows had another length
    packings      the registry: what the rest of the code needs to know about each packing
    order         random orders that mean the same in every NumPy version
    weights       weights as whole numbers, from sizes, and fitted to caps; interleave: whose turn it is
    row_stream    the rows of one token set in order; skip_rows: the rows to leave out
    mixed_stream  the rows of several sources in one order; segments: stretches of it with the same weights
    position      what a checkpoint stores about all of this, whichever version wrote it
    run_log       the log of a run's settings since training began, in a position

It must never import another wing: no file, no token, no tensor. Tests compare it with slow references of a few lines.
"""
