"""Splits documents, and not files, between training and validation: `prepare --val-fraction`.

The source may be one file. A hash of a document's text decides where it goes, so it stays there when the file grows,
when other files come, and when you prepare another set; equal texts are never in both splits.

    a.jsonl, 1% validates   ->   a.jsonl           train: the documents whose hash is at least 1% of the largest one
                                 val-of/a.jsonl    val: the others

Both are the same file. It is read twice, and each reading leaves out the documents of the other split.
"""

import zlib
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.text.formats import CONVERSATION_COLUMNS, ReadOptions
from tokenmill.text.units import Documents, FilePart, SourceFile
from tokenmill.text_arrays import mask_array, unchecked_array

HASHES = 1 << 32
FRACTION = 0.01  # that validates by default,
FRACTION_OF_LITTLE = 0.1  # or of a source of less than
LITTLE = 10 << 20  # bytes, of which 1% would be a few documents


def default_fraction(source_bytes: int | None) -> float:
    """How much of a source validates if you do not say so."""
    return FRACTION if source_bytes is None or source_bytes >= LITTLE else FRACTION_OF_LITTLE


def split_by_document(files: Iterable[SourceFile], fraction: float) -> list[SourceFile]:
    """Each file twice: as training file, and as validation file under a name of its own."""
    files = [replace(file, split="train", val_fraction=fraction) for file in files]
    return files + [replace(file, name=f"{SourceFile.VAL_OF}{file.name}", split="val") for file in files]


def both_splits(file: SourceFile) -> list[SourceFile]:
    """The file as each split has it; the file alone if its documents are not split."""
    if file.val_fraction is None:
        return [file]
    return split_by_document([replace(file, name=file.listed_name)], file.val_fraction)


def whole_files(files: Iterable[SourceFile]) -> list[SourceFile]:
    """The files that `split_by_document` was given, all of them in train."""
    return [replace(file, val_fraction=None) for file in files if file.val_fraction is None or file.split == "train"]


def require_documents(files: list[SourceFile], options: ReadOptions) -> None:
    """ValueError if the only file is one document, which cannot be split."""
    file = files[0]
    is_alone = file.val_fraction is not None and len(files) == 2
    if is_alone and "document_separator" in file.format.options and options.document_separator is None:
        raise ValueError(
            f"{file.shown}: found this one file, which is one document, so nothing would be left to validate with; say "
            r"what separates its documents, as --document-separator '\n\n', or name a validation file with --val-file"
        )


def in_split(documents: Documents, part: FilePart) -> Documents:
    """The documents that are in the split of the part's file, and how many are not, in `other_split`."""
    file = part.file
    if file.val_fraction is None:
        return documents
    texts = _conversations(documents.texts, part.options) if part.options.conversations else documents.texts
    validates = _hashes(texts) < round(file.val_fraction * HASHES)
    mask = validates if file.split == "val" else ~validates
    chosen = mask_array(mask)
    texts = documents.texts.filter(chosen)
    found = replace(
        documents,
        texts=texts,
        text_bytes=pc.sum(pc.binary_length(texts)).as_py() or 0,
        share=round(documents.share * file.fraction),
        other_split=int(np.count_nonzero(~mask)),
        kept=None if documents.kept is None else documents.kept.filter(chosen),
    )
    if file.split == "val":  # what is in neither split is counted where the file trains
        for count in ("null_documents", "empty_documents", "broken_lines", "oversized_documents"):
            found.other_split += getattr(found, count)
            setattr(found, count, 0)
        found.repaired_documents = 0
    if (locate := documents.locate) is not None:
        places = np.flatnonzero(mask)
        found.locate = lambda number: locate(int(places[number]))
    return found


def _conversations(rows: pa.LargeStringArray, options: ReadOptions) -> pa.LargeStringArray:
    """What rows of JSON are hashed by: their conversation alone, written in one way, whatever else is beside it."""
    named = CONVERSATION_COLUMNS if options.messages_column is None else (options.messages_column, "tools")
    return unchecked_array([_conversation(row, named) for row in rows.to_pylist()])


def _conversation(row: str, named: tuple[str, ...]) -> bytes:
    try:
        found = orjson.loads(row)
        some = {name: found[name] for name in named if found.get(name) is not None}
        return orjson.dumps(some, option=orjson.OPT_SORT_KEYS) if some else row.encode()
    except (ValueError, TypeError, AttributeError):  # broken: reported, or left out, in whichever split it is
        return row.encode()


def _hashes(texts: pa.LargeStringArray) -> np.ndarray:
    """A hash of each text, the same on every machine: (num_texts,) uint32.

    CRC-32 is fast and not uniform enough for texts that differ in a few digits, so MurmurHash3's finalizer mixes it.
    """
    data = memoryview(texts.buffers()[2] or b"")
    ends = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1].tolist()
    found = [zlib.crc32(data[begin:end]) for begin, end in zip(ends, ends[1:], strict=False)]
    hashes = np.array(found, np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        hashes = (hashes ^ (hashes >> np.uint32(shift))) * np.uint32(factor)
    return hashes
