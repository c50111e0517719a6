"""Makes the tables of the code points that engines class otherwise: `make tables`; takes minutes."""

import json

from tokenmill.tokenize.codepoints import TABLES, as_ranges, differing, join_showing_ranks
from tokenmill.tokenize.engines import ENGINES, PATTERNS, TIKTOKEN_VERSION, reference, table_name
from tokenmill.tokenize.tokenizer import Tokenizer

PAIRS = [(engine, p) for engine in ENGINES.values() for p, key in PATTERNS.items() if key in engine.patterns]


def differing_code_points(engine, pattern: str, among=range(0x110000)) -> list[int]:
    ranks = join_showing_ranks()
    tiktoken = Tokenizer("joins", pattern, ranks, {"<|bos|>": len(ranks)}, "<|bos|>")
    return differing(engine.make(ranks, pattern), reference(tiktoken), among)


if __name__ == "__main__":
    for engine, pattern in PAIRS:
        found = differing_code_points(engine, pattern)
        table = {"tiktoken": TIKTOKEN_VERSION, "code_points": as_ranges(found)}
        (TABLES / f"{table_name(engine, pattern)}.json").write_text(json.dumps(table) + "\n")
        print(table_name(engine, pattern), len(found), "code points", flush=True)
