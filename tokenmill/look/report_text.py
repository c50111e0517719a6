"""The sentences and the table of a report."""

from collections.abc import Mapping

import numpy as np

from tokenmill.look.packing_stats import Tally
from tokenmill.look.set_statistics import LossStatistics
from tokenmill.store.token_sets import TokenSet

# the measures of each packing, in the order of Tally.shares()
_OF_ROWS = (
    "rows that begin a document",
    "rows with an inserted BOS",
    "rows that begin without BOS",
)
MEASURES = ("tokens dropped", "short documents cut", "filler", *_OF_ROWS, "beginning in view")
MEASURES_IN_WORDS = (
    "Dropped: share of the tokens that are in no row. Short documents cut: of the documents that fit in a row, the "
    "share that is whole in none. Filler: share of the rows' tokens that are copies. Inserted BOS: the row begins "
    "within a document that is longer than a row. Beginning in view: share of the rows' tokens whose row also holds "
    "their document's beginning. nanochat's loader is run on one rank, these documents again and again, until what it "
    "drops has settled."
)
CHAT_MEASURES = ("targets lost", "tokens dropped", "padding")
CHAT_MEASURES_IN_WORDS = (
    "Targets are the tokens that are in the loss. Targets lost and tokens dropped: share of them that are in no row. "
    "Padding: share of the rows' tokens; it is not in the loss."
)


def left_out(token_set: TokenSet) -> list[str]:
    """What was left out or repaired, with the first file that it was in."""
    from tokenmill.prepare import made  # and pyarrow

    is_some = any(map(token_set.manifest.get, made.COUNTED))
    found = (
        made.left_out_sentences(
            (token_set.record(entry), entry.split) for entry in token_set.entries
        )
        if is_some
        else []
    )
    return [f"left out, or repaired: {line}" for line in found] or [
        "Nothing was left out or repaired."
    ]


def short(number: float) -> str:
    """Shortens a number: 1,234,567 -> 1.23M"""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return (
                f"{number / size:.3g}{unit}"
                if number < 999.5 * size
                else f"{number / size:.0f}{unit}"
            )
    return f"{number:,.0f}"


def verdict(lengths: np.ndarray, tallies: Mapping[str, Tally], seq_len: int) -> str:
    """What rows of seq_len mean for these documents, and what each packing does to them."""
    longer = lengths > seq_len + 1
    ours, theirs, concat = (tallies[name] for name in ("best_fit", "nanochat", "concat"))
    row = f"longer than a row of {seq_len:,} + 1 tokens"
    of_documents = f"{percent(longer.mean())} of your documents are {row}, and hold "
    of_documents += f"{percent(lengths[longer].sum() / lengths.sum())} of the tokens."
    begins = f"{percent(ours.begin)} of its rows begin with a document"
    if ours.begin_inserted:
        begins += (
            f", {percent(ours.begin_inserted)} with an inserted BOS where a longer document goes on"
        )
    said = (
        f"{of_documents if longer.any() else f'None of your documents is {row}.'} best_fit drops "
        f"{percent(ours.dropped, 'nothing')}; {begins}; {percent(ours.filler)} is filler. nanochat's policy would drop "
        f"{percent(theirs.dropped, 'nothing')}"
    )
    if not concat.rows:  # too few tokens for one row
        return f"{said}."
    return f"{said}; with concat, {percent(1 - concat.begin)} of the rows would begin inside a document, without BOS."


def chat_verdict(
    lengths: np.ndarray, loss: LossStatistics, tallies: Mapping[str, Tally], seq_len: int
) -> str:
    """What bears loss, and what rows of seq_len mean for these conversations."""
    longer, targets = lengths > seq_len + 1, max(1, loss.targets.sum())
    row = f"longer than a row of {seq_len:,} + 1 tokens"
    bears = f"{percent(targets / lengths.sum())} of the tokens bear loss. "
    if not longer.any():
        return f"{bears}None of your conversations is {row}; padding is {percent(tallies['drop'].filler)} of the rows."
    return (
        f"{bears}{percent(longer.mean())} of your conversations are {row}, and hold "
        f"{percent(loss.targets[longer].sum() / targets, 'none')} of the targets. "
        f"long_documents='crop' loses {percent(loss.lost['crop'][seq_len])} of the targets and 'drop' "
        f"{percent(loss.lost['drop'][seq_len])}; padding is {percent(tallies['crop'].filler)} of cropped rows."
    )


def table(
    tallies: Mapping[str, Tally], seq_len: int, loss: LossStatistics | None
) -> list[tuple[str, list[str]]]:
    """What each variant does at this seq_len: (measure, a cell for each variant). `loss` is that of a chat set."""
    shares = [
        one.shares() if loss is None else (loss.lost[label][seq_len], one.dropped, one.filler)
        for label, one in tallies.items()
    ]
    measures = MEASURES if loss is None else CHAT_MEASURES
    return [
        (name, [f"{share:.2%}" for share in row])
        for name, *row in zip(measures, *shares, strict=True)
    ]


def percent(share: float, none: str = "none") -> str:
    """0.394 -> "39%", 0.0004 -> "0.04%". Only all is called "all", and only nothing is called `none`."""
    if share in (0, 1):
        return "all" if share else none
    if 0.01 <= share <= 0.99:
        return f"{share:.0%}"
    for digits in (1, 2):
        if 0 < float(rounded := f"{100 * share:.{digits}f}") < 100:
            return f"{rounded}%"
    return "less than 0.01%" if share < 0.5 else "more than 99.99%"


def of_lengths(lengths: np.ndarray, documents: str) -> str:
    """A sentence about the lengths of documents."""
    return (
        f"Half of the {len(lengths):,} {documents} have at most {int(np.median(lengths)):,} tokens; the mean is "
        f"{lengths.mean():,.0f}, the longest has {lengths.max():,}."
    )
