"""The sentences and the table of a report."""

from collections.abc import Mapping, Sequence

import numpy as np

from tokenmill.look.packing_stats import Tally
from tokenmill.look.set_statistics import LossStatistics
from tokenmill.store.token_sets import TokenSet

# the measures of each packing, in the order of Tally.shares()
_OF_ROWS = ("rows begin a document", "rows with inserted BOS", "rows without BOS")
MEASURES = ("tokens dropped", "short documents cut", "filler", *_OF_ROWS, "beginning in view")
MEASURES_IN_WORDS = (
    "Dropped: share of the tokens that are in no row. Short documents cut: of the documents that "
    "fit in a row, the share that is whole in none. Filler: share of the rows' tokens that are "
    "copies. Inserted BOS: the row begins within a document that is longer than a row. Beginning "
    "in view: share of the rows' tokens whose row also holds their document's beginning. "
    "nanochat's loader is run on one rank, these documents again and again, until what it drops "
    "has settled."
)
CHAT_MEASURES = ("targets lost", "tokens dropped", "padding")
CHAT_MEASURES_IN_WORDS = (
    "Targets are the tokens that are in the loss. Targets lost and tokens dropped: share of them "
    "that are in no row. Padding: share of the rows' tokens; it is not in the loss."
)


def left_out(token_set: TokenSet) -> list[str]:
    """What was left out or repaired, with the first file that it was in."""
    from tokenmill.prepare import made  # and pyarrow

    if not any(map(token_set.manifest.get, made.COUNTED)):
        return ["Nothing was left out or repaired."]
    records = ((token_set.record(entry), entry.split) for entry in token_set.entries)
    lines = [f"left out, or repaired: {line}" for line in made.left_out_sentences(records)]
    return lines or ["Nothing was left out or repaired."]


def short(number: float) -> str:
    """Shortens a number: 1,234,567 -> 1.23M"""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        amount = number / size
        if amount >= 999.5:  # of T
            return f"{amount:.0f}{unit}"
        if amount >= 0.9995:
            return f"{amount:.3g}{unit}"
    return f"{number:,.0f}"


def verdict(lengths: np.ndarray, tallies: Mapping[str, Tally], seq_len: int) -> str:
    """What rows of seq_len mean for these documents, and what each packing does to them."""
    best_fit = tallies["best_fit"]
    nanochat = tallies["nanochat"]
    concat = tallies["concat"]
    is_longer = lengths > seq_len + 1
    row = f"longer than a row of {seq_len:,} + 1 tokens"
    of_documents = f"None of your documents is {row}."
    if is_longer.any():
        share = percent(is_longer.mean())
        token_share = percent(lengths[is_longer].sum() / lengths.sum())
        of_documents = f"{share} of your documents are {row}, and hold {token_share} of the tokens."
    begins = f"{percent(best_fit.begin)} of its rows begin with a document"
    if best_fit.begin_inserted:
        inserted = percent(best_fit.begin_inserted)
        begins += f", {inserted} with an inserted BOS where a longer document goes on"
    dropped = percent(best_fit.dropped, "nothing")
    filler = percent(best_fit.filler)
    dropped_by_nanochat = percent(nanochat.dropped, "nothing")
    sentences = (
        f"{of_documents} best_fit drops {dropped}; {begins}; {filler} is filler. nanochat's policy "
        f"would drop {dropped_by_nanochat}"
    )
    if not concat.rows:  # too few tokens for one row
        return f"{sentences}."
    inside = percent(1 - concat.begin)
    return (
        f"{sentences}; with concat, {inside} of the rows would begin inside a document, without "
        "BOS."
    )


def chat_verdict(
    lengths: np.ndarray, loss: LossStatistics, tallies: Mapping[str, Tally], seq_len: int
) -> str:
    """What is in the loss, and what rows of seq_len mean for these conversations."""
    is_longer = lengths > seq_len + 1
    targets = max(1, loss.targets.sum())
    row = f"longer than a row of {seq_len:,} + 1 tokens"
    in_loss = f"{percent(targets / lengths.sum())} of the tokens are in the loss."
    if not is_longer.any():
        padding = percent(tallies["drop"].filler)
        return f"{in_loss} None of your conversations is {row}; padding is {padding} of the rows."
    share = percent(is_longer.mean())
    target_share = percent(loss.targets[is_longer].sum() / targets, "none")
    lost_by_crop = percent(loss.lost["crop"][seq_len])
    lost_by_drop = percent(loss.lost["drop"][seq_len])
    padding = percent(tallies["crop"].filler)
    return (
        f"{in_loss} {share} of your conversations are {row}, and hold {target_share} of the "
        f"targets. long_documents='crop' loses {lost_by_crop} of the targets and 'drop' "
        f"{lost_by_drop}; padding is {padding} of cropped rows."
    )


def table(
    tallies: Mapping[str, Tally], seq_len: int, loss: LossStatistics | None
) -> list[tuple[str, list[str]]]:
    """What each variant does at this seq_len: (measure, a cell for each variant).

    `loss` is that of a chat set.
    """
    measures: Sequence[str]
    columns: list[tuple[float, ...]]
    if loss is None:
        measures = MEASURES
        columns = [tally.shares() for tally in tallies.values()]
    else:
        measures = CHAT_MEASURES
        columns = [
            (loss.lost[label][seq_len], tally.dropped, tally.filler)
            for label, tally in tallies.items()
        ]
    rows = []
    for measure, *shares in zip(measures, *columns, strict=True):
        rows.append((measure, [f"{share:.2%}" for share in shares]))
    return rows


def percent(share: float, none: str = "none") -> str:
    """0.394 -> "39%", 0.0004 -> "0.04%".

    Only all is called "all", and only nothing is called `none`.
    """
    if share == 0:
        return none
    if share == 1:
        return "all"
    if 0.01 <= share <= 0.99:
        return f"{share:.0%}"
    for shown in (f"{share:.1%}", f"{share:.2%}"):
        if 0 < float(shown[:-1]) < 100:
            return shown
    return "less than 0.01%" if share < 0.5 else "more than 99.99%"


def of_lengths(lengths: np.ndarray, documents: str) -> str:
    """A sentence about the lengths of documents."""
    median = int(np.median(lengths))
    return (
        f"Half of the {len(lengths):,} {documents} have at most {median:,} tokens; the mean is "
        f"{lengths.mean():,.0f}, the longest has {lengths.max():,}."
    )
