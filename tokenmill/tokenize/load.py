"""Finds a tokenizer by what `--tokenizer` says, and reads it from whatever program wrote it.

    load_any("gpt2")                           tiktoken's, by its name
    load_any("Qwen/Qwen3-0.6B")                the tokenizer.json of a model on the hub, perhaps with @REVISION
    load_any("./model"), load_any("a.json")    that of a folder, or a file: tokenmill's own, or Hugging Face's
    load_any("tokenizer.pkl")                  nanochat's, a pickled tiktoken Encoding

Hugging Face's library runs every tokenizer.json that tokenmill did not write (huggingface.py). A pickle is a program,
so it is read by an unpickler that finds one name, of a class that only keeps its state.
"""

import io
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenmill.extras import naming_the_extra
from tokenmill.hub_client import ACCESS, REPOSITORY, endpoint, first_line
from tokenmill.store.files import LARGEST, read_bounded
from tokenmill.store.schema import MOST_IDS
from tokenmill.tokenize.huggingface import HuggingFace
from tokenmill.tokenize.tokenizer import BOS_TOKENS, Tokenizer, load_tokenizer

FILE = "tokenizer.json"
CONFIGS = ("tokenizer_config.json", "special_tokens_map.json")  # beside it, if anything
MOST_PICKLED = 64 << 20  # bytes


def load_any(spec: str, bos_token: str | None = None) -> Tokenizer:
    """A tokenizer by what --tokenizer says, with documents that begin with `bos_token`.

    ValueError, with the reason, if it is broken or has no such token; FileNotFoundError, PermissionError or
    ConnectionError if it cannot be found.
    """
    path, name = find_tokenizer_file(spec) or (Path(spec), None)
    if is_foreign(path):
        return load_foreign(path, bos_token, name)
    found = load_tokenizer(spec if name is None else str(path))
    if found.chat is not None:
        raise ValueError(f"{spec}: is of a chat set; name the tokenizer that the set was made with")
    return found.framed(bos_token)


def is_foreign(path: Path) -> bool:
    """Whether a file is a tokenizer that another program wrote."""
    if path.suffix not in (".json", ".pkl") or not path.is_file():
        return False
    with open(path, "rb") as file:
        return path.suffix == ".pkl" or b'"format": "tokenmill-' not in file.read(100)


def load_foreign(path: Path, bos_token: str | None, name: str | None = None) -> Tokenizer:
    """The tokenizer of a Hugging Face tokenizer.json or a nanochat tokenizer.pkl; see `load_any`."""
    name = name or (path.stem if path.stem != "tokenizer" else path.absolute().parent.name)
    name = "".join(
        c if c.isalnum() or c in "._-" else "-" for c in name
    )  # it becomes part of a folder's name
    if path.suffix == ".pkl":
        pattern, ranks, special = _read_pickle(path)
        return Tokenizer(name, pattern, ranks, special, _bos(path, special, bos_token))
    try:
        return _of_json(path, name, _object_of(path), bos_token)
    except (TypeError, LookupError, AttributeError, OverflowError) as error:
        raise ValueError(
            f"{path}: expected a tokenizer.json, found one of another form ({error!r})"
        ) from error


def _object_of(path: Path) -> dict[str, Any]:
    """What a file of JSON says. ValueError if it is no object."""
    data = read_bounded(path, LARGEST, f"a {path.name}")
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: expected a JSON file, found a broken one ({error!r}); get it again"
        ) from error
    if not isinstance(whole, dict):
        raise ValueError(f"{path}: expected a JSON object, found {type(whole).__name__}")
    return whole


def _of_json(path: Path, name: str, whole: dict[str, Any], bos_token: str | None) -> Tokenizer:
    vocab, added_tokens = whole["model"]["vocab"], whole.get("added_tokens") or []
    if not isinstance(vocab, dict | list):
        raise ValueError(f"{path}: expected a tokenizer.json with a vocabulary, found none")
    added = {token["content"]: token["id"] for token in added_tokens}
    for text, id in [*added.items(), *(vocab.items() if isinstance(vocab, dict) else ())]:
        if type(text) is not str or type(id) is not int or not 0 <= id < MOST_IDS:
            raise ValueError(
                f"{path}: expected tokens with ids from 0 to {MOST_IDS - 1:,}, found {text!r} with {id!r}"
            )
    special = {token["content"]: token["id"] for token in added_tokens if token["special"]}
    bos_token = (
        bos_token or _configured(path, "bos_token") or _put_first(whole.get("post_processor") or {})
    )
    if bos_token in added:
        special[bos_token] = added[bos_token]
    bos_token = _bos(path, special, bos_token, [*BOS_TOKENS, _configured(path, "eos_token")])
    try:
        return HuggingFace.of_json(name, whole, special, bos_token)
    except ValueError as error:
        raise ValueError(
            f"{path}: {error}; use another tokenizer, or train one: --tokenizer train:32768"
        ) from error


