"""Text comes in: files of documents become units of work, and these become batches of documents.

Comes in: what a user names (a folder, a file, a glob, a URL, a repository on the hub). Goes out: Arrow arrays of text.

    formats       the registry of formats; a file's name says which it has
    listing       what a user names -> files; several_sources: if they name several
    sources       files split into train and val; plan_units and read_documents for every format
    document_split  splits the documents of each file, if a file alone is too large or too small to validate with
    file_groups   which files make shards together
    units         what all formats share: a source file, a unit of work, a batch of documents
    parquet       row groups; decoding: turns what is read of them into documents
    arrow         record batches; arrow_columns: finds columns in them, and in parquet
    csv           records
    kept_columns  the columns that are kept beside the text
    jsonl, txt    plain or compressed; separated: what they share
    hub           lists the files of a repository on the Hugging Face hub; downloads: fetches them
    stdlib        text that every machine has

It must never know tokens.
"""
