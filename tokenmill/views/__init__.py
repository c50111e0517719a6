"""Views: which documents of a token set training goes over, and how often, by a rule.

Comes in: a token set, with the metadata that `prepare --keep-columns` kept, and a rule in SQL.
Goes out: the view's files beside the set's shards (store/views.py), and what it counts.

    documents       what is known of each document: its metadata, tokens, shard and source file
    distributions   sums of documents and tokens by what is known
    rule            a rule: parsed, checked, and evaluated by DuckDB
    make_view       from a rule, or from counts, to a view
    command         `tokenmill view`

Training reads views with numpy alone (rows/windows.py), so nothing here is imported by it.
It must never import torch, a tokenizer, or what reads text.
"""
