"""What a report says in words: counts and lengths as sentences, tokens with their spaces to be seen."""

import numpy as np

from tokenmill.look.statistics import Statistics, quantile_ids
from tokenmill.tokenize.tokenizer import Tokenizer

UNUSED = 64  # ids that are listed
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


def of_lengths(lengths: np.ndarray, seq_len: int) -> str:
    """What document lengths mean for rows of seq_len."""
    longer = lengths > seq_len + 1
    tokens = lengths[longer].sum() / lengths.sum()
    return (
        f"Half of the {len(lengths):,} documents have at most {int(np.median(lengths)):,} tokens; the mean is "
        f"{lengths.mean():,.0f}, the longest has {lengths.max():,}. {longer.mean():.1%} are longer than a row of "
        f"{seq_len:,} + 1, and hold {tokens:.1%} of the tokens."
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
