"""What the JSON files of the format may say: whatever else stands in one is a ValueError that says
where.
"""

import copy
import json
import math

import pytest
from making import make_chat_set, read_manifest
from making_views import make_view

from tokenmill import TokenSet
from tokenmill.store.json_files import header, parse_json

OTHERS = [
    None,
    True,
    -1,
    0.5,
    10**30,
    math.nan,
    math.inf,
    "",
    "x",
    "../x",
    "a\x1bb",
    [],
    {},
    [[]],
    ["x"],
    {"x": 1},
]
# where any text may stand
FREE = {
    "bos_token",
    "repository",
    "revision",
    "commit",
    "source",
    "file",
    "template",
    "pattern",
    "metadata",
    "where",
}
FREE |= {"first", "chat", "sources", "bos_token", "eot_token", "checksum"}
OPTIONAL = {"mask", "targets", "hub", "chat", "eot_token", "eot_id"}  # of manifests
OPTIONAL |= {
    "metadata",
    "refused",
    "bytes",
    "unit",
    "row_groups",
    "row_group_documents",
    "checksum",
    "val_fraction",
}
OPTIONAL |= {"left_out", "prepared", "fraction", "validates"}  # of records
OPTIONAL |= {
    "where",
    "cap",
    "broken_conversations",
    "refused_conversations",
}  # of views, and of chat sets
# objects with keys of data
DATA = {
    "ranks",
    "special_tokens",
    "times",
    "tokenizer.json",
    "a/b.parquet",
    "oversized",
    "score",
    "train_0.000",
} | {"model"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file of each kind, with everything that it may have: {name: (kind, what it says)}."""
    folder = make_chat_set(
        tmp_path_factory.mktemp("schema") / "set", train=[[5, 3], [4]], val=[[2]]
    )
    hub = {"repository": "o/n", "revision": "main", "commit": "c" * 40}
    manifest = read_manifest(folder) | {"hub": hub, "files": {"tokenizer.json": "0" * 64}}
    manifest["prepared"] = {"validation": {"fraction": 0.01}, "shard_text_bytes": 9000}
    manifest["shards"][0]["sources"] = ["a.parquet", "b.parquet"]
    manifest["tokenizer"] |= {"eot_token": "<|eot|>", "eot_id": 1}
    record = json.loads((folder / "shards/train_0.000.json").read_text())
    record |= {
        "metadata": "score",
        "refused": {"no text": {"count": 3, "first": "a: line 1"}},
    }
    record["unit"] = {"k": 0, "n": 1, "shard_text_bytes": 9000, "shards": {"train_0.000": "train"}}
    one = {"documents": 1, "bytes": 9, "checksum": "0", "validates": 0.1, "left_out": 3}
    several = record | {"source": {"files": [{"file": name} | one for name in "ab"]}}
    named = header("tokenizer") | {"name": "bpe", "fingerprint": "f" * 64, "bos_token": "<|bos|>"}
    named |= {"special_tokens": {"<|bos|>": 300}, "chat": manifest["tokenizer"]["chat"]}
    return {
        "manifest": ("tokens", manifest),
        "record": ("shard", record),
        "record of several": ("shard", several),
        "tokenizer": ("tokenizer", named | {"pattern": ".", "ranks": {"YQ==": 0, "Yg==": 1}}),
        "foreign tokenizer": (
            "tokenizer",
            named | {"kind": "huggingface", "code_points": "0" * 64, "tokenizer": {"model": {}}},
        ),
        "view": (
            "view",
            make_view(folder, "good", {"train_0.000": [0, 3]})
            | {"rule": {"where": "a > 0", "cap": 3}},
        ),
    }


def paths(value, path=()):
    """The path to everything in a file."""
    for key, below in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield (*path, key)
        yield from paths(below, (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


def is_refused(kind, value) -> bool:
    """Whether it is, by an error that says what was expected."""
    try:
        assert parse_json(json.dumps(value).encode(), "here", kind) == value
    except ValueError as error:
        return "expected " in str(error)
    return False


def test_what_is_written_is_let_through(files):
    assert [name for name, (kind, value) in files.items() if is_refused(kind, value)] == []


def test_whatever_is_replaced_is_refused_unless_it_is_of_the_same_type(files):
    for name, (kind, whole) in files.items():
        for path in paths(whole):
            old = at(whole, path)
            for other in OTHERS:
                changed = copy.deepcopy(whole)
                at(changed, path[:-1])[path[-1]] = copy.copy(other)
                if is_refused(kind, changed) or other == old:
                    continue
                text = (
                    isinstance(other, str)
                    and (FREE & set(path) or other == "x")
                    and isinstance(old, str)
                )
                container = type(other) is type(old) in (list, dict) and path[-1] not in (
                    "shards",
                    "source",
                    "crc32",
                )
                foreign = (
                    path[0] == "tokenizer" and kind == "tokenizer"
                )  # as Hugging Face's library reads it
                share = (type(other) is type(old) is float) or "metadata" in path
                assert text or container or foreign or share, (name, path, other)


def test_whatever_is_taken_out_is_missed_unless_it_is_optional(files):
    for name, (kind, whole) in files.items():
        for path in paths(whole):
            changed = copy.deepcopy(whole)
            del at(changed, path[:-1])[path[-1]]
            if not is_refused(kind, changed):
                assert isinstance(path[-1], int) or {*OPTIONAL, *DATA} & set(path), (name, path)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("shards", 1, "split"),
            "Train",
            r"shards\[1\].split: expected train or val, found 'Train'",
        ),
        (("shards", 1, "bin"), "F" * 64, r"shards\[1\].bin: expected 64 hex digits, found 'FFF"),
        (
            ("shards", 1, "name"),
            "../x",
            r"shards\[1\].name: expected a plain name, .*, found '../x'",
        ),
        (
            ("shards", 1, "name"),
            "train_0.000",
            "shards: expected each shard once, found 'train_0.000'",
        ),
        (
            ("shards", 1, "documents"),
            5,
            "shards: expected a token or more for each document, found 'train_1.000'",
        ),
        (("tokens",), 99, "tokens: expected 14, as its shards have, found 99"),
        (("records",), {}, "records: expected one for each of the shards, found 'train_0.000"),
        (
            ("files", "a\x1bb"),
            "0" * 64,
            r"files, a key: expected a plain name, .*, found 'a\\x1bb'",
        ),
    ],
)
def test_a_manifest_says_what_is_wrong_with_it(files, tmp_path, path, value, message):
    manifest = copy.deepcopy(files["manifest"][1])
    at(manifest, path[:-1])[path[-1]] = value
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=f"manifest.json: {message}"):
        TokenSet(tmp_path)
