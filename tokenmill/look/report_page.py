"""Renders the report's page from templates/report.html: plain tables, which Jinja2 draws.

Bars are HTML boxes with computed widths: they need no JavaScript and follow the reader's light or dark colors, where a
plotting library gives fixed pictures or megabytes of JavaScript.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from tokenmill.look import report_rows, report_text
from tokenmill.look.packing_stats import Tally
from tokenmill.look.sample_rows import Specimen
from tokenmill.look.set_statistics import MOST_STRETCHES, LossStatistics, histogram
from tokenmill.messages import counted, in_bytes
from tokenmill.store.set_names import TOKENS_ROOT
from tokenmill.store.shards import SPLITS
from tokenmill.store.token_sets import TokenSet
from tokenmill.tokenize.tokenizer import Tokenizer

TEMPLATES = Path(__file__).parent / "templates"
FILES = 20  # how many source files are listed before the reader asks for more
SHOWN = 16  # how many rows are drawn before the reader asks for more
STEPS = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.25,
    0.5,
    1.0,
)  # between gridlines of a chart
TICKS = 7  # labels below a chart, about


@dataclass(frozen=True)
class Findings:
    """Everything that a report shows."""

    token_set: TokenSet
    tokenizer: Tokenizer
    lengths: list[np.ndarray]  # of the documents of each shard that was read
    shards: int  # that were read
    tallies: dict[int, dict[str, Tally]]  # by seq_len and variant
    loss: LossStatistics | None  # of a chat set
    specimen: Specimen
    columns: list[tuple[str, list[Any]]]  # documents and tokens by what is known of them

    def verdict(self, seq_len: int) -> str:
        """What rows of seq_len mean for these documents."""
        lengths, tallies = np.concatenate(self.lengths), self.tallies[seq_len]
        if self.loss is None:
            return report_text.verdict(lengths, tallies, seq_len)
        return report_text.chat_verdict(lengths, self.loss, tallies, seq_len)

    @property
    def looked_at(self) -> str:
        """Whether all shards were read, or a sample of a large set."""
        every = sum(entry.tokens > 0 for entry in self.token_set.split("train"))
        if self.shards == every:
            return "All training shards were read."
        return f"{self.shards:,} of {every:,} training shards, evenly spaced, were read."

    @property
    def lengths_in_words(self) -> str:
        """A sentence about the lengths of documents, or conversations."""
        documents = "documents" if self.loss is None else "conversations"
        return report_text.of_lengths(np.concatenate(self.lengths), documents)

    def tiles(self, seq_len: int) -> list[tuple[str, str]]:
        """The default's most important shares, in numbers and in words."""
        label, ours = next(iter(self.tallies[seq_len].items()))
        if self.loss is not None:
            kept = 1 - self.loss.lost[label][seq_len]
            found = [
                (kept, "of the targets kept"),
                (1 - ours.dropped, "of the tokens kept"),
                (ours.filler, "padding"),
            ]
        else:
            found = [(1 - ours.dropped, "of the tokens kept"), (ours.filler, "filler")]
            found += [(ours.begin, "of the rows begin with a document")]
            found += [(ours.begin_inserted, "of the rows begin with an inserted BOS")]
            found += [(ours.cut, "of the short documents cut")]
        return [
            (f"{share:.0%}" if share in (0, 1) else f"{share:.2%}", words) for share, words in found
        ]


def source_files(token_set: TokenSet) -> list[tuple[str, str, int, int]]:
    """The source files with split, documents and tokens of their shards, the largest first. Small files share shards,
    so a shard of several counts as one line.
    """
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for entry in token_set.entries:
        more = f" and {len(entry.sources) - 1:,} more" if len(entry.sources) > 1 else ""
        counts = found[entry.sources[0] + more, entry.split]
        counts[:] = counts[0] + entry.documents, counts[1] + entry.tokens
    lines = [
        (name, split, documents, tokens) for (name, split), (documents, tokens) in found.items()
    ]
    return sorted(lines, key=lambda line: -line[3])


def splits(token_set: TokenSet) -> list[dict[str, Any]]:
    found = []
    for name in SPLITS:
        entries = token_set.split(name)
        sums = {
            count: sum(getattr(e, count) for e in entries)
            for count in ("documents", "tokens", "text_bytes")
        }
        found.append({"name": name, "shards": len(entries)} | sums)
    return found


def glance(token_set: TokenSet) -> list[str]:
    """The set in a few words."""
    manifest = token_set.manifest
    documents, tokens, text = (manifest[count] for count in ("documents", "tokens", "text_bytes"))
    size = tokens * token_set.numpy_dtype.itemsize + 8 * (documents + len(token_set.entries))
    amounts = [
        counted(documents, "document"),
        counted(tokens, "token"),
        f"{in_bytes(text)} of text",
    ]
    return [*amounts, f"{in_bytes(size)} on disk", counted(len(token_set.entries), "shard")]


def training_lines(token_set: TokenSet, seq_len: int) -> str:
    """The lines that train on the set, or on its view, from the folder that has data/tokens."""
    path, address = token_set.path.resolve(), token_set.display_name
    name = (
        token_set.name if path.parent == TOKENS_ROOT.resolve() and "://" not in address else address
    )
    view = "" if token_set.view is None else f", view={token_set.view.name!r}"
    long = ', long_documents="crop"' if token_set.is_chat else ""
    settings = f"batch_size=8, seq_len={seq_len}{view}{long}"
    return f"from tokenmill import RowLoader\nloader = RowLoader({name!r}, {settings})"


