"""What the JSON files of the format may say: a table for each kind, and what ties values together.

    check("tokens", manifest)      ValueError: shards[3].split: expected train or val, found 'Train'

What reads these files relies on types, ranges, names that stay in their folder, and sizes that
agree with counts. json_rules.py says how a table is written.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from tokenmill.store.columns import COLUMNS, columns_of
from tokenmill.store.json_rules import Is, Table, check_rule, hexadecimal, one_of, require, whole
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


class Kind(NamedTuple):
    """One kind of JSON file."""

    shown: str  # what error messages call it
    table: Table
    tie: Callable[[Table], None]


# ---------------------------------------------------------------------------- the tables

COUNT = whole(0)
SOME = whole(1)
ID = whole(0, MOST_IDS - 1)
DIGEST = hexadecimal(64)
SHORT = hexadecimal(16)
SHARE = Is("a number from 0.0 to 1.0", lambda value: type(value) is float and 0 <= value <= 1)
FRACTION = Is("a number between 0 and 1", lambda value: type(value) is float and 0 < value < 1)
TRUE = Is("true", lambda value: value is True)
TEXT = Is("a text", lambda value: type(value) is str)
DTYPE = one_of("uint16", "uint32")
SPLIT = one_of("train", "val")
TIMES = one_of(*map(str, range(256)))
PLAIN = Is("a plain name, without `/` or control characters", is_plain)
TOTALS = dict.fromkeys(("documents", "tokens", "text_bytes"), COUNT)
COUNTS = {
    **TOTALS,
    **dict.fromkeys(LEFT_OUT_COUNTS, COUNT),
    **{f"{name}?": COUNT for name in CHAT_COUNTS},
}
FILE = {"bytes": COUNT, "sha256": DIGEST, "crc32": [whole(0, (1 << 32) - 1)]}
KEYS = {suffix: f"{suffix}?" if column.optional else suffix for suffix, column in COLUMNS.items()}

CHAT: Table = {
    "name": TEXT,
    "template": TEXT,
    "loss": one_of("all", "last"),
    "variables": {TEXT: TEXT},
    "version": SOME,
    "text_fingerprint": DIGEST,
}
NAMED = {"name": PLAIN, "fingerprint": DIGEST, "bos_token": TEXT, "eot_token?": TEXT, "chat?": CHAT}
TOKENIZER = {**NAMED, "special_tokens": {TEXT: ID}}
FOREIGN: Table = {"tokenizer": {}, "code_points": DIGEST}  # what else a tokenizer.json has
BY_RANKS: Table = {"pattern": TEXT, "ranks": {TEXT: ID}}
VOCABULARY = {**NAMED, "vocab_size": whole(1, MOST_IDS), "bos_id": ID, "eot_id?": ID}
HUB = {"repository": TEXT, "revision": TEXT, "commit": TEXT}
VALIDATION: Table = {"file?": TEXT, "fraction?": FRACTION, "names?": TRUE}
LISTED = {
    "name": PLAIN,
    "split": SPLIT,
    "sources": [TEXT],
    **TOTALS,
    **{KEYS[suffix]: DIGEST for suffix, column in COLUMNS.items() if column.listed},
}
MANIFEST = {
    "dataset": PLAIN,
    "dtype": DTYPE,
    "tokenizer": VOCABULARY,
    **COUNTS,
    "tokens": whole(0, MOST_TOKENS),
    "shards": [LISTED],
    "files": {PLAIN: DIGEST},
    "records": {PLAIN: DIGEST},
    "hub?": HUB,
    "prepared?": {"validation": VALIDATION, "shard_text_bytes": SOME, "metadata?": TEXT},
    "checksum": DIGEST,
}
SOURCE = {
    "file": TEXT,
    "checksum?": TEXT,
    "validates?": SHARE,
    "bytes?": COUNT,
    "documents?": COUNT,
    "left_out?": COUNT,
    "row_groups?": [COUNT],
    "row_group_documents?": [COUNT],
}
SEVERAL = {"files": [{**SOURCE, "documents": COUNT}]}
UNIT = {"k": COUNT, "n": SOME, "shard_text_bytes": SOME, "shards": {PLAIN: SPLIT}}
RECORD = {
    "name": PLAIN,
    "dtype": DTYPE,
    "fingerprint": DIGEST,
    **COUNTS,
    "source": {},
    **dict.fromkeys(KEYS.values(), FILE),
    "metadata?": TEXT,
    "first_broken?": TEXT,
    "refused?": {TEXT: {"count": SOME, "first": TEXT}},
    "unit?": UNIT,
}
CHOSEN = dict.fromkeys(("documents", "copies", "tokens"), COUNT)
VIEW = {
    "name": PLAIN,
    "digest": SHORT,
    "manifest": SHORT,
    "slice_tokens": whole(1, (1 << 32) - 1),
    "rule": {"where?": TEXT, "repeat?": TEXT, "cap?": whole(1, 255)},
    "counts": FILE,
    "slices": FILE,
    "splits": {"train": CHOSEN, "val": CHOSEN},
    "times": {TIMES: SOME},
    "checksum": DIGEST,
}


# ------------------------------------------------------------- what ties values together


def check(kind: str, value: dict[str, Any]) -> None:
    """ValueError if this is not the content of a JSON file of this kind."""
    check_rule(KINDS[kind].table, value, "")
    KINDS[kind].tie(value)


def dtype_name(vocab_size: int) -> str:
    """The narrowest type that holds every id below vocab_size: "uint16" up to 65,536."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def _tie_manifest(manifest: Table) -> None:
    vocabulary = manifest["tokenizer"]
    shards = manifest["shards"]
    num_ids = vocabulary["vocab_size"]
    dtype = dtype_name(num_ids)
    require(manifest["dtype"] == dtype, "dtype", f"{dtype} for {num_ids:,} ids", manifest["dtype"])
    largest = max(vocabulary["bos_id"], vocabulary.get("eot_id", 0))
    expected = f"less than {num_ids:,}"
    require(largest < num_ids, "tokenizer.bos_id, eot_id", expected, largest)

    names = [entry["name"] for entry in shards]
    twice = [name for name, times in Counter(names).items() if times > 1]
    unnamed = [entry["name"] for entry in shards if not entry["sources"]]
    empty = [entry["name"] for entry in shards if entry["documents"] > entry["tokens"]]
    _require_none(twice, "shards", "each shard once")
    _require_none(unnamed, "shards", "a source or more for each shard")
    _require_none(empty, "shards", "a token or more for each document")

    for key in TOTALS:
        total = sum(entry[key] for entry in shards)
        require(manifest[key] == total, key, f"{total:,}, as its shards have", manifest[key])
    unmatched = sorted(manifest["records"].keys() ^ set(names))
    _require_none(unmatched, "records", "one for each of the shards")


