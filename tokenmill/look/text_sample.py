"""A sample of text that was never prepared: `tokenmill report FILES`.

    found = sample_text(["web/*.jsonl"], "gpt2", "text", print)
    found.lengths, found.whole_bytes / found.text_bytes

Units of prepare's plan are read in a random order, until they are SAMPLE_BYTES, and tokenized in this process.
"""

import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tokenmill.prepare.choose_tokenizer import find_tokenizer
from tokenmill.prepare.config import PrepareConfig
from tokenmill.prepare.input_files import list_files
from tokenmill.text.documents import read_unit, text_lengths
from tokenmill.text.plan import plan, shard_size
from tokenmill.tokenize.encoder import Encoder, choose_encoder

SAMPLE_BYTES = 64 << 20  # of text
LITTLE_TEXT = 1 << 20  # bytes, for which no faster engine is proven


class TextSample(NamedTuple):
    """What was read, and what that says of the whole."""

    lengths: np.ndarray  # (documents,) int64: their tokens, BOS counted
    text_bytes: int  # of these documents
    whole_bytes: int  # of text in all files, about
    seconds: float  # that reading and tokenizing the sample took, on one core
    token_bytes: int  # 2 or 4, of a token on the disk
    encoder: Encoder


def sample_text(source: Sequence[str], tokenizer: str, text_column: str, say: Callable[[str], None]) -> TextSample:
    """Reads and tokenizes a sample. Raises what `prepare` raises, and ValueError for files that are not here."""
    config = PrepareConfig(tuple(source), name="sample", tokenizer=tokenizer, text_column=text_column, dry_run=True)
    files, config = list_files(config, say)
    if elsewhere := [file.shown for file in files if not file.is_there]:
        raise ValueError(f"{elsewhere[0]}: report samples files that are here; fetch some, or prepare first")
    found = find_tokenizer(config, files, say)
    if found is None:
        raise ValueError(f"--tokenizer {tokenizer}: is not trained yet; name another, or prepare first")
    whole = sum(file.text_bytes for file in files)
    encoder = Encoder(found) if whole < LITTLE_TEXT else choose_encoder("auto", found)[0]
    units = plan(files, config.options, shard_size([]))
    random.Random(0).shuffle(units)
    lengths, text_bytes, started = [np.zeros(0, np.int64)], 0, time.perf_counter()
    for documents in (documents for unit in units for documents in read_unit(unit, config.options)):
        lengths.append(encoder.encode(documents.texts)[1])
        text_bytes += int(text_lengths(documents.texts).sum())
        if text_bytes >= SAMPLE_BYTES:
            break
    seconds, joined = time.perf_counter() - started, np.concatenate(lengths)
    if not len(joined):
        raise ValueError(f"{' '.join(source)}: found no documents to report on")
    return TextSample(joined, text_bytes, max(round(whole), text_bytes), seconds, encoder.dtype.itemsize, encoder)
