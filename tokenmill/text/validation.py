"""Which documents validate. The rule is kept when the set grows, so none changes its split.

    1. --val-file or --val-fraction
    2. files or folders with the word val, valid, validation or dev in their names
    3. else 1% of the documents, by a hash of their text; 10% of a source below 10 MiB

Files for tests, by their names, are left out, unless --val-file names files or the source has no
others. Only the user's own word makes more than 20% of the bytes validate.

Where a share of the documents validates, a hash of the text decides, so the same text is always in
the same split, whatever file it is in, and whatever the tokenizer.
"""

import fnmatch
import json
import re
import zlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from tokenmill.store.names import by_number
from tokenmill.text.formats import ReadOptions
from tokenmill.text.listing import abridged
from tokenmill.text.source_file import SourceFile
from tokenmill.text.text_arrays import as_text, text_offsets

# as in web/validation/a.jsonl and test-00000-of-00001.parquet
VALIDATES = re.compile(r"(^|[/_.-])(validation|valid|val|dev)([/_.-]|$)", re.IGNORECASE)
FOR_TESTS = re.compile(r"(^|[/_.-])(test|eval|heldout)([/_.-]|$)", re.IGNORECASE)
FRACTION = 0.01
LITTLE = 10 << 20  # bytes of a source, of which more documents validate
FRACTION_OF_LITTLE = 0.1
MOST = 0.2  # of the bytes, which may validate without the user's word
LAST = "last"
HASHES = 1 << 32

Rule = dict[str, Any]  # of the manifest: {"file": "a.jsonl"}, {"fraction": 0.01}, {"names": true}


def asked_rule(val_file: str | None, val_fraction: float | None) -> Rule | None:
    """What the user's flags say."""
    if val_file is not None:
        return {"file": val_file}
    if val_fraction is not None:
        return {"fraction": val_fraction}
    return None


def find_rule(
    asked: Rule | None,
    files: Sequence[SourceFile],
    former: Rule | None = None,
    shown: str = "",
) -> Rule:
    """What validates, where the user's flags ask for this, or for nothing.

    `former` is the rule of a set that grows: ValueError for another one.
    """
    if asked == {"file": LAST}:
        has_file = former is not None and "file" in former
        asked = former if has_file else {"file": max((file.name for file in files), key=by_number)}
    if former is not None:
        if asked not in (None, former):
            raise ValueError(
                f"{shown}: validates {_in_words(former)}, and cannot now validate "
                f"{_in_words(asked or {})}; leave that flag out, or prepare under another --name"
            )
        return former
    if asked is not None:
        return asked
    if any(VALIDATES.search(file.name) for file in files):
        return {"names": True}
    if sum(file.bytes for file in files) < LITTLE:
        return {"fraction": FRACTION_OF_LITTLE}
    return {"fraction": FRACTION}


def _in_words(rule: Rule) -> str:
    if "fraction" in rule:
        return f"{rule['fraction']:.4g} of all documents (--val-fraction)"
    if "file" in rule:
        return f"{rule['file']} (--val-file)"
    return "the files whose names say so"


def divide(
    files: Sequence[SourceFile], rule: Rule, former: Collection[str] = ()
) -> tuple[list[SourceFile], list[str]]:
    """The files, each with the share of its documents that validates; and sentences that say it.

    `former` are the names of the files of a set that grows, which are never left out. ValueError if
    nothing would be left to train on, or if names alone would make too much of a new set validate.
    """
    pattern = rule.get("file")
    names = [file.name for file in files]
    val_names = _val_names(names, pattern)
    tests = [] if pattern else [name for name in _tests(names) if name not in former]
    left_out = set(tests)
    divided = []
    for file in files:
        if file.name not in left_out:
            val_share = rule.get("fraction", float(file.name in val_names))
            divided.append(replace(file, val_share=val_share))
    validating = [file.name for file in divided if file.val_share == 1.0]
    if pattern and not validating:
        raise FileNotFoundError(
            f"--val-file {pattern}: no such file here or in the source, which has {abridged(names)}"
        )
    if len(validating) == len(divided):
        raise ValueError(
            f"{abridged(validating)} would validate, and nothing would be left to train on; add "
            "training files, or give --val-fraction 0.01"
        )
    text_bytes = sum(file.text_bytes for file in divided)
    share = sum(file.text_bytes * file.val_share for file in divided) / max(1, text_bytes)
    if "names" in rule and share > MOST and not former:
        raise ValueError(
            f"{abridged(validating)} would validate, as the names say, {share:.0%} of the source; "
            "say what validates by --val-file or --val-fraction"
        )
    return divided, _sentences(divided, rule, share, tests)


