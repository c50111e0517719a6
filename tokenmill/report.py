"""A token set to be looked at: `python -m tokenmill.report data/tokens/NAME`

Writes one HTML page beside the token set, which needs no network and opens from disk, and prints the short form.
What it says is counted and packed from the real lengths and tokens (statistics.py, figures.py, specimen.py); here
it becomes words and bars, which page/report.html lays out.

Jinja2 does the drawing: bars are HTML boxes of computed widths, so they need no JavaScript, take the reader's
light or dark colours, keep their letters readable on a phone, and weigh little. A plotting library gives fixed
pictures (matplotlib) or nothing at all without megabytes of JavaScript (Plotly, Vega).
"""

import base64
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jinja2
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from tokenmill.figures import PACKINGS, Tally, tally
from tokenmill.files import write_file
from tokenmill.progress import Bars, Meter
from tokenmill.shards import SPLITS, TokenSet
from tokenmill.specimen import Part, Specimen, make_specimen
from tokenmill.statistics import Statistics, histogram, look, quantile_ids, sample
from tokenmill.tokenizer import Tokenizer
from tokenmill.trace import source_row

PAGE = Path(__file__).parent / "page"
SEQ_LENS = (1024, 2048, 4096, 8192)
FREQUENT, UNUSED = 32, 64  # tokens that are listed
HUES = 12
LEFT_OUT = {
    "null_documents": "{} null documents were left out: they have no text",
    "empty_documents": "{} empty documents were left out",
    "broken_lines": "{} broken lines of jsonl were left out, as --skip-broken-lines says",
    "repaired_documents": "{} documents were kept whose text was not UTF-8: the bad bytes became U+FFFD",
}


@dataclass(frozen=True)
class Report:
    """A token set to be looked at: one HTML page beside it, which needs no network, and the short form here.

    Lengths, what each packing does to them, rows drawn and to be read, and what the tokens are.
    """

    tokens: tyro.conf.Positional[Path]  # the token set's folder
    seq_len: int = 2048  # tokens of an input in the rows that are drawn
    out: Path | None = None  # the page; by default the folder's name with .html, beside it

    def __post_init__(self):
        if self.seq_len < 1:
            raise ValueError(f"seq_len must be at least 1, not {self.seq_len}")

    @property
    def page(self) -> Path:
        folder = self.tokens.resolve()
        return self.out or folder.with_name(f"{folder.name}.html")


@dataclass(frozen=True)
class Findings:
    """All that a report says."""

    token_set: TokenSet
    tokenizer: Tokenizer
    statistics: Statistics
    tallies: dict[int, dict[str, Tally]]  # seq_len -> packing
    specimen: Specimen


def find(config: Report) -> Findings:
    """Reads the token set. ValueError or FileNotFoundError where it is unfinished or damaged, or has no documents."""
    token_set = TokenSet(config.tokens)
    tokenizer = Tokenizer.load(token_set.path / "tokenizer.json")
    to_read = sum(entry.tokens for entry in sample([entry for entry in token_set.split("train") if entry.tokens]))
    with Bars() as bars, Meter(bars, "reading", to_read) as meter:
        statistics = look(token_set, "train", lambda tokens: meter.add(0, tokens, 0, tokens))
    seq_lens = sorted({*SEQ_LENS, config.seq_len})
    tallies = {t: {packing: tally(packing, statistics.lengths, t + 1) for packing in PACKINGS} for t in seq_lens}
    return Findings(token_set, tokenizer, statistics, tallies, make_specimen(token_set, "train", config.seq_len + 1))


# ---------------------------------------------------------------------------- in words


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


def _looked_at(found: Findings) -> str:
    shards, all_shards = len(found.statistics.looked_at), len(found.token_set.split("train"))
    if shards == all_shards:
        return "All training shards were looked at."
    return f"{shards:,} of {all_shards:,} training shards, evenly spread, were looked at."


