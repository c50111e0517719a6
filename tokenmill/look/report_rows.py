"""Prepares sample rows for the report's page: how each part is drawn, and the data that the page's
script reads.

The page contains every sample document once, as its bytes and the byte length of each token. Each
packing's rows refer to parts of the documents, so no text is repeated, however many packings show
it. The documents of a chat set have their loss mask, too.
"""

import base64
import functools
from collections.abc import Mapping
from itertools import chain

import numpy as np

from tokenmill.feed.pieces import Piece
from tokenmill.look.documents import SourceLocator
from tokenmill.look.packing_stats import Tally
from tokenmill.look.sample_rows import SamplePiece, Specimen
from tokenmill.store.token_sets import TokenSet
from tokenmill.tokenize.tokenizer import Tokenizer

HUES = 12  # the number of colors in templates/report.css
FINEST = 0.4  # percent of a part's width: gaps in the loss mask that are narrower are not drawn


def classes(part: SamplePiece) -> str:
    """The CSS classes of a part of a row."""
    names = [f"d{part.document % HUES}"]
    if part.bos:
        names.append("b")
    if part.filler:
        names.append("f")
    if part.start > 0 and not part.bos:
        names.append("h")
    if part.cropped:
        names.append("x")
    return " ".join(names)


def _drawn(part: SamplePiece, specimen: Specimen) -> dict:
    """A part for the template. In a chat set, what is in the loss is underlined."""
    if specimen.is_padding(part):
        return {"classes": "p", "width": part.length, "loss": []}
    in_loss = loss_of(specimen, part.document)
    loss = []
    if in_loss is not None:
        loss = stripes(in_loss[part.start : part.start + part.length])
    return {"classes": classes(part), "width": part.length + part.bos, "loss": loss}


def loss_of(specimen: Specimen, document: int) -> np.ndarray | None:
    """Which tokens of a sample document are in the loss: (length,) bool; None in a set of text."""
    shard, number = specimen.documents[document]
    return Piece(shard, number, 0, int(specimen.lengths[document])).in_loss()


def stripes(in_loss: np.ndarray) -> list[tuple[float, float]]:
    """Where a part is in the loss, in percent of its width."""
    marks = np.concatenate([[False], in_loss, [False]])
    changes = np.flatnonzero(marks[1:] != marks[:-1]).reshape(-1, 2)
    percent = 100 / len(in_loss)
    drawn: list[tuple[float, float]] = []
    for first, last in (percent * changes).tolist():
        if drawn and first - drawn[-1][1] < FINEST:
            first, _ = drawn.pop()
        drawn.append((round(first, 2), round(last, 2)))
    return drawn


def drawn_packings(specimen: Specimen, tallies: Mapping[str, Tally]) -> list[dict]:
    """The rows of every packing, for the template; `tallies` are of all documents."""
    packings = []
    for name, rows in specimen.rows.items():
        drawn = []
        for row in rows:
            drawn.append([_drawn(part, specimen) for part in row])
        packings.append(
            {
                "name": name,
                "caption": _caption(rows, specimen, tallies[name]),
                "rows": drawn,
                "dropped": _drawn_dropped(rows, specimen),
            }
        )
    return packings


def _drawn_dropped(rows: list[list[SamplePiece]], specimen: Specimen) -> list[dict]:
    """What cropping drops, as the parts of one band."""
    band = []
    for part in chain.from_iterable(rows):
        if part.cropped:
            band.append({"classes": classes(part), "width": _dropped(part, specimen)})
    return band


def _dropped(part: SamplePiece, specimen: Specimen) -> int:
    """How many tokens follow a cropped part in its document."""
    return int(specimen.lengths[part.document]) - part.start - part.length


def _caption(rows: list[list[SamplePiece]], specimen: Specimen, tally: Tally) -> str:
    """What the rows of a packing have, in a line."""
    parts = list(chain.from_iterable(rows))
    inside = [row[0] for row in rows if row[0].start > 0]
    num_inserted = sum(part.bos for part in inside)
    num_without_bos = len(inside) - num_inserted
    cropped = [part for part in parts if part.cropped]
    filler = sum(part.length for part in parts if part.filler)
    share = filler / sum(part.length for part in parts)
    words = [f"{len(rows)} rows"]
    if num_inserted:
        words.append(f"{num_inserted} begin with an inserted BOS")
    if num_without_bos:
        words.append(f"{num_without_bos} begin inside a document, without BOS")
    if cropped:
        documents = "conversations" if specimen.is_chat else "documents"
        dropped = sum(_dropped(part, specimen) for part in cropped)
        words.append(f"{len(cropped)} {documents} are cropped, {dropped:,} tokens are dropped")
    if share:
        what = "padding" if specimen.is_chat else "filler"
        words.append(f"{share:.1%} {what} (of all rows {tally.filler:.2%})")
    return ", ".join(words)


def reader_data(token_set: TokenSet, tokenizer: Tokenizer, specimen: Specimen) -> dict:
    """The data for the page's script: the documents once, and the parts of them in each row."""
    sources = SourceLocator(token_set)
    token_text = functools.cache(tokenizer.token)
    documents = []
    for index, (shard, number) in enumerate(specimen.documents):
        begin, end = shard.bounds(number)
        length = int(specimen.lengths[index])
        texts = [token_text(token) for token in shard.read(begin, begin + length).tolist()]
        text_lengths = np.array([len(text) for text in texts], dtype="<u2")
        in_loss = loss_of(specimen, index)
        documents.append(
            {
                "name": sources.find(shard.entry, number),
                "tokens": end - begin,
                "bytes": _base64(b"".join(texts)),
                "lengths": _base64(text_lengths.tobytes()),
                "loss": None if in_loss is None else _base64(in_loss.tobytes()),
            }
        )
    packings = []
    for name, rows in specimen.rows.items():
        numbers = []
        for row in rows:
            numbers.append([_numbers(part) for part in row])
        packings.append({"name": name, "rows": numbers})
    return {"bos": tokenizer.bos_token, "hues": HUES, "documents": documents, "packings": packings}


def _numbers(part: SamplePiece) -> list[int]:
    flags = (part.bos, part.filler, part.cropped)
    return [part.document, part.start, part.length, *map(int, flags)]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
