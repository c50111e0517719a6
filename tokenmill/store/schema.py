"""Checks the content of the JSON files of the format, in one place, whoever wrote them.

    check("tokens", manifest)      ValueError that says which key, what was expected, and what was found

It checks types, ranges, splits, names that stay in their folder (names.py), the form of checksums, and sizes that
agree with counts. `tokenmill verify` checks sums over several files.
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from tokenmill.checks import LARGEST
from tokenmill.store.columns import CHAT_COLUMNS, COLUMNS, checksums_of, columns_of
from tokenmill.store.names import is_plain, plain, plain_path

SPLITS = ("train", "val")
LOSS_RULES = ("all", "last")
TOKEN_TYPES = ("uint16", "uint32")
MOST_IDS = 1 << 24  # of a vocabulary: token_bytes.npy has 4 bytes for each
BLOCK = 1 << 20  # bytes
DIGESTS = re.compile("(?:[0-9a-f]{64})*")
LATER_COUNTS = (
    "null_documents",
    "empty_documents",
    "repaired_documents",
    "broken_lines",
    "oversized_documents",
)  # old sets lack
CHAT_COUNTS = ("broken_conversations", "refused_conversations")  # only chat sets have them
LISTED = {"name", "split", "source", "documents", "tokens", "text_bytes", "bin_sha256", "idx_sha256"}
LISTED_IF_ANY = {"more_sources", "columns"}


def dtype_name(vocab_size: int) -> str:
    """The narrowest type that holds every id below vocab_size: "uint16" up to 65,536."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


class _Wrong(ValueError):
    """An error in a file, without the file's name."""


def check(kind: str, value: dict[str, Any]) -> None:
    """ValueError if this is not the content of a JSON file of this kind."""
    try:
        CHECKS[kind](value)
    except _Wrong:
        raise
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        said = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise _Wrong(f"is not built as a {kind} is: {said}") from error


def _require(true: bool, what: str, expected: str, found: object) -> None:
    if not true:
        raise _Wrong(f"{what}: expected {expected}, found {ascii(found)[:100]}")


def _count(what: str, value: object, least: int = 0, most: int = LARGEST) -> None:
    right = type(value) is int and least <= value <= most
    _require(right, what, f"a whole number from {least:,} to {most:,}", value)


def _text(what: str, value: object) -> None:
    _require(type(value) is str, what, "a text", value)


def _digest(what: str, value: object, digits: int = 64) -> None:
    right = type(value) is str and re.fullmatch(f"[0-9a-f]{{{digits}}}", value) is not None
    _require(right, what, f"{digits} hex digits", value)


def _list(what: str, value: object) -> None:
    _require(type(value) is list, what, "a list", value)


# ---------------------------------------------------------------------------- a manifest


def _manifest(manifest: dict[str, Any]) -> None:
    plain("dataset", manifest["dataset"])
    tokenizer = manifest["tokenizer"]
    plain("tokenizer.name", tokenizer["name"])
    _digest("tokenizer.fingerprint", tokenizer["fingerprint"])
    _count("tokenizer.vocab_size", vocab_size := tokenizer["vocab_size"], 1, MOST_IDS)
    for key in ("bos_token", *(("eot_token",) if "eot_token" in tokenizer else ())):
        _text(f"tokenizer.{key}", tokenizer[key])
    for key in ("bos_id", *(("eot_id",) if "eot_id" in tokenizer else ())):
        _count(f"tokenizer.{key}", tokenizer[key], 0, vocab_size - 1)
    if "chat" in tokenizer:
        _chat(tokenizer["chat"])
    dtype = dtype_name(vocab_size)
    _require(manifest["dtype"] == dtype, "dtype", f"{dtype} for {vocab_size:,} ids", manifest["dtype"])
    for key in ("documents", "tokens", "text_bytes"):
        _count(key, manifest[key])
    for key in (*LATER_COUNTS, *CHAT_COUNTS):
        _count(key, manifest.get(key, 0))
    _list("shards", manifest["shards"])
    _entries(manifest["shards"])
    for key in ("documents", "tokens", "text_bytes"):
        total = sum(entry[key] for entry in manifest["shards"])
        _require(manifest[key] == total, key, f"{total:,}, as its shards have", manifest[key])
    _list("dropped", manifest.get("dropped", []))
    for dropped in manifest.get("dropped", []):
        _count("dropped: place", dropped["place"])
    _entries([{key: value for key, value in one.items() if key != "place"} for one in manifest.get("dropped", [])])
    for name, sha256 in manifest.get("files", {}).items():
        plain("files", name)
        _digest(f"files: {name}", sha256)
    for name, sha256 in manifest.get("records", {}).items():
        plain("records", name)
        _digest(f"records: {name}", sha256)
    _count("limit_documents", manifest.get("limit_documents", 1), 1)
    if "hub" in manifest:
        _listing(manifest["hub"])
    for digest in manifest.get("earlier", []):
        _digest("earlier", digest, 16)
    for stem in manifest.get("views", []):
        plain("views", stem)
    _count("subfolders", manifest.get("subfolders", 0), 0, 1000)


