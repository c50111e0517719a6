"""Tokenizers that others wrote: Hugging Face's tokenizer.json, and nanochat's tokenizer.pkl.

Hugging Face's byte-level BPE is a vocabulary, an ordered list of merges and a split pattern; tiktoken's is the
vocabulary alone, its ids in the order of the merges. So a file is taken over where its merges come in the order
of their ids, and then proven: `tokenizers` itself and the converted one encode the same texts.

    {"a": 0, "b": 1, "ab": 2, "abb": 3}, merges [a b], [ab b]   ->   ranks b"a" 0, b"b" 1, b"ab" 2, b"abb" 3

A pickle can run anything when it is loaded. nanochat's holds one tiktoken Encoding, so the unpickler knows
that one name, gives it a class that only keeps what it is told, and refuses every other.

Left out: SentencePiece and WordPiece, normalizers, and added tokens that are not special.
"""

import json
import pickle
from collections.abc import Sequence
from pathlib import Path

from tokenmill.tokenize.tokenizer import BOS_TOKENS, GPT2_PATTERN, Tokenizer


def is_foreign(path: Path) -> bool:
    """Whether a file is a tokenizer that somebody else wrote."""
    if path.suffix == ".pkl":
        return path.is_file()
    return path.suffix == ".json" and path.is_file() and b'"format": "tokenmill-' not in path.read_bytes()[:100]


def load_foreign(path: Path, bos_token: str | None, texts: Sequence[str] = ()) -> Tokenizer:
    """The tokenizer of a Hugging Face tokenizer.json or a nanochat tokenizer.pkl.

    A tokenizer.json is checked on `texts`. ValueError, with the reason, where it is of another kind.
    """
    if path.suffix == ".pkl":
        return _from_pickle(path, bos_token)
    tokenizer = _from_hugging_face(path, bos_token)
    _check(tokenizer, path, texts)
    return tokenizer


def _name(path: Path) -> str:
    """What the token set's folder calls it: the file's name, or its folder's where that says nothing."""
    name = path.stem if path.stem != "tokenizer" else path.absolute().parent.name
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name)


def _bos(path: Path, special: dict[str, int], bos_token: str | None) -> str:
    if bos_token is None:
        bos_token = next((token for token in BOS_TOKENS if token in special), None)
    if bos_token not in special:
        raise ValueError(
            f"{path}: found special tokens {', '.join(special) or 'none'}; "
            "name the one that begins a document by --bos-token"
        )
    return bos_token


# ---------------------------------------------------------------------------- Hugging Face's tokenizer.json


def _from_hugging_face(path: Path, bos_token: str | None) -> Tokenizer:
    try:
        whole = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: expected a tokenizer.json, found broken JSON ({error})") from error
    pattern = _pattern(path, whole)
    ranks = {_bytes(path, token): rank for token, rank in whole["model"]["vocab"].items()}
    special = {token["content"]: token["id"] for token in whole.get("added_tokens", [])}
    ordinary = [token["content"] for token in whole.get("added_tokens", []) if not token["special"]]
    if ordinary:
        raise _other_kind(path, f"added tokens that are not special, which match within text: {', '.join(ordinary)}")
    for token in special:
        ranks.pop(token.encode(), None)  # some files list them in the vocabulary too
    _require_order(path, whole["model"]["merges"], whole["model"]["vocab"])
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise _other_kind(path, f"no token for {len(missing)} of the 256 bytes")
    tokenizer = Tokenizer(_name(path), pattern, ranks, special, _bos(path, special, bos_token))
    try:
        tokenizer.encode("a")
    except Exception as error:
        raise _other_kind(path, f"a split pattern that tiktoken cannot run ({error})") from error
    return tokenizer


def _pattern(path: Path, whole: dict) -> str:
    """The split pattern of a byte-level BPE."""
    model = whole.get("model", {})
    if model.get("type") != "BPE" or model.get("byte_fallback") or model.get("dropout"):
        raise _other_kind(
            path, f"a {model.get('type')} model{', with byte fallback' * bool(model.get('byte_fallback'))}"
        )
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise _other_kind(path, "a BPE that marks where words begin or end")
    if whole.get("normalizer"):
        raise _other_kind(path, f"a normalizer, {whole['normalizer'].get('type')}, which changes the text")
    steps = whole.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps])
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"] and steps[0].get("use_regex", True) and not steps[0].get("add_prefix_space"):
        return GPT2_PATTERN
    if kinds == ["Split", "ByteLevel"] and not steps[1].get("use_regex", True) and not steps[1].get("add_prefix_space"):
        pattern, split = steps[0]["pattern"], steps[0]
        if "Regex" in pattern and split["behavior"] == "Isolated" and not split["invert"]:
            return pattern["Regex"]
    raise _other_kind(path, f"pre-tokenizers {kinds} of another form")


def _require_order(path: Path, merges: list, vocab: dict[str, int]) -> None:
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    made = [vocab["".join(pair)] for pair in pairs]
    if made != sorted(made):
        raise _other_kind(path, "merges that do not come in the order of their ids")


def _byte_characters() -> dict[str, int]:
    """GPT-2's characters for bytes: printable Latin-1 for itself, the others from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_characters()


def _bytes(path: Path, token: str) -> bytes:
    try:
        return bytes(_BYTES[character] for character in token)
    except KeyError:
        if token.startswith("<") and token.endswith(">"):
            return token.encode()  # a special token that stands in the vocabulary
        raise _other_kind(path, f"token {token!r}, which is not of bytes") from None


def _other_kind(path: Path, found: str) -> ValueError:
    return ValueError(
        f"{path}: expected a byte-level BPE that tiktoken can run as it is, found {found}; "
        "use another tokenizer, or train one: --tokenizer train:32768"
    )


def _check(tokenizer: Tokenizer, path: Path, texts: Sequence[str]) -> None:
    import tokenizers  # to check such a file alone

    theirs = tokenizers.Tokenizer.from_file(str(path))
    theirs.encode_special_tokens = True  # text that spells one is text
    for text in texts:
        expected = theirs.encode(text, add_special_tokens=False).ids
        found = tokenizer.encode(text).tolist()
        if found != expected:
            at = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), len(expected))
            raise _other_kind(
                path,
                f"other ids than the tokenizers library from token {at} of {text[:40]!r} on: "
                f"{found[at : at + 3]} instead of {expected[at : at + 3]}",
            )


# ---------------------------------------------------------------------------- nanochat's tokenizer.pkl


class _Encoding:
    """What a pickled tiktoken Encoding says of itself; nothing of it is run."""

    def __setstate__(self, state):
        self.state = state


class _OnlyAnEncoding(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) == ("tiktoken.core", "Encoding"):
            return _Encoding
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _from_pickle(path: Path, bos_token: str | None) -> Tokenizer:
    try:
        with open(path, "rb") as file:
            state = _OnlyAnEncoding(file).load().state
        pattern, ranks, special = state["pat_str"], state["mergeable_ranks"], state["special_tokens"]
    except (pickle.UnpicklingError, EOFError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: expected a pickled tiktoken Encoding as nanochat writes it, and nothing else: {error}; "
            "it was not loaded"
        ) from error
    return Tokenizer(_name(path), pattern, ranks, special, _bos(path, special, bos_token))
