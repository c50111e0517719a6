"""Token sets that lie elsewhere: in a bucket, on the hub, on a web server. Only verified bytes reach the cache.

Comes in: an address. Goes out: a token set whose blocks come as they are needed; files sent to an address.

    addresses     what is one, and how it is shown
    places        what reads each kind: http, s3, hub, and fs for all that fsspec knows; patience: how long
    blocks        MiB of shards, numbered; marks: which are there; claims: who fetches them, who needs them
    cache         a set's folder on this disk; caches: one for each folder; budget: what they may take together
    fetcher       the threads that fetch
    sets          a token set at an address
    pull          a whole set from there; push: one to there; sending: what takes files

It must never know what a row is, nor trust a lock for a row to be right.
"""
