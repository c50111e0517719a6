"""Which documents gigatoken leaves to the reference.

    codes = code_points_of(tokenizer, fast, reference(tokenizer))
    refers = refers_of(tokenizer, codes)
    refers(documents)                 which the reference has to encode: (num_documents,) bool

To the reference go documents with

    code points classed otherwise     DIFFERING, for tiktoken's split patterns (tests/tables.py);
                                      for others, those that differ when it is loaded, and those
                                      that are unassigned
    code points normalized otherwise  where the tokenizer normalizes: newer than Unicode 3.2
    added tokens of some kinds        those with flags, or matched in the normalized text
    numbers beyond ASCII              where a tokenizer splits single digits
"""

import json
import re
import unicodedata
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.tokenize import patterns
from tokenmill.tokenize.codepoints import CodePoints, differing_documents
from tokenmill.tokenize.engine import Encode, Refers
from tokenmill.tokenize.huggingface import FLAGS, HuggingFace
from tokenmill.tokenize.libraries import naming_the_library
from tokenmill.tokenize.spelling import LOW_LINE
from tokenmill.tokenize.tokenizer import Tokenizer

NAME = "gigatoken"
SPACES = (" ", LOW_LINE)
# of a step that puts a space before a text
PREFIX = re.compile(r'"add_prefix_space": true|"type": "(Prepend|Metaspace)"')
# first and last code points that it classes otherwise, with one of patterns.py
# fmt: off
DIFFERING = [
    (2191, 2191), (3164, 3164), (3292, 3292), (6863, 6877), (6880, 6891), (42958, 42959),
    (42962, 42962), (42964, 42964), (42993, 42993), (67904, 67929), (69317, 69319),
    (69370, 69371), (72544, 72551), (73136, 73179), (73184, 73193), (93856, 93880),
    (93883, 93907), (94194, 94198), (100344, 100351), (101641, 101662), (101760, 101874),
    (124608, 124638), (124640, 124661), (124670, 124671), (177978, 177983), (183970, 183981),
    (205744, 210041),
]
# fmt: on
CONTEXTS = "a{0}b 1{0}2 !{0}! {0}{0} A{0}b"  # in which a code point is compared
COMPARED = 32  # code points at a time
# of so many letters without case that Unicode 3.2 had, as ideographs, one is compared
OLD_LETTERS = 16
ASSIGNED = (range(0x80, 0x40000), range(0xE0000, 0xE1000))  # where code points of a known kind are
IDEOGRAPHS = range(0x20000, 0x40000)  # newer ones, compared in fewer contexts
IN_FEWER = "a{0}1 {0}{0}"
UNASSIGNED = "Cn"
OF_NO_KIND = (UNASSIGNED, "Co", "Cs")


def code_points_of(tokenizer: Tokenizer, fast: Encode, reference: Encode) -> np.ndarray:
    """The code points that the reference has to encode: (num_code_points,) int.

    ValueError if the engine fails on some characters.
    """
    if isinstance(tokenizer, HuggingFace):
        codes = [_compared(tokenizer, fast, reference), _renormalized(tokenizer)]
        splits_numbers = splits_digits(tokenizer)
    else:
        codes = [np.arange(first, last + 1) for first, last in DIFFERING]
        splits_numbers = tokenizer.pattern == patterns.NANOCHAT_PATTERN
    if splits_numbers:
        codes.append(patterns.numbers())
    return np.concatenate(codes)


def refers_of(tokenizer: Tokenizer, code_points: np.ndarray) -> Refers:
    """Tells which documents the reference has to encode: those with such code points, or tokens."""
    with_codes = CodePoints(code_points).among
    if not isinstance(tokenizer, HuggingFace):
        return with_codes
    flagged, in_normalized = _flagged_tokens(tokenizer)
    if not flagged:
        return with_codes
    normalizer = tokenizer.encoding_of_texts.normalizer if in_normalized else None
    forms = set(flagged)
    if normalizer is not None:
        forms.update(map(normalizer.normalize_str, in_normalized))
    pattern = "|".join(map(re.escape, sorted(forms)))

    def refers(documents: pa.LargeStringArray) -> np.ndarray:
        is_referred = with_codes(documents)
        is_referred |= _match(pattern, documents)
        if normalizer is not None:
            texts = map(normalizer.normalize_str, documents.to_pylist())
            is_referred |= _match(pattern, pa.array(texts, pa.large_string()))
        return is_referred

    return refers


def _match(pattern: str, texts: pa.LargeStringArray) -> np.ndarray:
    return pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False)


