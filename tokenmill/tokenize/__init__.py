"""Text to token ids: a tokenizer loaded, trained, fingerprinted; and engines that are proven equal to it.

Comes in: Arrow arrays of text. Goes out: ids, lengths, and what a token set keeps of its tokenizer.

    tokenizer         a byte-level BPE: load, train, save, fingerprint, encode with tiktoken, the reference
    chat_rule         the chat template that a tokenizer carries, and which turns are learned
    huggingface       runs any tokenizer.json with Hugging Face's library
    load              finds a tokenizer by name, on the hub or in a file, and reads what other programs wrote
    encoder           documents to tokens, with an engine that is proven before and while it is used
    gigatoken         the faster engine; patterns: the split patterns it knows, and how it runs nanochat's
    codepoints        finds characters that an engine classes differently, and makes texts of them for the proof

It must never know where text comes from, or where ids go.
"""

from tokenmill.tokenize import huggingface as huggingface  # so that Tokenizer.load knows this kind
