"""nanochat's tokenizer.pkl: a pickled tiktoken Encoding.

A pickle is a program, so it is read by an unpickler that finds one name, of a class that only keeps
its state.
"""

import io
import pickle
from pathlib import Path
from typing import Any, NamedTuple

from tokenmill.store.files import read_bounded

MOST_BYTES = 64 << 20


class PickledEncoding(NamedTuple):
    """What an Encoding says of itself."""

    pattern: str
    ranks: dict[bytes, int]
    special_tokens: dict[str, int]


class _Encoding:
    """Nothing of it is run."""

    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _OnlyAnEncoding(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[_Encoding]:
        if (module, name) == ("tiktoken.core", "Encoding"):
            return _Encoding
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def read_pickle(path: Path) -> PickledEncoding:
    """ValueError, with the reason, for anything else."""
    data = read_bounded(path, MOST_BYTES, "a pickled tiktoken Encoding")
    try:
        state = _OnlyAnEncoding(io.BytesIO(data)).load().state
        encoding = PickledEncoding(
            state["pat_str"], state["mergeable_ranks"], state["special_tokens"]
        )
        _require_whole(encoding)
    except Exception as error:  # a corrupt pickle fails in any way
        raise ValueError(
            f"{path}: expected a pickled tiktoken Encoding as nanochat writes it, and nothing "
            f"else: {error!r}; it was not loaded"
        ) from error
    return encoding


def _require_whole(encoding: PickledEncoding) -> None:
    pattern, ranks, special = encoding
    of_ranks = {(type(token), type(id)) for token, id in ranks.items()}
    of_special = {(type(token), type(id)) for token, id in special.items()}
    if type(pattern) is not str or of_ranks - {(bytes, int)} or of_special - {(str, int)}:
        raise ValueError("its parts are of other types")
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise ValueError(f"no token for {len(missing)} of the 256 bytes")
    if len({*ranks.values(), *special.values()}) < len(ranks) + len(special):
        raise ValueError("ids that stand for two tokens, as BOS and an ordinary one")