def _val_names(names: list[str], pattern: str | None) -> set[str]:
    """The files that validate as a whole: by the user's word, or by their names."""
    if pattern is None:
        return set(filter(VALIDATES.search, names))
    return names_matching(names, pattern)


def names_matching(names: list[str], pattern: str) -> set[str]:
    """The names that --val-file means: one, or those of a pattern."""
    return {pattern} if pattern in names else set(fnmatch.filter(names, pattern))


def _tests(names: list[str]) -> list[str]:
    """The files for tests, by their names. A source of tests alone is meant."""
    tests = [name for name in names if FOR_TESTS.search(name) and not VALIDATES.search(name)]
    return [] if tests == names else tests


def _sentences(divided: list[SourceFile], rule: Rule, share: float, tests: list[str]) -> list[str]:
    """What was decided: `share` of the text validates, and `tests` are left out."""
    sentences = []
    if "fraction" in rule:
        sentences.append(
            f"validates: {rule['fraction']:.4g} of the documents, chosen by a hash of their text "
            "(--val-fraction; --val-file names files)"
        )
    validating = [file.name for file in divided if file.val_share == 1.0]
    if validating:
        sentences.append(f"validates: {abridged(validating)}, about {share:.1%} of the text")
    training = [file.name for file in divided if file.val_share < 1.0]
    odd = [name for name in training if VALIDATES.search(name)]
    if rule.get("file"):
        odd = [name for name in training if VALIDATES.search(name) or FOR_TESTS.search(name)]
    if odd:
        sentences.append(
            f"warning: {abridged(odd)}: in the training data, though the name says validation or "
            "test"
        )
    if tests:
        sentences.append(
            f"left out, for tests as the names say: {abridged(tests)}; to use them, name them "
            "alone as --source, or as --val-file"
        )
    return sentences


# ---------------------------------------------------------------------------- by a hash


def is_val(texts: pa.LargeStringArray, share: float, options: ReadOptions) -> np.ndarray:
    """Which of a file's documents validate, if `share` of them do: (num_texts,) bool."""
    if share in (0.0, 1.0):
        return np.full(len(texts), bool(share))
    if options.conversations:
        conversations = [_conversation(row, options) for row in texts.to_pylist()]
        texts = as_text(pa.array(conversations, pa.large_binary()))
    return text_hashes(texts) < round(share * HASHES)


def _conversation(row: str, options: ReadOptions) -> bytes:
    """What a row of JSON is hashed by: its conversation alone, in one spelling."""
    try:
        cells = json.loads(row)
        conversation = {name: cells.get(name) for name in options.conversation_columns}
        conversation = _without_nulls(conversation)
    except (ValueError, AttributeError, RecursionError):
        return row.encode()  # broken: reported, or left out, in whichever split it is
    if not conversation:
        return row.encode()
    return json.dumps(conversation, sort_keys=True).encode()


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def text_hashes(texts: pa.LargeStringArray) -> np.ndarray:
    """A hash of each text, the same on every machine: (num_texts,) uint32.

    CRC-32 is fast and not uniform enough for texts that differ in a few digits, so MurmurHash3's
    finalizer mixes it.
    """
    data = memoryview(texts.buffers()[2] or b"")
    offsets = text_offsets(texts).tolist()
    checksums = [zlib.crc32(data[begin:end]) for begin, end in pairwise(offsets)]
    hashes = np.array(checksums, np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        hashes = (hashes ^ (hashes >> np.uint32(shift))) * np.uint32(factor)
    return hashes
