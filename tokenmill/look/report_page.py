"""Renders the report's page from templates/report.html: plain tables, which Jinja2 draws.

Bars are HTML boxes with computed widths: they need no JavaScript and follow the reader's light or
dark colors, where a plotting library gives fixed pictures or megabytes of JavaScript.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from tokenmill.look import report_rows, report_text
from tokenmill.look.charts import bars
from tokenmill.look.packing_stats import Tally
from tokenmill.look.sample_rows import Specimen
from tokenmill.look.set_statistics import MOST_SPANS, Bin, LossStatistics, histogram
from tokenmill.messages import counted, in_bytes
from tokenmill.store.columns import columns_of
from tokenmill.store.set_names import TOKENS_ROOT
from tokenmill.store.shards import SPLITS
from tokenmill.store.token_sets import TokenSet
from tokenmill.tokenize.tokenizer import Tokenizer

TEMPLATES = Path(__file__).parent / "templates"
FILES = 20  # how many source files are listed before the reader asks for more
SHOWN = 16  # how many rows are drawn before the reader asks for more


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
        lengths = np.concatenate(self.lengths)
        tallies = self.tallies[seq_len]
        if self.loss is None:
            return report_text.verdict(lengths, tallies, seq_len)
        return report_text.chat_verdict(lengths, self.loss, tallies, seq_len)

    @property
    def looked_at(self) -> str:
        """Whether all shards were read, or a sample of a large set."""
        total = sum(entry.tokens > 0 for entry in self.token_set.split("train"))
        if self.shards == total:
            return "All training shards were read."
        return f"{self.shards:,} of {total:,} training shards, evenly spaced, were read."

    @property
    def lengths_in_words(self) -> str:
        """A sentence about the lengths of documents, or conversations."""
        documents = "documents" if self.loss is None else "conversations"
        return report_text.of_lengths(np.concatenate(self.lengths), documents)

    def tiles(self, seq_len: int) -> list[tuple[str, str]]:
        """The default's most important shares, in numbers and in words."""
        label, tally = next(iter(self.tallies[seq_len].items()))
        kept = 1 - tally.dropped
        if self.loss is not None:
            shares = [
                (1 - self.loss.lost[label][seq_len], "of the targets kept"),
                (kept, "of the tokens kept"),
                (tally.filler, "padding"),
            ]
        else:
            shares = [
                (kept, "of the tokens kept"),
                (tally.filler, "filler"),
                (tally.begin, "of the rows begin with a document"),
                (tally.begin_inserted, "of the rows begin with an inserted BOS"),
                (tally.cut, "of the short documents cut"),
                (tally.tokens_in_cut, "of the tokens are in documents that are cut"),
            ]
        return [(_tile(share), words) for share, words in shares]


def _tile(share: float) -> str:
    return f"{share:.0%}" if share in (0, 1) else f"{share:.2%}"


def source_files(token_set: TokenSet) -> list[tuple[str, str, int, int]]:
    """The source files with split, documents and tokens of their shards, the largest first.

    Small files share shards, so a shard of several counts as one line.
    """
    documents: Counter[tuple[str, str]] = Counter()
    tokens: Counter[tuple[str, str]] = Counter()
    for entry in token_set.entries:
        name = entry.sources[0]
        also = len(entry.sources) - 1
        if also:
            name += f" and {also:,} more"
        documents[name, entry.split] += entry.documents
        tokens[name, entry.split] += entry.tokens
    lines = [(name, split, documents[name, split], tokens[name, split]) for name, split in tokens]
    return sorted(lines, key=lambda line: -line[3])


def splits(token_set: TokenSet) -> list[dict[str, Any]]:
    """What each split has."""
    rows = []
    for name in SPLITS:
        entries = token_set.split(name)
        rows.append(
            {
                "name": name,
                "shards": len(entries),
                "documents": sum(entry.documents for entry in entries),
                "tokens": sum(entry.tokens for entry in entries),
                "text_bytes": sum(entry.text_bytes for entry in entries),
            }
        )
    return rows


def glance(token_set: TokenSet) -> list[str]:
    """The set in a few words."""
    documents = token_set.manifest["documents"]
    tokens = token_set.manifest["tokens"]
    text_bytes = token_set.manifest["text_bytes"]
    shards = len(token_set.entries)
    size = 0
    for entry in token_set.entries:
        record = token_set.record(entry)
        size += sum(record[suffix]["bytes"] for suffix in columns_of(record))
    return [
        counted(documents, "document"),
        counted(tokens, "token"),
        f"{in_bytes(text_bytes)} of text",
        f"{in_bytes(size)} on disk",
        counted(shards, "shard"),
    ]


