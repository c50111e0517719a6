"""Renders the report's page from templates/report.html.

Jinja2 does the drawing. Bars are HTML boxes with computed widths. They need no JavaScript, follow the reader's light or
dark colors, stay readable on a phone, and are small. A plotting library would give fixed pictures (matplotlib) or need
megabytes of JavaScript (Plotly, Vega).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from tokenmill.humanize import counted, in_bytes
from tokenmill.look import charts, report_rows, report_text
from tokenmill.look.loss_stats import MOST_STRETCHES, LossStatistics
from tokenmill.look.packing_stats import Tally
from tokenmill.look.sample_rows import Specimen
from tokenmill.look.token_stats import Bin, Statistics, histogram
from tokenmill.store.shards import SPLITS
from tokenmill.store.token_sets import TokenSet
from tokenmill.tokenize.tokenizer import Tokenizer

TEMPLATES = Path(__file__).parent / "templates"
FREQUENT = 32  # how many of the most frequent tokens are listed
FILES = 20  # how many source files are listed before the reader asks for more
SHOWN = 16  # how many rows are drawn before the reader asks for more


@dataclass(frozen=True)
class Findings:
    """Everything that a report shows."""

    token_set: TokenSet
    tokenizer: Tokenizer
    statistics: Statistics
    tallies: dict[int, dict[str, Tally]]  # by seq_len and variant
    loss: LossStatistics | None  # of a chat set
    specimen: Specimen
    columns: list[tuple[str, list[Any]]]  # documents and tokens by what is known of them

    def verdict(self, seq_len: int) -> str:
        """What rows of seq_len mean for these documents."""
        lengths, tallies = self.statistics.all_lengths, self.tallies[seq_len]
        if self.loss is None:
            return report_text.verdict(lengths, tallies, seq_len)
        return report_text.chat_verdict(lengths, self.loss, tallies, seq_len)

    @property
    def lengths_in_words(self) -> str:
        """Sentences about the lengths of documents; of conversations, also about what bears loss in them."""
        lengths = self.statistics.all_lengths
        if self.loss is None:
            return report_text.of_lengths(lengths)
        return f"{report_text.of_lengths(lengths, 'conversations')} {report_text.of_stretches(self.loss.stretches)}"

    @property
    def line_charts(self) -> list[tuple[str, dict[str, dict[int, float]]]]:
        """What is drawn by variant and seq_len: in words, and the shares."""
        if self.loss is not None:
            return [("targets lost", self.loss.lost)]
        return [
            ("tokens dropped", self._shares("dropped")),
            ("rows that begin with BOS", self._shares("on_bos")),
        ]

    def _shares(self, measure: str) -> dict[str, dict[int, float]]:
        labels = next(iter(self.tallies.values()))
        return {name: {n: getattr(by[name], measure) for n, by in self.tallies.items()} for name in labels}

    def tiles(self, seq_len: int) -> list[tuple[str, str]]:
        """The default's most important shares, in numbers and in words."""
        label, ours = next(iter(self.tallies[seq_len].items()))
        if self.loss is not None:
            lost = self.loss.lost[label][seq_len]
            found = [(1 - lost, "of the targets kept"), (1 - ours.dropped, "of the tokens kept")]
            found += [(ours.filler, "padding")]
        else:
            found = [(1 - ours.dropped, "of the tokens kept"), (ours.filler, "filler")]
            found += [(ours.on_bos, "of the rows begin with BOS"), (ours.cut, "of the short documents cut")]
        return [(f"{share:.0%}" if share in (0, 1) else f"{share:.2%}", words) for share, words in found]


def source_files(token_set: TokenSet) -> list[dict]:
    """The source files with the documents and tokens of their shards, the largest first.

    Small files share shards, so a shard of several counts as one line.
    """
    found: dict[tuple[str, str], list[int]] = {}
    for entry in token_set.entries:
        more = f" and {len(entry.sources) - 1:,} more" if len(entry.sources) > 1 else ""
        counts = found.setdefault((entry.sources[0] + more, entry.split), [0, 0])
        counts[0] += entry.documents
        counts[1] += entry.tokens
    lines = [
        {"name": name, "split": split, "documents": documents, "tokens": tokens}
        for (name, split), (documents, tokens) in found.items()
    ]
    return sorted(lines, key=lambda line: -line["tokens"])


def splits(token_set: TokenSet) -> Iterator[dict]:
    for name in SPLITS:
        entries = token_set.split(name)
        sums = {count: sum(getattr(e, count) for e in entries) for count in ("documents", "tokens", "text_bytes")}
        yield {"name": name, "shards": len(entries)} | sums


def glance(token_set: TokenSet) -> list[str]:
    """The set in a few words."""
    manifest = token_set.manifest
    documents, tokens, text = (manifest[count] for count in ("documents", "tokens", "text_bytes"))
    size = tokens * token_set.numpy_dtype.itemsize + 8 * (documents + len(token_set.entries))
    amounts = [counted(documents, "document"), counted(tokens, "token"), f"{in_bytes(text)} of text"]
    return [*amounts, f"{in_bytes(size)} on disk", counted(len(token_set.entries), "shard")]


