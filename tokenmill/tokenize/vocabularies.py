"""tiktoken's vocabularies by their names, and the tokenizer.json files that tokenmill wrote.

load_tokenizer("gpt2")
load_tokenizer("data/tokens/NAME/tokenizer.json")
"""

import difflib
import functools
from pathlib import Path
from typing import Any

from tokenmill.messages import first_line
from tokenmill.tokenize.libraries import tiktoken_package
from tokenmill.tokenize.tokenizer import Tokenizer

# gpt2 and r50k_base are the same 50,257 tokens; tiktoken has the second in one file
ALIASES = {"gpt2": "r50k_base"}
SHORT_NAMES = {name: alias for alias, name in ALIASES.items()}
BOS_TOKENS = ("<|bos|>", "<|begin_of_text|>", "<s>", "<|endoftext|>")


def load_tokenizer(spec: str) -> Tokenizer:
    """A tokenizer by its tiktoken name, or from a tokenizer.json that tokenmill wrote.

    ValueError for an unknown name, FileNotFoundError for a missing file, ConnectionError if the
    vocabulary cannot be downloaded.
    """
    if spec.endswith(".json"):
        if not Path(spec).exists():
            raise FileNotFoundError(
                f"{spec}: expected a tokenizer.json, found no such file; check --tokenizer"
            )
        return Tokenizer.load(Path(spec))
    _require_known(spec)
    vocabulary = _load_vocabulary(ALIASES.get(spec, spec))
    special = dict(vocabulary["special_tokens"])
    bos_token = next(token for token in BOS_TOKENS if token in special)
    name = SHORT_NAMES.get(spec, spec)
    return Tokenizer(name, vocabulary["pat_str"], vocabulary["mergeable_ranks"], special, bos_token)


def _require_known(name: str) -> None:
    known = sorted({*ALIASES, *tiktoken_package().list_encoding_names()})
    if name in known:
        return
    likely = list(known)
    if Path(name).is_dir():
        likely.append(f"./{name}")
    near = difflib.get_close_matches(name.lower(), likely, 1)
    hint = f", did you mean {near[0]}?" if near else ""
    raise ValueError(
        f"unknown tokenizer {name!r}{hint}; expected train:N, the path of a tokenizer.json or "
        "nanochat's tokenizer.pkl, a model on the hub (owner/name), or "
        f"{', '.join(known)}"
    )


@functools.cache
def _load_vocabulary(name: str) -> dict[str, Any]:
    """What tiktoken makes an Encoding of: making one takes longer than reading the vocabulary."""
    constructors = tiktoken_package().registry.ENCODING_CONSTRUCTORS
    try:
        vocabulary: dict[str, Any] = constructors[name]()
        return vocabulary
    except Exception as error:  # requests', an OSError for the cache, a ValueError for a wrong hash
        raise ConnectionError(
            f"the vocabulary of {name} is not cached here and could not be downloaded "
            f"({first_line(error):.100}...). Run once with a network; or set TIKTOKEN_CACHE_DIR to "
            "a folder where tiktoken has cached it; or train a tokenizer on your own text, which "
            "needs no network: --tokenizer train:32768"
        ) from error
