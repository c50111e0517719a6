"""Other programs' token files, written and read without tokenizing again; and sets sent elsewhere.

Comes in and goes out: token sets, and nanoGPT's, llm.c's, build-nanogpt's, OLMo's, Megatron's,
datatrove's and Hugging Face's files.

    convert         `tokenmill convert`: its flags; convert_out, convert_in: what it does
    found_documents  where documents begin and end in these
    layouts         what there is; flat_files, indexed_files: their bytes
    copy_commands   `tokenmill push` and `tokenmill pull`

It must never guess: what is taken in is checked against its layout, and what would be lost is named
or refused.
"""