def training_lines(token_set: TokenSet, seq_len: int) -> str:
    """The lines that train on the set, or on its view, from the folder that has data/tokens."""
    name = token_set.display_name
    is_under_root = token_set.path.resolve().parent == TOKENS_ROOT.resolve()
    if is_under_root and "://" not in name:
        name = token_set.name
    settings = f"batch_size=8, seq_len={seq_len}"
    if token_set.view is not None:
        settings += f", view={token_set.view.name!r}"
    if token_set.is_chat:
        settings += ', long_documents="crop"'
    return f"from tokenmill import RowLoader\nloader = RowLoader({name!r}, {settings})"


def view_in_words(token_set: TokenSet) -> str:
    """What a view keeps of the training split; nothing for a whole set."""
    view = token_set.view
    if view is None:
        return ""
    counts = view.facts["splits"]["train"]
    entries = token_set.split("train")
    documents = counted(sum(entry.documents for entry in entries), "training document")
    tokens = sum(entry.tokens for entry in entries)
    rule = ", ".join(f"{flag} {value}" for flag, value in view.facts["rule"].items())
    return (
        f"This is the view {view.name} ({rule}): {counts['documents']:,} of {documents}, "
        f"{counts['copies']:,} with repeats, {counts['tokens']:,} of {tokens:,} tokens. What "
        "follows is about these documents, each as often as it counts; the set's own figures are "
        "at the end."
    )


def _columns(columns: Sequence[tuple[str, Sequence[Any]]]) -> list[dict[str, Any]]:
    """The tables of documents by what is known of them.

    Each line has its shares of the tokens, and these in percent of the widest bar.
    """
    tables = []
    for name, lines in columns:
        tokens = max(1, sum(line.tokens for line in lines))
        view_tokens = max(1, sum(line.view_tokens for line in lines))
        shares = [(line.tokens / tokens, line.view_tokens / view_tokens) for line in lines]
        widest = max(map(max, shares), default=0) or 1
        rows = []
        for line, pair in zip(lines, shares, strict=True):
            rows.append((line, pair, [100 * share / widest for share in pair]))
        tables.append({"name": name, "rows": rows})
    return tables


def render(findings: Findings, seq_len: int) -> str:
    """The page, with rows of seq_len drawn."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    token_set = findings.token_set
    loss = findings.loss
    is_chat = loss is not None
    bins = histogram(np.concatenate(findings.lengths), loss.targets if loss else None)
    ranges = [_range(bin) for bin in bins]
    tallies = findings.tallies
    tables = {
        length: report_text.table(by_label, length, loss) for length, by_label in tallies.items()
    }
    measures = report_text.CHAT_MEASURES_IN_WORDS if is_chat else report_text.MEASURES_IN_WORDS
    return environment.get_template("report.html").render(
        token_set=token_set,
        glance=glance(token_set),
        is_chat=is_chat,
        documents="conversations" if is_chat else "documents",
        verdict=findings.verdict(seq_len),
        tiles=findings.tiles(seq_len),
        default=next(iter(tallies[seq_len])),
        measures_in_words=measures,
        splits=splits(token_set),
        files=source_files(token_set),
        most_files=FILES,
        train=training_lines(token_set, seq_len),
        view=view_in_words(token_set),
        columns=_columns(findings.columns),
        left_out=report_text.left_out(token_set),
        looked_at=findings.looked_at,
        seq_len=seq_len,
        specimen=findings.specimen,
        shown=SHOWN,
        packings=report_rows.drawn_packings(findings.specimen, tallies[seq_len]),
        charts=_charts(bins, loss, seq_len),
        lengths_in_words=findings.lengths_in_words,
        bins=list(zip(ranges, bins, strict=True)),
        totals=np.sum([bin[2:] for bin in bins], axis=0).tolist(),
        labels=list(tallies[seq_len]),
        tables=tables,
        data=report_rows.reader_data(token_set, findings.tokenizer, findings.specimen),
    )


def _range(bin: Bin) -> str:
    return f"{bin.first:,}" if bin.first == bin.last else f"{bin.first:,} to {bin.last:,}"


def _charts(bins: list[Bin], loss: LossStatistics | None, seq_len: int) -> list[dict[str, Any]]:
    """Documents and tokens by length, and conversations by how they are in the loss."""
    marked = None
    for number, bin in enumerate(bins):
        if bin.first <= seq_len <= bin.last:
            marked = number
    documents = [(_range(bin), bin.documents) for bin in bins]
    tokens = [(_range(bin), bin.tokens) for bin in bins]
    charts = [
        bars("Share of documents, by length", documents, "documents", marked),
        bars("Share of tokens, by length", tokens, "tokens", marked),
    ]
    if loss is None:
        return charts
    spans = []
    for number, count in enumerate(loss.by_spans.tolist()):
        label = f"{number}+" if number == MOST_SPANS else f"{number}"
        spans.append((label, count))
    title = "Share of conversations, by spans that are in the loss"
    return [*charts, bars(title, spans, "conversations")]
