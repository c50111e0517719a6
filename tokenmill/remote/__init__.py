"""Token sets in a bucket, on the hub, or on a web server. Only verified bytes reach the cache.

Comes in: an address. Goes out: a token set whose blocks come as they are needed; files sent to an address.

    backends      what reads each kind of address: http_backend, s3_backend, hub_backend, fsspec_backend
    retry         how long a read is tried; deadlines: ends a request in time
    blocks        the MiB of shards, numbered; block_state: which are there; block_locks: who fetches them
    cache         the blocks of a set on this disk; cache_folder: where; caches: one for each; budget: their size
    holes         reads again what may come from a hole in a file of the cache
    fetcher       the threads that fetch
    sets          a token set at an address
    pull, push    a whole set from an address, and to one; writers: what takes the files

It must never know what a row is, nor trust a lock for a row to be right.
"""
