"""Load, train, save and fingerprint a tokenizer; a text -> token ids.

A tokenizer is a split pattern, the byte strings of its tokens with their ids (BPE ranks), its
special tokens, and which of these is BOS. tiktoken does the encoding and is the reference:

    "Hi <|endoftext|>"  ->  50256 17250 1279 91 437 1659 5239 91 29      (gpt2)

Text that spells a special token is ordinary text, so BOS only ever appears where tokenmill puts it.

Lone surrogates become U+FFFD, as in tiktoken's own `encode_ordinary`.
"""

import base64
import contextlib
import difflib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from tokenmill.extras import naming_the_extra
from tokenmill.store.files import header, read_json, write_json
from tokenmill.store.names import plain
from tokenmill.store.schema import MOST_IDS
from tokenmill.store.token_sets import TokenSet
from tokenmill.threads import cached_property
from tokenmill.tokenize.chat_rule import NANOCHAT_TOKENS, ChatRule
from tokenmill.tokenize.patterns import NANOCHAT_PATTERN

if TYPE_CHECKING:
    import tiktoken

# gpt2 and r50k_base are the same 50,257 tokens; tiktoken has the second in one file
ALIASES = {"gpt2": "r50k_base"}
BOS_TOKENS = ("<|bos|>", "<|begin_of_text|>", "<s>", "<|endoftext|>")

# nanochat's special tokens (nanochat/tokenizer.py)
NANOCHAT_SPECIAL_TOKENS = ("<|bos|>", *NANOCHAT_TOKENS)


