"""Other people's token files, written and read without tokenizing again.

Comes in and goes out: token sets, and nanoGPT's, llm.c's, build-nanogpt's, Megatron's and Hugging Face's files.

    convert       `tokenmill convert`
    layouts       their bytes

It must never guess: what is written is read back, what is taken in is checked against its layout.
"""
