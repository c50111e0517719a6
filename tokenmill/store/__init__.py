"""Bytes on disk: token sets, their shards, and files that appear whole.

Comes in: tokens, lengths, records. Goes out: memory-mapped arrays, manifests.

    files         files that appear whole or not at all; checksums, locks, JSON with its version
    names         names that come from others stay in their folder; schema: what the JSON files may say
    maps          files as arrays, without a descriptor each
    shards        one shard: its three files, written and mapped
    token_sets    a folder of shards with a manifest

It must never know what a text, a tokenizer or a row is.
"""
