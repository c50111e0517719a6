"""Load, save and fingerprint a tokenizer; a text -> token ids.

A tokenizer is a split pattern, the byte strings of its tokens with their ids (BPE ranks), its
special tokens, and which of these is BOS. tiktoken does the encoding and is the reference:

    "Hi <|endoftext|>"  ->  50256 17250 1279 91 437 1659 5239 91 29      (gpt2)

Text that spells a special token is ordinary text, so BOS only ever appears where tokenmill puts it.

Lone surrogates become U+FFFD, as in tiktoken's own `encode_ordinary`.
"""

import base64
import hashlib
import json
import os
from binascii import b2a_base64
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from tokenmill.store.files import write_changed
from tokenmill.store.json_files import header, read_json
from tokenmill.store.names import plain
from tokenmill.store.schema import MOST_IDS
from tokenmill.store.token_sets import TokenSet
from tokenmill.threads import cached_property
from tokenmill.tokenize.chat_rule import ChatRule
from tokenmill.tokenize.libraries import naming_the_library, tiktoken_package

if TYPE_CHECKING:
    import tiktoken


@dataclass(frozen=True)
class Tokenizer:
    """A byte-level BPE tokenizer. Ids are below `vocab_size`; some may stand for nothing."""

    name: str
    pattern: str
    ranks: dict[bytes, int] = field(repr=False)
    special_tokens: dict[str, int] = field(repr=False)
    bos_token: str
    eot_token: str | None = None  # what documents end with, if anything
    chat: ChatRule | None = None  # how conversations become text, if its documents are some

    library: ClassVar[str] = "tiktoken"  # the reference, which decides which ids are right
    may_make_bos: ClassVar[bool] = False  # of ordinary text

    def __post_init__(self) -> None:
        for token in (self.bos_token, self.eot_token):
            if token is not None and token not in self.special_tokens:
                known = ", ".join(self.special_tokens) or "none"
                raise ValueError(f"{token!r}: the special tokens of {self.name} are {known}")
        plain("the name of a tokenizer", self.name)
        ids = [*self.ranks.values(), *self.special_tokens.values()]
        if max(ids) >= MOST_IDS or min(ids) < 0:
            raise ValueError(
                f"{self.name}: ids must be from 0 to {MOST_IDS - 1:,}, not {min(ids):,} to "
                f"{max(ids):,}"
            )
        if self.eot_token == self.bos_token:
            raise ValueError(
                f"{self.bos_token}: begins documents in {self.name}, and cannot end them too"
            )

    def with_ends(self, bos_token: str | None = None, eot_token: str | None = None) -> Self:
        """The tokenizer whose documents begin or end with these special tokens.

        ValueError if they are unknown.
        """
        return replace(
            self, bos_token=bos_token or self.bos_token, eot_token=eot_token or self.eot_token
        )

    def with_added(self, tokens: Sequence[str]) -> Self:
        """The tokenizer with more special tokens, which get the ids after its last one.

        ValueError for one that it has already.
        """
        there = set(self.tokens.values())
        for token in tokens:
            if token.encode() in there:
                raise ValueError(
                    f"{self.name}: {token} cannot be added, as it is a token already; leave it "
                    "out, make it special in its tokenizer.json, or take another name"
                )
        ids = {token: self.vocab_size + number for number, token in enumerate(tokens)}
        return replace(self, special_tokens=self.special_tokens | ids)

    @property
    def bos_id(self) -> int:
        return self.special_tokens[self.bos_token]

    @property
    def eot_id(self) -> int | None:
        return None if self.eot_token is None else self.special_tokens[self.eot_token]

    @cached_property
    def vocab_size(self) -> int:
        return 1 + max(max(self.ranks.values()), max(self.special_tokens.values()))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over all that can change an id, or whether it is in the loss; not the name."""
        digest = digest_of(self._what_ids_follow_from)
        return digest if self.chat is None else digest_of([digest, self.chat.as_dict()])

    @property
    def _what_ids_follow_from(self) -> list[Any]:
        by_rank = sorted((rank, token.hex()) for token, rank in self.ranks.items())
        ends = [] if self.eot_token is None else [self.eot_token]
        return [self.pattern, by_rank, sorted(self.special_tokens.items()), self.bos_token, *ends]

    @cached_property
    def encoding(self) -> "tiktoken.Encoding":
        package = tiktoken_package()
        with naming_the_library("tiktoken", self.name):
            encoding: tiktoken.Encoding = package.Encoding(
                self.name,
                pat_str=self.pattern,
                mergeable_ranks=self.ranks,
                special_tokens=self.special_tokens,
            )
        return encoding

    def encode(self, text: str) -> np.ndarray:
        """Ids of a text, without BOS: (num_tokens,) uint32."""
        try:
            with naming_the_library("tiktoken", self.name, (UnicodeEncodeError,)):
                return self.encoding.encode_to_numpy(text, disallowed_special=())
        except UnicodeEncodeError:  # lone surrogates
            return self.encode(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, without BOS."""
        return [np.asarray(self.encode(text), np.uint32) for text in texts]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Text of ids, special tokens spelled out; a character cut in two becomes U+FFFD.

        ValueError as in `token`.
        """
        numbers = np.asarray(ids).tolist()
        try:
            return self.encoding.decode(numbers)
        except (KeyError, OverflowError):
            return b"".join(map(self.token, numbers)).decode("utf-8", "replace")  # says which

    def token(self, id: int) -> bytes:
        """The bytes that an id stands for; for a special token, its name.

        ValueError if there is no such id.
        """
        if id not in self.tokens:
            raise ValueError(
                f"id {id:,} stands for nothing in tokenizer {self.name}: damaged tokens"
            )
        return self.tokens[id]

    @cached_property
    def tokens(self) -> dict[int, bytes]:
        """What each id stands for: bytes of text; for a special token, its name."""
        special = {id: name.encode() for name, id in self.special_tokens.items()}
        return {rank: token for token, rank in self.ranks.items()} | special

    def token_bytes(self) -> np.ndarray:
        """Bytes of text that each id stands for, 0 for special tokens: (vocab_size,) int32."""
        lengths = np.zeros(self.vocab_size, dtype="<i4")
        for id, token in self.tokens.items():
            lengths[id] = len(token)
        lengths[list(self.special_tokens.values())] = 0
        return lengths

    def facts(self) -> dict[str, Any]:
        """What a manifest says about its tokenizer."""
        keys = ["name", "fingerprint", "vocab_size", "bos_token", "bos_id"]
        if self.eot_token is not None:
            keys += ["eot_token", "eot_id"]
        facts = {key: getattr(self, key) for key in keys}
        if self.chat is not None:
            facts["chat"] = self.chat.as_dict()
        return facts

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the whole tokenizer as JSON."""
        keys = ["name", "fingerprint", "bos_token", "special_tokens"]
        if self.eot_token is not None:
            keys.insert(3, "eot_token")
        facts = {key: getattr(self, key) for key in keys}
        if self.chat is not None:
            facts["chat"] = self.chat.as_dict()
        saved = header("tokenizer") | facts | self._saved()
        write_changed(Path(path), json.dumps(saved, ensure_ascii=False).encode())

    def _saved(self) -> dict[str, Any]:
        ranks = {}
        for token, rank in sorted(self.ranks.items(), key=itemgetter(1)):
            ranks[b2a_base64(token, newline=False).decode()] = rank
        return {"pattern": self.pattern, "ranks": ranks}

    @classmethod
    def _of_saved(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """The fields that `_saved` wrote."""
        ranks = {base64.b64decode(token): rank for token, rank in saved["ranks"].items()}
        return {"pattern": saved["pattern"], "ranks": ranks}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Reads what `save` wrote. ValueError for another file, or if its fingerprint is wrong."""
        saved = read_json(Path(path), "tokenizer")
        kinds = {kind.__name__.lower(): kind for kind in Tokenizer.__subclasses__()}
        kind = kinds.get(saved.get("kind", ""), cls)
        tokenizer = kind(
            name=saved["name"],
            special_tokens=saved["special_tokens"],
            bos_token=saved["bos_token"],
            eot_token=saved.get("eot_token"),
            chat=ChatRule.of_dict(saved["chat"]) if "chat" in saved else None,
            **kind._of_saved(saved),
        )
        if tokenizer.fingerprint != saved["fingerprint"]:
            raise ValueError(
                f"{path}: expected fingerprint {saved['fingerprint']}, found "
                f"{tokenizer.fingerprint}: the file was changed or damaged; make it again"
            )
        return tokenizer

    @classmethod
    def of_set(cls, token_set: TokenSet) -> "Tokenizer":
        """The tokenizer that a token set was made with. ValueError if its folder has another."""
        path = token_set.file("tokenizer.json")
        tokenizer = cls.load(path)
        expected = token_set.tokenizer["fingerprint"]
        if tokenizer.fingerprint != expected:
            raise ValueError(
                f"{path}: expected the tokenizer of this token set, with fingerprint "
                f"{expected[:8]}..., found {tokenizer.name}, with {tokenizer.fingerprint[:8]}...; "
                "put the right file back, or prepare again"
            )
        return tokenizer


def digest_of(value: Any) -> str:
    """The SHA-256 of a value as JSON: 64 hex digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
