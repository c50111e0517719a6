"""What a chat set has to know of tokenizers that Hugging Face's library runs: how they change a text.

depends_on_neighbors(tokenizer)   whether a text has other ids beside a special token, or where a text begins
spells_texts(tokenizer)           whether the bytes of a text's tokens are the text
begins(tokenizer, text, ids)      the character of a text that each of its tokens begins with
encode_whole(tokenizer, text)     the ids of a conversation with its special tokens, and where these begin
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tokenmill.tokenize.huggingface import HuggingFace
from tokenmill.tokenize.library_errors import CannotRun, naming_the_library
from tokenmill.tokenize.tokenizer import Tokenizer

FLAGS = ("lstrip", "rstrip", "single_word")  # of an added token, by which it takes or needs what is beside it


def depends_on_neighbors(tokenizer: Tokenizer) -> bool:
    """Whether the ids of a rendering are not those of its special tokens and of the texts between them, each alone."""
    if not isinstance(tokenizer, HuggingFace):
        return False
    whole = json.loads(tokenizer.whole)
    has_flags = any(token.get(flag) for token in whole.get("added_tokens") or [] for flag in FLAGS)
    is_normalized = any(token.get("normalized") and token.get("special") for token in whole.get("added_tokens") or [])
    return has_flags or is_normalized or not _is_by_byte(whole)


def spells_texts(tokenizer: Tokenizer) -> bool:
    """Whether the bytes of a text's tokens are the text, unless they are more or fewer."""
    return not isinstance(tokenizer, HuggingFace) or json.loads(tokenizer.whole).get("normalizer") is None


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


def encode_whole(tokenizer: Tokenizer, text: str) -> tuple[list[int], np.ndarray]:
    """Ids of a text whose special tokens are special tokens; the character that each begins with."""
    assert isinstance(tokenizer, HuggingFace), "others encode texts alone"
    with naming_the_library(tokenizer.library, tokenizer.name):
        encoded = tokenizer.decoding.encode(text, add_special_tokens=False)
    return list(encoded.ids), np.array([first for first, _ in encoded.offsets], np.int64)


def with_special(tokenizer: Tokenizer, tokens: Sequence[str]) -> Tokenizer:
    """The tokenizer with more special tokens, whose ids follow its last one."""
    ids = {token: tokenizer.vocab_size + number for number, token in enumerate(tokens)}
    special = tokenizer.special_tokens | ids
    if not isinstance(tokenizer, HuggingFace):
        return replace(tokenizer, special_tokens=special)
    whole = json.loads(tokenizer.whole)
    plain = dict.fromkeys((*FLAGS, "normalized"), False)
    added = [{"id": id, "content": token, **plain, "special": True} for token, id in ids.items()]
    whole["added_tokens"] = [*(whole.get("added_tokens") or []), *added]
    return replace(tokenizer, special_tokens=special, whole=json.dumps(whole, ensure_ascii=False))


def _is_by_byte(whole: dict[str, Any]) -> bool:
    """Whether one step of the pre-tokenizer is byte-level, and no other adds or takes away anything."""
    steps = _steps(whole.get("pre_tokenizer"))
    return any(step["type"] == "ByteLevel" for step in steps) and all(map(_keeps_texts, steps))


def _steps(pre_tokenizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps of a pre-tokenizer, one after the other."""
    if pre_tokenizer is None or pre_tokenizer["type"] != "Sequence":
        return [] if pre_tokenizer is None else [pre_tokenizer]
    return [step for one in pre_tokenizer["pretokenizers"] for step in _steps(one)]


def _keeps_texts(step: dict[str, Any]) -> bool:
    if step["type"] == "ByteLevel":
        return not step.get("add_prefix_space")
    return step["type"] == "Digits" or (step["type"] == "Split" and step.get("behavior") != "Removed")
