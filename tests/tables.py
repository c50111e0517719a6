"""Makes the tables of the code points that engines class otherwise: `make tables`; takes minutes."""

import json

from tokenmill.tokenize.codepoints import TABLES, as_ranges, differing, join_showing_ranks
from tokenmill.tokenize.encoder import VERSIONS, reference
from tokenmill.tokenize.engines import ENGINES, make_engine, table_name
from tokenmill.tokenize.patterns import PATTERNS
from tokenmill.tokenize.tokenizer import Tokenizer

PAIRS = [(engine, p) for engine in ENGINES.values() for p, key in PATTERNS.items() if key in engine.patterns]


def differing_code_points(engine, pattern: str, among=range(0x110000)) -> list[int]:
    ranks = join_showing_ranks()
    tiktoken = Tokenizer("joins", pattern, ranks, {"<|bos|>": len(ranks)}, "<|bos|>")
    return differing(make_engine(engine, ranks, pattern), reference(tiktoken), among)


if __name__ == "__main__":
    for engine, pattern in PAIRS:
        found = differing_code_points(engine, pattern)
        table = {"tiktoken": VERSIONS["tiktoken"], "code_points": as_ranges(found)}
        (TABLES / f"{table_name(engine, pattern)}.json").write_text(json.dumps(table) + "\n")
        print(table_name(engine, pattern), len(found), "code points", flush=True)
