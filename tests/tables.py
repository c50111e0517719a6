"""Finds the code points that gigatoken classes otherwise than tiktoken: `make tables`; takes
minutes.

It uses a vocabulary in which every join is visible: besides the 256 bytes it has every pair of
bytes that crosses from one character into the next, so two characters share a token if and only if
they are in one piece:

    "aé" in one piece   61+c3 a9        "a" "é" in two   61 c3 a9

Left out: differences that only three characters show, except for the letters of English
contractions ('s, 'll), which patterns match in any case. A sample of every shard is proven too.
"""

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
SHIPPED = [code for first, last in referred.DIFFERING for code in range(first, last + 1)]


def join_showing_ranks() -> dict[bytes, int]:
    """A vocabulary of bytes, and of pairs that cross from one character into the next."""
    pairs = (bytes([x, y]) for x in range(256) for y in range(256) if not 0x80 <= y < 0xC0)
    return {token: rank for rank, token in enumerate([*(bytes([b]) for b in range(256)), *pairs])}


def differing_code_points(pattern: str, among=range(0x110000)) -> list[int]:
    """The code points in `among` on which the engine and tiktoken disagree with a pattern,
    ascending.
    """
    ranks = join_showing_ranks()
    tokenizer = Tokenizer("joins", pattern, ranks, {"<|bos|>": len(ranks)}, "<|bos|>")
    by_tiktoken, characters = (
        reference(tokenizer),
        [chr(code) for code in among if not 0xD800 <= code < 0xE000],
    )
    by_engine = as_used(gigatoken.make(tokenizer), pattern, by_tiktoken)
    folding = [c for c in characters if CONTRACTED & {c.lower(), c.upper().lower(), c.casefold()}]
    found = set()
    for contexts, some in ((CONTEXTS, characters), (CONTRACTIONS, folding)):
        for context in contexts:
            documents = pa.array([context.format(c) for c in some], pa.large_string())
            found |= {
                ord(some[i])
                for i in differing_documents(by_engine(documents), by_tiktoken(documents))
            }
    return sorted(found)


def as_used(by_engine, pattern: str, by_reference):
    """The engine, with the reference for the documents that are never left to it."""
    if pattern != NANOCHAT_PATTERN:
        return by_engine

    def encode(documents):
        (ids, offsets), refer = (
            by_engine(documents),
            CodePoints(patterns.numbers()).among(documents),
        )
        others, edges = by_reference(documents.filter(pa.array(refer)))
        parts, instead = np.split(ids, offsets[1:-1]), iter(np.split(others, edges[1:-1]))
        parts = [
            next(instead) if is_left else part for part, is_left in zip(parts, refer, strict=True)
        ]
        return np.concatenate(parts), np.cumsum([0, *map(len, parts)])

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
        found = differing_code_points(pattern)
        new = sorted(set(found) - set(SHIPPED))
        print(
            name,
            len(found),
            "code points,",
            as_ranges(new) if new else "none",
            "not shipped",
            flush=True,
        )
