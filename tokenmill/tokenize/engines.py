"""Engines that encode documents: faster ones beside the reference, which is tiktoken or Hugging Face's `tokenizers`.

An engine takes documents, an Arrow array of text, to flat ids and offsets. gigatoken reads the Arrow buffers
themselves, without a Python string; fastokens knows other patterns. Both want ranks from 0 on without holes, so a
vocabulary that has some, as where special tokens stand first, is numbered anew for them, and their ids mapped back.

Here they are made; encoder.py proves them. Left out: threads. Each engine works on the calling thread, as every core
has its process.
"""

import base64
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenmill.tokenize import digits
from tokenmill.tokenize.codepoints import text_buffers
from tokenmill.tokenize.patterns import PATTERNS

Encode = Callable[[pa.LargeStringArray], tuple[np.ndarray, np.ndarray]]  # documents -> ids uint32, offsets int64

# what gigatoken calls each pattern; of nanochat's the digits are its own (digits.py)
GIGATOKEN = {"gpt2": "gpt2", "cl100k": "cl100k", "llama3": "olmo3", "qwen2": "qwen2", "nanochat": "olmo3"}


@dataclass(frozen=True)
class Engine:
    """A faster engine: its package, and how to make an encoder of ranks and a pattern."""

    name: str
    version: str
    patterns: tuple[str, ...]
    make: Callable[[dict[bytes, int], str], Encode]

    def leaves(self, pattern: str) -> Callable[[pa.LargeStringArray], np.ndarray] | None:
        """What tells the documents that the engine cannot decide with this pattern, where there are any."""
        return digits.undecidable if (self.name, PATTERNS.get(pattern)) == ("gigatoken", "nanochat") else None


def _gigatoken(ranks: dict[bytes, int], pattern: str) -> Encode:
    import gigatoken

    with _rank_file(ranks) as file:
        tokenizer = gigatoken.Tokenizer.from_tiktoken(file.name, pretokenizer=GIGATOKEN[PATTERNS[pattern]])
    if PATTERNS[pattern] != "nanochat":
        return lambda documents: _by_gigatoken(tokenizer, documents)
    mark_id = ranks[bytes([digits.MARK])]

    def encode(documents):
        return digits.unmark(*_by_gigatoken(tokenizer, digits.mark(documents)), mark_id)

    return encode


def gigatoken_of_json(whole: str) -> Encode:
    """gigatoken with a tokenizer.json of Hugging Face's. Its own errors where it does not know the kind."""
    import gigatoken

    tokenizer = gigatoken.Tokenizer.from_json(whole)
    return lambda documents: _by_gigatoken(tokenizer, documents)


def _by_gigatoken(tokenizer, documents: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    import awkward as ak

    offsets, data = text_buffers(documents)
    characters = ak.contents.NumpyArray(data, parameters={"__array__": "char"})
    texts = ak.contents.ListOffsetArray(ak.index.Index64(offsets), characters, parameters={"__array__": "string"})
    layout = tokenizer.encode_batch(ak.Array(texts), parallel=False).layout
    return np.asarray(layout.content.data), np.asarray(layout.offsets.data)


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
        Engine("gigatoken", "0.10.0", tuple(GIGATOKEN), _gigatoken),
        Engine("fastokens", "0.3.5", ("gpt2", "cl100k", "nanochat"), _fastokens),
    )
}


def make_engine(engine: Engine, ranks: dict[bytes, int], pattern: str) -> Encode:
    """An encoder of these ranks, in whatever order and with whatever holes."""
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
    """The table of the code points that an engine classes otherwise."""
    return f"{engine.name}-{engine.version}-{PATTERNS[pattern]}"
