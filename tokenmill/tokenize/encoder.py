"""Documents -> tokens, with an engine that is proven equal to the reference, or with the reference.

    the tokenizer    must be of a kind that the engine knows, and packages of the pinned versions
    documents        that the engine leaves to the reference are encoded by it (engine.py)
    at the start     long pieces, runs of spaces and random texts are encoded by both
    in every shard   a random sample of documents is encoded by both; a difference fails the shard

So the ids are the reference's, and the engine is not part of a token set's fingerprint.
"""

import os
import zlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tokenmill.store.schema import dtype_name
from tokenmill.store.shards import DTYPES
from tokenmill.tokenize.codepoints import joined
from tokenmill.tokenize.engine import REFERENCE, Encode, load_engine
from tokenmill.tokenize.huggingface import HuggingFace
from tokenmill.tokenize.lost import LostCharacters
from tokenmill.tokenize.proof_texts import hard_texts, random_texts
from tokenmill.tokenize.proofs import Proof
from tokenmill.tokenize.tokenizer import Tokenizer

CACHE_BYTES = 192 << 20  # an engine whose cache has taken so much memory is made again
SAMPLE_ONE_IN = 512  # documents of a shard that both encode, and its first
RANDOM_TEXTS = 4000  # that a tokenizer.json of any kind is compared on


class Part(NamedTuple):
    """Some of the documents of a call, as one of the two has encoded them."""

    numbers: np.ndarray  # (num_documents,) which they are
    ids: np.ndarray  # (num_ids,)
    offsets: np.ndarray  # (num_documents + 1,) into the ids


class Frame(NamedTuple):
    """How many tokens are added to the ids of a text: BOS before, EOT after."""

    before: int = 0
    after: int = 0


def reference(tokenizer: Tokenizer) -> Encode:
    """tiktoken or `tokenizers`, one document at a time."""

    return lambda documents: joined(tokenizer.encode_many(documents.to_pylist()))


