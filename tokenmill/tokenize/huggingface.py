"""Any tokenizer.json, run by Hugging Face's `tokenizers` itself: for what tiktoken cannot express.

Normalizers (NFC: Qwen, NeoX), several splits (DeepSeek), digits (SmolLM), tokens that match within
text, SentencePiece's BPE with byte fallback (Llama 2, Gemma) and Unigram (T5). The whole file is
kept in the token set, so ids are decoded as they were made. Three things are left out on purpose:

    truncation and padding      they would cut documents, or lengthen them
    the post-processor          tokenmill itself puts BOS where a document begins
    special tokens in a text    text that spells one is ordinary text: within the library they bear
                                names that no text has, so that "<s>" is three characters of T5,
                                and BOS only ever what we put first
"""

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokenmill.extras import MissingExtra, naming_the_extra
from tokenmill.threads import cached_property
from tokenmill.tokenize.libraries import naming_the_library
from tokenmill.tokenize.spelling import Spelling
from tokenmill.tokenize.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers

FLAGS = ("lstrip", "rstrip", "single_word")  # by which an added token takes or needs its neighbors
CHANGES_IDS = ("normalizer", "pre_tokenizer", "model", "added_tokens")
LEFT_OUT = dict.fromkeys(("truncation", "padding", "post_processor"))
# blocks of 256 code points that no Unicode since 3.2 has changed: ideographs, Hangul, surrogates
# and private ones
OLD = ((0x34, 0x4D), (0x4E, 0x9F), (0xAC, 0xD7), (0xD8, 0xF9), (0x200, 0x2A6))
_OLD_BLOCKS = chain.from_iterable(range(first, last) for first, last in OLD)
BLOCKS = sorted({*range(1, 0x324), 0xE00}.difference(_OLD_BLOCKS))
HIDDEN = "\ufdd0"  # no character; special tokens are called by it, and U+FFFD replaces it in texts
BATCH = 256  # documents that the library encodes at a time

Parts = dict[str, Any]  # of a tokenizer.json


@dataclass(frozen=True)
class HuggingFace(Tokenizer):
    """A tokenizer that `tokenizers` runs, with the parts of its tokenizer.json, but for some."""

    parts: Parts = field(default_factory=dict, repr=False)  # not to be changed
    # SHA-256 of their ids: releases of the library follow Unicode tables of different years
    code_points: str = ""

    library = "tokenizers"
    may_make_bos = True

    @classmethod
    def of_json(
        cls, name: str, json_parts: Parts, special: dict[str, int], bos_token: str
    ) -> "HuggingFace":
        """The tokenizer of a tokenizer.json that has been read. ValueError if it is rejected."""
        dropout = (json_parts.get("model") or {}).get("dropout")
        if dropout:
            raise ValueError(
                f"its BPE has a dropout of {dropout}, with which a text has other ids every time"
            )
        tokenizer = cls(name, "", {}, special, bos_token, parts=json_parts | LEFT_OUT)
        tokenizer.encode("a")
        vocab = tokenizer.vocab
        for id, count in Counter(vocab.values()).items():
            if count > 1:
                namesakes = [token for token, token_id in vocab.items() if token_id == id][:3]
                raise ValueError(
                    f"its id {id} stands for {', '.join(map(repr, namesakes))}: what is encoded is "
                    "lost"
                )
        hidden = hidden_names(tokenizer.special_tokens)
        library_vocab = tokenizer.encoding_of_texts.get_vocab(with_added_tokens=True)
        for token, id in vocab.items():
            library_id = library_vocab.get(hidden.get(token, token))
            if library_id != id:
                raise ValueError(
                    f"its token {token!r} has id {id}, the library gives it {library_id}"
                )
        digest = _digest_of_code_points(tokenizer.encoding_of_texts)
        object.__setattr__(tokenizer, "code_points", digest)
        return tokenizer  # itself, as it has loaded the library's

    def with_added(self, tokens: Sequence[str]) -> Self:
        """As `Tokenizer.with_added`, in its parts too."""
        numbered = super().with_added(tokens)
        added = list(self.parts.get("added_tokens") or [])
        for token in tokens:
            added.append(added_token(numbered.special_tokens[token], token, special=True))
        return replace(numbered, parts=self.parts | {"added_tokens": added})

    @cached_property
    def added(self) -> list[dict]:
        """Tokens that match within text, before it is split."""
        tokens = self.parts.get("added_tokens") or []
        return [token for token in tokens if token["content"] not in self.special_tokens]

    @cached_property
    def vocab_size(self) -> int:
        return 1 + max(*self.vocab.values(), *self.special_tokens.values())

    @property
    def _what_ids_follow_from(self) -> list[Any]:
        ends = [self.bos_token]
        if self.eot_token:
            ends.append(self.eot_token)
        parts = {key: self.parts.get(key) for key in CHANGES_IDS}
        return [parts, sorted(self.special_tokens.items()), ends, self.code_points]

    @cached_property
    def encoding_of_texts(self) -> "tokenizers.Tokenizer":
        loaded = _load(unspelled(self), self.name)
        if self.code_points and self.code_points != _digest_of_code_points(loaded):
            raise ValueError(
                f"{self.name}: this release of tokenizers gives other ids than that which it was "
                "saved by"
            )
        return loaded

    @cached_property
    def decoding(self) -> "tokenizers.Tokenizer":
        return _load(self.parts, self.name)

    @cached_property
    def vocab(self) -> dict[str, int]:
        vocab = self.parts["model"]["vocab"]
        if not isinstance(vocab, dict):  # a list with scores
            vocab = {token: id for id, (token, _) in enumerate(vocab)}
        added = self.parts.get("added_tokens") or []
        return vocab | {token["content"]: token["id"] for token in added}

    def encode(self, text: str) -> np.ndarray:
        """Ids of a text, without BOS: (num_tokens,) uint32."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, without BOS."""
        ids: list[np.ndarray] = []
        texts = [without_hidden(text) for text in texts]
        for first in range(0, len(texts), BATCH):
            batch = texts[first : first + BATCH]
            named = f"{self.name} on texts from {batch[0][:40]!r} on"
            with naming_the_library(self.library, named):
                encoded = self.encoding_of_texts.encode_batch_fast(batch, add_special_tokens=False)
            ids += [np.array(encoding.ids, np.uint32) for encoding in encoded]
        return ids

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Text of ids, special tokens spelled out. ValueError as in `token`."""
        numbers = np.asarray(ids).tolist()
        for id in set(numbers) - self.tokens.keys():
            self.token(id)
        texts = []
        first = 0
        for place, id in enumerate(numbers):
            if id in self._renumbered:
                texts += [self._decoded(numbers[first:place]), self._renumbered[id]]
                first = place + 1
        return "".join([*texts, self._decoded(numbers[first:])])

    def _decoded(self, ids: list[int]) -> str:
        with naming_the_library(self.library, self.name):
            text: str = self.decoding.decode(ids, skip_special_tokens=False)
        return text

    @cached_property
    def _renumbered(self) -> dict[int, str]:
        """Added tokens that the library numbers otherwise, as ids before them are left out."""
        to_id = self.decoding.token_to_id
        return {id: token for token, id in self.special_tokens.items() if to_id(token) != id}

    @cached_property
    def tokens(self) -> dict[int, bytes]:
        """What each id stands for: bytes of text; for a special token, its name."""
        added = {token["id"] for token in self.parts.get("added_tokens") or []}
        spelling = Spelling(self.parts)
        tokens = {}
        for name, id in self.vocab.items():
            tokens[id] = name.encode() if id in added else spelling.bytes_of(name)
        return tokens

    def _saved(self) -> Parts:
        return {"kind": "huggingface", "code_points": self.code_points, "tokenizer": self.parts}

    @classmethod
    def _of_saved(cls, saved: Parts) -> Parts:
        own_fields = {"code_points": saved["code_points"], "parts": saved["tokenizer"]}
        return {"pattern": "", "ranks": {}} | own_fields


def without_hidden(text: str) -> str:
    """A text as UTF-8 can have it, without the code point of special tokens' names."""
    valid = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return valid.replace(HIDDEN, "\ufffd")


