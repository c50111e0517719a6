"""Engines that encode documents: tiktoken is the reference, faster ones are used where they are proven equal.

An engine takes documents, an Arrow array of text, to flat ids and offsets. What is fast is not trusted:

    the pattern      is on the engine's list, and the versions of both packages are the pinned ones
    code points      that it classes otherwise are in a table (codepoints.py); a document with one goes to tiktoken
    at the start     long pieces, runs of spaces and the first documents are encoded by both
    in every shard   a random sample of documents is encoded by both; a difference fails the shard

so the ids are tiktoken's, and the engine is no part of a token set's fingerprint. gigatoken reads the Arrow
buffers themselves, without a Python string; fastokens knows any pattern, nanochat's too.

Left out: threads. Each engine works on the calling thread, as every core has its process.
"""

import base64
import importlib.metadata
import os
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenmill.store.shards import DTYPES, dtype_name
from tokenmill.tokenize.codepoints import CodePoints, differing_documents, text_buffers
from tokenmill.tokenize.tokenizer import CL100K_PATTERN, GPT2_PATTERN, NANOCHAT_PATTERN, Tokenizer

PATTERNS = {GPT2_PATTERN: "gpt2", CL100K_PATTERN: "cl100k", NANOCHAT_PATTERN: "nanochat"}
TIKTOKEN_VERSION = "0.14.0"  # the tables were made against it
CACHE_BYTES = 192 << 20  # an engine that has taken so much more memory for what it has seen is made anew
SAMPLE_ONE_IN = 512  # documents of a shard that both encode, and its first

Encode = Callable[[pa.LargeStringArray], tuple[np.ndarray, np.ndarray]]  # documents -> ids uint32, offsets int64


@dataclass(frozen=True)
class Engine:
    """A faster engine: its package, and how to make an encoder of ranks and a pattern."""

    name: str
    version: str
    patterns: tuple[str, ...]
    make: Callable[[dict[bytes, int], str], Encode]


def reference(tokenizer: Tokenizer) -> Encode:
    """tiktoken, a document at a time."""

    def encode(documents):
        parts = [np.asarray(tokenizer.encode(text), np.uint32) for text in documents.to_pylist()]
        ids = np.concatenate(parts or [np.empty(0, np.uint32)])
        return ids, np.cumsum([0, *map(len, parts)])

    return encode


def _gigatoken(ranks: dict[bytes, int], pattern: str) -> Encode:
    import awkward as ak
    import gigatoken

    with _rank_file(ranks) as file:
        tokenizer = gigatoken.Tokenizer.from_tiktoken(file.name, pretokenizer=PATTERNS[pattern])

    def encode(documents):
        offsets, data = text_buffers(documents)
        characters = ak.contents.NumpyArray(data, parameters={"__array__": "char"})
        texts = ak.contents.ListOffsetArray(ak.index.Index64(offsets), characters, parameters={"__array__": "string"})
        layout = tokenizer.encode_batch(ak.Array(texts), parallel=False).layout
        return np.asarray(layout.content.data), np.asarray(layout.offsets.data)

    return encode


def _fastokens(ranks: dict[bytes, int], pattern: str) -> Encode:
    os.environ["FASTOKENS_BPE_THREADS"] = "1"  # read when the package is loaded
    from fastokens._native import Tokenizer as Fastokens

    with _rank_file(ranks) as file:
        tokenizer = Fastokens.from_tiktoken(file.name, pattern=pattern, special_tokens={})

    def encode(documents):
        ids, offsets = tokenizer.encode_batch_flat(documents.to_pylist(), split_special_tokens=True)
        return np.frombuffer(ids, np.uint32), np.frombuffer(offsets, np.uint64).astype(np.int64)

    return encode


def _rank_file(ranks: dict[bytes, int]):
    """A .tiktoken file of ranks, that is gone when it is closed."""
    file = tempfile.NamedTemporaryFile(suffix=".tiktoken")  # noqa: SIM115 (the caller closes it)
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        file.write(base64.b64encode(token) + b" %d\n" % rank)
    file.flush()
    return file


# the fastest first
ENGINES = {
    engine.name: engine
    for engine in (
        Engine("gigatoken", "0.10.0", ("gpt2", "cl100k"), _gigatoken),
        Engine("fastokens", "0.3.5", ("gpt2", "cl100k", "nanochat"), _fastokens),
    )
}


def table_name(engine: Engine, pattern: str) -> str:
    """The table of the code points that an engine classes otherwise."""
    return f"{engine.name}-{engine.version}-{PATTERNS[pattern]}"


# ---------------------------------------------------------------------------- documents -> tokens


