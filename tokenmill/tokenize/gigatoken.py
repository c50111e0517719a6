"""gigatoken, an engine that is ten times as fast as a reference: how it is made, and what it must not encode.

    fast = make(tokenizer)            documents, an Arrow array of text -> ids, offsets
    refers = refers_of(tokenizer, fast, reference(tokenizer))
    refers(documents)                 which of them the reference has to encode: (num_documents,) bool

To the reference go documents with
    code points that it classes otherwise     DIFFERING, for tiktoken's split patterns (tests/tables.py); for others,
                                              those that differ when it is loaded, and those that are unassigned
    code points that normalize otherwise      where the tokenizer normalizes: those that are newer than Unicode 3.2
    added tokens that only the library        those with flags, or that are matched in the normalized text
    numbers beyond ASCII                      where a tokenizer splits single digits

encoder.py proves it. It must start no thread, as workers are forked from a process that has used it.
"""

import base64
import importlib.metadata
import json
import re
import tempfile
import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.tokenize import patterns
from tokenmill.tokenize.codepoints import CodePoints, differing_documents, text_buffers
from tokenmill.tokenize.huggingface import FLAGS, HuggingFace, added_token, unspelled
from tokenmill.tokenize.tokenizer import Tokenizer, naming_the_library

Encode = Callable[
    [pa.LargeStringArray], tuple[np.ndarray, np.ndarray]
]  # documents -> ids uint32, offsets int64
Refers = Callable[[pa.LargeStringArray], np.ndarray]

NAME = "gigatoken"
VERSIONS = {NAME: "0.10.0", "tiktoken": "0.14.0", "tokenizers": "0.23.3"}  # that it was proven with
# what it calls each split pattern; patterns.py adds how nanochat's splits digits
PRETOKENIZERS = {
    patterns.GPT2_PATTERN: "gpt2",
    patterns.CL100K_PATTERN: "cl100k",
    patterns.LLAMA3_PATTERN: "olmo3",
    patterns.QWEN2_PATTERN: "qwen2",
    patterns.NANOCHAT_PATTERN: "qwen2",
    patterns.O200K_PATTERN: "o200k",
}
# first and last code points that it classes otherwise, with one of these patterns
DIFFERING = [
    *[
        (2191, 2191),
        (3164, 3164),
        (3292, 3292),
        (6863, 6877),
        (6880, 6891),
        (42958, 42959),
        (42962, 42962),
    ],
    *[
        (42964, 42964),
        (42993, 42993),
        (67904, 67929),
        (69317, 69319),
        (69370, 69371),
        (72544, 72551),
    ],
    *[
        (73136, 73179),
        (73184, 73193),
        (93856, 93880),
        (93883, 93907),
        (94194, 94198),
        (100344, 100351),
    ],
    *[
        (101641, 101662),
        (101760, 101874),
        (124608, 124638),
        (124640, 124661),
        (124670, 124671),
        (177978, 177983),
    ],
    *[(183970, 183981), (205744, 210041)],
]
STEPS = ("Split", "ByteLevel", "Digits", "Metaspace")  # of a pre-tokenizer, that the proof covers
CONTEXTS = "a{0}b 1{0}2 !{0}! {0}{0} A{0}b"  # in which a code point is compared
COMPARED = 32  # code points at a time
OLD_LETTERS = (
    16  # of so many letters without case that Unicode 3.2 had, as ideographs, one is compared
)
ASSIGNED = (range(0x80, 0x40000), range(0xE0000, 0xE1000))  # where code points of a known kind are
IDEOGRAPHS = range(0x20000, 0x40000)  # newer ones, compared in fewer contexts
IN_FEWER = "a{0}1 {0}{0}"


