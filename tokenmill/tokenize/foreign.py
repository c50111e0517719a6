"""Tokenizers that other programs wrote: Hugging Face's tokenizer.json, and nanochat's tokenizer.pkl.

Hugging Face's byte-level BPE is a vocabulary, an ordered list of merges and a split pattern; tiktoken's is the
vocabulary alone, its ids in the order of the merges. So a file is converted for tiktoken if that says the same:

    {"a": 0, "b": 1, "ab": 2, "abb": 3}, merges [a b], [ab b]   ->   ranks b"a" 0, b"b" 1, b"ab" 2, b"abb" 3

    each token is made by one merge, and the merges come in the order of their ids
    each merge is canonical: the merges before it reduce its token to exactly the two parts that it joins
    both libraries encode the same texts to the same ids

Hugging Face's library itself runs every other tokenizer.json (huggingface.py).
nanochat's file has one tiktoken Encoding (pickles.py).
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenmill.extras import naming_the_extra
from tokenmill.store.files import LARGEST, read_bounded
from tokenmill.store.schema import MOST_IDS
from tokenmill.tokenize.hub_tokenizer import find_tokenizer_file
from tokenmill.tokenize.huggingface import BYTE_OF, HuggingFace
from tokenmill.tokenize.library_errors import naming_the_library
from tokenmill.tokenize.patterns import GPT2_PATTERN
from tokenmill.tokenize.pickles import read_pickle
from tokenmill.tokenize.tokenizer import BOS_TOKENS, Tokenizer, load_tokenizer


class _OtherKind(ValueError):
    """tiktoken cannot run a tokenizer.json, for this reason."""


def is_foreign(path: Path) -> bool:
    """Whether a file is a tokenizer that another program wrote."""
    if path.suffix == ".pkl":
        return path.is_file()
    if path.suffix != ".json" or not path.is_file():
        return False
    with open(path, "rb") as file:
        return b'"format": "tokenmill-' not in file.read(100)


def load_any(
    spec: str, bos_token: str | None = None, find_texts: Callable[[], Sequence[str]] = tuple[str, ...]
) -> Tokenizer:
    """A tokenizer by its tiktoken name, by the name of a model on the Hugging Face hub, or from a file of tokenmill or
    another program, with documents that begin with `bos_token`.

    A tokenizer.json of another program is checked on the texts that `find_texts` returns. ValueError, with the reason,
    if it is broken or has no such token; FileNotFoundError, PermissionError or ConnectionError if it cannot be found.
    """
    path, name = find_tokenizer_file(spec) or (Path(spec), None)
    if is_foreign(path):
        return load_foreign(path, bos_token, find_texts(), name)
    return load_tokenizer(spec if name is None else str(path)).framed(bos_token)


def load_foreign(path: Path, bos_token: str | None, texts: Sequence[str] = (), name: str | None = None) -> Tokenizer:
    """The tokenizer of a Hugging Face tokenizer.json or a nanochat tokenizer.pkl; see `load_any`."""
    name = _plain(name or (path.stem if path.stem != "tokenizer" else path.absolute().parent.name))
    if path.suffix == ".pkl":
        pattern, ranks, special = read_pickle(path)
        return Tokenizer(name, pattern, ranks, special, _bos(path, special, bos_token))
    data = read_bounded(path, LARGEST, "a tokenizer.json")
    try:
        return _of_json(path, name, json.loads(data), bos_token, texts)
    except (json.JSONDecodeError, RecursionError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise ValueError(
            f"{path}: expected a tokenizer.json, found broken JSON, or one of another form ({error!r})"
        ) from error


def _of_json(path: Path, name: str, whole: dict, bos_token: str | None, texts: Sequence[str]) -> Tokenizer:
    special = {token["content"]: token["id"] for token in whole.get("added_tokens") or [] if token["special"]}
    added = {token["content"]: token["id"] for token in whole.get("added_tokens") or []}
    if not isinstance(whole["model"]["vocab"], dict | list):
        raise ValueError(f"{path}: expected a tokenizer.json with a vocabulary, found none")
    ids = [*added.items(), *(whole["model"]["vocab"].items() if isinstance(whole["model"]["vocab"], dict) else ())]
    for token, id in ids:
        if type(token) is not str or type(id) is not int or not 0 <= id < MOST_IDS:
            raise ValueError(
                f"{path}: expected tokens with ids from 0 to {MOST_IDS - 1:,}, found {token!r} with {id!r}"
            )
    if bos_token in added:
        special[bos_token] = added[bos_token]
    bos_token = _bos(path, special, bos_token)
    try:
        tokenizer = _by_tiktoken(name, whole, special, bos_token)
        _check(tokenizer, path, texts)
        return tokenizer
    except (_OtherKind, KeyError, TypeError):
        return _by_its_library(path, name, whole, special, bos_token)


def _by_its_library(path: Path, name: str, whole: dict, special: dict[str, int], bos_token: str) -> Tokenizer:
    try:
        return HuggingFace.of_json(name, whole, special, bos_token)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; use another tokenizer, or train one: --tokenizer train:32768") from error


def _plain(name: str) -> str:
    """A name of a tokenizer that can be part of a folder's name."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name)