def _require_none(names: list[str], where: str, expected: str) -> None:
    require(not names, where, expected, ", ".join(names))


def _tie_record(record: Table) -> None:
    name = record["name"]
    source = record["source"]
    documents = record["documents"]
    tokens = record["tokens"]
    shards = record["unit"]["shards"] if "unit" in record else [name]
    require(name in shards, "unit.shards", f"{name} among them", ", ".join(shards))

    check_rule(SEVERAL if "files" in source else SOURCE, source, "source")
    files = source.get("files", [source | {"documents": documents}])
    total = sum(file["documents"] for file in files)
    is_right = total == documents <= tokens
    require(is_right, "documents", f"{total:,}, of {tokens:,} tokens", documents)
    for file in files:
        _tie_row_groups(file)

    for suffix, column in columns_of(record).items():
        _tie_file(suffix, record[suffix], column.size(documents, tokens))


def _tie_row_groups(file: Table) -> None:
    """The row groups that were read of a source file hold its documents."""
    documents = file["documents"]
    counts = file.get("row_group_documents", [documents])
    groups = file.get("row_groups", [0])
    is_right = sum(counts) == documents and len(counts) == len(groups)
    expected = f"{documents:,} documents in {len(groups):,} groups"
    require(is_right, "source.row_group_documents", expected, counts)


def _tie_tokenizer(tokenizer: Table) -> None:
    is_foreign = tokenizer.get("kind") == "huggingface"
    check_rule(FOREIGN if is_foreign else BY_RANKS, tokenizer, "")


def _tie_view(view: Table) -> None:
    for array in ("counts", "slices"):
        _tie_file(array, view[array], None)


def _tie_file(suffix: str, facts: Table, size: int | None) -> None:
    """A file has the size that follows from counts, if any, and a CRC for each block."""
    actual = facts["bytes"]
    require(size in (None, actual), f"{suffix}.bytes", f"{size}, as its counts say", actual)
    num_blocks = -(-actual // BLOCK)
    num_sums = len(facts["crc32"])
    require(num_sums == num_blocks, f"{suffix}.crc32", f"{num_blocks:,} numbers", num_sums)


KINDS: dict[str, Kind] = {
    "tokens": Kind("the manifest of a token set", MANIFEST, _tie_manifest),
    "shard": Kind("the record of a shard", RECORD, _tie_record),
    "tokenizer": Kind("a tokenizer that tokenmill wrote", TOKENIZER, _tie_tokenizer),
    "view": Kind("a view of a token set", VIEW, _tie_view),
}