def _load(parts: Parts, name: str) -> "tokenizers.Tokenizer":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # every core has its process
    with naming_the_extra("prepare"):
        import orjson
        import tokenizers
    if not hasattr(tokenizers.Tokenizer, "from_str"):
        version = tokenizers.__version__
        raise MissingExtra(
            f"expected tokenizers below 1, found {version}; run pip install 'tokenizers<1'"
        )
    with naming_the_library("tokenizers", name):
        return tokenizers.Tokenizer.from_str(orjson.dumps(parts).decode())


def _digest_of_code_points(loaded: "tokenizers.Tokenizer") -> str:
    texts = []
    for block in BLOCKS:
        codes = range(256 * block, 256 * block + 256)
        texts.append("\n".join(f"{chr(code)}a" for code in codes))
    ids: list[int] = []
    for encoding in loaded.encode_batch_fast(texts, add_special_tokens=False):
        ids += encoding.ids
    return hashlib.sha256(np.array(ids, np.uint32).tobytes()).hexdigest()


def unspelled(tokenizer: HuggingFace) -> Parts:
    """The parts of a tokenizer.json whose special tokens have names that no text has."""
    names = hidden_names(tokenizer.special_tokens)

    def renamed(name: str) -> str:
        return names.get(name, name)

    model = dict(tokenizer.parts["model"])
    vocab = model["vocab"]
    if not isinstance(vocab, dict):
        model["vocab"] = [[renamed(name), score] for name, score in vocab]
    elif not names.keys().isdisjoint(vocab):
        model["vocab"] = {renamed(name): id for name, id in vocab.items()}
        if "merges" in model:  # none may make such a token
            model["merges"] = [merge for merge in model["merges"] if _made_of(merge) not in names]
    if model.get("unk_token"):
        model["unk_token"] = renamed(model["unk_token"])
    added = []
    for token in tokenizer.parts.get("added_tokens") or []:
        if token["content"] in names:  # a normalizer may change such a name, or drop it
            token = token | {"content": names[token["content"]], "normalized": False}
        added.append(token)
    return tokenizer.parts | {"model": model, "added_tokens": added}


def hidden_names(special_tokens: dict[str, int]) -> dict[str, str]:
    """A name that no text has, for each special token."""
    return {name: f"{HIDDEN}\ufdd1{id}{HIDDEN}" for name, id in special_tokens.items()}


def added_token(id: int, content: str, special: bool) -> Parts:
    """As a tokenizer.json has an added token without flags."""
    flags = dict.fromkeys((*FLAGS, "normalized"), False)
    return {"id": id, "content": content, **flags, "special": special}


def _made_of(merge: str | list[str]) -> str:
    return merge.replace(" ", "") if isinstance(merge, str) else "".join(merge)
