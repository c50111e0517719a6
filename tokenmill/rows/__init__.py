"""Lengths to rows: which piece of which document lies where, and in which order rows come.

Comes in: numbers (document lengths, row length, seed, epoch). Goes out: numbers. Pure: no file, no token, no tensor.

    packing       best-fit rows and windows of a stream, from lengths
    nanochat      nanochat's rule, pick for pick
    order         random orders that mean the same years later
    stream        which rows come next for a rank; skipped: which do not
    position      what a checkpoint knows of it

It must never know a token set: that is why it can be tested against a slow reference in a few lines.
"""
