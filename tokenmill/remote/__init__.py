"""Token sets at an address, read through a cache of verified part files; push and pull.

Comes in: an address. Goes out: what store gives for a folder.

    ranges        byte ranges over HTTP
    files         one object, a range of it or all, read and written through fsspec; retry: again
    part_cache    the folder of parts: fetch one, compare it, rename it into place; evict the oldest
    prefetch      a queue of what will be needed, and a pool of threads
    token_set     a token set and its shards, read through the three above
    set_files     which files a set has; push, pull: copies them, the manifest last

It must never import feed or batches; and store and rows know nothing of it.
"""