def _lengths_in_words(lengths: np.ndarray, seq_len: int) -> str:
    longer = lengths > seq_len + 1
    tokens = lengths[longer].sum() / lengths.sum()
    return (
        f"Half of the {len(lengths):,} documents have at most {int(np.median(lengths)):,} tokens; the mean is "
        f"{lengths.mean():,.0f}, the longest has {lengths.max():,}. {longer.mean():.1%} are longer than a row of "
        f"{seq_len:,} + 1, and hold {tokens:.1%} of the tokens."
    )


def _tokens_in_words(uses: np.ndarray, token_bytes: np.ndarray) -> str:
    total = uses.sum()
    half, most = quantile_ids(uses, 0.5), quantile_ids(uses, 0.9)
    return (
        f"A token stands for {(uses * token_bytes).sum() / total:.2f} bytes of text on average. {half:,} ids make half "
        f"of all tokens, {most:,} nine tenths."
    )


# ---------------------------------------------------------------------------- bars


def length_charts(found: Findings, seq_len: int) -> list[dict]:
    """The histogram of lengths, by documents and by tokens."""
    bins = histogram(found.statistics.all_lengths)
    edges = [(one.first, one.last) for one in bins]
    mark = {"at": _place(seq_len, edges), "label": f"seq_len {seq_len:,}"} if _place(seq_len, edges) else None
    ticks = [
        {"at": 100 * i / len(bins), "label": f"{one.first:,}" if one.first < 1000 else f"{one.first // 1024}k"}
        for i, one in enumerate(bins)
        if one.first & (one.first - 1) == 0 and one.first.bit_length() % 3 == 1
    ]
    return [
        chart(f"Share of {what}, by length", edges, [getattr(one, what) for one in bins], what, ticks, mark)
        for what in ("documents", "tokens")
    ]


def token_chart(uses: np.ndarray, token_bytes: np.ndarray) -> dict:
    """How long the tokens of the text are, in bytes."""
    sizes = np.bincount(np.minimum(token_bytes, 16), weights=uses, minlength=17)[1:]
    edges = [(size, size) for size in range(1, 17)]
    ticks = [
        {"at": 100 * (size - 0.5) / 16, "label": f"{size}{'+' * (size == 16)} B"} for size in (1, 2, 4, 6, 8, 12, 16)
    ]
    return chart("Share of tokens, by the bytes they stand for", edges, sizes, "tokens", ticks, None)


def chart(title: str, edges: list[tuple[int, int]], values, what: str, ticks: list[dict], mark: dict | None) -> dict:
    """Bars for the template: heights in percent of the plot, which ends a little above the highest."""
    shares = np.asarray(values, dtype=float) / max(1, np.sum(values))
    top = max(shares.max() * 1.05, 1e-9)
    step = next(s for s in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if top / s <= 4 or s == 1.0)
    lines = [{"at": 100 * k * step / top, "label": f"{100 * k * step:g}%"} for k in range(1, int(top / step) + 1)]
    bars = [
        {"title": f"{_range(*edge)}: {int(value):,} {what}, {part:.2%}", "height": round(100 * part / top, 3)}
        for edge, value, part in zip(edges, values, shares, strict=True)
    ]
    highest = int(np.argmax(shares))
    label = f"{title}. The highest bar is {_range(*edges[highest])}, with {shares[highest]:.1%}."
    return {"title": title, "label": label, "bars": bars, "lines": lines, "ticks": ticks, "mark": mark}


