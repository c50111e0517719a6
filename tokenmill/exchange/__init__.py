"""Other people's token files, written and read without tokenizing again.

Comes in and goes out: token sets, and nanoGPT's, llm.c's, build-nanogpt's, OLMo's, Megatron's, datatrove's and
Hugging Face's files.

    convert       `tokenmill convert`
    push, pull    `tokenmill push` and `tokenmill pull`; card: of a set on the hub, counting: how far it is
    fetched       files that others publish on the hub
    intake        files of a split to shards
    layouts       what there is; writing, reading: their bytes; formats: their headers
    split_files   the documents of a split, cut into files

It must never guess: what is written is read back, what is taken in is checked against its layout.
"""