def require_usable(tokenizer: Tokenizer) -> None:
    """ValueError if the engine is missing, is of another version, or cannot be proven with this tokenizer."""
    for package in (NAME, tokenizer.library):
        installed = [one.version for one in importlib.metadata.distributions(name=package)][:1]
        if installed != [VERSIONS[package]]:
            found = "".join(installed) or "none"
            raise ValueError(f"{NAME} is proven with {package} {VERSIONS[package]}, found {found}")
    if not isinstance(tokenizer, HuggingFace):
        if tokenizer.pattern not in PRETOKENIZERS:
            raise ValueError(
                f"{NAME} is not proven with the split pattern of tokenizer {tokenizer.name}"
            )
        return
    for step in _steps(
        tokenizer
    ):  # a random text would not show what a step does to a certain word
        pattern = step.get("pattern", {"String": " "})  # Gemma's is a space, which the proof has
        is_whole = (step.get("behavior"), step.get("invert")) in (
            ("Isolated", False),
            ("Removed", True),
        )
        if step.get("type") not in STEPS or not (
            pattern == {"String": " "} or (is_whole and "Regex" in pattern)
        ):
            raise ValueError(
                f"{NAME} is not proven with a {step.get('type')} step like that of {tokenizer.name}"
            )
    merges = tokenizer.parts["model"].get("merges") or []
    if len(set(map(str, merges))) < len(merges):
        raise ValueError(
            f"{NAME} is not proven with merges that are there twice, as in {tokenizer.name}"
        )


def make(tokenizer: Tokenizer) -> Encode:
    """The engine for a tokenizer. ValueError, with the reason, if it cannot load the vocabulary."""
    with naming_the_library(NAME, tokenizer.name):
        if not isinstance(tokenizer, HuggingFace):
            return _of_ranks(tokenizer)
        import gigatoken

        parts = unspelled(tokenizer)
        if not _normalizes(tokenizer):
            parts["normalizer"] = None
        if _splits_digits(
            tokenizer
        ):  # to the engine, they are tokens that match before the text is split
            _, *steps = parts["pre_tokenizer"]["pretokenizers"]
            parts["pre_tokenizer"] = (
                steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}
            )
            vocab = parts["model"]["vocab"]
            parts["added_tokens"] += [
                added_token(vocab[digit], digit, special=False) for digit in "0123456789"
            ]
        loaded = gigatoken.Tokenizer.from_json(json.dumps(parts, ensure_ascii=False))
        return lambda documents: _encode(loaded, documents)


