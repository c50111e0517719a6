"""A trial set of the first documents of a source: `prepare --limit-documents 1000`.

    a.parquet (700 documents), b.parquet (700), c.parquet      ->      all of a.parquet, 300 documents of b.parquet

The set is called NAME-first-1000, so it is not taken for the whole, and its manifest says so too. A fraction of the
documents validates, because the last file is not read. Files of a hub are fetched one by one, until there are enough.
"""

from collections.abc import Callable
from dataclasses import replace

from tokenmill.humanize import counted
from tokenmill.prepare.input_files import InputFiles
from tokenmill.prepare.prepare_config import InputRequest
from tokenmill.text.document_split import FRACTION_OF_LITTLE, split_by_document
from tokenmill.text.formats import ReadOptions
from tokenmill.text.sources import plan_units, read_documents
from tokenmill.text.units import Limit, SourceFile

ALL = 1 << 62  # bytes: one unit of work has all of a file
ABOUT = 4096  # bytes of text in a document that was not fetched yet


def make_trial(
    inputs: InputFiles, request: InputRequest, options: ReadOptions, may_fetch: bool, say: Callable[[str], None]
) -> InputFiles:
    """The input files that have the first documents, the last one of them limited to what is needed.

    A file that is still on the hub is fetched if `may_fetch`; otherwise it is taken to have enough. ValueError
    if a file is damaged or has no such text column.
    """
    assert request.limit_documents is not None, "only trial sets are limited"
    if request.val_file is not None:
        say(f"a trial set reads no validation file, so --val-file {request.val_file} is not used")
    taken: list[SourceFile] = []
    left = documents = request.limit_documents
    few = FRACTION_OF_LITTLE if request.val_fraction is None else request.val_fraction
    for file in sorted(set(_as_training_files(inputs.files)), key=lambda file: file.name):
        if not inputs.is_there(file):
            if not may_fetch:
                taken.append(replace(file, limit=Limit(left, left * ABOUT)))
                say(f"a trial set of the first {counted(documents, 'document')}, from {file.name} on")
                return replace(inputs, files=split_by_document(taken, few), limit_documents=documents)
            for future in inputs.fetch([file]):
                future.result()
        found = _count(file, options, left)
        left -= found.documents
        taken.append(file if left else replace(file, limit=found))
        if not left:
            break
    files = split_by_document(taken, few)
    if left:  # the whole source
        say(f"the source has {counted(documents - left, 'document')} in all, fewer than --limit-documents {documents}")
        return replace(inputs, files=files)
    say(f"a trial set of the first {counted(documents, 'document')}, in {counted(len(taken), 'file')}")
    return replace(inputs, files=files, limit_documents=documents)


def _as_training_files(files: list[SourceFile]) -> list[SourceFile]:
    return [replace(file, name=file.listed_name, split="train", val_fraction=None) for file in files]


def _count(file: SourceFile, options: ReadOptions, most: int) -> Limit:
    """How many documents a file has, up to `most`, and their bytes of text."""
    documents = text_bytes = 0
    for unit in plan_units(replace(file, limit=Limit(most, 0)), options, ALL):
        for some in read_documents(unit):
            documents, text_bytes = documents + len(some.texts), text_bytes + some.text_bytes
    return Limit(documents, text_bytes)
