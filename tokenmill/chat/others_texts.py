"""What a chat set has to know of tokenizers that Hugging Face's library runs: how they change a text.

absorbing(tokenizer)          the special tokens that take the spaces before, or after, them into themselves
spells_texts(tokenizer)       whether the bytes of a text's tokens are the text
begins(tokenizer, text, ids)  the character of a text that each of its tokens begins with
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tokenmill.tokenize.huggingface import HuggingFace
from tokenmill.tokenize.library_errors import CannotRun, naming_the_library
from tokenmill.tokenize.tokenizer import Tokenizer


def absorbing(tokenizer: Tokenizer) -> tuple[frozenset[str], frozenset[str]]:
    """The special tokens that take the spaces before, or after, them into themselves."""
    added = (json.loads(tokenizer.whole).get("added_tokens") or []) if isinstance(tokenizer, HuggingFace) else []
    left, right = (
        frozenset(one["content"] for one in added if one.get(side) and one["content"] in tokenizer.special_tokens)
        for side in ("lstrip", "rstrip")
    )
    return left, right


def spells_texts(tokenizer: Tokenizer) -> bool:
    """Whether the bytes of a text's tokens are the text, unless they are more or fewer."""
    if not isinstance(tokenizer, HuggingFace):
        return True
    whole = json.loads(tokenizer.whole)
    strips = any(
        not token.get("special") and (token.get("lstrip") or token.get("rstrip"))
        for token in whole.get("added_tokens") or []
    )
    steps = _steps(whole.get("pre_tokenizer"))
    is_by_byte = any(step["type"] == "ByteLevel" for step in steps)
    return whole.get("normalizer") is None and not strips and is_by_byte and all(map(_keeps_texts, steps))


def begins(tokenizer: Tokenizer, text: str, ids: np.ndarray) -> np.ndarray:
    """The character of a text that each of its tokens begins with: (num_tokens,). Only of tokenizers that change the
    text; of others, the bytes of the tokens say so.
    """
    if not isinstance(tokenizer, HuggingFace):
        raise ValueError(f"tokenizer {tokenizer.name} does not give back the text {text[:40]!r}")
    with naming_the_library(tokenizer.library, tokenizer.name):
        encoded = tokenizer.encoding_of_texts.encode(text, add_special_tokens=False)
    if encoded.ids != ids.tolist():
        raise CannotRun(f"{tokenizer.name} encodes {text[:40]!r} in two ways")
    return np.array([first for first, _ in encoded.offsets], np.int64)


def encode_spelled(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text in which special tokens that it spells are these tokens."""
    with naming_the_library(tokenizer.library, tokenizer.name):
        if isinstance(tokenizer, HuggingFace):
            return list(tokenizer.decoding.encode(text, add_special_tokens=False).ids)
        return list(tokenizer.encoding.encode(text, allowed_special="all"))


def with_special(tokenizer: Tokenizer, tokens: Sequence[str]) -> Tokenizer:
    """The tokenizer with more special tokens, whose ids follow its last one."""
    ids = {token: tokenizer.vocab_size + number for number, token in enumerate(tokens)}
    special = tokenizer.special_tokens | ids
    if not isinstance(tokenizer, HuggingFace):
        return replace(tokenizer, special_tokens=special)
    whole = json.loads(tokenizer.whole)
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": id, "content": token, **plain, "special": True} for token, id in ids.items()]
    whole["added_tokens"] = [*(whole.get("added_tokens") or []), *added]
    return replace(tokenizer, special_tokens=special, whole=json.dumps(whole, ensure_ascii=False))


def _steps(pre_tokenizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps of a pre-tokenizer, one after the other."""
    if pre_tokenizer is None or pre_tokenizer["type"] != "Sequence":
        return [] if pre_tokenizer is None else [pre_tokenizer]
    return [step for one in pre_tokenizer["pretokenizers"] for step in _steps(one)]


def _keeps_texts(step: dict[str, Any]) -> bool:
    """Whether a step of a pre-tokenizer neither adds nor takes away anything."""
    if step["type"] == "ByteLevel":
        return not step.get("add_prefix_space")
    return step["type"] == "Digits" or (step["type"] == "Split" and step.get("behavior") != "Removed")