def _bos(path: Path, special: dict[str, int], bos_token: str | None) -> str:
    if bos_token is None:
        bos_token = next((token for token in BOS_TOKENS if token in special), None)
    if bos_token not in special:
        asked = f"no {bos_token!r}, but " if bos_token else ""
        raise ValueError(
            f"{path}: found {asked}special tokens {', '.join(special) or 'none'}; "
            "name the one that begins a document by --bos-token"
        )
    return bos_token


# ---------------------------------------------------------------------------- Hugging Face's tokenizer.json


def _by_tiktoken(name: str, whole: dict, special: dict[str, int], bos_token: str) -> Tokenizer:
    """The same tokenizer for tiktoken; raises `_OtherKind` if tiktoken cannot run it."""
    pattern, vocab = _pattern(whole), whole["model"]["vocab"]
    if ordinary := [token["content"] for token in whole.get("added_tokens") or [] if not token["special"]]:
        raise _OtherKind(f"added tokens that match within text: {', '.join(ordinary)}")
    ranks = {_bytes(token): rank for token, rank in vocab.items() if token not in special}
    merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in whole["model"]["merges"]]
    _require_canonical([(_bytes(first), _bytes(second)) for first, second in merges], ranks)
    tokenizer = Tokenizer(name, pattern, ranks, special, bos_token)
    try:
        tokenizer.encode("a")
    except Exception as error:
        raise _OtherKind(f"a split pattern that tiktoken cannot run ({error})") from error
    return tokenizer


def _pattern(whole: dict) -> str:
    """The split pattern of a byte-level BPE."""
    model = whole.get("model", {})
    if model.get("type") != "BPE" or model.get("byte_fallback") or model.get("dropout"):
        raise _OtherKind(f"a {model.get('type')} model{', with byte fallback' * bool(model.get('byte_fallback'))}")
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise _OtherKind("a BPE that marks where words begin or end")
    if whole.get("normalizer"):
        raise _OtherKind(f"a normalizer, {whole['normalizer'].get('type')}, which changes the text")
    steps = whole.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps])
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"] and steps[0].get("use_regex", True) and not steps[0].get("add_prefix_space"):
        return GPT2_PATTERN
    if kinds == ["Split", "ByteLevel"] and not steps[1].get("use_regex", True) and not steps[1].get("add_prefix_space"):
        pattern, split = steps[0]["pattern"], steps[0]
        if "Regex" in pattern and split["behavior"] == "Isolated" and not split["invert"]:
            return pattern["Regex"]
    raise _OtherKind(f"pre-tokenizers {kinds} of another form")


def _require_canonical(merges: list[tuple[bytes, bytes]], ranks: dict[bytes, int]) -> None:
    """Raises `_OtherKind` unless the ids alone say what the merges say, in their order."""
    made = [ranks[first + second] for first, second in merges]
    if made != sorted(set(made)):
        raise _OtherKind("merges that do not come in the order of their ids, or make one token twice")
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise _OtherKind(f"no token for {len(missing)} of the 256 bytes")
    if len(made) + 256 != len(ranks):
        raise _OtherKind(f"{len(ranks) - 256 - len(made):,} tokens that no merge makes")
    for pair, rank in zip(merges, made, strict=True):
        if _merged(pair[0] + pair[1], ranks, rank) != pair:
            raise _OtherKind(f"a merge of {pair[0]!r} and {pair[1]!r}, which earlier merges do not lead to")


def _merged(token: bytes, ranks: dict[bytes, int], below: int) -> tuple[bytes, ...]:
    """The parts that the merges of lower ranks reduce a token to."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [ranks.get(first + second, below) for first, second in zip(parts, parts[1:], strict=False)]
        lowest = min(pairs)
        if lowest >= below:
            break
        at = pairs.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return tuple(parts)


def _bytes(token: str) -> bytes:
    try:
        return bytes(BYTE_OF[character] for character in token)
    except KeyError:
        raise _OtherKind(f"token {token!r}, which is not of bytes") from None


def _check(tokenizer: Tokenizer, path: Path, texts: Sequence[str]) -> None:
    with naming_the_extra():
        import tokenizers  # needed only to check such a file

    with naming_the_library("tokenizers", str(path), _OtherKind):
        theirs = tokenizers.Tokenizer.from_file(str(path))
    theirs.no_truncation()
    theirs.no_padding()
    theirs.encode_special_tokens = True  # text that spells one is text
    for text in texts:
        with naming_the_library("tokenizers", str(path), _OtherKind):
            expected = theirs.encode(text, add_special_tokens=False).ids
        if tokenizer.encode(text).tolist() != expected:
            raise _OtherKind(f"other ids than the tokenizers library for {text[:40]!r}")
