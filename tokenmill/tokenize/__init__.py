"""Text to token ids: a tokenizer loaded, trained, fingerprinted; and engines that are proven equal to it.

Comes in: Arrow arrays of text. Goes out: ids, lengths, and what a token set keeps of its tokenizer.

    tokenizer     a byte-level BPE: load, train, save, fingerprint, encode by tiktoken, the reference
    foreign       tokenizers that others wrote: Hugging Face's, nanochat's
    engines       faster encoders, proven before and while they are used
    codepoints    characters that an engine classes otherwise; tables/ has them

It must never know where text is from, or where ids go.
"""
