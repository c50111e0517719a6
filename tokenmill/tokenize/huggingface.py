"""Any tokenizer.json, run by Hugging Face's `tokenizers` itself: for what tiktoken cannot express.

Normalizers (NFC: Qwen, NeoX), several splits (DeepSeek), digits (SmolLM), tokens that match within text,
SentencePiece's BPE with byte fallback (Llama 2, Gemma) and Unigram (T5). The whole file is kept in the token set, so
ids are decoded as they were made. Three things are left out on purpose:

    truncation and padding      they would cut documents, or lengthen them
    the post-processor          tokenmill itself puts BOS where a document begins
    special tokens in a text    text that spells one is ordinary text: within the library they bear names that no text
                                has, so that "<s>" is three characters of T5, and BOS only ever what we put first
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenmill.extras import MissingExtra, naming_the_extra
from tokenmill.threads import cached_property
from tokenmill.tokenize.tokenizer import Tokenizer, naming_the_library

if TYPE_CHECKING:
    import tokenizers

BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # how byte fallback spells a byte
FLAGS = (
    "lstrip",
    "rstrip",
    "single_word",
)  # of an added token, by which it takes or needs what is beside it
CHANGES_IDS = (
    "normalizer",
    "pre_tokenizer",
    "model",
    "added_tokens",
)  # the parts that ids follow from
# blocks of 256 code points that no Unicode since 3.2 has changed: ideographs, Hangul, surrogates and private ones
OLD = ((0x34, 0x4D), (0x4E, 0x9F), (0xAC, 0xD7), (0xD8, 0xF9), (0x200, 0x2A6))
CODE_POINTS = [
    range(256 * n, 256 * n + 256)
    for n in (*range(1, 0x324), 0xE00)
    if not any(a <= n < b for a, b in OLD)
]
HIDDEN = "\ufdd0"  # a code point that no text should have, by which special tokens are called
BATCH = 256  # documents that the library encodes at a time


@dataclass(frozen=True)
class HuggingFace(Tokenizer):
    """A tokenizer that `tokenizers` runs; `parts` are those of its tokenizer.json, less the three things above."""

    parts: dict[str, Any] = field(default_factory=dict, repr=False)  # not to be changed
    # SHA-256 of their ids: releases of the library follow Unicode tables of different years
    code_points: str = ""

    library = "tokenizers"
    may_make_bos = True

    @classmethod
    def of_json(
        cls, name: str, whole: dict, special: dict[str, int], bos_token: str
    ) -> "HuggingFace":
        """The tokenizer of a tokenizer.json that has been read. ValueError if the library rejects it."""
        if dropout := (whole.get("model") or {}).get("dropout"):
            raise ValueError(
                f"its BPE has a dropout of {dropout}, with which a text has other ids every time"
            )
        parts = whole | {"truncation": None, "padding": None, "post_processor": None}
        made = cls(name, "", {}, special, bos_token, parts=parts)
        made.encode("a")
        for id, count in Counter(made._vocab.values()).items():
            if count > 1:
                both = [token for token, other in made._vocab.items() if other == id]
                raise ValueError(
                    f"its id {id} stands for {', '.join(map(repr, both[:3]))}: what is encoded is lost"
                )
        library_s = made.decoding.get_vocab(with_added_tokens=True)
        for token, id in made._vocab.items():
            if library_s.get(token) != id:
                raise ValueError(
                    f"its token {token!r} has id {id}, the library gives it {library_s.get(token)}"
                )
        object.__setattr__(made, "code_points", _digest_of_code_points(made.encoding_of_texts))
        return made  # itself, as it has loaded the library's

    @cached_property
    def added(self) -> list[dict]:
        """Tokens that match within text, before it is split."""
        found: list[dict] = self.parts.get("added_tokens") or []
        return [token for token in found if token["content"] not in self.special_tokens]

    @cached_property
    def vocab_size(self) -> int:
        return 1 + max(*self._vocab.values(), *self.special_tokens.values())

    @property
    def _what_ids_follow_from(self) -> list[Any]:
        framed = [self.bos_token, *([self.eot_token] if self.eot_token else [])]
        special = sorted(self.special_tokens.items())
        return [
            {key: self.parts.get(key) for key in CHANGES_IDS},
            special,
            framed,
            self.code_points,
        ]

    @cached_property
    def encoding_of_texts(self) -> "tokenizers.Tokenizer":
        loaded = _load(unspelled(self), self.name)
        if self.code_points and self.code_points != _digest_of_code_points(loaded):
            raise ValueError(
                f"{self.name}: this release of tokenizers gives other ids than that which it was saved by"
            )
        return loaded

    @cached_property
    def decoding(self) -> "tokenizers.Tokenizer":
        return _load(self.parts, self.name)

    @cached_property
    def _vocab(self) -> dict[str, int]:
        vocab, added = self.parts["model"]["vocab"], self.parts.get("added_tokens") or []
        of_model = (
            vocab if isinstance(vocab, dict) else {token: id for id, (token, _) in enumerate(vocab)}
        )
        return of_model | {token["content"]: token["id"] for token in added}

    def encode(self, text: str) -> np.ndarray:
        """Ids of a text, without BOS: (num_tokens,) uint32."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, without BOS."""
        found: list[np.ndarray] = []
        whole = [
            t.encode("utf-16", "surrogatepass")
            .decode("utf-16", "replace")
            .replace(HIDDEN, "\ufffd")
            for t in texts
        ]
        for first in range(0, len(whole), BATCH):
            some = whole[first : first + BATCH]
            with naming_the_library(self.library, f"{self.name} on texts from {some[0][:40]!r} on"):
                encoded = self.encoding_of_texts.encode_batch_fast(some, add_special_tokens=False)
            found += [np.array(one.ids, np.uint32) for one in encoded]
        return found

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Text of ids, special tokens spelled out. ValueError as in `token`."""
        numbers = np.asarray(ids).tolist()
        for id in set(numbers) - self.tokens.keys():
            self.token(id)
        with naming_the_library(self.library, self.name):
            text: str = self.decoding.decode(numbers, skip_special_tokens=False)
        return text

    @cached_property
    def tokens(self) -> dict[int, bytes]:
        """What each id stands for: bytes of text; for a special token, its name."""
        added = {token["id"] for token in self.parts.get("added_tokens") or []}
        spelling = _Spelling(self.parts)
        return {
            id: name.encode() if id in added else spelling.bytes_of(name)
            for name, id in self._vocab.items()
        }

    def _saved(self) -> dict[str, Any]:
        return {"kind": "huggingface", "code_points": self.code_points, "tokenizer": self.parts}

    @classmethod
    def _of_saved(cls, saved: dict[str, Any]) -> dict[str, Any]:
        return {
            "pattern": "",
            "ranks": {},
            "code_points": saved["code_points"],
            "parts": saved["tokenizer"],
        }


def _load(parts: dict[str, Any], name: str) -> "tokenizers.Tokenizer":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # every core has its process
    with naming_the_extra("prepare"):
        import tokenizers
    if not hasattr(tokenizers.Tokenizer, "from_str"):
        found = tokenizers.__version__
        raise MissingExtra(
            f"expected tokenizers below 1, found {found}; run pip install 'tokenizers<1'"
        )
    with naming_the_library("tokenizers", name):
        return tokenizers.Tokenizer.from_str(json.dumps(parts, ensure_ascii=False))


def _digest_of_code_points(loaded: "tokenizers.Tokenizer") -> str:
    texts = ["\n".join(f"{chr(code)}a" for code in codes) for codes in CODE_POINTS]
    ids = [
        id for one in loaded.encode_batch_fast(texts, add_special_tokens=False) for id in one.ids
    ]
    return hashlib.sha256(np.array(ids, np.uint32).tobytes()).hexdigest()


def unspelled(tokenizer: HuggingFace) -> dict[str, Any]:
    """The parts of a tokenizer.json whose special tokens have names that no text has."""
    whole, model = tokenizer.parts, tokenizer.parts["model"]
    names = {name: f"{HIDDEN}\ufdd1{id}{HIDDEN}" for name, id in tokenizer.special_tokens.items()}
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        vocab = {names.get(name, name): id for name, id in vocab.items()}
    else:
        vocab = [[names.get(name, name), score] for name, score in vocab]
    unknown = (
        {"unk_token": names.get(model["unk_token"], model["unk_token"])}
        if model.get("unk_token")
        else {}
    )
    merges = {}
    if "merges" in model:  # none may make such a token
        merges = {"merges": [merge for merge in model["merges"] if _made_of(merge) not in names]}
    added = whole.get("added_tokens") or []
    added = [token | {"content": names.get(token["content"], token["content"])} for token in added]
    return whole | {"model": model | {"vocab": vocab} | unknown | merges, "added_tokens": added}


def added_token(id: int, content: str, special: bool) -> dict[str, Any]:
    """As a tokenizer.json has an added token without flags."""
    return {
        "id": id,
        "content": content,
        **dict.fromkeys((*FLAGS, "normalized"), False),
        "special": special,
    }


def _made_of(merge: str | list[str]) -> str:
    return merge.replace(" ", "") if isinstance(merge, str) else "".join(merge)


class _Spelling:
    """How a vocabulary spells bytes: in GPT-2's characters, as <0x0A>, with a mark for a space, or plainly."""

    def __init__(self, whole: dict):
        kinds = json.dumps(
            [whole.get("pre_tokenizer"), whole.get("decoder"), whole.get("normalizer")]
        )
        self._by_byte = '"ByteLevel"' in kinds
        self._space = "\u2581" if '"Metaspace"' in kinds or "\\u2581" in kinds else None
        self._within = (
            (whole["model"].get("continuing_subword_prefix") or "") if not self._by_byte else ""
        )
        self._end = whole["model"].get("end_of_word_suffix") or ""  # a space follows the word

    def bytes_of(self, name: str) -> bytes:
        if self._by_byte and all(character in BYTE_OF for character in name):
            return bytes(BYTE_OF[character] for character in name)
        if found := BYTE.fullmatch(name):
            return bytes([int(found[1], 16)])
        name = name.removeprefix(self._within)
        name = (
            f"{name.removesuffix(self._end)} " if self._end and name.endswith(self._end) else name
        )
        return (name.replace(self._space, " ") if self._space else name).encode()


def _byte_characters() -> dict[str, int]:
    """GPT-2's characters for bytes: printable Latin-1 for itself, the others from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


BYTE_OF = _byte_characters()
