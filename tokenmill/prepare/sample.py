"""What a dry run learns by reading a little: whether the text is found, how many tokens it has, how much time it takes.

    samples, failures = read_samples(missing, options)      the first MB of text of one file of each format
    measure(samples, tokenizer, "auto")                     Measured(0.31, 1.6e-8, "gigatoken")

It opens files that are here. Files that are still on a hub are not fetched.
"""

import time
from dataclasses import dataclass
from typing import NamedTuple

from tokenmill.prepare.make import load_encoder
from tokenmill.prepare.outcomes import failure_of
from tokenmill.prepare.plan import Failures, Missing, naming_files_that_wait
from tokenmill.prepare.tokenize_documents import text_maker
from tokenmill.text.file_groups import about_text_bytes
from tokenmill.text.formats import ReadOptions
from tokenmill.text.sources import read_documents
from tokenmill.text.units import Documents, FilePart, SourceFile, Unit
from tokenmill.tokenize.tokenizer import Tokenizer

SAMPLE_BYTES = 4 << 20  # of text in a sample
LITTLE = 1 << 16  # bytes of text, from which no rate can be told


class Sample(NamedTuple):
    """The first documents of a unit of work."""

    unit: Unit
    documents: list[Documents]


@dataclass(frozen=True)
class Measured:
    """What a sample says of the rest. Bytes are those of `Unit.text_bytes`."""

    tokens_a_byte: float
    seconds_a_byte: float  # of one worker
    engine: str


def read_samples(missing: Missing, options: ReadOptions) -> tuple[list[Sample], Failures]:
    """The first documents of one file of each format, and the files in which none can be found."""
    units = [*missing.units, *(_whole(file, options) for group in missing.unread for file in group)]
    firsts: dict[str, Unit] = {}
    for unit in sorted(units, key=lambda unit: (unit.files[0].listed_name, unit.files[0].split, unit.number)):
        firsts.setdefault(unit.files[0].format.name, unit)
    samples: list[Sample] = []
    failures: Failures = []
    for unit in firsts.values():
        try:
            samples.append(_read(unit))
        except (ValueError, OSError, MemoryError) as error:
            failures.append((unit.files[0].name, naming_files_that_wait(failure_of(error), unit.files)))
    return samples, failures


def _whole(file: SourceFile, options: ReadOptions) -> Unit:
    return Unit((FilePart(file, options, None, about_text_bytes(file), {}),))


def _read(unit: Unit) -> Sample:
    documents, size = list[Documents](), 0
    for some in read_documents(unit):
        documents.append(some)
        size += some.text_bytes
        if size >= SAMPLE_BYTES:
            break
    return Sample(unit, documents)


def measure(samples: list[Sample], tokenizer: Tokenizer, engine: str) -> Measured | None:
    """Tokenizes the samples; None if they have too little text to tell."""
    tokens, share, seconds, used = 0, 0, 0.0, ""
    for sample in samples:
        if sum(some.text_bytes for some in sample.documents) < LITTLE:
            continue
        encoder, _ = load_encoder(tokenizer, engine, sample.unit)
        started = time.monotonic()
        documents = _read(sample.unit).documents  # again, as the first time loads packages
        reading = time.monotonic() - started
        made = text_maker(encoder, sample.unit)(sample.unit, 0, documents)
        seconds += time.monotonic() - started
        seconds += reading if sample.unit.files[0].val_fraction is not None else 0  # each file is read for each split
        tokens, used = tokens + len(made.tokens), encoder.engine
        share += sum(some.share for some in sample.documents)
    return Measured(tokens / share, seconds / share, used) if share else None
