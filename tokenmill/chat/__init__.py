"""Conversations to token ids and a loss mask, each verified: which tokens the assistant wrote.

Comes in: rows of a source as JSON, and a tokenizer with a chat rule. Goes out: ids, lengths, and a loss mask.

    conversations     a row to messages, whatever its columns are called
    templates         finds the template that --chat names, and renders Hugging Face's without transformers
    marks             marks around texts, by which they are found in what a template renders
    turns             which characters of a rendered conversation the assistant wrote; turn_ends: how a turn ends
    nanochat_turns    nanochat's own rendering
    chat_encoder      conversations to ids and mask, a batch at a time

A tokenizer carries the rule (tokenize/chat_rule.py). It must never know how rows are made.
"""
