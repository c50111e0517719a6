"""The fingerprint of a tokenizer: a SHA-256 over everything that can change a token id. Its name cannot.

of_ranks(pattern, ranks, special_tokens, bos_token, eot_token)      a byte-level BPE tokenizer
of_huggingface(whole, bos_token, eot_token)                         the content of a Hugging Face tokenizer.json
of_chat(fingerprint, rule)                                          one of these, and the chat rule of a chat set
"""

import hashlib
import json
from typing import Any

CHANGES_IDS = ("normalizer", "pre_tokenizer", "model", "added_tokens")  # the parts that ids follow from


def of_ranks(
    pattern: str, ranks: dict[bytes, int], special_tokens: dict[str, int], bos_token: str, eot_token: str | None
) -> str:
    """The fingerprint of a split pattern, the bytes and ids of tokens, and special tokens: 64 hex digits."""
    by_rank = sorted((rank, token.hex()) for token, rank in ranks.items())
    ends = [] if eot_token is None else [eot_token]
    whole = json.dumps([pattern, by_rank, sorted(special_tokens.items()), bos_token, *ends])
    return hashlib.sha256(whole.encode()).hexdigest()


def of_huggingface(whole: dict[str, Any], bos_token: str, eot_token: str | None) -> str:
    """The fingerprint of a Hugging Face tokenizer.json: 64 hex digits."""
    parts = {key: whole.get(key) for key in CHANGES_IDS}
    framed = [bos_token, *([eot_token] if eot_token else [])]
    return hashlib.sha256(json.dumps([parts, framed], sort_keys=True).encode()).hexdigest()


def of_chat(fingerprint: str, rule: dict[str, Any] | None) -> str:
    """The fingerprint of a tokenizer with a chat rule, as tokenizer.json has it: 64 hex digits."""
    if rule is None:
        return fingerprint
    return hashlib.sha256(json.dumps([fingerprint, rule], sort_keys=True).encode()).hexdigest()
