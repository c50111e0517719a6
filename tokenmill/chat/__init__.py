"""Conversations -> token ids and a loss mask.

In: rows of a source as JSON, a tokenizer with a chat rule (template, which turns are learned). Out: token ids, lengths,
and which tokens bear loss. Imports store, text and tokenize; never prepare, feed or batches. What a tokenizer
carries of it, the template and what is learned, is store/chat_rule.py.

    conversations.py    a row -> messages, whatever its columns are called
    jinja_templates.py  renders Hugging Face's chat templates, without transformers
    turns.py            which characters of a rendered conversation the assistant wrote, verified
    nanochat_turns.py   nanochat's own rendering
    chat_encoder.py     conversations -> ids and mask, a batch at a time
"""
