"""What an engine is: a module with VERSIONS and four functions, and the registry of them.

    engine.require_usable(tokenizer)                    ValueError, with the reason, if it is not
    fast = engine.make(tokenizer)                       documents -> ids, offsets
    codes = engine.code_points_of(tokenizer, fast, slow)    what the reference must encode
    refers = engine.refers_of(tokenizer, codes)         which documents are left to it

A new engine is a module of this wing, its entry in ENGINES, and its name in EngineName.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from tokenmill.checks import one_of

if TYPE_CHECKING:  # whoever writes a config need not have them
    import numpy as np
    import pyarrow as pa

    from tokenmill.tokenize.tokenizer import Tokenizer

# documents, an Arrow array of text -> ids (num_ids,) uint32, offsets (num_documents + 1,) int64
Encode = Callable[["pa.LargeStringArray"], "tuple[np.ndarray, np.ndarray]"]
# documents -> whether the reference has to encode each: (num_documents,) bool
Refers = Callable[["pa.LargeStringArray"], "np.ndarray[Any, Any]"]

REFERENCE = "tiktoken"  # as --engine calls it, also where that is `tokenizers`
EngineName = Literal["auto", "tiktoken", "gigatoken"]
ENGINES = {"gigatoken": "tokenmill.tokenize.gigatoken"}  # the fastest first


class Engine(Protocol):
    """What encoder.py needs of an engine."""

    VERSIONS: dict[str, str]  # of packages, that it is proven with

    def require_usable(self, tokenizer: "Tokenizer") -> None: ...

    def make(self, tokenizer: "Tokenizer") -> Encode: ...

    def code_points_of(
        self, tokenizer: "Tokenizer", fast: Encode, reference: Encode
    ) -> "np.ndarray[Any, Any]": ...

    def refers_of(self, tokenizer: "Tokenizer", code_points: "np.ndarray[Any, Any]") -> Refers: ...


def load_engine(name: str) -> Engine:
    """The engine of this name. ValueError if there is none."""
    one_of("engine", name, ENGINES)
    return cast(Engine, importlib.import_module(ENGINES[name]))