def training_lines(token_set: TokenSet, seq_len: int) -> str:
    """The lines that train on the set, or on its view."""
    view = "" if token_set.view is None else f", view={token_set.view.name!r}"
    long = ', long_documents="crop"' if token_set.is_chat else ""
    settings = f"batch_size=8, seq_len={seq_len}{view}{long}"
    return f"from tokenmill import RowLoader\nloader = RowLoader({token_set.display_name!r}, {settings})"


def view_in_words(token_set: TokenSet) -> str:
    """What a view keeps of the training split; nothing for a whole set."""
    view = token_set.view
    if view is None:
        return ""
    counts, entries = view.facts["splits"]["train"], token_set.split("train")
    documents, tokens = sum(entry.documents for entry in entries), sum(entry.tokens for entry in entries)
    rule = ", ".join(f"{flag} {value}" for flag, value in view.facts["rule"].items())
    return (
        f"This is the view {view.name} ({rule}): {counts['documents']:,} of {counted(documents, 'training document')}, "
        f"{counts['copies']:,} with repeats, {counts['tokens']:,} of {tokens:,} tokens. What follows is about these "
        "documents, each as often as it counts; the set's own figures are at the end."
    )


def _shares_of(columns: list[tuple[str, list[Any]]]) -> list[dict]:
    """The tables of documents by what is known of them, with the share of the tokens of each line."""
    found = []
    for name, shown in columns:
        tokens, kept = sum(line.tokens for line in shown), sum(line.view_tokens for line in shown)
        lines = [
            line._asdict() | {"share": line.tokens / max(1, tokens), "view_share": line.view_tokens / max(1, kept)}
            for line in shown
        ]
        most = max((max(line["share"], line["view_share"]) for line in lines), default=1) or 1
        for line in lines:
            line["part"], line["view_part"] = 100 * line["share"] / most, 100 * line["view_share"] / most
        found.append({"name": name, "lines": lines})
    return found


def _numbers(bins: list[Bin]) -> list[dict]:
    """A histogram as a table."""
    documents, tokens = (sum(getattr(one, what) for one in bins) for what in ("documents", "tokens"))
    return [
        {
            "name": charts.span(one.first, one.last),
            "documents": one.documents,
            "documents_share": one.documents / documents,
            "tokens": one.tokens,
            "tokens_share": one.tokens / tokens,
            "targets_share": one.targets / max(1, one.tokens),
        }
        for one in bins
    ]


def _frequent(found: Findings) -> list[dict]:
    uses = found.statistics.uses
    most = [int(i) for i in np.argsort(-uses, kind="stable")[:FREQUENT] if uses[i]]
    return [
        {
            "text": report_text.visible(found.tokenizer.token(i)),
            "id": i,
            "uses": int(uses[i]),
            "share": uses[i] / uses.sum(),
            "part": round(100 * uses[i] / uses.max(), 2),
        }
        for i in most
    ]


def render(found: Findings, seq_len: int) -> str:
    """The page, with rows of seq_len drawn."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    token_bytes, loss = found.tokenizer.token_bytes(), found.loss
    bins = histogram(found.statistics.all_lengths, None if loss is None else loss.targets)
    unused_in_words, unused = report_text.of_unused(found.tokenizer, found.statistics.uses)
    return environment.get_template("report.html").render(
        name=found.token_set.name,
        path=found.token_set.display_name,
        dtype=found.token_set.dtype,
        tokenizer=found.token_set.tokenizer,
        glance=glance(found.token_set),
        is_chat=loss is not None,
        documents="documents" if loss is None else "conversations",
        verdict=found.verdict(seq_len),
        tiles=found.tiles(seq_len),
        default=next(iter(found.tallies[seq_len])),
        line_charts=[charts.line_chart(*one, seq_len) for one in found.line_charts],
        measures_in_words=report_text.MEASURES_IN_WORDS if loss is None else report_text.CHAT_MEASURES_IN_WORDS,
        splits=list(splits(found.token_set)),
        files=source_files(found.token_set),
        most_files=FILES,
        train=training_lines(found.token_set, seq_len),
        view=view_in_words(found.token_set),
        view_name="" if found.token_set.view is None else found.token_set.view.name,
        columns=_shares_of(found.columns),
        left_out=report_text.left_out(found.token_set),
        looked_at=report_text.looked_at(found.statistics),
        seq_len=seq_len,
        specimen=found.specimen,
        shown=SHOWN,
        packings=report_rows.drawn_packings(found.specimen),
        charts=charts.length_charts(bins, seq_len),
        stretches=None if loss is None else charts.stretches_chart(loss.by_stretches, MOST_STRETCHES),
        lengths_in_words=found.lengths_in_words,
        bins=_numbers(bins),
        labels=list(found.tallies[seq_len]),
        tables={length: report_text.table(by, length, loss) for length, by in found.tallies.items()},
        tokens_in_words=report_text.of_tokens(found.statistics.uses, token_bytes),
        token_chart=charts.token_chart(found.statistics.uses, token_bytes),
        frequent=_frequent(found),
        unused_in_words=unused_in_words,
        unused=unused,
        most_unused=report_text.UNUSED,
        data=report_rows.reader_data(found.token_set, found.tokenizer, found.specimen),
    )
