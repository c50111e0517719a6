"""The sentences of a report: counts and lengths in words, and tokens with visible spaces."""

from collections.abc import Mapping

import numpy as np

from tokenmill.look.loss_stats import LossStatistics
from tokenmill.look.packing_stats import Tally
from tokenmill.look.token_stats import Statistics, quantile_ids
from tokenmill.store.token_sets import TokenSet
from tokenmill.tokenize.tokenizer import Tokenizer

UNUSED = 64  # how many unused ids are listed
# the measures of each packing, in the order of Tally.shares()
MEASURES = ("tokens dropped", "filler", "rows that begin with BOS", "short documents cut", "beginning in view")
MEASURES_IN_WORDS = (
    "Dropped: share of the tokens that are in no row. Filler: share of the rows' tokens that are copies. Short "
    "documents cut: share of the documents that would fit into a row but are whole in none. Beginning in view: share "
    "of the rows' tokens whose row also holds their document's beginning. nanochat's loader is run on one rank, these "
    "documents again and again, until what it drops has settled."
)
CHAT_MEASURES = ("targets lost", "tokens dropped", "padding")
CHAT_MEASURES_IN_WORDS = (
    "Targets are the tokens that are in the loss. Targets lost and tokens dropped: share of them that are in no row. "
    "Padding: share of the rows' tokens; it is not in the loss."
)
LEFT_OUT = {
    "null_documents": "{} null documents were left out: they have no text",
    "empty_documents": "{} empty documents were left out",
    "oversized_documents": "{} documents longer than --max-document-bytes were left out",
    "broken_lines": "{} broken lines of jsonl were left out because of --skip-broken",
    "broken_conversations": "{} rows that could not be read as conversations were left out because of --skip-broken",
    "refused_conversations": "{} conversations were refused, as their loss mask could not be verified",
    "repaired_documents": "{} documents were not valid UTF-8 and were kept: invalid bytes were replaced with U+FFFD",
}


def left_out(token_set: TokenSet) -> list[str]:
    """A sentence for each kind of document that was left out or repaired, and each reason to refuse a conversation."""
    manifest = token_set.manifest
    lines = [text.format(f"{manifest[count]:,}") for count, text in LEFT_OUT.items() if manifest.get(count)]
    if manifest.get("refused_conversations"):
        from tokenmill.prepare import made  # and pyarrow

        found = made.left_out((token_set.record(entry), entry.split) for entry in token_set.entries)
        lines += [line for line in found if " conversations: " in line]
    return lines or ["Nothing was left out or repaired."]


def short(number: float) -> str:
    """Shortens a number: 1,234,567 -> 1.23M"""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}" if number < 999.5 * size else f"{number / size:.0f}{unit}"
    return f"{number:,.0f}"


def visible(token: bytes) -> str:
    """A token's text with visible spaces; invalid bytes as \\x.."""
    text = token.decode("utf-8", "backslashreplace")
    for hidden, shown in ((" ", "␣"), ("\n", "⏎"), ("\t", "→"), ("\r", "␍")):
        text = text.replace(hidden, shown)
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def looked_at(statistics: Statistics) -> str:
    """Says whether all shards were read, or a sample of a large set."""
    if statistics.shards == statistics.all_shards:
        return "All training shards were read."
    return f"{statistics.shards:,} of {statistics.all_shards:,} training shards, evenly spaced, were read."


def verdict(lengths: np.ndarray, tallies: Mapping[str, Tally], seq_len: int) -> str:
    """What rows of seq_len mean for these documents, and what each packing does to them."""
    longer = lengths > seq_len + 1
    held = lengths[longer].sum() / lengths.sum()
    ours, theirs, concat = (tallies[name] for name in ("best_fit", "nanochat", "concat"))
    row = f"longer than a row of {seq_len:,} + 1 tokens"
    of_documents = f"{percent(longer.mean())} of your documents are {row}, and hold {percent(held)} of the tokens."
    if not longer.any():
        of_documents = f"None of your documents is {row}."
    filler = f"with {percent(ours.filler)} filler" if ours.filler else "without filler"
    sentences = (
        f"{of_documents} best_fit drops {percent(ours.dropped, 'nothing')} "
        f"and begins {percent(ours.on_bos)} of its rows with BOS, {filler}. It cuts longer documents, so that "
        f"{percent(ours.with_beginning)} of the tokens have their document's beginning in the same row; "
        f"nanochat's policy would drop {percent(theirs.dropped, 'nothing')}"
    )
    if not concat.rows:  # too few tokens for one row
        return f"{sentences}."
    inside = percent(1 - concat.on_bos)
    return f"{sentences}; with concat, {inside} of the rows would begin inside a document, without BOS."