def view_in_words(token_set: TokenSet) -> str:
    """What a view keeps of the training split; nothing for a whole set."""
    view = token_set.view
    if view is None:
        return ""
    counts, entries = view.facts["splits"]["train"], token_set.split("train")
    documents, tokens = (
        sum(entry.documents for entry in entries),
        sum(entry.tokens for entry in entries),
    )
    rule = ", ".join(f"{flag} {value}" for flag, value in view.facts["rule"].items())
    return (
        f"This is the view {view.name} ({rule}): {counts['documents']:,} of {counted(documents, 'training document')}, "
        f"{counts['copies']:,} with repeats, {counts['tokens']:,} of {tokens:,} tokens. What follows is about these "
        "documents, each as often as it counts; the set's own figures are at the end."
    )


def _columns(columns: Sequence[tuple[str, Sequence[Any]]]) -> list[dict[str, Any]]:
    """The tables of documents by what is known of them, with shares of the tokens, and of the widest bar."""
    found = []
    for name, lines in columns:
        totals = [
            max(1, sum(getattr(line, what) for line in lines)) for what in ("tokens", "view_tokens")
        ]
        shares = [(line.tokens / totals[0], line.view_tokens / totals[1]) for line in lines]
        most = max(map(max, shares), default=0) or 1
        rows = [
            (line, share, [100 * one / most for one in share])
            for line, share in zip(lines, shares, strict=True)
        ]
        found.append({"name": name, "rows": rows})
    return found


def render(found: Findings, seq_len: int) -> str:
    """The page, with rows of seq_len drawn."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    token_set, loss, lengths = found.token_set, found.loss, np.concatenate(found.lengths)
    bins = histogram(lengths, None if loss is None else loss.targets)
    spans = [
        f"{one.first:,}" if one.first == one.last else f"{one.first:,} to {one.last:,}"
        for one in bins
    ]
    marked = next(
        (number for number, one in enumerate(bins) if one.first <= seq_len <= one.last), None
    )
    drawn = [
        bars(f"Share of {what}, by length", list(zip(spans, counts, strict=True)), what, marked)
        for what, counts in (
            ("documents", [b.documents for b in bins]),
            ("tokens", [b.tokens for b in bins]),
        )
    ]
    if loss is not None:
        stretches = [
            (f"{n}{'+' * (n == MOST_STRETCHES)}", count)
            for n, count in enumerate(loss.by_stretches.tolist())
        ]
        drawn.append(
            bars("Share of conversations, by stretches that bear loss", stretches, "conversations")
        )
    return environment.get_template("report.html").render(
        token_set=token_set,
        glance=glance(token_set),
        is_chat=loss is not None,
        documents="documents" if loss is None else "conversations",
        verdict=found.verdict(seq_len),
        tiles=found.tiles(seq_len),
        default=next(iter(found.tallies[seq_len])),
        measures_in_words=report_text.MEASURES_IN_WORDS
        if loss is None
        else report_text.CHAT_MEASURES_IN_WORDS,
        splits=splits(token_set),
        files=source_files(token_set),
        most_files=FILES,
        train=training_lines(token_set, seq_len),
        view=view_in_words(token_set),
        columns=_columns(found.columns),
        left_out=report_text.left_out(token_set),
        looked_at=found.looked_at,
        seq_len=seq_len,
        specimen=found.specimen,
        shown=SHOWN,
        packings=report_rows.drawn_packings(found.specimen),
        charts=drawn,
        lengths_in_words=found.lengths_in_words,
        bins=list(zip(spans, bins, strict=True)),
        totals=np.sum([one[2:] for one in bins], axis=0).tolist(),
        labels=list(found.tallies[seq_len]),
        tables={
            length: report_text.table(by, length, loss) for length, by in found.tallies.items()
        },
        data=report_rows.reader_data(token_set, found.tokenizer, found.specimen),
    )


def bars(
    title: str, rows: Sequence[tuple[str, int]], what: str, marked: int | None = None
) -> dict[str, Any]:
    """A bar for each (label, count), as a share of all; `marked` is the number of a bar at which a line is drawn."""
    total = max(1, sum(count for _, count in rows))
    shares = [count / total for _, count in rows]
    top = max(max(shares) * 1.05, 1e-9)
    step = next(step for step in STEPS if top / step <= 4 or step == STEPS[-1])
    lines = [
        {"at": 100 * k * step / top, "label": f"{100 * k * step:g}%"}
        for k in range(1, int(top / step) + 1)
    ]
    places = [100 * (number + 0.5) / len(rows) for number in range(len(rows))]
    drawn = [
        {"title": f"{label}: {count:,} {what}, {share:.2%}", "height": round(100 * share / top, 3)}
        for (label, count), share in zip(rows, shares, strict=True)
    ]
    firsts = [
        label.partition(" to ")[0] for label, _ in rows
    ]  # of a range, which has no room on a phone
    ticks = [{"at": at, "label": label} for at, label in zip(places, firsts, strict=True)][
        :: 1 + len(rows) // TICKS
    ]
    highest = shares.index(max(shares))
    said = f"{title}. The highest bar is {rows[highest][0]}, with {shares[highest]:.1%}."
    mark = None if marked is None else places[marked]
    return {
        "title": title,
        "label": said,
        "bars": drawn,
        "lines": lines,
        "ticks": ticks,
        "mark": mark,
    }
