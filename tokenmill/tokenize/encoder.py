"""Documents -> tokens, with an engine that is proven equal to the reference, or else with the reference.

    the pattern      must be on the engine's list, and the packages must have the pinned versions
    code points      that the engine classes differently are in a table (codepoints.py); the reference encodes
                     documents that have one
    at the start     long pieces, runs of spaces and the first documents are encoded by both
    in every shard   a random sample of documents is encoded by both; a difference fails the shard

So the ids are the reference's, and the engine is not part of a token set's fingerprint. A tokenizer.json that tiktoken
cannot express has no table. When it is loaded, the code points on which the engine and `tokenizers` differ are found,
and both encode some thousand random texts (hard_texts.py). The reference encodes documents with code points that
Python's Unicode version does not know or, if the tokenizer normalizes, that Unicode versions may normalize differently.
"""

import functools
import json
import os
import unicodedata
import zlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tokenmill.store.schema import dtype_name
from tokenmill.store.shards import DTYPES
from tokenmill.text_arrays import mask_array, text_array
from tokenmill.tokenize.codepoints import CodePoints, Located, differing_documents
from tokenmill.tokenize.engines import ENGINES, Encode, Engine, gigatoken_of_json, make_engine, table_name
from tokenmill.tokenize.hard_texts import hard_texts, random_texts
from tokenmill.tokenize.huggingface import HuggingFace
from tokenmill.tokenize.patterns import PATTERNS
from tokenmill.tokenize.tokenizer import Tokenizer

VERSIONS = {"tiktoken": "0.14.0", "tokenizers": "0.23.3"}  # the tables were made against them
CACHE_BYTES = 192 << 20  # an engine whose cache has taken so much memory is made again
SAMPLE_ONE_IN = 512  # documents of a shard that both encode, and its first
CONTEXTS = "a{0}b 1{0}2 !{0}! {0} a {0}{0}"  # in which a code point is compared
SYLLABLE = "a{0}1 {0}{0}"
RANDOM_TEXTS = 4000  # that a tokenizer.json of any kind is compared on


def reference(tokenizer: Tokenizer) -> Encode:
    """tiktoken or `tokenizers`, one document at a time."""

    def encode(documents):
        parts = tokenizer.encode_many(documents.to_pylist())
        ids = np.concatenate([np.empty(0, np.uint32), *parts])
        return ids, np.cumsum([0, *map(len, parts)])

    return encode