def _range(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _place(length: int, edges: list[tuple[int, int]]) -> float | None:
    """Where a length lies on the axis of the bins, in percent; None where it is on none."""
    for index, (first, last) in enumerate(edges):
        if first <= length <= last:
            return 100 * (index + math.log(length / first) / math.log((last + 1) / first)) / len(edges)
    return None


# ---------------------------------------------------------------------------- rows


def classes(part: Part) -> str:
    """How a part of a row is drawn."""
    marks = {"b": part.bos, "f": part.filler, "h": part.start > 0 and not part.bos, "x": part.cropped}
    return " ".join([f"d{part.document % HUES}", *(name for name, true in marks.items() if true)])


def drawn_packings(specimen: Specimen) -> list[dict]:
    """Every packing's rows for the template."""
    return [
        {
            "name": name,
            "caption": _caption(name, specimen),
            "rows": [[{"classes": classes(part), "width": part.length + part.bos} for part in row] for row in rows],
        }
        for name, rows in specimen.rows.items()
    ]


def _caption(name: str, specimen: Specimen) -> str:
    rows, dropped = specimen.rows[name], specimen.dropped(name)
    inside = sum(row[0].start > 0 and not row[0].bos for row in rows)
    filler = sum(part.length for row in rows for part in row if part.filler)
    return ", ".join(
        [
            f"{len(rows)} rows",
            f"{dropped:.1%} of the documents' tokens in none" if dropped else "every token of the documents in them",
            f"{inside} of them begin inside a document" if inside else "all of them begin with BOS",
            *([f"{filler / sum(part.length for row in rows for part in row):.1%} filler"] if filler else []),
        ]
    )


def reader_data(found: Findings) -> dict:
    """What the page's script reads: the documents once, and the parts of them in each row."""
    names, specimen = found.tokenizer.encoding, found.specimen
    text = {}  # id -> bytes
    documents = []
    for shard, number in specimen.documents:
        ids = shard.tokens[int(shard.offsets[number]) : int(shard.offsets[number + 1])].tolist()
        pieces = [text.get(i) or text.setdefault(i, names.decode_single_token_bytes(i)) for i in ids]
        documents.append(
            {
                "name": source_row(found.token_set, shard.entry, number),
                "tokens": len(ids),
                "bytes": _base64(b"".join(pieces)),
                "lengths": _base64(np.array([len(piece) for piece in pieces], dtype="<u2").tobytes()),
            }
        )
    packings = [
        {"name": name, "rows": [[_numbers(part) for part in row] for row in rows]}
        for name, rows in specimen.rows.items()
    ]
    return {"bos": found.tokenizer.bos_token, "documents": documents, "packings": packings}


def _numbers(part: Part) -> list[int]:
    return [part.document, part.start, part.length, int(part.bos), int(part.filler), int(part.cropped)]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# ---------------------------------------------------------------------------- the page


def splits(token_set: TokenSet) -> Iterator[dict]:
    for name in SPLITS:
        entries = token_set.split(name)
        sums = {count: sum(getattr(e, count) for e in entries) for count in ("documents", "tokens", "text_bytes")}
        yield {"name": name, "shards": len(entries)} | sums


def tiles(token_set: TokenSet) -> list[dict]:
    manifest = token_set.manifest
    documents, tokens, text = (manifest[count] for count in ("documents", "tokens", "text_bytes"))
    size = tokens * token_set.numpy_dtype.itemsize + 8 * (documents + len(token_set.entries))
    found = {"Documents": documents, "Tokens": tokens, "Bytes on disk": size, "Bytes of text": text}
    found["Shards"] = len(token_set.entries)
    counted = [{"name": name, "value": short(value), "exact": f"{value:,}"} for name, value in found.items()]
    ratio = tokens / max(1, text)
    return [*counted, {"name": "Tokens a byte", "value": f"{ratio:.3f}", "exact": f"{ratio:.6f}"}]


def _bins(lengths: np.ndarray) -> list[dict]:
    documents, tokens = len(lengths), lengths.sum()
    return [
        {
            "name": _range(one.first, one.last),
            "documents": one.documents,
            "documents_share": one.documents / documents,
            "tokens": one.tokens,
            "tokens_share": one.tokens / tokens,
        }
        for one in histogram(lengths)
    ]


def _frequent(found: Findings) -> list[dict]:
    uses, encoding = found.statistics.uses, found.tokenizer.encoding
    most = [int(i) for i in np.argsort(-uses, kind="stable")[:FREQUENT] if uses[i]]
    return [
        {
            "text": visible(encoding.decode_single_token_bytes(i)),
            "id": i,
            "uses": int(uses[i]),
            "share": uses[i] / uses.sum(),
            "part": round(100 * uses[i] / uses.max(), 2),
        }
        for i in most
    ]


def _unused(found: Findings) -> tuple[str, list[str]]:
    """In words, and some of them: the first that were learned, so the most frequent elsewhere."""
    known = {rank: token for token, rank in found.tokenizer.ranks.items()}
    known |= {i: text.encode() for text, i in found.tokenizer.special_tokens.items()}
    uses = found.statistics.uses
    unused = [i for i in np.flatnonzero(uses == 0).tolist() if i in known]
    words = f"{len(unused):,} of {len(known):,} ids ({len(unused) / len(known):.1%}) are not used."
    if holes := len(uses) - len(known):
        words += f" {holes:,} more stand for nothing."
    longer = [i for i in unused if len(known[i]) > 1]
    if single := len(unused) - len(longer):
        words += f" Of these {single:,} are single bytes."
    return words, [visible(known[i]) for i in longer[:UNUSED]]


def render(config: Report, found: Findings) -> str:
    """The page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    token_bytes, lengths = found.tokenizer.token_bytes(), found.statistics.all_lengths
    unused_in_words, unused = _unused(found)
    return environment.get_template("report.html").render(
        name=found.token_set.path.resolve().name,
        path=config.tokens,
        dtype=found.token_set.dtype,
        tokenizer=found.token_set.tokenizer,
        tiles=tiles(found.token_set),
        splits=list(splits(found.token_set)),
        left_out=left_out(found.token_set.manifest),
        looked_at=_looked_at(found),
        seq_len=config.seq_len,
        specimen=found.specimen,
        packings=drawn_packings(found.specimen),
        charts=length_charts(found, config.seq_len),
        lengths_in_words=_lengths_in_words(lengths, config.seq_len),
        bins=_bins(lengths),
        tallies=found.tallies,
        tokens_in_words=_tokens_in_words(found.statistics.uses, token_bytes),
        token_chart=token_chart(found.statistics.uses, token_bytes),
        frequent=_frequent(found),
        unused_in_words=unused_in_words,
        unused=unused,
        most_unused=UNUSED,
        data=reader_data(found),
    )


# ---------------------------------------------------------------------------- the command


def print_short(config: Report, found: Findings, console: Console) -> None:
    """The short form: the set at a glance, and what each packing does to it."""
    manifest, lengths = found.token_set.manifest, found.statistics.all_lengths
    console.print(f"{found.token_set.path.resolve().name}: {', '.join(_facts(found.token_set))}")
    for line in left_out(manifest):
        console.print(line)
    console.print(f"{_looked_at(found)} {_lengths_in_words(lengths, config.seq_len)}")
    console.print(_tokens_in_words(found.statistics.uses, found.tokenizer.token_bytes()))
    console.print(_unused(found)[0])
    columns = ("dropped", "filler", "cut", "with beginning", "rows on BOS", "pieces a row")
    table = Table(f"seq_len {config.seq_len:,}", *columns)
    for name, one in found.tallies[config.seq_len].items():
        shares = (one.dropped, one.filler, one.cut, one.with_beginning, one.on_bos)
        table.add_row(name, *(f"{share:.2%}" for share in shares), f"{one.pieces_a_row:.2f}")
    console.print(table)


def _facts(token_set: TokenSet) -> list[str]:
    return [f"{tile['exact']} {tile['name'].lower()}" for tile in tiles(token_set)]


def main(arguments: list[str] | None = None) -> int:
    """Writes the page that the command line asks for, and prints its path last. The exit status."""
    try:
        config = tyro.cli(Report, prog="python -m tokenmill.report", args=arguments)
        found = find(config)
        write_file(config.page, render(config, found).encode())
        print_short(config, found, Console(highlight=False, soft_wrap=True))
        print(config.page)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
