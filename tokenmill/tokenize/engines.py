"""Engines that encode faster than the reference, which is tiktoken or Hugging Face's `tokenizers`.

An engine turns documents, an Arrow array of text, into flat ids and offsets. gigatoken is given the UTF-8 of one
document at a time, and no Python string is made. It needs ranks from 0 on without holes. A vocabulary with holes, such
as one whose special tokens come first, is renumbered for it, and the ids are mapped back.

This module makes engines; encoder.py proves them. Threads are left out: every core has its own process, so an engine
works on the calling thread. It must start none, because workers are forked from a process that has used it
(prepare/fork_server.py).
"""

import base64
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenmill.tokenize import nanochat_digits
from tokenmill.tokenize.codepoints import CodePoints, Located, text_buffers
from tokenmill.tokenize.patterns import PATTERNS

NO_IDS = np.empty(0, np.uint32)
Encode = Callable[[pa.LargeStringArray], tuple[np.ndarray, np.ndarray]]  # documents -> ids uint32, offsets int64

# what gigatoken calls each pattern; nanochat_digits.py adds how nanochat's splits digits
GIGATOKEN = {"gpt2": "gpt2", "cl100k": "cl100k", "llama3": "olmo3", "qwen2": "qwen2", "nanochat": "qwen2"}


@dataclass(frozen=True)
class Engine:
    """A faster engine: its package, and how to make an encoder of ranks and a pattern."""

    name: str
    version: str
    patterns: tuple[str, ...]
    make: Callable[[dict[bytes, int], str], Encode]

    def leaves(self, pattern: str) -> tuple[CodePoints, Callable[[Located], np.ndarray]] | None:
        """Which documents the engine cannot encode with this pattern, told from where these code points are; None if it
        can encode all.
        """
        return (nanochat_digits.numbers(), nanochat_digits.undecidable) if PATTERNS.get(pattern) == "nanochat" else None


def _gigatoken(ranks: dict[bytes, int], pattern: str) -> Encode:
    import gigatoken

    with _rank_file(ranks) as file:
        tokenizer = gigatoken.Tokenizer.from_tiktoken(file.name, pretokenizer=GIGATOKEN[PATTERNS[pattern]])
    if PATTERNS[pattern] != "nanochat":
        return lambda documents: _by_gigatoken(tokenizer, documents)
    pairs = nanochat_digits.DigitPairs(ranks)
    return lambda documents: pairs.join(*_by_gigatoken(tokenizer, documents))


def gigatoken_of_json(whole: str) -> Encode:
    """gigatoken with a Hugging Face tokenizer.json. Raises gigatoken's own errors if it cannot run it."""
    import gigatoken

    tokenizer = gigatoken.Tokenizer.from_json(whole)
    return lambda documents: _by_gigatoken(tokenizer, documents)


def _by_gigatoken(tokenizer, documents: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    # as fast as encode_batch, which imports awkward: a third of a second
    offsets, data = text_buffers(documents)
    text, edges = data.data, offsets.tolist()
    parts = [tokenizer.encode(text[begin:end].tobytes()) for begin, end in zip(edges[:-1], edges[1:], strict=True)]
    return np.concatenate([NO_IDS, *parts]), np.cumsum([0, *map(len, parts)])


def _rank_file(ranks: dict[bytes, int]):
    """A .tiktoken file of ranks, which is deleted when it is closed."""
    file = tempfile.NamedTemporaryFile(suffix=".tiktoken")  # noqa: SIM115 (the caller closes it)
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        file.write(base64.b64encode(token) + b" %d\n" % rank)
    file.flush()
    return file


# the fastest first
ENGINES = {"gigatoken": Engine("gigatoken", "0.10.0", tuple(GIGATOKEN), _gigatoken)}


def make_engine(engine: Engine, ranks: dict[bytes, int], pattern: str) -> Encode:
    """An encoder of these ranks, in any order and with any holes."""
    ids = np.sort(np.fromiter(ranks.values(), np.uint32, len(ranks)))
    if len(ids) and ids[-1] == len(ids) - 1:
        return engine.make(ranks, pattern)
    places = {int(rank): place for place, rank in enumerate(ids)}
    encode = engine.make({token: places[rank] for token, rank in ranks.items()}, pattern)

    def mapped(documents):
        dense, offsets = encode(documents)
        return ids[dense], offsets

    return mapped


def table_name(engine: Engine, pattern: str) -> str:
    """The table of the code points that an engine classes differently."""
    return f"{engine.name}-{engine.version}-{PATTERNS[pattern]}"
