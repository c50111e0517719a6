"""Prepares sample rows for the report's page: how each part is drawn, and the data that the page's script reads.

The page contains every sample document once, as its bytes and the byte length of each token. Each packing's rows refer
to parts of the documents, so no text is repeated, however many packings show it. The documents of a chat set have their
loss mask, too.
"""

import base64

import numpy as np

from tokenmill.feed.pieces import Piece
from tokenmill.look.documents import SourceLocator
from tokenmill.look.sample_rows import SamplePiece, Specimen
from tokenmill.store.token_sets import TokenSet
from tokenmill.tokenize.tokenizer import Tokenizer

HUES = 12  # the number of colors in templates/report.css
FINEST = 0.4  # percent of a part's width: gaps in the loss mask that are narrower are not drawn


def classes(part: SamplePiece) -> str:
    """The CSS classes of a part of a row."""
    marks = {
        "b": part.bos,
        "f": part.filler,
        "h": part.start > 0 and not part.bos,
        "x": part.cropped,
    }
    return " ".join([f"d{part.document % HUES}", *(name for name, true in marks.items() if true)])


def _drawn(part: SamplePiece, specimen: Specimen) -> dict:
    """A part for the template. In a chat set, what is in the loss is underlined."""
    if specimen.is_padding(part):
        return {"classes": "p", "width": part.length, "loss": []}
    learned = loss_of(specimen, part.document)
    loss = [] if learned is None else stripes(learned[part.start : part.start + part.length])
    return {"classes": classes(part), "width": part.length + part.bos, "loss": loss}


def loss_of(specimen: Specimen, document: int) -> np.ndarray | None:
    """Which tokens of a sample document are in the loss: (length,) bool; None in a set of text."""
    shard, number = specimen.documents[document]
    return Piece(shard, number, 0, int(specimen.lengths[document])).in_loss()


def stripes(learned: np.ndarray) -> list[tuple[float, float]]:
    """Where a part is in the loss, in percent of its width."""
    marks = np.concatenate([[False], learned, [False]])
    bounds = (100 / len(learned)) * np.flatnonzero(marks[1:] != marks[:-1]).reshape(-1, 2)
    found: list[tuple[float, float]] = []
    for first, last in bounds.tolist():
        if found and first - found[-1][1] < FINEST:
            first = found.pop()[0]
        found.append((round(first, 2), round(last, 2)))
    return found


def drawn_packings(specimen: Specimen) -> list[dict]:
    """The rows of every packing, for the template."""
    return [
        {
            "name": name,
            "caption": _caption(rows, specimen.is_chat),
            "rows": [[_drawn(part, specimen) for part in row] for row in rows],
        }
        for name, rows in specimen.rows.items()
    ]


def _caption(rows: list[list[SamplePiece]], is_chat: bool) -> str:
    parts = [part for row in rows for part in row]
    inserted, inside = (
        sum(row[0].start > 0 and row[0].bos is bos for row in rows) for bos in (True, False)
    )
    filler = sum(part.length for part in parts if part.filler) / sum(part.length for part in parts)
    cropped = sum(part.cropped for part in parts)
    said = [f"{len(rows)} rows", f"{inserted} begin with an inserted BOS" * bool(inserted)]
    said += [f"{inside} begin inside a document, without BOS" * bool(inside)]
    said += [f"{cropped} {'conversations' if is_chat else 'documents'} are cropped" * bool(cropped)]
    return ", ".join(
        filter(None, [*said, f"{filler:.1%} {'padding' if is_chat else 'filler'}" * bool(filler)])
    )


def reader_data(token_set: TokenSet, tokenizer: Tokenizer, specimen: Specimen) -> dict:
    """The data for the page's script: the documents once, and the parts of them in each row."""
    sources = SourceLocator(token_set)
    text: dict[int, bytes] = {}
    documents = []
    for index, ((shard, number), length) in enumerate(
        zip(specimen.documents, specimen.lengths.tolist(), strict=True)
    ):
        begin, end = int(shard.offsets[number]), int(shard.offsets[number + 1])
        ids = shard.read(begin, begin + length).tolist()
        pieces = [text.get(i) or text.setdefault(i, tokenizer.token(i)) for i in ids]
        learned = loss_of(specimen, index)
        documents.append(
            {
                "name": sources.find(shard.entry, number),
                "tokens": end - begin,
                "bytes": _base64(b"".join(pieces)),
                "lengths": _base64(
                    np.array([len(piece) for piece in pieces], dtype="<u2").tobytes()
                ),
                "loss": None if learned is None else _base64(learned.tobytes()),
            }
        )
    packings = [
        {"name": name, "rows": [[_numbers(part) for part in row] for row in rows]}
        for name, rows in specimen.rows.items()
    ]
    return {"bos": tokenizer.bos_token, "hues": HUES, "documents": documents, "packings": packings}


def _numbers(part: SamplePiece) -> list[int]:
    flags = (part.bos, part.filler, part.cropped)
    return [part.document, part.start, part.length, *map(int, flags)]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
