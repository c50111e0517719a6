"""Renders the report's page from templates/report.html.

Jinja2 does the drawing. Bars are HTML boxes with computed widths. They need no JavaScript, follow the reader's light or
dark colors, stay readable on a phone, and are small. A plotting library would give fixed pictures (matplotlib) or need
megabytes of JavaScript (Plotly, Vega).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jinja2
import numpy as np

from tokenmill.humanize import counted, in_bytes
from tokenmill.look import charts, report_rows, report_text
from tokenmill.look.packing_stats import Tally
from tokenmill.look.sample_rows import Specimen
from tokenmill.look.token_stats import Bin, Statistics, histogram
from tokenmill.store.shards import SPLITS
from tokenmill.store.token_sets import TokenSet
from tokenmill.tokenize.tokenizer import Tokenizer

TEMPLATES = Path(__file__).parent / "templates"
FREQUENT = 32  # how many of the most frequent tokens are listed
SHOWN = 16  # how many rows are drawn before the reader asks for more


@dataclass(frozen=True)
class Findings:
    """Everything that a report shows."""

    token_set: TokenSet
    tokenizer: Tokenizer
    statistics: Statistics
    tallies: dict[int, dict[str, Tally]]  # by seq_len and packing
    specimen: Specimen


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
    token_bytes, lengths = found.tokenizer.token_bytes(), found.statistics.all_lengths
    bins = histogram(lengths)
    unused_in_words, unused = report_text.of_unused(found.tokenizer, found.statistics.uses)
    return environment.get_template("report.html").render(
        name=found.token_set.name,
        path=found.token_set.display_name,
        dtype=found.token_set.dtype,
        tokenizer=found.token_set.tokenizer,
        glance=glance(found.token_set),
        verdict=report_text.verdict(lengths, found.tallies[seq_len], seq_len),
        dropped=charts.dropped_chart(found.tallies, seq_len),
        measures=report_text.MEASURES,
        measures_in_words=report_text.MEASURES_IN_WORDS,
        splits=list(splits(found.token_set)),
        left_out=report_text.left_out(found.token_set.manifest),
        looked_at=report_text.looked_at(found.statistics),
        seq_len=seq_len,
        specimen=found.specimen,
        shown=SHOWN,
        packings=report_rows.drawn_packings(found.specimen),
        charts=charts.length_charts(bins, seq_len),
        lengths_in_words=report_text.of_lengths(lengths),
        bins=_numbers(bins),
        tallies=found.tallies,
        tokens_in_words=report_text.of_tokens(found.statistics.uses, token_bytes),
        token_chart=charts.token_chart(found.statistics.uses, token_bytes),
        frequent=_frequent(found),
        unused_in_words=unused_in_words,
        unused=unused,
        most_unused=report_text.UNUSED,
        data=report_rows.reader_data(found.token_set, found.tokenizer, found.specimen),
    )
