"""Bytes on disk: token sets, their shards, and files that appear whole.

Comes in: tokens, lengths, records. Goes out: arrays, manifests.

    files         files that appear whole or not at all, with checksums; locks: one process writes
    json_files    files of JSON, with their format and version
    schema        what the JSON files may say; json_rules: how that is written and checked
    names         names that come from others stay in their folder
    maps          files as arrays, without keeping a file descriptor for each
    columns       the table of a shard's columns: which files it has, and what each holds
    shards        one shard, mapped; shard_writer: written
    tables        columns that are parquet: metadata
    manifests     the list of a set's shards, and its digest
    token_sets    a folder of shards with a manifest; views: how often each of its documents counts
    set_names     finds sets on this disk by their names
    documents     the documents of shards in order, for what goes over all tokens

It must never know what a text or a row is, nor how a tokenizer encodes.
"""
