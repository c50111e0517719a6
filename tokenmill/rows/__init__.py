"""Lengths to rows: which piece of which document lies where, and in which order rows come.

Comes in: numbers (document lengths, row length, seed, epoch). Goes out: numbers. Pure: no file, no token, no tensor.

    windows       slices of all shards, taken in windows: the order of an epoch
    packing       best-fit rows of a window, from lengths; filler: what closes them
    cuts          rows cut from a token stream, ignoring documents
    repack        the rows of a window that was begun with rows of another length
    nanochat      nanochat's rule, pick for pick
    order         random orders that mean the same years later
    weights       made whole, from sizes, fitted to caps; turns: whose turn it is by them
    mixed         the rows of several sources in one order, by weights that change on the way; segments: what it is in
    stream        which rows come next for a rank; skipped: which do not
    position      what a checkpoint knows of it

It must never know a token set: that is why it can be tested against a slow reference in a few lines.
"""