class Encoder:
    """Documents to tokens with BOS, by the reference ("tiktoken"), or by an engine.

    choose_encoder.py proves an engine, or gives the `proof` of an earlier run. ValueError, with the
    reason in one line, if the engine cannot load this tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, engine: str = REFERENCE, proof: Proof | None = None):
        self.tokenizer = tokenizer
        self.lost = LostCharacters(tokenizer)
        self.dtype = DTYPES[dtype_name(tokenizer.vocab_size)]
        self.is_reference = engine == REFERENCE
        self.engine = tokenizer.library if self.is_reference else engine
        self._frame = Frame(1, 0 if tokenizer.eot_token is None else 1)
        self._reference = self._fast = reference(tokenizer)
        if not self.is_reference:
            self._engine = load_engine(engine)
            self._renew()
            if proof is None:
                codes = self._engine.code_points_of(tokenizer, self._fast, self._reference)
                proof = Proof(codes)
            self.proof = proof
            self._refers = self._engine.refers_of(tokenizer, proof.code_points)

    def warm(self) -> None:
        """Makes what would be made when it is first needed, before workers are forked."""
        self.encode(pa.array(["a"], pa.large_string()))
        self.tokenizer.encode("a")
        self.lost.among(["a"])

    def encode(self, documents: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray, int]:
        """Tokens of documents, BOS first; the length of each; how many the reference encoded.

        (num_tokens,) in the tokens' dtype; (num_documents,) int64.
        """
        parts, referred = self._encode(documents)
        return *self._join(parts, self._frame), referred

    def encode_texts(self, texts: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray, int]:
        """As `encode`, without BOS. ValueError as in `prove`, of which a sample is encoded."""
        parts, referred = self._encode(texts)
        ids, counts = self._join(parts, Frame())
        self._prove(texts, ids, counts, range(0, len(texts), SAMPLE_ONE_IN), Frame())
        return ids, counts, referred

    def prove(
        self,
        documents: pa.LargeStringArray,
        tokens: np.ndarray,
        lengths: np.ndarray,
        numbers: Iterable[int],
    ) -> None:
        """Encodes these documents with the reference too.

        ValueError, with a short text, if any differ.
        """
        self._prove(documents, tokens, lengths, numbers, self._frame)

    def prove_at_start(self) -> None:
        """Encodes hard texts with both. ValueError if any differ."""
        spelled = list(self.tokenizer.special_tokens)
        texts = []
        if isinstance(self.tokenizer, HuggingFace):  # its steps may be of a kind that nobody tried
            spelled += [token["content"] for token in self.tokenizer.added]
            texts = random_texts(RANDOM_TEXTS, seed=0)
        documents = pa.array(hard_texts(spelled) + texts, pa.large_string())
        tokens, lengths, _ = self.encode(documents)
        self.prove(documents, tokens, lengths, range(len(documents)))

    def _encode(self, documents: pa.LargeStringArray) -> tuple[list[Part], int]:
        """The documents in parts, and how many the reference encoded where it is not the engine."""
        numbers = np.arange(len(documents))
        if self.is_reference:
            return [Part(numbers, *self._reference(documents))], 0
        if _resident_bytes() > self._small + CACHE_BYTES:
            self._renew()
        refer = self._refers(documents)
        if not refer.any():
            return [Part(numbers, *self._fast(documents))], 0
        parts = []
        for encode, mask in ((self._fast, ~refer), (self._reference, refer)):
            parts.append(Part(numbers[mask], *encode(documents.filter(pa.array(mask)))))
        return parts, int(refer.sum())

    def _renew(self) -> None:
        """Makes the engine again, with an empty cache."""
        self._fast = self._reference  # the former is freed before
        self._fast = self._engine.make(self.tokenizer)
        self._small = _resident_bytes()

    def _join(self, parts: list[Part], frame: Frame) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and lengths of all parts, in the documents' order."""
        lengths = np.empty(sum(len(part.numbers) for part in parts), np.int64)
        for part in parts:
            lengths[part.numbers] = np.diff(part.offsets) + frame.before + frame.after
            self._require_no_bos(part.ids)
        ends = np.cumsum(lengths)
        begins = ends - lengths
        tokens = np.empty(lengths.sum(), self.dtype)
        if frame.before:
            tokens[begins] = self.tokenizer.bos_id
        if frame.after:
            tokens[ends - 1] = self.tokenizer.eot_id
        target = tokens.data
        for part in parts:
            ids = part.ids.astype(self.dtype).data
            offsets = part.offsets.tolist()
            places = (begins[part.numbers] + frame.before).tolist()
            for place, begin, end in zip(places, offsets[:-1], offsets[1:], strict=True):
                target[place : place + end - begin] = ids[begin:end]
        return tokens, lengths

    def _prove(
        self,
        texts: pa.LargeStringArray,
        tokens: np.ndarray,
        lengths: np.ndarray,
        numbers: Iterable[int],
        frame: Frame,
    ) -> None:
        if self.is_reference:
            return
        ends = np.cumsum(lengths)
        for number in numbers:
            text = texts[int(number)].as_py()
            begin = ends[number] - lengths[number] + frame.before
            ids = tokens[begin : ends[number] - frame.after]
            if not np.array_equal(ids, self.tokenizer.encode(text)):
                raise ValueError(self._difference(text))

    def _require_no_bos(self, ids: np.ndarray) -> None:
        """ValueError if the tokenizer makes BOS of a text: it may only begin documents."""
        if self.tokenizer.may_make_bos and (ids == self.tokenizer.bos_id).any():
            raise ValueError(
                f"tokenizer {self.tokenizer.name} makes its {self.tokenizer.bos_token} of ordinary "
                "text; name another special token by --bos-token"
            )

    def _difference(self, text: str) -> str:
        documents = pa.array([text], pa.large_string())
        fast_ids = self._fast(documents)[0].tolist()
        ids = self._reference(documents)[0].tolist()
        at = len(os.path.commonprefix([fast_ids, ids]))
        near = self.tokenizer.decode(ids[max(0, at - 5) : at + 5])
        end = at + 5
        return (
            f"{self.engine} and {self.tokenizer.library} encode a text differently near {near!r}: "
            f"{fast_ids[at:end]} and {ids[at:end]}; run again with --engine tiktoken, and please "
            "report it"
        )


def proof_sample(shard: str, first: int, count: int) -> np.ndarray:
    """Which of a shard's `count` documents from `first` on are proven: numbers among these."""
    rng = np.random.default_rng([zlib.crc32(shard.encode()), first])
    chosen = rng.integers(SAMPLE_ONE_IN, size=count) == 0
    if first == 0:
        chosen[:1] = True
    return np.flatnonzero(chosen)


def _resident_bytes() -> int:
    """Memory that belongs to this process alone; 0 if the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