def _bos(
    path: Path,
    special: dict[str, int],
    named: str | None,
    likely: Sequence[str | None] = BOS_TOKENS,
) -> str:
    """The special token that begins a document: the one that the user or the model names, or the first likely one."""
    found = next((token for token in ([named] if named else likely) if token in special), None)
    if not special:
        raise ValueError(
            f"{path}: found no special tokens, and one has to begin every document; add one, as by "
            "tokenizer.add_special_tokens({'bos_token': '<s>'}) in transformers, save it, and name that folder"
        )
    if found is None:
        asked = f"no {named!r}, but " if named else ""
        some = f"{asked}{len(special):,} special tokens, as {', '.join([*special][:8])}"
        raise ValueError(
            f"{path}: found {some}; name the one that begins a document by --bos-token"
        )
    return found


def _configured(path: Path, key: str) -> str | None:
    """The first token of this name in the files beside a model's tokenizer.json."""
    for file in (
        path.with_name(name)
        for name in CONFIGS
        if path.name == FILE and path.with_name(name).is_file()
    ):
        token = _object_of(file).get(key)
        token = token.get("content") if isinstance(token, dict) else token
        if token and isinstance(token, str):
            return token
        if token:
            raise ValueError(
                f"{file}: expected a token as {key}, found {token!r}; name it by --bos-token"
            )
    return None


def _put_first(step: dict[str, Any]) -> str | None:
    """The token that a post-processor puts before a text, if any: of several, the last one puts its own outermost."""
    found = [token for one in reversed(step.get("processors") or []) if (token := _put_first(one))]
    found += [step["cls"][0]] if "cls" in step else []  # BERT's and RoBERTa's
    piece = (step.get("single") or [{}])[0].get("SpecialToken")
    return [*found, *(step["special_tokens"][piece["id"]]["tokens"] if piece else []), None][0]


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


def _read_pickle(path: Path) -> tuple[str, dict[bytes, int], dict[str, int]]:
    """The split pattern, ranks and special tokens of a pickled tiktoken Encoding. ValueError, with the reason."""
    data = read_bounded(path, MOST_PICKLED, "a pickled tiktoken Encoding")
    try:
        state = _OnlyAnEncoding(io.BytesIO(data)).load().state
        pattern, ranks, special = (
            state["pat_str"],
            state["mergeable_ranks"],
            state["special_tokens"],
        )
        found = [
            (type(token), type(id)) for tokens in (ranks, special) for token, id in tokens.items()
        ]
        if type(pattern) is not str or found != [(bytes, int)] * len(ranks) + [(str, int)] * len(
            special
        ):
            raise ValueError("its parts are of other types")
        if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
            raise ValueError(f"no token for {len(missing)} of the 256 bytes")
        if len({*ranks.values(), *special.values()}) < len(ranks) + len(special):
            raise ValueError("ids that stand for two tokens, as BOS and an ordinary one")
    except Exception as error:  # a corrupt pickle fails in any way
        raise ValueError(
            f"{path}: expected a pickled tiktoken Encoding as nanochat writes it, and nothing else: {error!r}; "
            "it was not loaded"
        ) from error
    return pattern, ranks, special


def find_tokenizer_file(spec: str) -> tuple[Path, str] | None:
    """The tokenizer.json of a model, and the tokenizer's name; None if `spec` names no model: without a slash it is no
    folder, which could be any. Raises what `load_any` raises.
    """
    if "/" not in spec:
        return None
    folder = Path(spec).expanduser()
    if folder.is_dir():
        if not (folder / FILE).is_file():
            raise FileNotFoundError(
                f"{spec}: expected a {FILE} in this folder, found none; check --tokenizer"
            )
        return folder / FILE, folder.resolve().name
    repository, _, revision = spec.partition("@")
    if folder.exists() or spec.endswith((".json", ".pkl")):
        return None
    if spec[0] in "./~" or not REPOSITORY.fullmatch(repository):
        raise FileNotFoundError(
            f"{spec}: expected a folder with a {FILE}, found no such folder; check --tokenizer"
        )
    return _fetched(repository, revision or "main"), repository.partition("/")[2]


def _fetched(repository: str, revision: str) -> Path:
    with naming_the_extra("prepare"):
        from huggingface_hub import errors, snapshot_download

    some = [FILE, *CONFIGS]
    try:
        folder = snapshot_download(
            repository, revision=revision, endpoint=endpoint(), allow_patterns=some
        )
    except Exception as error:  # the hub's, and httpx', requests' and the disk's
        kind: type[OSError] = ConnectionError
        told = "no such folder is here, and the hub could not be asked; check the path, or try again with a network"
        if isinstance(error, errors.GatedRepoError):
            kind, told = (
                PermissionError,
                f"the hub gives this model to users whom it knows; {ACCESS}",
            )
        elif isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError):
            told = f"no such folder is here, and no such model or revision is on the hub; check --tokenizer, {ACCESS}"
            kind = FileNotFoundError
        raise kind(f"{repository}@{revision}: {told} ({first_line(error)})") from error
    if not (Path(folder) / FILE).is_file():
        raise FileNotFoundError(
            f"{repository}@{revision}: no {FILE} is in this model; make one by "
            "AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER)"
        )
    return Path(folder) / FILE
