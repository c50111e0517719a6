"""Pure functions. Comes in: lengths and settings. Goes out: the pieces of rows, and their order.

    order         random orders that mean the same in every NumPy version
    groups        offsets of groups whose members follow one another
    windows       the slices of all shards, or of a view, taken in windows: the order of an epoch
    packing       best-fit rows of a window, of spans, by picks of sizes; bundles joins short pieces
                  at random first; donors cuts pieces into gaps; filler fills rows' ends
    stream_packings  concat and random: rows cut from a stream; nanochat_buffer: nanochat's rule
    plan          the rows of a window by any packing, even if its first rows had another length;
                  laid_pieces: what is left of these
    interleave    whose turn it is
    run           a run is a list of legs, and a point; position: a run as a checkpoint stores it

It must never import another wing: no file, no token, no tensor. Tests compare it with slow
references of a few lines.
"""