def _entries(entries: list[dict[str, Any]]) -> None:
    """The shards in a manifest: key by key, as there may be 100,000 of them."""
    for entry in entries:
        if entry.keys() != LISTED and entry.keys() - LISTED_IF_ANY != LISTED:
            _require(False, "a shard of the list", f"{', '.join(sorted(LISTED))}", sorted(entry))
    names = _values(entries, "name", is_plain, "a plain name, without `/` or control characters")
    many = [name for name, count in Counter(names).items() if count > 1]
    if many:
        raise _Wrong(f"lists shard {many[0]} twice; prepare or convert it again")
    _values(entries, "split", SPLITS.__contains__, " or ".join(SPLITS))
    _values(entries, "source", _is_text, "a text")
    for key in ("documents", "tokens", "text_bytes"):
        _values(entries, key, _is_count, "a whole number")
    for entry in entries:
        if entry["documents"] > entry["tokens"]:
            _require(False, f"documents of shard {entry['name']}", f"at most {entry['tokens']:,}", entry["documents"])
    for key in ("bin_sha256", "idx_sha256"):
        _values(entries, key, _is_digest, "64 hex digits")
    for entry in entries:
        if "more_sources" in entry:
            _list("more_sources", entry["more_sources"])
            for source in entry["more_sources"]:
                _text("more_sources", source)
        if "columns" in entry:
            _require(len(entry["columns"]) > 0, "columns of a shard", "a column or more", entry["columns"])
            for suffix, sha256 in entry["columns"].items():
                _require(suffix in CHAT_COLUMNS, "columns", " or ".join(CHAT_COLUMNS), suffix)
                _digest(f"{suffix} of a shard", sha256)


def _values(entries: list[dict[str, Any]], key: str, is_right: Callable[[Any], bool], expected: str) -> list[Any]:
    values = [entry[key] for entry in entries]
    if not all(map(is_right, values)):
        wrong = next(value for value in values if not is_right(value))
        _require(False, f"{key} of a shard", expected, wrong)
    return values


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def _is_digest(value: object) -> bool:
    return type(value) is str and len(value) == 64 and DIGESTS.fullmatch(value) is not None


# ---------------------------------------------------------------------------- a shard's record


def _record(record: dict[str, Any]) -> None:
    plain("name", record["name"])
    _require(record["dtype"] in TOKEN_TYPES, "dtype", " or ".join(TOKEN_TYPES), record["dtype"])
    for key in ("documents", "tokens", "text_bytes"):
        _count(key, record[key])
    for key in (*LATER_COUNTS, *CHAT_COUNTS):
        _count(key, record.get(key, 0))
    for reason, count in record.get("refused", {}).items():
        _text("refused: a reason", reason)
        _count("refused", count, 1)
    _digest("fingerprint", record["fingerprint"])
    for key in ("max_document_bytes", "shard_text_bytes"):  # old sets lack them
        _count(key, record.get(key, 1), 1)
    for suffix, facts in record.get("columns", {}).items():
        _described(suffix, facts["dtype"], facts["per"])
    for suffix, column in columns_of(record).items():
        _checksums(suffix, checksums_of(record, suffix), column.size(record["documents"], record["tokens"]))
    for name in record.get("metadata", []):
        _text("metadata: a column", name)
    _sources(record["source"], record["documents"])


def _described(suffix: str, dtype: object, per: object) -> None:
    _require(suffix in CHAT_COLUMNS, "columns", " or ".join(CHAT_COLUMNS), suffix)
    expected = COLUMNS[suffix].dtype, COLUMNS[suffix].per
    _require((dtype, per) == expected, f"column {suffix}", f"{expected}", (dtype, per))


