"""Other people's token files, written and read without tokenizing again.

Comes in and goes out: token sets, and nanoGPT's, llm.c's, build-nanogpt's, OLMo's, Megatron's, datatrove's and
Hugging Face's files.

    convert       `tokenmill convert`
    push_command, pull_command    `tokenmill push` and `tokenmill pull`; card: of a set on the hub
    transfer_progress             how far they are
    hub_files     files that others publish on the hub
    import_shards files of a split to shards
    layouts       what there is; writing, reading: their bytes; headers: their headers
    split_files   the documents of a split, cut into files

It must never guess: what is written is read back, what is taken in is checked against its layout.
"""