def _flagged_tokens(tokenizer: HuggingFace) -> tuple[list[str], list[str]]:
    """Added tokens that only the library matches; and those of them in the normalized text."""
    normalized = [token["content"] for token in tokenizer.added if token.get("normalized")]
    verbatim = [token["content"] for token in tokenizer.added if not token.get("normalized")]
    beyond_ascii = [text for text in verbatim if not text.isascii()]
    in_normalized = normalized + beyond_ascii if normalizes(tokenizer) else []
    overlapping = normalized if verbatim else []  # tokens of the two kinds may overlap
    with_flags = [
        token["content"] for token in tokenizer.added if any(token.get(flag) for flag in FLAGS)
    ]
    behind_a_space = []
    if _adds_a_space(tokenizer):  # the engine does so before it looks for tokens
        spaced = [text for text in normalized + verbatim if text.startswith(SPACES)]
        behind_a_space = [text[1:] for text in spaced]
    return [*in_normalized, *overlapping, *with_flags, *behind_a_space], in_normalized


def _adds_a_space(tokenizer: HuggingFace) -> bool:
    """Whether it adds a space before a text."""
    steps = json.dumps([tokenizer.parts.get(part) for part in ("normalizer", "pre_tokenizer")])
    return PREFIX.search(steps) is not None


def _compared(tokenizer: HuggingFace, fast: Encode, reference: Encode) -> np.ndarray:
    """The code points that both encode differently, and those of no known kind."""
    known = _known_code_points()
    unknown = np.setdiff1d(np.r_[0x80:0xD800, 0xE000:0x110000], known, assume_unique=True)
    compared = [code for code in known if _is_compared(code)]
    groups = [compared[begin : begin + COMPARED] for begin in range(0, len(compared), COMPARED)]

    def differing(texts: list[str]) -> list[int]:
        documents = pa.array(texts, pa.large_string())
        with naming_the_library(NAME, tokenizer.name):
            return differing_documents(fast(documents), reference(documents))

    in_doubt: list[int] = []  # in groups that differ
    for number in differing(["\n".join(map(_in_contexts, group)) for group in groups]):
        in_doubt += groups[number]
    different = [in_doubt[number] for number in differing(list(map(_in_contexts, in_doubt)))]
    return np.concatenate([unknown, np.array(different, int)])


def _in_contexts(code: int) -> str:
    """A code point among others, in which kinds of characters differ."""
    contexts = IN_FEWER if code in IDEOGRAPHS else CONTEXTS
    return contexts.format(chr(code))


def _known_code_points() -> list[int]:
    """Those of a known kind, beyond ASCII."""
    known: list[int] = []
    for codes in ASSIGNED:
        known += [code for code in codes if unicodedata.category(chr(code)) not in OF_NO_KIND]
    return known


def _is_compared(code: int) -> bool:
    """Whether a code point is compared, and not one of its like."""
    is_old_letter = unicodedata.ucd_3_2_0.category(chr(code)) == "Lo"
    return code % OLD_LETTERS == 0 or not is_old_letter


def normalizes(tokenizer: HuggingFace) -> bool:
    normalizer = tokenizer.parts.get("normalizer")
    return normalizer is not None and normalizer.get("normalizers") != []


def steps_of(tokenizer: HuggingFace) -> list[dict[str, Any]]:
    """The steps of a pre-tokenizer."""
    step = tokenizer.parts.get("pre_tokenizer")
    if not step:
        return []
    steps: list[dict[str, Any]] = step.get("pretokenizers", [step])
    return steps


def splits_digits(tokenizer: HuggingFace) -> bool:
    """Whether it cuts a text at each digit first, as SmolLM's and StarCoder's."""
    steps = steps_of(tokenizer)
    if len(steps) < 2:
        return False
    return steps[0].get("type") == "Digits" and steps[0].get("individual_digits") is True


def _renormalized(tokenizer: HuggingFace) -> np.ndarray:
    """The code points that two libraries may normalize differently, if the tokenizer normalizes.

    Once a character is assigned, Unicode never changes how it is normalized (its stability policy,
    since 3.2). So libraries of different years differ only in characters that are newer than the
    older of them, and only in those that combine, decompose or compose.
    """
    if not normalizes(tokenizer):
        return np.array([], int)
    decompositions: dict[str, str] = {}  # of the newer characters
    for codes in ASSIGNED:
        for character in map(chr, codes):
            is_newer = unicodedata.ucd_3_2_0.category(character) == UNASSIGNED
            if is_newer and unicodedata.category(character) != UNASSIGNED:
                decompositions[character] = unicodedata.decomposition(character)
    composing: set[str] = set()
    for decomposition in decompositions.values():
        parts = [part for part in decomposition.split() if part[0] != "<"]
        composing.update(chr(int(part, 16)) for part in parts)
    changed = []
    for character, decomposition in decompositions.items():
        if decomposition or character in composing or unicodedata.combining(character):
            changed.append(ord(character))
    return np.array(changed, int)