def _checksums(suffix: str, facts: dict[str, Any], size: int | None) -> None:
    _count(f"{suffix}: bytes", facts["bytes"])
    if size is not None:
        _require(facts["bytes"] == size, f"{suffix}: bytes", f"{size:,}, as its counts say", facts["bytes"])
    _digest(f"{suffix}: sha256", facts["sha256"])
    _list(f"{suffix}: crc32", facts["crc32"])
    blocks = -(-facts["bytes"] // BLOCK)
    right = len(facts["crc32"]) == blocks and all(type(one) is int and 0 <= one < 1 << 32 for one in facts["crc32"])
    _require(right, f"{suffix}: crc32", f"{blocks:,} numbers of 32 bits", facts["crc32"])


def _sources(source: dict[str, Any], documents: int) -> None:
    several = source.get("files", [])
    _list("source: files", several)
    _count("source: shards", source.get("shards", 1), 1)
    for one in several or [source]:
        _text("source: file", one["file"])
        for key in ("bytes", *LATER_COUNTS):
            _count(f"source: {key}", one.get(key, 0))
        counts = [one.get(key, []) for key in ("row_groups", "row_group_documents", "span")]
        for numbers in counts:
            _list("source: row groups", numbers)
            _require(all(map(_is_count, numbers)), "source: row groups", "whole numbers", numbers)
        many = one["documents"] if several else documents
        _count("source: documents", many)
        right = len(counts[0]) == len(counts[1]) and (not counts[1] or sum(counts[1]) == many)
        _require(right, "source: row_group_documents", f"{many:,} documents, by row groups", counts[1])
    if several:
        _require(sum(one["documents"] for one in several) == documents, "source: documents", f"{documents:,}", several)


# ---------------------------------------------------------------------------- other files


def _listing(listing: dict[str, Any]) -> None:
    for key in ("repository", "revision", "commit"):
        _text(key, listing[key])
    _list("files", listing["files"])
    for file in listing["files"]:
        plain_path("a file of the hub", file["name"])
        _count(f"{file['name']}: bytes", file["bytes"])
        for key, digits in (("sha256", 64), ("git_sha1", 40)):
            if file[key] is not None:
                _digest(f"{file['name']}: {key}", file[key], digits)


def _tokenizer(whole: dict[str, Any]) -> None:
    plain("name", whole["name"])
    _digest("fingerprint", whole["fingerprint"])
    _text("bos_token", whole["bos_token"])
    if "chat" in whole:
        _chat(whole["chat"])
    _ids("special_tokens", whole["special_tokens"])
    if whole.get("kind") != "huggingface":
        _text("pattern", whole["pattern"])
        _ids("ranks", whole["ranks"])


def _chat(rule: dict[str, Any]) -> None:
    for key in ("name", "template"):
        _text(f"chat: {key}", rule[key])
    _require(rule["loss"] in LOSS_RULES, "chat: loss", " or ".join(LOSS_RULES), rule["loss"])
    _digest("chat: text_fingerprint", rule["text_fingerprint"])
    for name, value in rule["variables"].items():
        _text(f"chat: variable {ascii(name)[:40]}", value)


def _ids(what: str, ids: dict[str, Any]) -> None:
    for token, id in ids.items():
        _count(f"{what}: {ascii(token)[:60]}", id, 0, MOST_IDS - 1)


def _plan(plan: dict[str, Any]) -> None:
    _count("text_bytes", plan["text_bytes"])


def _counts(counts: dict[str, Any]) -> None:
    _list("rows", counts["rows"])
    for rows in counts["rows"]:
        _count("rows", rows)


def _view(view: dict[str, Any]) -> None:
    plain("name", view["name"])
    for key in ("digest", "manifest"):
        _digest(key, view[key], 16)
    for key in ("where", "repeat"):
        if view["rule"].get(key) is not None:
            _text(f"rule: {key}", view["rule"][key])
    _count("rule: cap", view["rule"].get("cap") or 1, 1, 255)
    _count("slice_tokens", view["slice_tokens"], 1, (1 << 32) - 1)
    for split, counts in view["splits"].items():
        _require(split in SPLITS, "splits", " or ".join(SPLITS), split)
        for key in ("documents", "copies", "tokens"):
            _count(f"{key} of {split}", counts[key])
    for times, many in view["times"].items():
        _require(times.isdecimal() and int(times) <= 255, "times", "a number up to 255", times)
        _count("times", many, 1)
    for kind in ("counts", "slices"):
        _checksums(kind, view[kind], None)


def _checked(checked: dict[str, Any]) -> None:
    for name, stamp in checked["files"].items():
        plain_path("a file of the hub", name)
        _list(name, stamp)
        _require(all(map(_is_count, stamp)), name, "whole numbers", stamp)


CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "tokens": _manifest,
    "shard": _record,
    "files": _listing,
    "tokenizer": _tokenizer,
    "plan": _plan,
    "counts": _counts,
    "checked": _checked,
    "view": _view,
}
