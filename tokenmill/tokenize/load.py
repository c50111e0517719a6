"""Finds a tokenizer by what `--tokenizer` says, and reads it from whatever program wrote it.

    load_any("gpt2")                tiktoken's, by its name
    load_any("Qwen/Qwen3-0.6B")     the tokenizer.json of a model on the hub, perhaps @REVISION
    load_any("./model")             that of a folder
    load_any("a.json")              a file: tokenmill's own, or Hugging Face's
    load_any("tokenizer.pkl")       nanochat's, a pickled tiktoken Encoding

Hugging Face's library runs every tokenizer.json that tokenmill did not write (huggingface.py).
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenmill.addresses import path_of
from tokenmill.extras import naming_the_extra
from tokenmill.hub_client import ACCESS, REPOSITORY, endpoint
from tokenmill.messages import first_line
from tokenmill.store.files import read_bounded
from tokenmill.store.json_files import LARGEST
from tokenmill.store.schema import MOST_IDS
from tokenmill.tokenize.huggingface import HuggingFace
from tokenmill.tokenize.pickled import read_pickle
from tokenmill.tokenize.tokenizer import Tokenizer
from tokenmill.tokenize.vocabularies import BOS_TOKENS, load_tokenizer

FILE = "tokenizer.json"
CONFIGS = ("tokenizer_config.json", "special_tokens_map.json")  # beside it, if anything
SHOWN = 8  # special tokens in a message


def load_any(spec: str, bos_token: str | None = None) -> Tokenizer:
    """A tokenizer by what --tokenizer says, with documents that begin with `bos_token`.

    ValueError, with the reason, if it is broken or has no such token; FileNotFoundError,
    PermissionError or ConnectionError if it cannot be found.
    """
    path, name = find_tokenizer_file(spec) or (path_of(spec), None)
    if is_foreign(path):
        return load_foreign(path, bos_token, name)
    is_expanded = name is not None or spec.startswith("~")
    tokenizer = load_tokenizer(str(path) if is_expanded else spec)
    if tokenizer.chat is not None:
        raise ValueError(f"{spec}: is of a chat set; name the tokenizer that the set was made with")
    return tokenizer.with_ends(bos_token)


def is_foreign(path: Path) -> bool:
    """Whether a file is a tokenizer that another program wrote."""
    if path.suffix not in (".json", ".pkl") or not path.is_file():
        return False
    if path.suffix == ".pkl":
        return True
    with open(path, "rb") as file:
        return b'"format": "tokenmill-' not in file.read(100)


def load_foreign(path: Path, bos_token: str | None, name: str | None = None) -> Tokenizer:
    """The tokenizer of a tokenizer.json, or nanochat's tokenizer.pkl; see `load_any`."""
    if not name:
        name = path.stem if path.stem != "tokenizer" else path.absolute().parent.name
    plain_name = re.sub(r"[^\w.-]", "-", name)  # it becomes part of a folder's name
    if path.suffix == ".pkl":
        encoding = read_pickle(path)
        bos_token = _bos(path, encoding.special_tokens, bos_token)
        return Tokenizer(plain_name, *encoding, bos_token)
    try:
        return _of_json(path, plain_name, _object_of(path), bos_token)
    except (TypeError, LookupError, AttributeError, OverflowError) as error:
        raise ValueError(
            f"{path}: expected a tokenizer.json, found one of another form ({error!r})"
        ) from error


def _object_of(path: Path) -> dict[str, Any]:
    """What a file of JSON says. ValueError if it is no object."""
    data = read_bounded(path, LARGEST, f"a {path.name}")
    with naming_the_extra("prepare"):
        import orjson
    try:
        try:
            value = orjson.loads(data)
        except ValueError:  # or JSON that only Python reads, as NaN
            value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: expected a JSON file, found a broken one ({error!r}); get it again"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def _of_json(path: Path, name: str, parts: dict[str, Any], bos_token: str | None) -> Tokenizer:
    vocab = parts["model"]["vocab"]
    added_tokens = parts.get("added_tokens") or []
    if not isinstance(vocab, dict | list):
        raise ValueError(f"{path}: expected a tokenizer.json with a vocabulary, found none")
    added = {token["content"]: token["id"] for token in added_tokens}
    _require_ids(path, added)
    if isinstance(vocab, dict):
        _require_ids(path, vocab)
    special = {token["content"]: token["id"] for token in added_tokens if token["special"]}
    named = bos_token or _configured(path, "bos_token")
    named = named or _put_first(parts.get("post_processor") or {})
    if named in added:
        special[named] = added[named]
    likely = [*BOS_TOKENS, _configured(path, "eos_token")]
    bos_token = _bos(path, special, named, likely)
    try:
        return HuggingFace.of_json(name, parts, special, bos_token)
    except ValueError as error:
        raise ValueError(
            f"{path}: {error}; use another tokenizer, or train one: --tokenizer train:32768"
        ) from error