class Encoder:
    """Documents to tokens with BOS, with the named engine, and with the reference for documents it is not proven for.

    ValueError, with the reason in one line, if the engine cannot be used with this tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, engine: str = "tiktoken"):
        self.tokenizer, self.engine = tokenizer, engine
        self.dtype = DTYPES[dtype_name(tokenizer.vocab_size)]
        self.is_reference = engine == "tiktoken"
        self._reference = self._fast = reference(tokenizer)
        self._special = CodePoints([])  # which decide what the reference encodes
        self._leaves: list[Callable[[Located], np.ndarray]] = []
        if self.is_reference:
            self.engine = tokenizer.library
        else:
            _require_usable(ENGINES[engine], tokenizer)
            self._renew()
            self._special, self._leaves = _exceptions(ENGINES[engine], tokenizer, self._fast)

    def encode(self, documents: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray, int]:
        """Tokens (num_tokens,) of all documents, BOS first; their lengths; and how many the reference encoded."""
        return self._encode(documents, framed=True)

    def _encode(self, documents: pa.LargeStringArray, framed: bool) -> tuple[np.ndarray, np.ndarray, int]:
        if not self.is_reference and _resident_bytes() > self._small + CACHE_BYTES:
            self._renew()
        refer = self._referred(documents)
        if not refer.any():
            return *self._join([(np.arange(len(documents)), *self._fast(documents))], framed), 0
        parts = []
        for encode, chosen in ((self._fast, ~refer), (self._reference, refer)):
            parts.append((np.flatnonzero(chosen), *encode(documents.filter(mask_array(chosen)))))
        return *self._join(parts, framed), int(refer.sum())

    def encode_texts(self, texts: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray, int]:
        """Ids of texts without BOS: (num_tokens,) in the tokens' dtype; how many each has; how many the reference
        encoded.
        """
        return self._encode(texts, framed=False)

    def _referred(self, documents: pa.LargeStringArray) -> np.ndarray:
        """Which documents the reference has to encode: (num_documents,) bool."""
        none = np.zeros(len(documents), bool)
        if self.is_reference:
            return none
        located = self._special.locate(documents)
        return functools.reduce(np.logical_or, (leaves(located) for leaves in self._leaves), none)

    def prove(self, documents: pa.LargeStringArray, tokens: np.ndarray, lengths: np.ndarray, numbers) -> None:
        """Encodes these documents with the reference too. ValueError, with a short text, if any differ."""
        ends, eot = np.cumsum(lengths), self.tokenizer.eot_token is not None
        for number in numbers if not self.is_reference else ():
            text = documents[int(number)].as_py()
            found = tokens[ends[number] - lengths[number] + 1 : ends[number] - eot]
            if not np.array_equal(found, self.tokenizer.encode(text)):
                raise ValueError(self._difference(text))

    def _renew(self) -> None:
        """Makes the engine again, with an empty cache."""
        self._fast = self._reference
        self._fast = _make(ENGINES[self.engine], self.tokenizer)
        self._small = _resident_bytes()

    def _join(self, parts, with_frame: bool) -> tuple[np.ndarray, np.ndarray]:
        """Puts parts (document numbers, ids, offsets) in the documents' order.

        With a frame, BOS comes before each document and EOT after it.
        """
        framed = (1 if self.tokenizer.eot_token is None else 2) if with_frame else 0
        lengths = np.empty(sum(len(numbers) for numbers, _, _ in parts), np.int64)
        for numbers, ids, offsets in parts:
            lengths[numbers] = np.diff(offsets) + framed
            self._require_no_bos(ids)
        ends = np.cumsum(lengths)
        begins = ends - lengths
        tokens = np.empty(lengths.sum(), self.dtype)
        if framed:
            tokens[begins] = self.tokenizer.bos_id
        if framed == 2:
            tokens[ends - 1] = self.tokenizer.eot_id
        target = tokens.data
        for numbers, ids, offsets in parts:
            source, edges = ids.astype(self.dtype).data, offsets.tolist()
            for at, first, last in zip((begins[numbers] + bool(framed)).tolist(), edges[:-1], edges[1:], strict=True):
                target[at : at + last - first] = source[first:last]
        return tokens, lengths

    def _require_no_bos(self, ids: np.ndarray) -> None:
        """ValueError if the tokenizer makes BOS of a text: it may only begin documents."""
        if self.tokenizer.may_make_bos and (ids == self.tokenizer.bos_id).any():
            raise ValueError(
                f"tokenizer {self.tokenizer.name} makes its {self.tokenizer.bos_token} of ordinary text; "
                "name another special token by --bos-token"
            )

    def _difference(self, text: str) -> str:
        text = _smallest(text, self._differs)
        ids = [encode(text_array([text]))[0].tolist() for encode in (self._fast, self._reference)]
        return (
            f"{self.engine} and {self.tokenizer.library} encode {text!r} differently: {ids[0]} and {ids[1]}; "
            "run again with --engine tiktoken, and please report it"
        )

    def _differs(self, text: str) -> bool:
        documents = text_array([text])
        return bool(differing_documents(self._fast(documents), self._reference(documents)))


def sample(shard: str, first: int, count: int) -> np.ndarray:
    """Which of a shard's `count` documents from `first` on are proven: their numbers among these."""
    rng = np.random.default_rng([zlib.crc32(shard.encode()), first])
    chosen = rng.integers(SAMPLE_ONE_IN, size=count) == 0
    chosen[: first == 0] = True
    return np.flatnonzero(chosen)


def choose_encoder(wanted: str, tokenizer: Tokenizer, first_documents: pa.LargeStringArray) -> tuple[Encoder, str]:
    """What to encode with; and why not a faster engine, or "". Proving it takes a fraction of a second.

    "auto" takes the fastest engine that is proven, or else the reference. ValueError if another engine is named and is
    not proven.
    """
    reasons = []
    for name in {"auto": list(ENGINES), "tiktoken": []}.get(wanted, [wanted]):
        try:
            encoder = Encoder(tokenizer, name)
            _prove_at_start(encoder, first_documents)
            return encoder, ""
        except ValueError as error:
            reasons.append(str(error))
    if wanted not in ("auto", "tiktoken"):
        raise ValueError(f"--engine {wanted}: {reasons[0]}; use --engine auto or tiktoken")
    return Encoder(tokenizer), "; ".join(reasons)


def require_engine(wanted: str, tokenizer: Tokenizer) -> None:
    """ValueError if the named engine is missing, has another version, or does not know this tokenizer's pattern."""
    if wanted in ENGINES:
        try:
            _require_usable(ENGINES[wanted], tokenizer)
        except ValueError as error:
            raise ValueError(f"--engine {wanted}: {error}; use --engine auto or tiktoken") from error


def _require_usable(engine: Engine, tokenizer: Tokenizer) -> None:
    import importlib.metadata  # takes a twentieth of a second

    library = tokenizer.library
    for package, version in ((engine.name, engine.version), (library, VERSIONS[library])):
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise ValueError(f"{engine.name} is not installed (pip install {package}=={version})") from None
        if found != version:
            raise ValueError(f"{engine.name} is proven with {package} {version}, found {found}")
    if isinstance(tokenizer, HuggingFace):
        if token := _matched_otherwise(tokenizer):
            raise ValueError(f"{engine.name} does not match the added token {token!r} as {library} does")
    elif PATTERNS.get(tokenizer.pattern) not in engine.patterns:
        raise ValueError(f"{engine.name} is not proven with the split pattern of tokenizer {tokenizer.name}")


