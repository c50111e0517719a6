"""What the JSON files of the format may say: a table for each kind, and the few rules that tie several values together.

    check("tokens", manifest)      ValueError: shards[3].split: expected train or val, found 'Train'

In a table, {"key": rule} is an object with these keys, of which those that end with `?` may be missing, {Is: rule} an
object whose keys are data, and [rule] a list. Keys that a table does not name are let through. What
reads these files relies on types, ranges, names that stay in their folder, and sizes that agree with counts.
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from tokenmill.checks import LARGEST
from tokenmill.store.columns import columns_of
from tokenmill.store.names import is_plain

MOST_TOKENS = 1 << 44  # of a set: its windows take about half a GiB
MOST_IDS = 1 << 24  # of a vocabulary: token_bytes.npy has 4 bytes for each
BLOCK = 1 << 20  # bytes that a CRC is of
LEFT_OUT_COUNTS = (
    "null_documents",
    "empty_documents",
    "repaired_documents",
    "broken_lines",
    "oversized_documents",
)
CHAT_COUNTS = ("broken_conversations", "refused_conversations")  # only chat sets have them
Table = dict[Any, Any]


class Is(NamedTuple):
    """A rule for one value: what an error calls it, and its test."""

    expected: str
    test: Callable[[Any], bool]


def _check(rule: Any, value: Any, where: str) -> None:
    """ValueError if a value, which is at `where` in the file, breaks a rule."""
    if isinstance(rule, Is):
        _require(rule.test(value), where, rule.expected, value)
    elif isinstance(rule, list):
        _require(type(value) is list, where, "a list", value)
        is_right = isinstance(rule[0], Is) and all(map(rule[0].test, value))
        for number, item in enumerate(() if is_right else value):
            _check(rule[0], item, f"{where}[{number}]")
    else:
        _require(type(value) is dict, where, "an object", value)
        for key, below in rule.items():
            if isinstance(key, Is):
                is_right = (
                    isinstance(below, Is)
                    and all(map(key.test, value))
                    and all(map(below.test, value.values()))
                )
                for name, item in () if is_right else value.items():
                    _check(key, name, f"{where}, a key")
                    _check(below, item, f"{where}.{ascii(name)[1:-1]}")
            elif (name := key.removesuffix("?")) in value:
                if type(below) is not Is or not below.test(
                    value[name]
                ):  # most values are right, and need no `where`
                    _check(below, value[name], f"{where}.{name}")
            elif name == key:
                _require(False, f"{where}.{key}", "a value", None)


def _require(true: bool, where: str, expected: str, found: object) -> None:
    if not true:
        shown = (
            f"a {type(found).__name__}" if isinstance(found, dict | list) else ascii(found)[:100]
        )
        raise ValueError(f"{where.lstrip('.')}: expected {expected}, found {shown}")


# ---------------------------------------------------------------------------- the tables


def _whole(least: int, most: int = LARGEST) -> Is:
    return Is(
        f"a whole number, {least:,} to {most:,}",
        lambda value: type(value) is int and least <= value <= most,
    )


def _hexadecimal(digits: int) -> Is:
    matches = re.compile(f"[0-9a-f]{{{digits}}}").fullmatch
    return Is(
        f"{digits} hex digits", lambda value: type(value) is str and matches(value) is not None
    )


def _one_of(*texts: str) -> Is:
    return Is(" or ".join(texts), texts.__contains__)


COUNT, SOME, ID, DIGEST, SHORT = (
    _whole(0),
    _whole(1),
    _whole(0, MOST_IDS - 1),
    _hexadecimal(64),
    _hexadecimal(16),
)
SHARE = Is("a number from 0.0 to 1.0", lambda value: type(value) is float and 0 <= value <= 1)
FRACTION = Is("a number between 0 and 1", lambda value: type(value) is float and 0 < value < 1)
TEXT, DTYPE = Is("a text", lambda value: type(value) is str), _one_of("uint16", "uint32")
PLAIN = Is("a plain name, without `/` or control characters", is_plain)
TOTALS = dict.fromkeys(("documents", "tokens", "text_bytes"), COUNT)
COUNTS = {
    **TOTALS,
    **dict.fromkeys(LEFT_OUT_COUNTS, COUNT),
    **{f"{name}?": COUNT for name in CHAT_COUNTS},
}
FILE = {"bytes": COUNT, "sha256": DIGEST, "crc32": [_whole(0, (1 << 32) - 1)]}

CHAT: Table = {
    "name": TEXT,
    "template": TEXT,
    "loss": _one_of("all", "last"),
    "variables": {TEXT: TEXT},
}
CHAT |= {"version": SOME, "text_fingerprint": DIGEST}
NAMED = {"name": PLAIN, "fingerprint": DIGEST, "bos_token": TEXT, "eot_token?": TEXT, "chat?": CHAT}
TOKENIZER = {**NAMED, "special_tokens": {TEXT: ID}}
FOREIGN: Table = {"tokenizer": {}, "code_points": DIGEST}  # what else a tokenizer.json has
BY_RANKS: Table = {"pattern": TEXT, "ranks": {TEXT: ID}}
VOCABULARY = {**NAMED, "vocab_size": _whole(1, MOST_IDS), "bos_id": ID, "eot_id?": ID}
SPLIT = _one_of("train", "val")
LISTED = {"name": PLAIN, "split": SPLIT, "sources": [TEXT], **TOTALS}
LISTED |= {"bin": DIGEST, "idx": DIGEST, "mask?": DIGEST, "targets?": DIGEST}
HUB = {"repository": TEXT, "revision": TEXT, "commit": TEXT}
VALIDATION: Table = {
    "file?": TEXT,
    "fraction?": FRACTION,
    "names?": Is("true", lambda value: value is True),
}
MANIFEST = (
    {"dataset": PLAIN, "dtype": DTYPE, "tokenizer": VOCABULARY, **COUNTS, "shards": [LISTED]}
    | {"tokens": _whole(0, MOST_TOKENS)}
    | {"files": {PLAIN: DIGEST}, "records": {PLAIN: DIGEST}}
    | {"hub?": HUB, "prepared?": {"validation": VALIDATION, "shard_text_bytes": SOME}}
)
SOURCE = (
    {"file": TEXT, "checksum?": TEXT, "validates?": SHARE}
    | {f"{name}?": COUNT for name in ("bytes", "documents", "left_out")}
    | {f"{name}?": [COUNT] for name in ("row_groups", "row_group_documents")}
)
SEVERAL = {"files": [{**SOURCE, "documents": COUNT}]}
UNIT = {"k": COUNT, "n": SOME, "shard_text_bytes": SOME, "shards": {PLAIN: SPLIT}}
RECORD = (
    {"name": PLAIN, "dtype": DTYPE, "fingerprint": DIGEST, **COUNTS, "source": {}}
    | {"bin": FILE, "idx": FILE, "mask?": FILE, "targets?": FILE, "meta.parquet?": FILE}
    | {"metadata?": {TEXT: TEXT}, "refused?": {TEXT: {"count": SOME, "first": TEXT}}, "unit?": UNIT}
)
CHOSEN = dict.fromkeys(("documents", "copies", "tokens"), COUNT)
VIEW = (
    {"name": PLAIN, "digest": SHORT, "manifest": SHORT, "slice_tokens": _whole(1, (1 << 32) - 1)}
    | {
        "rule": {"where?": TEXT, "repeat?": TEXT, "cap?": _whole(1, 255)},
        "counts": FILE,
        "slices": FILE,
    }
    | {"splits": {"train": CHOSEN, "val": CHOSEN}, "times": {_one_of(*map(str, range(256))): SOME}}
)


# ---------------------------------------------------------------------------- what ties values together


def check(kind: str, value: dict[str, Any]) -> None:
    """ValueError if this is not the content of a JSON file of this kind."""
    _, table, tie = KINDS[kind]
    _check(table, value, "")
    tie(value)


def dtype_name(vocab_size: int) -> str:
    """The narrowest type that holds every id below vocab_size: "uint16" up to 65,536."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def _manifest(manifest: Table) -> None:
    facts, shards = manifest["tokenizer"], manifest["shards"]
    dtype = dtype_name(facts["vocab_size"])
    _require(
        manifest["dtype"] == dtype,
        "dtype",
        f"{dtype} for {facts['vocab_size']:,} ids",
        manifest["dtype"],
    )
    largest = max(facts["bos_id"], facts.get("eot_id", 0))
    _require(
        largest < facts["vocab_size"],
        "tokenizer.bos_id, eot_id",
        f"less than {facts['vocab_size']:,}",
        largest,
    )
    twice = [
        name for name, times in Counter(entry["name"] for entry in shards).items() if times > 1
    ]
    _require(not twice, "shards", "each shard once", ", ".join(twice))
    unnamed = [entry["name"] for entry in shards if not entry["sources"]]
    _require(not unnamed, "shards", "a source or more for each shard", ", ".join(unnamed))
    empty = [entry["name"] for entry in shards if entry["documents"] > entry["tokens"]]
    _require(not empty, "shards", "a token or more for each document", ", ".join(empty))
    for key in TOTALS:
        total = sum(entry[key] for entry in shards)
        _require(manifest[key] == total, key, f"{total:,}, as its shards have", manifest[key])
    others = sorted(manifest["records"].keys() ^ {entry["name"] for entry in shards})
    _require(not others, "records", "one for each of the shards", ", ".join(others))


