"""The first documents of a file, for a trial set: `prepare --limit-documents`."""

from collections.abc import Iterator
from dataclasses import replace

import pyarrow.compute as pc

from tokenmill.text.units import Documents, Limit


def first_documents(stream: Iterator[Documents], limit: Limit | None) -> Iterator[Documents]:
    """The stream up to `limit.documents` documents, not counting those left out; all of it if `limit` is None."""
    if limit is None:
        yield from stream
        return
    left = limit.documents
    for documents in stream:
        if left < len(documents.texts):
            documents = _first(documents, left)
        left -= len(documents.texts)
        yield documents
        if not left:
            return


def _first(documents: Documents, count: int) -> Documents:
    texts = documents.texts.slice(0, count)
    return replace(
        documents,
        texts=texts,
        text_bytes=pc.sum(pc.binary_length(texts)).as_py() or 0,
        kept=None if documents.kept is None else documents.kept.slice(0, count),
    )
