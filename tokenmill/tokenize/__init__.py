"""Text to token ids: a tokenizer loaded, trained, fingerprinted; and engines that are proven equal to it.

Comes in: Arrow arrays of text. Goes out: ids, lengths, and what a token set keeps of its tokenizer.

    tokenizer     a byte-level BPE: load, train, save, fingerprint, encode by tiktoken, the reference
    stretches     a text that tiktoken gives up on; giving_up: what a library says then, as an error
    huggingface   any tokenizer.json, run by Hugging Face's library; foreign: other people's files, read
    pickles       nanochat's, read before it is run
    encoder       documents to tokens, by an engine that is proven before and while it is used
    engines       faster encoders; patterns: what they know them by; digits: nanochat's pattern by Llama 3's
    codepoints    characters that an engine classes otherwise; tables/ has them

It must never know where text is from, or where ids go.
"""