def _record(record: Table) -> None:
    source, documents, tokens = record["source"], record["documents"], record["tokens"]
    shards = record["unit"]["shards"] if "unit" in record else [record["name"]]
    _require(
        record["name"] in shards, "unit.shards", f"{record['name']} among them", ", ".join(shards)
    )
    _check(SEVERAL if "files" in source else SOURCE, source, "source")
    total = sum(one["documents"] for one in source.get("files", [record]))
    _require(
        total == documents <= tokens, "documents", f"{total:,}, of {tokens:,} tokens", documents
    )
    for one in source.get("files", [source | {"documents": documents}]):
        groups, many = (
            one.get("row_group_documents", [one["documents"]]),
            one.get("row_groups", [0]),
        )
        right = sum(groups) == one["documents"] and len(groups) == len(many)
        _require(
            right,
            "source.row_group_documents",
            f"{one['documents']:,} documents in {len(many):,} groups",
            groups,
        )
    for suffix, column in columns_of(record).items():
        _file(suffix, record[suffix], column.size(documents, tokens))


def _tokenizer(tokenizer: Table) -> None:
    _check(FOREIGN if tokenizer.get("kind") == "huggingface" else BY_RANKS, tokenizer, "")


def _view(view: Table) -> None:
    for kind in ("counts", "slices"):
        _file(kind, view[kind], None)


def _file(suffix: str, facts: Table, size: int | None) -> None:
    """A file has the size that follows from counts, if any, and a CRC for each block."""
    _require(
        size in (None, facts["bytes"]),
        f"{suffix}.bytes",
        f"{size}, as its counts say",
        facts["bytes"],
    )
    blocks, found = -(-facts["bytes"] // BLOCK), len(facts["crc32"])
    _require(found == blocks, f"{suffix}.crc32", f"{blocks:,} numbers", found)


# what error messages call each kind of JSON, its table, and its ties
KINDS: dict[str, tuple[str, Table, Callable[[Table], object]]] = {
    "tokens": ("the manifest of a token set", MANIFEST, _manifest),
    "shard": ("the record of a shard", RECORD, _record),
    "tokenizer": ("a tokenizer that tokenmill wrote", TOKENIZER, _tokenizer),
    "view": ("a view of a token set", VIEW, _view),
}
