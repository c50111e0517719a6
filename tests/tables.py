"""Makes the tables of the code points that engines class otherwise: `make tables`; takes minutes."""

import json

import numpy as np
import pyarrow as pa

from tokenmill.tokenize.codepoints import TABLES, as_ranges, differing, join_showing_ranks
from tokenmill.tokenize.encoder import VERSIONS, reference
from tokenmill.tokenize.engines import ENGINES, make_engine, table_name
from tokenmill.tokenize.patterns import PATTERNS
from tokenmill.tokenize.tokenizer import Tokenizer

PAIRS = [(engine, p) for engine in ENGINES.values() for p, key in PATTERNS.items() if key in engine.patterns]


def differing_code_points(engine, pattern: str, among=range(0x110000)) -> list[int]:
    ranks = join_showing_ranks()
    tiktoken = Tokenizer("joins", pattern, ranks, {"<|bos|>": len(ranks)}, "<|bos|>")
    return differing(as_used(engine, ranks, pattern, reference(tiktoken)), reference(tiktoken), among)


def as_used(engine, ranks: dict[bytes, int], pattern: str, by_reference):
    """The engine, with the reference for the documents that are never left to it."""
    by_engine, left = make_engine(engine, ranks, pattern), engine.leaves(pattern)
    if left is None:
        return by_engine
    code_points, leaves = left

    def encode(documents):
        (ids, offsets), refer = by_engine(documents), leaves(code_points.locate(documents))
        others, edges = by_reference(documents.filter(pa.array(refer)))
        parts, instead = np.split(ids, offsets[1:-1]), iter(np.split(others, edges[1:-1]))
        parts = [next(instead) if is_left else part for part, is_left in zip(parts, refer, strict=True)]
        return np.concatenate(parts), np.cumsum([0, *map(len, parts)])

    return encode


if __name__ == "__main__":
    for engine, pattern in PAIRS:
        found = differing_code_points(engine, pattern)
        table = {"tiktoken": VERSIONS["tiktoken"], "code_points": as_ranges(found)}
        (TABLES / f"{table_name(engine, pattern)}.json").write_text(json.dumps(table) + "\n")
        print(table_name(engine, pattern), len(found), "code points", flush=True)
