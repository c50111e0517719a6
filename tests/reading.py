"""Reads files of text as the workers do, for tests: every unit of a plan, one after the other."""

from collections import Counter
from pathlib import Path

from tokenmill.text.documents import DocumentBatch, read_unit
from tokenmill.text.formats import ReadOptions
from tokenmill.text.plan import Unit, plan
from tokenmill.text.source_file import SourceFile

EVERYTHING = 1 << 40
BY_DEFAULT = ReadOptions()


def source_file(path: Path, val_share: float = 0.0) -> SourceFile:
    return SourceFile(path.name, str(path), path.stat().st_size, val_share)


def units_of(path: Path, options: ReadOptions = BY_DEFAULT, size: int = EVERYTHING) -> list[Unit]:
    return plan([source_file(path)], options, size)


def read(
    path: Path, options: ReadOptions = BY_DEFAULT, size: int = EVERYTHING
) -> list[DocumentBatch]:
    return [
        documents
        for unit in units_of(path, options, size)
        for documents in read_unit(unit, options)
    ]


def texts_of(path: Path, options: ReadOptions = BY_DEFAULT, size: int = EVERYTHING) -> list[str]:
    return [text for documents in read(path, options, size) for text in documents.texts.to_pylist()]


def counts_of(
    path: Path, options: ReadOptions = BY_DEFAULT, size: int = EVERYTHING
) -> dict[str, int]:
    return dict(+sum((documents.counts for documents in read(path, options, size)), Counter()))