def chat_verdict(lengths: np.ndarray, loss: LossStatistics, tallies: Mapping[str, Tally], seq_len: int) -> str:
    """What bears loss, and what rows of seq_len mean for these conversations."""
    longer = lengths > seq_len + 1
    targets = max(1, loss.targets.sum())
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


def of_stretches(stretches: np.ndarray) -> str:
    """A sentence about how many stretches of a conversation bear loss."""
    return (
        f"Tokens that bear loss are in {stretches.mean():,.1f} stretches of a conversation on average, in half of the "
        f"conversations in at most {int(np.median(stretches)):,}, at most in {stretches.max():,}. In most templates, "
        "each learned turn is one stretch."
    )


def table(tallies: Mapping[str, Tally], seq_len: int, loss: LossStatistics | None) -> list[tuple[str, list[str]]]:
    """What each variant does at this seq_len: (measure, a cell for each variant). `loss` is that of a chat set."""
    cells = []
    for label, one in tallies.items():
        shares = one.shares()
        if loss is not None:
            shares = (loss.lost[label][seq_len], one.dropped, one.filler)
        cells.append([*(f"{share:.2%}" for share in shares), f"{one.pieces_a_row:.2f}"])
    measures = MEASURES if loss is None else CHAT_MEASURES
    last = "pieces a row" if loss is None else "conversations a row"
    return [(measure, list(found)) for measure, *found in zip((*measures, last), *cells, strict=True)]


def percent(share: float, none: str = "none") -> str:
    """0.394 -> "39%", 0.0004 -> "0.04%". Only all is called "all", and only nothing is called `none`."""
    if share == 0:
        return none
    if share == 1:
        return "all"
    if 0.01 <= share <= 0.99:
        return f"{share:.0%}"
    for digits in (1, 2):
        if 0 < float(rounded := f"{100 * share:.{digits}f}") < 100:
            return f"{rounded}%"
    return "less than 0.01%" if share < 0.5 else "more than 99.99%"


def of_lengths(lengths: np.ndarray, documents: str = "documents") -> str:
    """A sentence about the lengths of documents."""
    return (
        f"Half of the {len(lengths):,} {documents} have at most {int(np.median(lengths)):,} tokens; the mean is "
        f"{lengths.mean():,.0f}, the longest has {lengths.max():,}."
    )


def of_tokens(uses: np.ndarray, token_bytes: np.ndarray) -> str:
    """Sentences about the bytes per token, and about how many ids make up most of the text."""
    total = uses.sum()
    half, most = quantile_ids(uses, 0.5), quantile_ids(uses, 0.9)
    return (
        f"A token stands for {(uses * token_bytes).sum() / total:.2f} bytes of text on average. {half:,} ids make up "
        f"half of all tokens, and {most:,} ids make up 90%."
    )


def of_unused(tokenizer: Tokenizer, uses: np.ndarray) -> tuple[str, list[str]]:
    """How many ids are unused, and the ones learned first, which are the most frequent in the tokenizer's own text."""
    known = tokenizer.tokens
    unused = [i for i in np.flatnonzero(uses == 0).tolist() if i in known]
    words = f"{len(unused):,} of {len(known):,} ids ({len(unused) / len(known):.1%}) are not used."
    if holes := len(uses) - len(known):
        words += f" {holes:,} more ids have no token."
    longer = [i for i in unused if len(known[i]) > 1]
    if single := len(unused) - len(longer):
        words += f" Of these {single:,} are single bytes."
    return words, [visible(known[i]) for i in longer[:UNUSED]]