def _matched_otherwise(tokenizer: HuggingFace) -> str | None:
    """An added token that only the library matches: as a single word, or in normalized text."""
    normalizes = json.loads(tokenizer.whole).get("normalizer") is not None
    for token in tokenizer.added:
        if token.get("single_word") or (token.get("normalized") and normalizes):
            content: str = token["content"]
            return content
    return None


def _resident_bytes() -> int:
    """Memory that belongs to this process alone; 0 if the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _make(engine: Engine, tokenizer: Tokenizer) -> Encode:
    try:
        if isinstance(tokenizer, HuggingFace):
            return gigatoken_of_json(tokenizer.unspelled)
        return make_engine(engine, tokenizer.ranks, tokenizer.pattern)
    except BaseException as error:  # it may raise anything for a vocabulary that it does not know, even a Rust panic
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{engine.name} cannot load the vocabulary of {tokenizer.name}: {reason}") from error


# ---------------------------------------------------------------------------- proving


def _exceptions(
    engine: Engine, tokenizer: Tokenizer, fast: Encode
) -> tuple[CodePoints, list[Callable[[Located], np.ndarray]]]:
    """The code points that decide which documents the reference has to encode, and functions that find these."""
    if isinstance(tokenizer, HuggingFace):
        table = _compared(tokenizer, fast) | _renormalized(tokenizer)
        return table, [_having(table)]
    table = CodePoints.load(table_name(engine, tokenizer.pattern))
    if (left := engine.leaves(tokenizer.pattern)) is None:
        return table, [_having(table)]
    others, leaves = left
    return table | others, [_having(table), leaves]


def _having(table: CodePoints) -> Callable[[Located], np.ndarray]:
    return lambda located: located.documents(located.places[table.has(located.codes)])


def _compared(tokenizer: HuggingFace, fast: Encode) -> CodePoints:
    """The code points that the engine and the reference encode differently, and those of no known kind."""
    kinds = [(code, unicodedata.category(chr(code))) for code in range(0x80, 0x110000)]
    unknown = [code for code, kind in kinds if kind in ("Cn", "Co")]
    known = [code for code, kind in kinds if kind not in ("Cn", "Co", "Cs")]
    documents = text_array([(SYLLABLE if _is_syllable(code) else CONTEXTS).format(chr(code)) for code in known])
    try:
        differ = differing_documents(fast(documents), reference(tokenizer)(documents))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise ValueError(f"an engine failed on the characters of {tokenizer.name}: {error}") from error
    return CodePoints([*unknown, *(known[number] for number in differ)])


def _is_syllable(code: int) -> bool:
    """Whether it is an ideograph or a Hangul syllable: 110,000 letters of a kind, compared in fewer contexts."""
    return 0x3400 <= code < 0xA000 or 0xAC00 <= code < 0xD7A4 or 0x20000 <= code < 0x40000


def _renormalized(tokenizer: HuggingFace) -> CodePoints:
    """The code points that two libraries may normalize differently, if the tokenizer normalizes.

    Once a character is assigned, Unicode never changes how it is normalized (its stability policy, since 3.2). So
    libraries of different years differ only in characters that are newer than the older of them, and only in those that
    combine, decompose or compose.
    """
    if json.loads(tokenizer.whole).get("normalizer") is None:
        return CodePoints([])
    newer = [c for c in map(chr, range(0x80, 0x110000)) if unicodedata.ucd_3_2_0.category(c) == "Cn"]
    newer = [c for c in newer if unicodedata.category(c) != "Cn"]
    decomposed = {c: unicodedata.decomposition(c) for c in newer}
    parts = {chr(int(part, 16)) for text in decomposed.values() for part in text.split() if part[0] != "<"}
    return CodePoints(ord(c) for c in newer if decomposed[c] or c in parts or unicodedata.combining(c))


def _prove_at_start(encoder: Encoder, first_documents: pa.LargeStringArray) -> None:
    tokenizer = encoder.tokenizer
    texts = hard_texts(tokenizer.special_tokens)
    if isinstance(tokenizer, HuggingFace):  # its normalizer and splits may be of a kind that nobody has tried
        texts = hard_texts([*tokenizer.special_tokens, *(token["content"] for token in tokenizer.added)])
        texts += random_texts(RANDOM_TEXTS, seed=0)
    for documents in (text_array(texts), first_documents):
        tokens, lengths, _ = encoder.encode(documents)
        encoder.prove(documents, tokens, lengths, range(len(documents)))


def _smallest(text: str, differs: Callable[[str], bool]) -> str:
    """A short part of a text that still differs: cuts away halves, quarters ... as long as it does."""
    step = len(text) // 2
    while step:
        start = 0
        while start < len(text):
            shorter = text[:start] + text[start + step :]
            if differs(shorter):
                text = shorter
            else:
                start += step
        step //= 2
    return text
