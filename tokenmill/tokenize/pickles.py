"""Reads the tiktoken Encoding in nanochat's tokenizer.pkl without running anything.

A pickle is a program. It can make the unpickler run anything, nest objects until Python's stack overflows, or allocate
gigabytes with a few bytes. So the program is checked first:

    only the steps that an Encoding needs          texts, bytes, numbers, dicts, one class
    numbers of memory cells below its length       each cell has been written by a step
    one tuple, the empty one                       only dicts are nested, which is harmless at any depth
    one name, tiktoken.core.Encoding               replaced by a class that only keeps its state
"""

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

from tokenmill.store.files import read_bounded

STEPS = {
    *("PROTO", "FRAME", "STOP", "MARK", "GLOBAL", "STACK_GLOBAL", "EMPTY_TUPLE", "NEWOBJ", "BUILD"),
    *("EMPTY_DICT", "SETITEM", "SETITEMS", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    *("BININT", "BININT1", "BININT2", "NONE"),  # no number that hashes as a million others do
}
MOST_PICKLED = 64 << 20  # bytes


def read_pickle(path: Path) -> tuple[str, dict[bytes, int], dict[str, int]]:
    """The split pattern, ranks and special tokens of a pickled tiktoken Encoding. ValueError, with the reason."""
    data = read_bounded(path, MOST_PICKLED, "a pickled tiktoken Encoding")
    try:
        _require_harmless(data)
        state = _OnlyAnEncoding(io.BytesIO(data)).load().state
        pattern, ranks, special = state["pat_str"], state["mergeable_ranks"], state["special_tokens"]
        if not (isinstance(pattern, str) and isinstance(ranks, dict) and isinstance(special, dict)):
            raise ValueError("its parts are of other types")
    except Exception as error:  # a corrupt pickle fails in any way
        raise ValueError(
            f"{path}: expected a pickled tiktoken Encoding as nanochat writes it, and nothing else: {error!r}; "
            "it was not loaded"
        ) from error
    if problem := _problem(ranks, special):
        raise ValueError(f"{path}: expected a tiktoken Encoding, found {problem}; it was not loaded")
    return pattern, ranks, special


def _require_harmless(data: bytes) -> None:
    """Raises UnpicklingError if the program has a step that an Encoding does not need."""
    for step, argument, _ in pickletools.genops(data):
        if step.name not in STEPS:
            raise pickle.UnpicklingError(f"it has the step {step.name}")
        if step.name == "LONG_BINPUT" and (argument or 0) >= len(data):
            raise pickle.UnpicklingError(f"it has a memory cell {argument:,}, and {len(data):,} bytes")


class _Encoding:
    """What a pickled tiktoken Encoding says of itself; nothing of it is run."""

    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _OnlyAnEncoding(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[_Encoding]:
        if (module, name) == ("tiktoken.core", "Encoding"):
            return _Encoding
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _problem(ranks: dict[Any, Any], special: dict[Any, Any]) -> str | None:
    """What a vocabulary cannot be."""
    if not all(type(token) is bytes and type(rank) is int for token, rank in ranks.items()):
        return "tokens that are not bytes with ranks"
    if not all(type(token) is str and type(id) is int for token, id in special.items()):
        return "special tokens that are not names with ids"
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        return f"no token for {len(missing)} of the 256 bytes"
    ids = [*ranks.values(), *special.values()]
    if len(set(ids)) < len(ids) or min(ids) < 0:
        return "ids that stand for two tokens, as BOS and an ordinary one, or none"
    return None
