"""What a report says in words: counts and lengths as sentences, tokens with their spaces to be seen."""

from collections.abc import Mapping

import numpy as np

from tokenmill.look.figures import Tally
from tokenmill.look.statistics import Statistics, quantile_ids
from tokenmill.tokenize.tokenizer import Tokenizer

UNUSED = 64  # ids that are listed
# what is told of each packing, in the order of Tally.shares()
MEASURES = ("tokens dropped", "filler", "rows that begin with BOS", "short documents cut", "beginning in view")
MEASURES_IN_WORDS = (
    "Dropped: tokens that are in no row. Filler: tokens of rows that are copies. Short documents cut: of the documents "
    "that would fit into a row those that are whole in none. Beginning in view: tokens of rows whose row holds their "
    "document's beginning too."
)
LEFT_OUT = {
    "null_documents": "{} null documents were left out: they have no text",
    "empty_documents": "{} empty documents were left out",
    "oversized_documents": "{} documents that are longer than --max-document-bytes were left out",
    "broken_lines": "{} broken lines of jsonl were left out, as --skip-broken-lines says",
    "repaired_documents": "{} documents were kept whose text was not UTF-8: the bad bytes became U+FFFD",
}


def left_out(manifest: dict) -> list[str]:
    """What of the source is not in the set as it was, a sentence each."""
    lines = [text.format(f"{manifest[count]:,}") for count, text in LEFT_OUT.items() if manifest.get(count)]
    return lines or ["Nothing was left out or repaired."]


def short(number: float) -> str:
    """1,234,567 -> 1.23M"""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}" if number < 999.5 * size else f"{number / size:.0f}{unit}"
    return f"{number:,.0f}"


def visible(token: bytes) -> str:
    """A token's text with its spaces to be seen; bytes that are no characters as \\x.."""
    text = token.decode("utf-8", "backslashreplace")
    for hidden, shown in ((" ", "␣"), ("\n", "⏎"), ("\t", "→"), ("\r", "␍")):
        text = text.replace(hidden, shown)
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def looked_at(statistics: Statistics) -> str:
    """Of a large set, that not all of it was."""
    if statistics.shards == statistics.all_shards:
        return "All training shards were looked at."
    return f"{statistics.shards:,} of {statistics.all_shards:,} training shards, evenly spread, were looked at."


def verdict(lengths: np.ndarray, tallies: Mapping[str, Tally], seq_len: int) -> str:
    """What rows of seq_len mean for these documents, and what each way to make them does."""
    longer = lengths > seq_len + 1
    held = lengths[longer].sum() / lengths.sum()
    ours, theirs, concat = (tallies[name] for name in ("best_fit", "nanochat", "concat"))
    row = f"longer than a row of {seq_len:,} + 1 tokens"
    of_documents = f"{percent(longer.mean())} of your documents are {row}, and hold {percent(held)} of the tokens."
    if not longer.any():
        of_documents = f"None of your documents is {row}."
    filler = f"for {percent(ours.filler)} of filler" if ours.filler else "without filler"
    told = (
        f"{of_documents} best_fit drops {percent(ours.dropped, 'nothing')} "
        f"and begins {percent(ours.on_bos)} of its rows with BOS, {filler}: a "
        f"document that is longer is cut, so that {percent(ours.with_beginning)} of the tokens have their document's "
        "beginning in the same row; "
        f"nanochat's policy would drop {percent(theirs.dropped, 'nothing')}"
    )
    if not concat.rows:  # too few tokens for one
        return f"{told}."
    return f"{told}; concatenated, {percent(1 - concat.on_bos)} of the rows would begin inside a document, without BOS."


def percent(share: float, none: str = "none") -> str:
    """0.394 -> "39%", 0.0004 -> "0.04%"; what is not all is not called 100%, and what is not nothing not 0%."""
    if share == 0:
        return none
    if share == 1:
        return "all"
    if 0.01 <= share <= 0.99:
        return f"{share:.0%}"
    for digits in (1, 2):
        if 0 < float(told := f"{100 * share:.{digits}f}") < 100:
            return f"{told}%"
    return "less than 0.01%" if share < 0.5 else "more than 99.99%"


def of_lengths(lengths: np.ndarray) -> str:
    """How long documents are."""
    return (
        f"Half of the {len(lengths):,} documents have at most {int(np.median(lengths)):,} tokens; the mean is "
        f"{lengths.mean():,.0f}, the longest has {lengths.max():,}."
    )


def of_tokens(uses: np.ndarray, token_bytes: np.ndarray) -> str:
    """How many bytes, and how many ids, the text is."""
    total = uses.sum()
    half, most = quantile_ids(uses, 0.5), quantile_ids(uses, 0.9)
    return (
        f"A token stands for {(uses * token_bytes).sum() / total:.2f} bytes of text on average. {half:,} ids make half "
        f"of all tokens, {most:,} nine tenths."
    )


def of_unused(tokenizer: Tokenizer, uses: np.ndarray) -> tuple[str, list[str]]:
    """How many ids are not used, and which: the first that were learned, so the most frequent elsewhere."""
    known = tokenizer.tokens
    unused = [i for i in np.flatnonzero(uses == 0).tolist() if i in known]
    words = f"{len(unused):,} of {len(known):,} ids ({len(unused) / len(known):.1%}) are not used."
    if holes := len(uses) - len(known):
        words += f" {holes:,} more stand for nothing."
    longer = [i for i in unused if len(known[i]) > 1]
    if single := len(unused) - len(longer):
        words += f" Of these {single:,} are single bytes."
    return words, [visible(known[i]) for i in longer[:UNUSED]]
