"""Finds the code points that gigatoken classes otherwise than tiktoken: `make tables`; takes
minutes.

It uses a vocabulary in which every join is visible: besides the 256 bytes it has every pair of
bytes that crosses from one character into the next, so two characters share a token if and only if
they are in one piece:

    "aé" in one piece   61+c3 a9        "a" "é" in two   61 c3 a9

Left out: differences that only three characters show, except for the letters of English
contractions ('s, 'll), which patterns match in any case. A sample of every shard is proven too.
"""

from itertools import chain, product

import numpy as np
import pyarrow as pa

from tokenmill.tokenize import gigatoken, patterns, referred
from tokenmill.tokenize.codepoints import CodePoints, differing_documents
from tokenmill.tokenize.encoder import reference
from tokenmill.tokenize.patterns import NANOCHAT_PATTERN
from tokenmill.tokenize.tokenizer import Tokenizer

CONTEXTS = ("a{}", "A{}", "1{}", "!{}", " {}", "{}a", "{}A")
CONTRACTIONS = ("'{}", "'{}l", "'l{}", "'{}e", "'r{}", "'v{}")
CONTRACTED = set("sdmtlver")
SHIPPED = [*chain(*(range(first, last + 1) for first, last in referred.DIFFERING))]


def join_showing_ranks() -> dict[bytes, int]:
    """A vocabulary of bytes, and of pairs that cross from one character into the next."""
    begins = [*range(0x80), *range(0xC0, 0x100)]  # of characters
    tokens = [*product(range(256)), *product(range(256), begins)]
    return {bytes(token): rank for rank, token in enumerate(tokens)}


def differing_code_points(pattern: str, among=range(0x110000)) -> list[int]:
    """The code points in `among` on which the engine and tiktoken disagree with a pattern,
    ascending.
    """
    ranks = join_showing_ranks()
    tokenizer = Tokenizer("joins", pattern, ranks, {"<|bos|>": len(ranks)}, "<|bos|>")
    by_tiktoken = reference(tokenizer)
    by_engine = as_used(gigatoken.make(tokenizer), pattern, by_tiktoken)
    every = [chr(code) for code in among if not 0xD800 <= code < 0xE000]
    folding = [c for c in every if CONTRACTED & {c.lower(), c.upper().lower(), c.casefold()}]
    differing = set()
    for contexts, characters in ((CONTEXTS, every), (CONTRACTIONS, folding)):
        for context in contexts:
            documents = pa.array([context.format(c) for c in characters], pa.large_string())
            for i in differing_documents(by_engine(documents), by_tiktoken(documents)):
                differing.add(ord(characters[i]))
    return sorted(differing)


def as_used(by_engine, pattern: str, by_reference):
    """The engine, with the reference for the documents that are never left to it."""
    if pattern != NANOCHAT_PATTERN:
        return by_engine

    def encode(documents):
        refer = CodePoints(patterns.numbers()).among(documents)
        parts = split(*by_engine(documents))
        instead = split(*by_reference(documents.filter(pa.array(refer))))
        for i, part in zip(np.flatnonzero(refer), instead, strict=False):  # of none, one is empty
            parts[i] = part
        return np.concatenate(parts), np.cumsum([0, *map(len, parts)])

    def split(ids, offsets):
        return np.split(ids, offsets[1:-1])

    return encode


def as_ranges(code_points: list[int]) -> list[tuple[int, int]]:
    """[3, 4, 5, 9] -> [(3, 5), (9, 9)]."""
    edges = np.flatnonzero(np.diff(code_points, prepend=-2) > 1)
    lasts = np.append(edges[1:], len(code_points)) - 1
    return [
        (code_points[first], code_points[last]) for first, last in zip(edges, lasts, strict=True)
    ]


if __name__ == "__main__":
    for pattern, name in gigatoken.PRETOKENIZERS.items():
        differing = differing_code_points(pattern)
        new = sorted(set(differing) - set(SHIPPED))
        shown = as_ranges(new) if new else "none"
        print(f"{name} {len(differing)} code points, {shown} not shipped", flush=True)