@dataclass(frozen=True)
class Tokenizer:
    """A byte-level BPE tokenizer. Ids are below `vocab_size`; some of them may stand for nothing."""

    name: str
    pattern: str
    ranks: dict[bytes, int] = field(repr=False)
    special_tokens: dict[str, int] = field(repr=False)
    bos_token: str
    eot_token: str | None = None  # what documents end with, if anything
    # how conversations are rendered, if its documents are conversations
    chat: "ChatRule | None" = None

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
                f"{self.name}: ids must be from 0 to {MOST_IDS - 1:,}, not {min(ids):,} to {max(ids):,}"
            )
        if self.eot_token == self.bos_token:
            raise ValueError(
                f"{self.bos_token}: begins documents in {self.name}, and cannot end them too"
            )

    def framed(self, bos_token: str | None = None, eot_token: str | None = None) -> Self:
        """The tokenizer with other special tokens at the beginning or end of documents. ValueError if unknown."""
        return replace(
            self, bos_token=bos_token or self.bos_token, eot_token=eot_token or self.eot_token
        )

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
        """SHA-256 over everything that can change a token id, or whether it bears loss; the name cannot."""
        of_ids = digest_of(self._what_ids_follow_from)
        return of_ids if self.chat is None else digest_of([of_ids, self.chat.as_dict()])

    @property
    def _what_ids_follow_from(self) -> list[Any]:
        by_rank = sorted((rank, token.hex()) for token, rank in self.ranks.items())
        ends = [] if self.eot_token is None else [self.eot_token]
        return [self.pattern, by_rank, sorted(self.special_tokens.items()), self.bos_token, *ends]

    @cached_property
    def encoding(self) -> "tiktoken.Encoding":
        package = _tiktoken()
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
        """Text of ids, special tokens spelled out; a character cut in two becomes U+FFFD. ValueError as in `token`."""
        numbers = np.asarray(ids).tolist()
        try:
            return self.encoding.decode(numbers)
        except (KeyError, OverflowError):
            return b"".join(map(self.token, numbers)).decode("utf-8", "replace")  # says which

    def token(self, id: int) -> bytes:
        """The bytes that an id stands for; for a special token, its name. ValueError if there is no such id."""
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
        keys = ("name", "fingerprint", "vocab_size", "bos_token", "bos_id")
        ends = () if self.eot_token is None else ("eot_token", "eot_id")
        facts = {key: getattr(self, key) for key in (*keys, *ends)}
        return facts if self.chat is None else facts | {"chat": self.chat.as_dict()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the whole tokenizer as JSON."""
        facts = {
            key: getattr(self, key)
            for key in ("name", "fingerprint", "bos_token", "eot_token", "special_tokens")
        }
        facts["chat"] = self.chat.as_dict() if self.chat else None
        facts = {key: value for key, value in facts.items() if value is not None}
        write_json(Path(path), header("tokenizer") | facts | self._saved())

    def _saved(self) -> dict[str, Any]:
        ranks = sorted(self.ranks.items(), key=lambda item: item[1])
        return {
            "pattern": self.pattern,
            "ranks": {base64.b64encode(token).decode(): rank for token, rank in ranks},
        }

    @classmethod
    def _of_saved(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """The fields that `_saved` wrote."""
        ranks = {base64.b64decode(token): rank for token, rank in saved["ranks"].items()}
        return {"pattern": saved["pattern"], "ranks": ranks}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Reads what `save` wrote. ValueError if it is another file, or its fingerprint is wrong."""
        whole = read_json(Path(path), "tokenizer")
        kinds = {kind.__name__.lower(): kind for kind in Tokenizer.__subclasses__()}
        kind = kinds.get(whole.get("kind", ""), cls)
        facts: dict[str, Any] = {key: whole[key] for key in ("name", "special_tokens", "bos_token")}
        chat = ChatRule.of_dict(whole["chat"]) if "chat" in whole else None
        tokenizer = kind(
            **facts, **kind._of_saved(whole), eot_token=whole.get("eot_token"), chat=chat
        )
        if tokenizer.fingerprint != whole["fingerprint"]:
            raise ValueError(
                f"{path}: expected fingerprint {whole['fingerprint']}, found {tokenizer.fingerprint}: "
                "the file was changed or damaged; make it again"
            )
        return tokenizer

    @classmethod
    def of_set(cls, token_set: TokenSet) -> "Tokenizer":
        """The tokenizer that a token set was made with. ValueError if its folder has another."""
        path = token_set.file("tokenizer.json")
        tokenizer, expected = cls.load(path), token_set.tokenizer["fingerprint"]
        if tokenizer.fingerprint != expected:
            raise ValueError(
                f"{path}: expected the tokenizer of this token set, with fingerprint {expected[:8]}..., found "
                f"{tokenizer.name}, with {tokenizer.fingerprint[:8]}...; put the right file back, or prepare again"
            )
        return tokenizer


def digest_of(value: Any) -> str:
    """The SHA-256 of a value as JSON: 64 hex digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def load_tokenizer(spec: str) -> Tokenizer:
    """A tokenizer by its tiktoken name, or from a tokenizer.json that tokenmill wrote. ValueError for an unknown name,
    FileNotFoundError for a missing file, ConnectionError if the vocabulary cannot be downloaded.
    """
    if spec.endswith(".json"):
        if not Path(spec).exists():
            raise FileNotFoundError(
                f"{spec}: expected a tokenizer.json, found no such file; check --tokenizer"
            )
        return Tokenizer.load(Path(spec))
    known = sorted({*ALIASES, *_tiktoken().list_encoding_names()})
    if spec not in known:
        meant = difflib.get_close_matches(
            spec.lower(), [*known, *([f"./{spec}"] if Path(spec).is_dir() else [])], 1
        )
        raise ValueError(
            f"unknown tokenizer {spec!r}{f', did you mean {meant[0]}?' if meant else ''}; expected train:N, the path "
            f"of a tokenizer.json or nanochat's tokenizer.pkl, a model on the hub (owner/name), or {', '.join(known)}"
        )
    encoding = _load_encoding(ALIASES.get(spec, spec))
    special = dict(encoding._special_tokens)
    bos_token = next(token for token in BOS_TOKENS if token in special)
    name = {target: alias for alias, target in ALIASES.items()}.get(spec, spec)
    return Tokenizer(name, encoding._pat_str, encoding._mergeable_ranks, special, bos_token)


def _tiktoken() -> ModuleType:
    """The package, loaded when it is first needed: a tokenizer can be read and described without it."""
    with naming_the_extra("prepare"):
        import tiktoken
    return tiktoken


def _load_encoding(name: str) -> "tiktoken.Encoding":
    package = _tiktoken()
    try:
        encoding: tiktoken.Encoding = package.get_encoding(name)
        return encoding
    except Exception as error:  # requests', an OSError for the cache, a ValueError for a wrong hash
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConnectionError(
            f"the vocabulary of {name} is not cached here and could not be downloaded ({reason:.100}...). "
            "Run once with a network; or set TIKTOKEN_CACHE_DIR to a folder where tiktoken has cached it; "
            "or train a tokenizer on your own text, which needs no network: --tokenizer train:32768"
        ) from error


def train_tokenizer(texts: Iterable[str], vocab_size: int, name: str) -> Tokenizer:
    """Trains a byte-level BPE of `vocab_size` tokens with rustbpe, including nanochat's special tokens. ValueError if
    there is no room for the 256 bytes and the special tokens, or too little text for so many tokens.
    """
    smallest = 256 + len(NANOCHAT_SPECIAL_TOKENS)
    if vocab_size < smallest:
        raise ValueError(
            f"expected at least {smallest} tokens, 256 bytes and special tokens, found {vocab_size}"
        )
    import rustbpe  # needed only for training

    trainer = rustbpe.Tokenizer()
    num_ranks = vocab_size - len(NANOCHAT_SPECIAL_TOKENS)
    trainer.train_from_iterator(iter(texts), num_ranks, pattern=NANOCHAT_PATTERN)
    ranks = {bytes(token): rank for token, rank in trainer.get_mergeable_ranks()}
    if len(ranks) < num_ranks:
        raise ValueError(
            f"the text gives only {len(ranks) + len(NANOCHAT_SPECIAL_TOKENS):,} tokens, expected {vocab_size:,}; "
            "train on more text, or ask for fewer tokens"
        )
    special = {token: len(ranks) + i for i, token in enumerate(NANOCHAT_SPECIAL_TOKENS)}
    return Tokenizer(name, NANOCHAT_PATTERN, ranks, special, NANOCHAT_SPECIAL_TOKENS[0])


class CannotRun(ValueError):
    """A library cannot run a tokenizer, or encode a text."""


@contextlib.contextmanager
def naming_the_library(
    library: str, name: str, but: tuple[type[BaseException], ...] = ()
) -> Iterator[None]:
    """Turns whatever a library raises, even a Rust panic, into a ValueError, but for some errors."""
    try:
        yield
    except BaseException as error:
        if isinstance(
            error,
            (KeyboardInterrupt, SystemExit, MemoryError, ModuleNotFoundError, CannotRun, *but),
        ):
            raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CannotRun(
            f"the {library} library cannot run tokenizer {name}: {reason:.300}"
        ) from error
