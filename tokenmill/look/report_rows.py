"""Prepares sample rows for the report's page: how each part is drawn, and the data that the page's script reads.

The page contains every sample document once, as its bytes and the byte length of each token. Each packing's rows refer
to parts of the documents, so no text is repeated, however many packings show it.
"""

import base64

import numpy as np

from tokenmill.look.packing_stats import variants
from tokenmill.look.sample_rows import SamplePiece, Specimen
from tokenmill.look.source_places import SourceLocator
from tokenmill.store.token_sets import TokenSet
from tokenmill.tokenize.tokenizer import Tokenizer

HUES = 12  # the number of colors in templates/report.css


def classes(part: SamplePiece) -> str:
    """The CSS classes of a part of a row."""
    marks = {"b": part.bos, "f": part.filler, "h": part.start > 0 and not part.bos, "x": part.cropped}
    return " ".join([f"d{part.document % HUES}", *(name for name, true in marks.items() if true)])


def drawn_packings(specimen: Specimen) -> list[dict]:
    """The rows of every packing, for the template."""
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
            f"{_lost(name, dropped, specimen)} in none" if dropped else "every token of the documents in them",
            f"{inside} of them begin inside a document" if inside else "all of them begin with BOS",
            *([f"{filler / sum(part.length for row in rows for part in row):.1%} filler"] if filler else []),
        ]
    )


def _lost(name: str, dropped: float, specimen: Specimen) -> str:
    if variants()[name][0].shares_a_token:  # less than a row at the end, which is negligible in a whole shard
        return f"the last {round(dropped * int(specimen.lengths.sum())):,} tokens, less than a row,"
    return f"{dropped:.1%} of the documents' tokens"


def reader_data(token_set: TokenSet, tokenizer: Tokenizer, specimen: Specimen) -> dict:
    """The data for the page's script: the documents once, and the parts of them in each row."""
    sources = SourceLocator(token_set)
    text: dict[int, bytes] = {}
    documents = []
    for (shard, number), length in zip(specimen.documents, specimen.lengths.tolist(), strict=True):
        begin, end = int(shard.offsets[number]), int(shard.offsets[number + 1])
        ids = shard.read(begin, begin + length).tolist()
        pieces = [text.get(i) or text.setdefault(i, tokenizer.token(i)) for i in ids]
        documents.append(
            {
                "name": sources.find(shard.entry, number),
                "tokens": end - begin,
                "bytes": _base64(b"".join(pieces)),
                "lengths": _base64(np.array([len(piece) for piece in pieces], dtype="<u2").tobytes()),
            }
        )
    packings = [
        {"name": name, "rows": [[_numbers(part) for part in row] for row in rows]}
        for name, rows in specimen.rows.items()
    ]
    return {"bos": tokenizer.bos_token, "hues": HUES, "documents": documents, "packings": packings}


def _numbers(part: SamplePiece) -> list[int]:
    return [part.document, part.start, part.length, int(part.bos), int(part.filler), int(part.cropped)]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
