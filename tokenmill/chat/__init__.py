"""Conversations to token ids and a loss mask, each verified: which tokens the assistant wrote.

Comes in: rows of a source as JSON, and a tokenizer with a chat rule. Goes out: ids, lengths, and a
loss mask.

    conversations     a row to a conversation, whatever its columns are called; message: a message
    find_rule         finds the template that --chat names, and puts it into a tokenizer
    templates         renders Hugging Face's templates without transformers
    marks             marks around texts, by which they are found in what a template renders
    turns             which characters of a rendering the assistant wrote
    turn_bounds       where a turn begins and ends; turn_ends: the tokens that end turns
    nanochat_turns    nanochat's own rendering
    renderer          conversations to segments: special tokens, and texts; segments: what they are
    chat_encoder      conversations to ids and mask, a batch at a time

A tokenizer carries the rule (tokenize/chat_rule.py). It must never know how rows are made.
"""
