"""Documents -> tokens, with an engine that is proven equal to the reference, or else with the reference.

    the tokenizer    must be of a kind that the engine knows, and the packages must have the pinned versions
    documents        with a character that the engine classes differently are encoded by the reference (gigatoken.py)
    at the start     long pieces, runs of spaces and random texts are encoded by both
    in every shard   a random sample of documents is encoded by both; a difference fails the shard

So the ids are the reference's, and the engine is not part of a token set's fingerprint.
"""

import os
import zlib

import numpy as np
import pyarrow as pa

from tokenmill.store.schema import dtype_name
from tokenmill.store.shards import DTYPES
from tokenmill.tokenize import gigatoken
from tokenmill.tokenize.codepoints import hard_texts, random_texts
from tokenmill.tokenize.gigatoken import Encode
from tokenmill.tokenize.huggingface import HuggingFace
from tokenmill.tokenize.tokenizer import Tokenizer

CACHE_BYTES = 192 << 20  # an engine whose cache has taken so much memory is made again
SAMPLE_ONE_IN = 512  # documents of a shard that both encode, and its first
RANDOM_TEXTS = 4000  # that a tokenizer.json of any kind is compared on


def reference(tokenizer: Tokenizer) -> Encode:
    """tiktoken or `tokenizers`, one document at a time."""

    def encode(documents: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
        parts = tokenizer.encode_many(documents.to_pylist())
        return np.concatenate([np.empty(0, np.uint32), *parts]), np.cumsum([0, *map(len, parts)])

    return encode


class Encoder:
    """Documents to tokens with BOS, by the reference ("tiktoken"), or by "gigatoken" where it is proven.

    ValueError, with the reason in one line, if the engine cannot be used with this tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, engine: str = "tiktoken"):
        self.tokenizer, self.is_reference = tokenizer, engine == "tiktoken"
        self.engine = tokenizer.library if self.is_reference else engine
        self.dtype = DTYPES[dtype_name(tokenizer.vocab_size)]
        self._reference = self._fast = reference(tokenizer)
        if not self.is_reference:
            gigatoken.require_usable(tokenizer)
            self._renew()
            self._refers = gigatoken.refers_of(tokenizer, self._fast, self._reference)

    def encode(self, documents: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray, int]:
        """Tokens (num_tokens,) of all documents, BOS first; their lengths; and how many the reference encoded."""
        return self._encode(documents, framed=True)

    def encode_texts(self, texts: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray, int]:
        """Ids of texts without BOS: (num_tokens,) in the tokens' dtype; how many each has; how many the reference
        encoded. ValueError as in `prove`, of which a sample is encoded.
        """
        ids, counts, referred = self._encode(texts, framed=False)
        self.prove(texts, ids, counts, range(0, len(texts), SAMPLE_ONE_IN), framed=False)
        return ids, counts, referred

    def _encode(
        self, documents: pa.LargeStringArray, framed: bool
    ) -> tuple[np.ndarray, np.ndarray, int]:
        if self.is_reference:
            return *self._join(
                [(np.arange(len(documents)), *self._reference(documents))], framed
            ), 0
        if _resident_bytes() > self._small + CACHE_BYTES:
            self._renew()
        refer = self._refers(documents)
        if not refer.any():
            return *self._join([(np.arange(len(documents)), *self._fast(documents))], framed), 0
        parts = []
        for encode, chosen in ((self._fast, ~refer), (self._reference, refer)):
            parts.append((np.flatnonzero(chosen), *encode(documents.filter(pa.array(chosen)))))
        return *self._join(parts, framed), int(refer.sum())

    def prove(
        self,
        documents: pa.LargeStringArray,
        tokens: np.ndarray,
        lengths: np.ndarray,
        numbers,
        framed=True,
    ) -> None:
        """Encodes these documents with the reference too. ValueError, with a short text, if any differ."""
        ends, eot = np.cumsum(lengths), framed and self.tokenizer.eot_token is not None
        for number in numbers if not self.is_reference else ():
            text = documents[int(number)].as_py()
            found = tokens[ends[number] - lengths[number] + framed : ends[number] - eot]
            if not np.array_equal(found, self.tokenizer.encode(text)):
                raise ValueError(self._difference(text))

    def prove_at_start(self) -> None:
        """Encodes hard texts with both. ValueError if any differ."""
        tokens, texts = [*self.tokenizer.special_tokens], list[str]()
        if isinstance(
            self.tokenizer, HuggingFace
        ):  # its normalizer and splits may be of a kind that nobody has tried
            tokens += [token["content"] for token in self.tokenizer.added]
            texts = random_texts(RANDOM_TEXTS, seed=0)
        documents = pa.array(hard_texts(tokens) + texts, pa.large_string())
        found, lengths, _ = self.encode(documents)
        self.prove(documents, found, lengths, range(len(documents)))

    def _renew(self) -> None:
        """Makes the engine again, with an empty cache."""
        self._fast = self._reference
        self._fast = gigatoken.make(self.tokenizer)
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
            for at, first, last in zip(
                (begins[numbers] + bool(framed)).tolist(), edges[:-1], edges[1:], strict=True
            ):
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
        ids = [
            encode(pa.array([text], pa.large_string()))[0].tolist()
            for encode in (self._fast, self._reference)
        ]
        at = next(
            (n for n, (one, other) in enumerate(zip(*ids, strict=False)) if one != other),
            min(map(len, ids)),
        )
        near = self.tokenizer.decode(ids[1][max(0, at - 5) : at + 5])
        return (
            f"{self.engine} and {self.tokenizer.library} encode a text differently near {near!r}: "
            f"{ids[0][at : at + 5]} and {ids[1][at : at + 5]}; run again with --engine tiktoken, and please report it"
        )


def sample(shard: str, first: int, count: int) -> np.ndarray:
    """Which of a shard's `count` documents from `first` on are proven: their numbers among these."""
    rng = np.random.default_rng([zlib.crc32(shard.encode()), first])
    chosen = rng.integers(SAMPLE_ONE_IN, size=count) == 0
    chosen[: first == 0] = True
    return np.flatnonzero(chosen)


def choose_encoder(wanted: str, tokenizer: Tokenizer) -> tuple[Encoder, str]:
    """What to encode with, and why not a faster engine, or "". Proving takes a fraction of a second, or, for a
    tokenizer.json, some seconds.

    "auto" takes gigatoken if it is proven, or else the reference. ValueError if it is named and is not proven.
    """
    if wanted == "tiktoken":
        return Encoder(tokenizer), ""
    try:
        encoder = Encoder(tokenizer, gigatoken.NAME)
        encoder.prove_at_start()
        return encoder, ""
    except ValueError as error:
        if wanted != "auto":
            raise ValueError(
                f"--engine {wanted}: {error}; use --engine auto or tiktoken"
            ) from error
        return Encoder(tokenizer), str(error)


def _resident_bytes() -> int:
    """Memory that belongs to this process alone; 0 if the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