class Encoder:
    """Documents to tokens with BOS, by the engine of this name, and by tiktoken where it is not proven.

    ValueError where the engine cannot be used with this tokenizer: the reason, in a line.
    """

    def __init__(self, tokenizer: Tokenizer, engine: str = "tiktoken"):
        self.tokenizer, self.engine = tokenizer, engine
        self.dtype = DTYPES[dtype_name(tokenizer.vocab_size)]
        self._reference = self._fast = reference(tokenizer)
        if engine != "tiktoken":
            _require_usable(ENGINES[engine], tokenizer)
            self._exceptions = CodePoints.load(table_name(ENGINES[engine], tokenizer.pattern))
            self._renew()

    def encode(self, documents: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray, int]:
        """Tokens (num_tokens,), one document after the other, BOS first; their lengths; how many tiktoken encoded."""
        if self.engine != "tiktoken" and _resident_bytes() > self._small + CACHE_BYTES:
            self._renew()
        refer = self._referred(documents)
        if not refer.any():
            return *self._join([(np.arange(len(documents)), *self._fast(documents))]), 0
        parts = []
        for encode, chosen in ((self._fast, ~refer), (self._reference, refer)):
            parts.append((np.flatnonzero(chosen), *encode(documents.filter(pa.array(chosen)))))
        return *self._join(parts), int(refer.sum())

    def _referred(self, documents: pa.LargeStringArray) -> np.ndarray:
        """Which documents a faster engine leaves to tiktoken: (num_documents,) bool."""
        if self.engine == "tiktoken":
            return np.zeros(len(documents), bool)
        return self._exceptions.find(documents)

    def prove(self, documents: pa.LargeStringArray, tokens: np.ndarray, lengths: np.ndarray, numbers) -> None:
        """Encodes the documents of these numbers by tiktoken too. ValueError, with a short text, where ids differ."""
        ends = np.cumsum(lengths)
        for number in numbers if self.engine != "tiktoken" else ():
            text = documents[int(number)].as_py()
            found = tokens[ends[number] - lengths[number] + 1 : ends[number]]
            if not np.array_equal(found, self.tokenizer.encode(text)):
                raise ValueError(self._difference(text))

    def _renew(self) -> None:
        """Makes the engine anew, without what it remembers of the text that it has seen."""
        del self._fast
        self._fast = _make(ENGINES[self.engine], self.tokenizer)
        self._small = _resident_bytes()

    def _join(self, parts) -> tuple[np.ndarray, np.ndarray]:
        """Puts parts (document numbers, ids, offsets) in the documents' order, a BOS before each."""
        lengths = np.empty(sum(len(numbers) for numbers, _, _ in parts), np.int64)
        for numbers, _, offsets in parts:
            lengths[numbers] = np.diff(offsets) + 1
        begins = np.cumsum(lengths) - lengths
        tokens = np.empty(lengths.sum(), self.dtype)
        tokens[begins] = self.tokenizer.bos_id
        target = tokens.data
        for numbers, ids, offsets in parts:
            source, edges = ids.astype(self.dtype).data, offsets.tolist()
            for at, first, last in zip((begins[numbers] + 1).tolist(), edges[:-1], edges[1:], strict=True):
                target[at : at + last - first] = source[first:last]
        return tokens, lengths

    def _difference(self, text: str) -> str:
        text = _smallest(text, self._differs)
        ids = [encode(_documents([text]))[0].tolist() for encode in (self._fast, self._reference)]
        return (
            f"{self.engine} and tiktoken encode {text!r} differently: {ids[0]} and {ids[1]}; "
            "run again with --engine tiktoken, and please report it"
        )

    def _differs(self, text: str) -> bool:
        documents = _documents([text])
        return bool(differing_documents(self._fast(documents), self._reference(documents)))


def sample(shard: str, first: int, count: int) -> np.ndarray:
    """Which of a shard's documents from `first` on are proven: their places among these `count`."""
    rng = np.random.default_rng([zlib.crc32(shard.encode()), first])
    chosen = rng.integers(SAMPLE_ONE_IN, size=count) == 0
    chosen[: first == 0] = True
    return np.flatnonzero(chosen)


def choose_encoder(wanted: str, tokenizer: Tokenizer, first_documents: pa.LargeStringArray) -> tuple[Encoder, str]:
    """What to encode with, and why not a faster engine, or "". Takes a fraction of a second to prove it.

    "auto" takes the fastest that is proven, and tiktoken in the end; ValueError where another was named and
    is not.
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
    """ValueError where the named engine is not there, of another version, or not for this tokenizer's pattern."""
    if wanted in ENGINES:
        try:
            _require_usable(ENGINES[wanted], tokenizer)
        except ValueError as error:
            raise ValueError(f"--engine {wanted}: {error}; use --engine auto or tiktoken") from error


def _require_usable(engine: Engine, tokenizer: Tokenizer) -> None:
    for package, version in ((engine.name, engine.version), ("tiktoken", TIKTOKEN_VERSION)):
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise ValueError(f"{engine.name} is not installed (pip install {package}=={version})") from None
        if found != version:
            raise ValueError(f"{engine.name} is proven with {package} {version}, found {found}")
    if PATTERNS.get(tokenizer.pattern) not in engine.patterns:
        raise ValueError(f"{engine.name} is not proven with the split pattern of tokenizer {tokenizer.name}")


def _resident_bytes() -> int:
    """Memory of this process that is its own; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _make(engine: Engine, tokenizer: Tokenizer) -> Encode:
    try:
        return engine.make(tokenizer.ranks, tokenizer.pattern)
    except Exception as error:  # whatever it says of a vocabulary that it does not know
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{engine.name} cannot load the vocabulary of {tokenizer.name}: {reason}") from error


def _prove_at_start(encoder: Encoder, first_documents: pa.LargeStringArray) -> None:
    for documents in (_documents(hard_texts(encoder.tokenizer.special_tokens)), first_documents):
        tokens, lengths, _ = encoder.encode(documents)
        encoder.prove(documents, tokens, lengths, range(len(documents)))


def hard_texts(special_tokens) -> list[str]:
    """Long pieces, runs of every kind, and what spells a special token."""
    units = [*" \n\t\u00a0aA1!é水😀\u0301", "\r\n", " \n", "ab", "12a", "...", "'s", "'S"]
    runs = [unit * count for unit in units for count in (*range(1, 12), 100, 1000, 5000)]
    spelled = [f"x {token} y{token}" for token in special_tokens]
    return [*runs, *(f"a{run}b" for run in runs), *(f"a {run}1" for run in runs), *spelled]


def _documents(texts: list[str]) -> pa.LargeStringArray:
    return pa.array(texts, pa.large_string())


def _smallest(text: str, differs: Callable[[str], bool]) -> str:
    """A short part of a text that still differs: halves, quarters ... are cut away while it does."""
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
