"""What happens to your tokens, for each packing: the README's table.

    python benchmarks/packing.py [TOKENS]        lengths of a token set, besides simulated FineWeb-Edu

Only lengths are needed; how each packing is run is told in tokenmill/look/packing_stats.py.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tokenmill.look.packing_stats import tally, variants
from tokenmill.look.report_text import MEASURES
from tokenmill.rows.packing import RowPlan, plan_rows
from tokenmill.store.token_sets import TokenSet

ROW_LEN = 2049
NAMES = {
    "nanochat": "nanochat's loader",
    "concat": "concat (build-nanogpt, llm.c)",
    "random": "random (nanoGPT)",
}
NAMES |= {
    "crop": '**tokenmill** `best_fit`, `long_documents="crop"`',
    "best_fit": "**tokenmill** `best_fit`",
}


def fineweb_edu_lengths(count: int = 64_000, seed: int = 0) -> np.ndarray:
    """50 + lognormal, sigma 1.132, mean 1,040 in all."""
    sigma, mean = 1.132, 990
    return (
        50 + np.random.default_rng(seed).lognormal(np.log(mean) - sigma**2 / 2, sigma, count)
    ).astype(np.int64)


def table(name: str, shards: list[np.ndarray]) -> None:
    lengths = np.concatenate(shards)
    print(
        f"\n{name}: {len(lengths):,} documents, mean {lengths.mean():,.0f} tokens, rows of {ROW_LEN:,}\n"
    )
    print("\n".join(table_lines(shards)))


def table_lines(shards: list[np.ndarray]) -> list[str]:
    """What each packing does to shards of documents of these lengths, as Markdown."""
    lines = [f"| packing | {' | '.join(MEASURES)} |", f"| --- |{' --- |' * len(MEASURES)}"]
    for packing, shown in NAMES.items():
        shares = tally(variants()[packing], shards, ROW_LEN).shares()
        lines.append(f"| {shown} | {' | '.join(f'{share:.2%}' for share in shares)} |")
    return lines


def cuts() -> list[str]:
    """Documents of just over half a row, or a third: filler, and how many are cut."""
    lines = [f"| documents, rows of {ROW_LEN:,} | filler | documents cut |", "| --- | --- | --- |"]
    for least, most in ((1100, 1100), (1030, 1300), (700, 1000)):
        lengths = np.random.default_rng(0).integers(least, most + 1, 50_000)
        plan = plan_rows(lengths, ROW_LEN, seed=(1,))
        cut = np.unique(plan.document[~plan.filler & (plan.length < lengths[plan.document])])
        name = f"{least:,} tokens" if least == most else f"{least:,} to {most:,} tokens"
        lines.append(f"| {name} | {filler(plan):.1%} | {len(cut) / len(lengths):.0%} |")
    return lines


def filler(plan: RowPlan) -> float:
    """The share of the rows' tokens that is filler."""
    return float(plan.length[plan.filler].sum() / (plan.num_rows * plan.row_len))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tokens", nargs="*", help="token sets whose lengths are packed too")
    simulated, arguments = fineweb_edu_lengths(), parser.parse_args()
    table("FineWeb-Edu-like lengths (simulated)", [simulated])
    for path in arguments.tokens:
        token_set = TokenSet(path)
        table(path, [token_set.open(entry).lengths for entry in token_set.split("train")])
    print("\n" + "\n".join(cuts()))
