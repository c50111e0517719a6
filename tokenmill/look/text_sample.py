"""A sample of text that was never prepared: `tokenmill report FILES`.

    sample = sample_text(["web/*.jsonl"], "gpt2", "text", print)
    sample.lengths, sample.whole_bytes / sample.text_bytes

Units of prepare's plan are read, evenly spaced, until they have SAMPLE_BYTES, and tokenized in this
process.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tokenmill.prepare.config import PrepareConfig
from tokenmill.text.documents import read_unit
from tokenmill.text.listing import list_sources
from tokenmill.text.plan import Unit, plan, shard_size
from tokenmill.text.source_file import SourceFile
from tokenmill.text.text_arrays import text_lengths
from tokenmill.tokenize.encoder import Encoder, choose_encoder, engine_pays
from tokenmill.tokenize.engine import REFERENCE
from tokenmill.tokenize.load import load_any

SAMPLE_BYTES = 64 << 20  # of text


class TextSample(NamedTuple):
    """What was read, and what that says of the whole."""

    lengths: np.ndarray  # (documents,) int64: their tokens, BOS counted
    text_bytes: int  # of these documents
    whole_bytes: int  # of text in all files, about
    seconds: float  # that reading and tokenizing the sample took, on one core
    cores: int  # that preparing would use
    encoder: Encoder


def sample_text(
    source: Sequence[str],
    tokenizer: str | None,
    text_column: str | None,
    say: Callable[[str], None],
) -> TextSample:
    """Reads and tokenizes a sample.

    Raises what `prepare` raises, and ValueError for files that are not here.
    """
    column = PrepareConfig.text_column if text_column is None else text_column
    config = PrepareConfig(tuple(source), name="sample", tokenizer=tokenizer, text_column=column)
    files = _files_here(config, say)
    if config.train_size is not None:
        raise ValueError(
            f"--tokenizer {tokenizer}: report trains none; name one, or "
            f"data/tokenizers/NAME-bpe{config.train_size}.json, which `prepare` has trained"
        )
    loaded = load_any(config.tokenizer_name)
    size = sum(file.text_bytes for file in files)
    units = plan(files, config.options, shard_size([]))
    engine = "auto" if engine_pays(loaded, min(size, SAMPLE_BYTES)) else REFERENCE
    encoder, _ = choose_encoder(engine, loaded)
    lengths = [np.zeros(0, np.int64)]
    text_bytes = 0
    file_bytes = 0.0  # of the units that were read
    started = time.perf_counter()
    for unit in _evenly_spaced(units, size):
        if text_bytes >= SAMPLE_BYTES:
            break
        file_bytes += unit.text_bytes
        for documents in read_unit(unit, config.options):
            _, document_lengths, _ = encoder.encode(documents.texts)
            lengths.append(document_lengths)
            text_bytes += int(text_lengths(documents.texts).sum())
    seconds = time.perf_counter() - started
    all_lengths = np.concatenate(lengths)
    if not len(all_lengths):
        names = " ".join(source)
        raise ValueError(f"{names}: found no documents to report on")
    total = sum(unit.text_bytes for unit in units)
    whole_bytes = round(text_bytes * total / file_bytes)
    return TextSample(all_lengths, text_bytes, whole_bytes, seconds, config.workers, encoder)


def _files_here(config: PrepareConfig, say: Callable[[str], None]) -> Sequence[SourceFile]:
    listing = list_sources(config.source)
    for line in listing.left_out:
        say(f"left out {line}")
    elsewhere = [file.shown for file in listing.files if not file.is_there]
    if elsewhere:
        raise ValueError(
            f"{elsewhere[0]}: report samples files that are here; fetch some, or prepare first"
        )
    return listing.files


def _evenly_spaced(units: Sequence[Unit], size: float) -> Iterator[Unit]:
    """All units, those first that make an evenly spaced sample of SAMPLE_BYTES."""
    step = max(1, round(size / SAMPLE_BYTES))
    for first in range(step):
        yield from units[first::step]
