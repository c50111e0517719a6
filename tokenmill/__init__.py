"""tokenmill: shards of text become training rows for language models.

    from tokenmill import get_batch, RowLoader      training: numpy and torch, nothing else
    from tokenmill.numpy import RowLoader           the same rows as NumPy arrays, without torch
    from tokenmill.jax import RowLoader             and as global jax.Arrays
    tokenmill prepare --source my/files             once, before: pip install '.[prepare]'

The package has wings. The `__init__.py` of each says what lives in it. Imports point downwards:

    cli                                   the command
    numpy  jax                            RowLoader for these arrays
    look/  exchange/  views/              what people look at; other programs' files; rules
    batches/  prepare/                    rows -> arrays; text -> token sets
    feed/                                 token sets -> rows, as NumPy arrays
    chat/                                 conversations -> ids and a loss mask
    text/  tokenize/  remote/             text comes in; text -> ids; token sets at an address
    store/  rows/                         bytes on disk; lengths -> rows
    extras  checks  messages  threads     for all: optional packages; checks of settings; what is
                                          printed; waits that can be cancelled
    addresses  hub_client                 what is an address; the Hugging Face hub

A public name is loaded when it is first used, so that preparing does not wait for torch, nor
training for pyarrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokenmill.extras import naming_the_extra
from tokenmill.prepare import (
    prepare,
)  # here, so that the name is the function's, whoever imports the wing later

if TYPE_CHECKING:
    from tokenmill.batches.documents import cu_seqlens, document_ids, document_mask, position_ids
    from tokenmill.batches.get_batch import get_batch
    from tokenmill.batches.loader import RowLoader
    from tokenmill.batches.packed_rows import PackedRows
    from tokenmill.feed.forecast import forecast
    from tokenmill.feed.mixture import Mixture, proportional
    from tokenmill.look.documents import Documents
    from tokenmill.look.notebook import report, show
    from tokenmill.prepare.config import PrepareConfig
    from tokenmill.prepare.failures import PreparationError
    from tokenmill.prepare.presets import PRESETS
    from tokenmill.store.set_names import find_token_set
    from tokenmill.store.token_sets import TokenSet
    from tokenmill.tokenize.tokenizer import Tokenizer

__version__ = "0.5.0"
__all__ = [
    "PRESETS",
    "Documents",
    "Mixture",
    "PackedRows",
    "PreparationError",
    "PrepareConfig",
    "RowLoader",
    "TokenSet",
    "Tokenizer",
    "__version__",
    "cu_seqlens",
    "document_ids",
    "document_mask",
    "find_token_set",
    "forecast",
    "get_batch",
    "load_state_dict",
    "position_ids",
    "prepare",
    "proportional",
    "report",
    "show",
    "state_dict",
]
_HOMES = {
    "PRESETS": "prepare.presets",
    "Documents": "look.documents",
    "Mixture": "feed.mixture",
    "PackedRows": "batches.packed_rows",
    "PreparationError": "prepare.failures",
    "PrepareConfig": "prepare.config",
    "RowLoader": "batches.loader",
    "TokenSet": "store.token_sets",
    "Tokenizer": "tokenize.tokenizer",
    "cu_seqlens": "batches.documents",
    "document_ids": "batches.documents",
    "document_mask": "batches.documents",
    "find_token_set": "store.set_names",
    "forecast": "feed.forecast",
    "get_batch": "batches.get_batch",
    "position_ids": "batches.documents",
    "proportional": "feed.mixture",
    "report": "look.notebook",
    "show": "look.notebook",
}


def state_dict() -> dict[str, str]:
    """The positions of all loaders that get_batch keeps: one text, whatever it holds.

    Save it on every rank or on one; evaluation's positions are this rank's own. ValueError if it
    could not tell two calls apart.
    """
    # no name of _HOMES, as torch.distributed.checkpoint sees none that is loaded when it is first
    # used
    positions: dict[str, str] = import_module("tokenmill.batches.get_batch")._loaders.state_dict()
    return positions


def load_state_dict(state: dict[str, Any]) -> None:
    """Makes get_batch continue from `state_dict`, on any number of ranks. ValueError for a state of
    something else.

    Each position goes to the next call of the arguments that it was saved with. Whether it fits is
    checked then. Until all of training are continued, training with other arguments is a
    ValueError.
    """
    import_module("tokenmill.batches.get_batch")._loaders.load_state_dict(state)


if not TYPE_CHECKING:  # or a checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name in ("numpy", "jax"):
            return import_module(f"tokenmill.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = _HOMES[name]
        extra = "torch" if home.startswith("batches") else "prepare"
        with naming_the_extra("report" if home == "look.notebook" else extra):
            value = getattr(import_module(f"tokenmill.{home}"), name)
        globals()[name] = value  # so that this is asked once
        return value


def __dir__() -> list[str]:
    return __all__
