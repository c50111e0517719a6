"""Pure functions. Comes in: lengths and settings. Goes out: which pieces make up each row, and the order of rows.

    order         random orders that mean the same in every NumPy version
    windows       the slices of all shards, or of a view, taken in windows: the order of an epoch
    packing       best-fit rows of a window; bundles: joins short pieces at random first; gaps: fills rows' ends
    other_packings  concat, random and nanochat: the rows of other loaders
    plan          the rows of a window by any packing, even if its first rows had another length
    interleave    whose turn it is
    run           a run is a list of legs, and a point: what a checkpoint stores

It must never import another wing: no file, no token, no tensor. Tests compare it with slow references of a few lines.
"""
