"""Text comes in: files of documents become units of work, and these become batches of documents.

Comes in: what a user names (a folder, a file, a glob, a URL, a repository on the hub). Goes out:
Arrow arrays of text.

    formats       the registry of formats; a file's name says which it has
    source_file   a file of documents, wherever it is
    locate        what is there at a path or a URL; hub: in a repository on the hub, and fetching it
    listing       what a user names -> the files to read
    validation    which files, or documents, validate
    plan          files -> units of work, by names and sizes alone
    documents     a unit -> its documents: what all formats share; text_arrays: Arrow's texts
    kept_columns  the columns beside them, in plain types
    columnar      reads parquet and Arrow; lines: text files; jsonl: objects, a line each; csv
    stdlib        text that every machine has

It must never know tokens.
"""
