"""Text to token ids: a tokenizer loaded, trained, fingerprinted; and engines proven equal to it.

Comes in: Arrow arrays of text. Goes out: ids, lengths, and what a token set keeps of its tokenizer.

    tokenizer       a byte-level BPE: load, save, fingerprint, encode by tiktoken; train: one made
    vocabularies    those of tiktoken by name; libraries: what runs tokenizers, and their errors
    chat_rule       the chat template that a tokenizer carries, and which turns are in the loss
    huggingface     runs any tokenizer.json with Hugging Face's library; spelling: its bytes
    lost            finds characters that a tokenizer has no token for
    load            finds a tokenizer by name, on the hub or in a file; pickled: reads nanochat's
    encoder         documents to tokens, with an engine that is proven before and while it is used
    choose_encoder  which engine that is
    proofs          keeps what was proven in the user's cache
    engine          what an engine is, and the registry
    gigatoken       the faster engine; referred: which documents it leaves to the reference
    patterns        the split patterns it knows, and how it runs nanochat's
    codepoints      finds characters in documents; proof_texts: the texts on which both are compared

It must never know where text comes from, or where ids go.
"""

from tokenmill.tokenize import huggingface as huggingface  # so that Tokenizer.load knows this kind