def _of_ranks(tokenizer: Tokenizer) -> Encode:
    import gigatoken

    ranks = sorted(tokenizer.ranks.items(), key=lambda item: item[1])
    ids = np.array([id for _, id in ranks], np.uint32)
    with tempfile.NamedTemporaryFile(suffix=".tiktoken") as file:
        file.writelines(
            base64.b64encode(token) + b" %d\n" % rank for rank, (token, _) in enumerate(ranks)
        )
        file.flush()
        loaded = gigatoken.Tokenizer.from_tiktoken(
            file.name, pretokenizer=PRETOKENIZERS[tokenizer.pattern]
        )
    is_nanochat, has_holes = (
        tokenizer.pattern == patterns.NANOCHAT_PATTERN,
        bool(len(ids)) and ids[-1] != len(ids) - 1,
    )
    pairs = (
        patterns.DigitPairs({token: rank for rank, (token, _) in enumerate(ranks)})
        if is_nanochat
        else None
    )

    def encode(documents: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
        found, offsets = _encode(loaded, documents)
        found, offsets = (found, offsets) if pairs is None else pairs.join(found, offsets)
        return ids[found] if has_holes else found, offsets

    return encode


def _encode(loaded: Any, documents: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    """The UTF-8 of one document at a time: as fast as encode_batch, which imports awkward, a third of a second."""
    offsets, data = text_buffers(documents)
    text, edges = data.data, offsets.tolist()
    parts = [
        loaded.encode(text[begin:end].tobytes())
        for begin, end in zip(edges[:-1], edges[1:], strict=True)
    ]
    return np.concatenate([np.empty(0, np.uint32), *parts]), np.cumsum([0, *map(len, parts)])


# ---------------------------------------------------------------------------- what goes to the reference


def refers_of(tokenizer: Tokenizer, fast: Encode, reference: Encode) -> Refers:
    """Tells which documents the reference has to encode. ValueError if the engine fails on some characters."""
    splits_digits, flagged, normalizer = (
        tokenizer.pattern == patterns.NANOCHAT_PATTERN,
        list[str](),
        None,
    )
    codes = np.concatenate([np.arange(first, last + 1) for first, last in DIFFERING])
    if isinstance(tokenizer, HuggingFace):
        codes = np.r_[_compared(tokenizer, fast, reference), _renormalized(tokenizer)]
        splits_digits = _splits_digits(tokenizer)
        kinds = {
            bool(token.get("normalized")) for token in tokenizer.added
        }  # those of two kinds may overlap
        for token in tokenizer.added:
            text, is_normalized = token["content"], bool(token.get("normalized"))
            in_normalized = _normalizes(tokenizer) and (is_normalized or not text.isascii())
            if (
                in_normalized
                or (is_normalized and len(kinds) > 1)
                or any(token.get(flag) for flag in FLAGS)
            ):
                normalizer = tokenizer.encoding_of_texts.normalizer if in_normalized else normalizer
                forms = {text, normalizer.normalize_str(text)} if normalizer is not None else {text}
                flagged += map(re.escape, forms)
    wanted = CodePoints(np.r_[codes, patterns.numbers()] if splits_digits else codes)

    def refers(documents: pa.LargeStringArray) -> np.ndarray:
        found, forms = wanted.among(documents), [documents] if flagged else []
        if normalizer is not None:
            forms.append(
                pa.array(map(normalizer.normalize_str, documents.to_pylist()), pa.large_string())
            )
        for texts in forms:
            found |= pc.match_substring_regex(texts, "|".join(flagged)).to_numpy(
                zero_copy_only=False
            )
        return found

    return refers


def _compared(tokenizer: HuggingFace, fast: Encode, reference: Encode) -> np.ndarray:
    """The code points that the engine and the reference encode differently, and those of no known kind."""
    kinds = {code: unicodedata.category(chr(code)) for codes in ASSIGNED for code in codes}
    known = [code for code, kind in kinds.items() if kind not in ("Cn", "Co", "Cs")]
    unknown = np.setdiff1d(np.r_[0x80:0xD800, 0xE000:0x110000], known, assume_unique=True)
    known = [
        c for c in known if c % OLD_LETTERS == 0 or unicodedata.ucd_3_2_0.category(chr(c)) != "Lo"
    ]

    def differ(texts: list[str]) -> list[int]:
        documents = pa.array(texts, pa.large_string())
        with naming_the_library(NAME, tokenizer.name):
            return differing_documents(fast(documents), reference(documents))

    texts = [(IN_FEWER if code in IDEOGRAPHS else CONTEXTS).format(chr(code)) for code in known]
    groups = ["\n".join(texts[at : at + COMPARED]) for at in range(0, len(texts), COMPARED)]
    numbers = [first * COMPARED + n for first in differ(groups) for n in range(COMPARED)]
    numbers = [number for number in numbers if number < len(texts)]
    return np.r_[
        unknown, [known[numbers[n]] for n in differ([texts[number] for number in numbers])]
    ].astype(int)


def _normalizes(tokenizer: HuggingFace) -> bool:
    normalizer = tokenizer.parts.get("normalizer")
    return normalizer is not None and normalizer.get("normalizers") != []


def _steps(tokenizer: HuggingFace) -> list[dict[str, Any]]:
    step = tokenizer.parts.get("pre_tokenizer") or {}
    found: list[dict[str, Any]] = step.get("pretokenizers", [step] if step else [])
    return found


def _splits_digits(tokenizer: HuggingFace) -> bool:
    """Whether it cuts a text at each digit first, as SmolLM's and StarCoder's."""
    first, *others = _steps(tokenizer) or [{}]
    return bool(others) and first.get("type") == "Digits" and first.get("individual_digits") is True


def _renormalized(tokenizer: HuggingFace) -> np.ndarray:
    """The code points that two libraries may normalize differently, if the tokenizer normalizes.

    Once a character is assigned, Unicode never changes how it is normalized (its stability policy, since 3.2). So
    libraries of different years differ only in characters that are newer than the older of them, and only in those that
    combine, decompose or compose.
    """
    if not _normalizes(tokenizer):
        return np.array([], int)
    newer = [
        c
        for codes in ASSIGNED
        for c in map(chr, codes)
        if unicodedata.ucd_3_2_0.category(c) == "Cn"
    ]
    newer = [c for c in newer if unicodedata.category(c) != "Cn"]
    decomposed = {c: unicodedata.decomposition(c) for c in newer}
    parts = {
        chr(int(part, 16))
        for text in decomposed.values()
        for part in text.split()
        if part[0] != "<"
    }
    return np.array(
        [ord(c) for c in newer if decomposed[c] or c in parts or unicodedata.combining(c)], int
    )
