"""A sample of text that was never prepared: `tokenmill report FILES`.

    found = sample_text(["web/*.jsonl"], "gpt2", "text", print)
    found.lengths, found.whole_bytes / found.text_bytes

Units of prepare's plan are read, evenly spaced, until they have SAMPLE_BYTES, and tokenized in this process.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tokenmill.prepare.config import PrepareConfig
from tokenmill.prepare.run import LITTLE_TEXT
from tokenmill.text.documents import read_unit
from tokenmill.text.listing import list_sources
from tokenmill.text.plan import plan, shard_size
from tokenmill.text.text_arrays import text_lengths
from tokenmill.tokenize.encoder import Encoder, choose_encoder
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
    """Reads and tokenizes a sample. Raises what `prepare` raises, and ValueError for files that are not here."""
    column = PrepareConfig.text_column if text_column is None else text_column
    config = PrepareConfig(tuple(source), name="sample", tokenizer=tokenizer, text_column=column)
    listing = list_sources(config.source)
    for line in listing.left_out:
        say(f"left out {line}")
    if elsewhere := [file.shown for file in listing.files if not file.is_there]:
        raise ValueError(
            f"{elsewhere[0]}: report samples files that are here; fetch some, or prepare first"
        )
    if config.train_size is not None:
        trained = f"data/tokenizers/NAME-bpe{config.train_size}.json, which `prepare` has trained"
        raise ValueError(f"--tokenizer {tokenizer}: report trains none; name one, or {trained}")
    found = load_any(config.tokenizer_name)
    size, every = (
        sum(file.text_bytes for file in listing.files),
        plan(listing.files, config.options, shard_size([])),
    )
    encoder = Encoder(found) if size < LITTLE_TEXT else choose_encoder("auto", found)[0]
    step = max(1, round(size / SAMPLE_BYTES))  # evenly spaced units first
    lengths, text_bytes, read, started = [np.zeros(0, np.int64)], 0, 0.0, time.perf_counter()
    for unit in (unit for first in range(step) for unit in every[first::step]):
        if text_bytes >= SAMPLE_BYTES:
            break
        read += unit.text_bytes
        for documents in read_unit(unit, config.options):
            lengths.append(encoder.encode(documents.texts)[1])
            text_bytes += int(text_lengths(documents.texts).sum())
    seconds, joined = time.perf_counter() - started, np.concatenate(lengths)
    if not len(joined):
        raise ValueError(f"{' '.join(source)}: found no documents to report on")
    whole = round(text_bytes * sum(unit.text_bytes for unit in every) / read)
    return TextSample(joined, text_bytes, whole, seconds, config.workers, encoder)
