"""gigatoken, an engine that is ten times as fast as a reference: when it is used, how it is made.

    require_usable(tokenizer)         ValueError if it cannot be proven
    fast = make(tokenizer)            documents, an Arrow array of text -> ids, offsets
    code_points_of(tokenizer, ...)    what it must not encode (referred.py)
    refers_of(tokenizer, codes)       the documents that have some

encoder.py proves it. It must start no thread, as workers are forked from a process that has used
it.
"""

import base64
import importlib.metadata
import tempfile
from typing import Any

import numpy as np
import pyarrow as pa

from tokenmill.tokenize import patterns
from tokenmill.tokenize.codepoints import Ids, joined, text_buffers
from tokenmill.tokenize.engine import Encode
from tokenmill.tokenize.huggingface import HuggingFace, added_token, unspelled
from tokenmill.tokenize.libraries import naming_the_library
from tokenmill.tokenize.referred import NAME as NAME
from tokenmill.tokenize.referred import code_points_of as code_points_of
from tokenmill.tokenize.referred import normalizes, splits_digits, steps_of
from tokenmill.tokenize.referred import refers_of as refers_of
from tokenmill.tokenize.tokenizer import Tokenizer

VERSIONS = {NAME: "0.10.0", "tiktoken": "0.14.0", "tokenizers": "0.23.3"}  # that it was proven with
# what it calls each split pattern; patterns.py adds how nanochat's splits digits
PRETOKENIZERS = {
    patterns.GPT2_PATTERN: "gpt2",
    patterns.CL100K_PATTERN: "cl100k",
    patterns.LLAMA3_PATTERN: "olmo3",
    patterns.QWEN2_PATTERN: "qwen2",
    patterns.NANOCHAT_PATTERN: "qwen2",
    patterns.O200K_PATTERN: "o200k",
}
STEPS = ("Split", "ByteLevel", "Digits", "Metaspace")  # of a pre-tokenizer, that the proof covers
SPACE = {"String": " "}  # the pattern of Gemma's split, which the proof has


def require_usable(tokenizer: Tokenizer) -> None:
    """ValueError if the engine is missing, is of another version, or cannot be proven here."""
    for package in (NAME, tokenizer.library):
        installed = [each.version for each in importlib.metadata.distributions(name=package)][:1]
        if installed != [VERSIONS[package]]:
            version = "".join(installed) or "none"
            raise ValueError(
                f"{NAME} is proven with {package} {VERSIONS[package]}, found {version}"
            )
    if not isinstance(tokenizer, HuggingFace):
        if tokenizer.pattern not in PRETOKENIZERS:
            raise ValueError(
                f"{NAME} is not proven with the split pattern of tokenizer {tokenizer.name}"
            )
        return
    for step in steps_of(tokenizer):  # a random text would not show what a step does to a word
        if not _is_covered(step):
            raise ValueError(
                f"{NAME} is not proven with a {step.get('type')} step like that of {tokenizer.name}"
            )
    merges = tokenizer.parts["model"].get("merges") or []
    if len(set(map(str, merges))) < len(merges):
        raise ValueError(
            f"{NAME} is not proven with merges that are there twice, as in {tokenizer.name}"
        )


def _is_covered(step: dict[str, Any]) -> bool:
    """Whether the proof covers a step of a pre-tokenizer."""
    pattern = step.get("pattern", SPACE)
    if step.get("type") not in STEPS:
        return False
    if pattern == SPACE:
        return True
    behavior = step.get("behavior"), step.get("invert")
    return "Regex" in pattern and behavior in (("Isolated", False), ("Removed", True))


def make(tokenizer: Tokenizer) -> Encode:
    """The engine for a tokenizer. ValueError, with the reason, if it cannot load the vocabulary."""
    with naming_the_library(NAME, tokenizer.name):
        if isinstance(tokenizer, HuggingFace):
            return _of_json(tokenizer)
        return _of_ranks(tokenizer)


def _of_json(tokenizer: HuggingFace) -> Encode:
    import gigatoken
    import orjson

    parts = unspelled(tokenizer)
    if not normalizes(tokenizer):
        parts["normalizer"] = None
    if splits_digits(tokenizer):  # to the engine, they are tokens that match before the split
        _, *steps = steps_of(tokenizer)
        several = {"type": "Sequence", "pretokenizers": steps}
        parts["pre_tokenizer"] = steps[0] if len(steps) == 1 else several
        vocab = parts["model"]["vocab"]
        for digit in "0123456789":
            parts["added_tokens"].append(added_token(vocab[digit], digit, special=False))
    loaded = gigatoken.Tokenizer.from_json(orjson.dumps(parts).decode())
    return lambda documents: _encode(loaded, documents)


def _of_ranks(tokenizer: Tokenizer) -> Encode:
    import gigatoken

    tokens = sorted(tokenizer.ranks, key=tokenizer.ranks.__getitem__)
    ids = np.array([tokenizer.ranks[token] for token in tokens], np.uint32)
    ranks = {token: rank for rank, token in enumerate(tokens)}  # without holes
    with tempfile.NamedTemporaryFile(suffix=".tiktoken") as file:
        file.writelines(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
        file.flush()
        kind = PRETOKENIZERS[tokenizer.pattern]
        loaded = gigatoken.Tokenizer.from_tiktoken(file.name, pretokenizer=kind)
    is_nanochat = tokenizer.pattern == patterns.NANOCHAT_PATTERN
    pairs = patterns.DigitPairs(ranks) if is_nanochat else None
    has_holes = len(ids) > 0 and ids[-1] != len(ids) - 1

    def encode(documents: pa.LargeStringArray) -> Ids:
        by_rank, offsets = _encode(loaded, documents)
        if pairs is not None:
            by_rank, offsets = pairs.join(by_rank, offsets)
        return ids[by_rank] if has_holes else by_rank, offsets

    return encode


def _encode(loaded: Any, documents: pa.LargeStringArray) -> Ids:
    """The UTF-8 of one document at a time.

    As fast as encode_batch, which imports awkward, a third of a second.
    """
    offsets, data = text_buffers(documents)
    text = data.data
    edges = offsets.tolist()
    parts = []
    for begin, end in zip(edges[:-1], edges[1:], strict=True):
        parts.append(loaded.encode(text[begin:end].tobytes()))
    return joined(parts)