def _require_ids(path: Path, tokens: dict[Any, Any]) -> None:
    for text, id in tokens.items():
        if type(text) is not str or type(id) is not int or not 0 <= id < MOST_IDS:
            raise ValueError(
                f"{path}: expected tokens with ids from 0 to {MOST_IDS - 1:,}, found {text!r} with "
                f"{id!r}"
            )


def _bos(
    path: Path,
    special: dict[str, int],
    named: str | None,
    likely: Sequence[str | None] = BOS_TOKENS,
) -> str:
    """The special token that begins a document: that which is named, or the first likely one."""
    tokens = [named] if named else likely
    for token in tokens:
        if token in special and token is not None:
            return token
    if not special:
        raise ValueError(
            f"{path}: found no special tokens, and one has to begin every document; add one, as by "
            "tokenizer.add_special_tokens({'bos_token': '<s>'}) in transformers, save it, and name "
            "that folder"
        )
    shown = ", ".join([*special][:SHOWN])
    there = f"{len(special):,} special tokens, as {shown}"
    if named:
        there = f"no {named!r}, but {there}"
    raise ValueError(f"{path}: found {there}; name the one that begins a document by --bos-token")


def _configured(path: Path, key: str) -> str | None:
    """The first token of this name in the files beside a model's tokenizer.json."""
    if path.name != FILE:
        return None
    for name in CONFIGS:
        file = path.with_name(name)
        token = _object_of(file).get(key) if file.is_file() else None
        if isinstance(token, dict):
            token = token.get("content")
        if not token:
            continue
        if not isinstance(token, str):
            raise ValueError(
                f"{file}: expected a token as {key}, found {token!r}; name it by --bos-token"
            )
        return token
    return None


def _put_first(step: dict[str, Any]) -> str | None:
    """The token that a post-processor puts before a text, if any.

    Of several processors, the last one puts its own outermost.
    """
    for processor in reversed(step.get("processors") or []):
        token = _put_first(processor)
        if token:
            return token
    if "cls" in step:  # BERT's and RoBERTa's
        return step["cls"][0]
    first_piece = (step.get("single") or [{}])[0]
    special = first_piece.get("SpecialToken")
    if not special:
        return None
    tokens = step["special_tokens"][special["id"]]["tokens"]
    return tokens[0] if tokens else None


# ---------------------------------------------------------------------------- models


def find_tokenizer_file(spec: str) -> tuple[Path, str] | None:
    """The tokenizer.json of a model, and the tokenizer's name; None if `spec` names no model.

    Without a slash it names no folder: that could be any. Raises what `load_any` raises.
    """
    if "/" not in spec:
        return None
    folder = path_of(spec)
    if folder.is_dir():
        if not (folder / FILE).is_file():
            raise FileNotFoundError(
                f"{spec}: expected a {FILE} in this folder, found none; check --tokenizer"
            )
        return folder / FILE, folder.resolve().name
    if folder.exists() or spec.endswith((".json", ".pkl")):
        return None
    repository, _, revision = spec.partition("@")
    if spec[0] in "./~" or not REPOSITORY.fullmatch(repository):
        raise FileNotFoundError(
            f"{spec}: expected a folder with a {FILE}, found no such folder; check --tokenizer"
        )
    return _fetched(repository, revision or "main"), repository.partition("/")[2]


def _fetched(repository: str, revision: str) -> Path:
    with naming_the_extra("prepare"):
        from huggingface_hub import errors, snapshot_download

    names = [FILE, *CONFIGS]
    shown = f"{repository}@{revision}"
    try:
        folder = snapshot_download(
            repository, revision=revision, endpoint=endpoint(), allow_patterns=names
        )
    except errors.GatedRepoError as error:
        raise PermissionError(
            f"{shown}: the hub gives this model to users whom it knows; {ACCESS} "
            f"({first_line(error)})"
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise FileNotFoundError(
            f"{shown}: no such folder is here, and no such model or revision is on the hub; check "
            f"--tokenizer, {ACCESS} ({first_line(error)})"
        ) from error
    except Exception as error:  # the hub's, and httpx', requests' and the disk's
        raise ConnectionError(
            f"{shown}: no such folder is here, and the hub could not be asked; check the path, or "
            f"try again with a network ({first_line(error)})"
        ) from error
    path = Path(folder) / FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{shown}: no {FILE} is in this model; make one by "
            "AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER)"
        )
    return path
