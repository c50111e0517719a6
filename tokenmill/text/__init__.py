"""Text comes in: files of documents become units of work, and these batches of documents.

Comes in: what a user names (a folder, a file, a glob, a URL, a repository on the hub). Goes out: Arrow arrays of text.

    listing       what a user names becomes files; formats: told by a file's name
    sources       files split into train and val; plan_units and read_documents for every format
    lots          which files make shards together
    units         what all formats share: a source file, a unit of work, a batch of documents
    parquet       row groups; decoding: what is read of them, as documents
    lines         jsonl and txt, plain or compressed
    hub           files of a repository on the Hugging Face hub, listed; downloads: fetched
    stdlib        text that every machine has

It must never know tokens.
"""
