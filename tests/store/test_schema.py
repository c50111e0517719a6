"""What the JSON files of the format may say, and every leaf of each replaced by what it cannot be."""

import copy
import json
import math
import shutil

import pytest
from making import make_token_set, read_manifest

from tokenmill import TokenSet
from tokenmill.store.files import header, parse_json
from tokenmill.store.names import is_plain

OTHERS = [
    None,
    True,
    -1,
    1.5,
    10**30,
    math.nan,
    math.inf,
    "",
    "x",
    "../x",
    "/x",
    "a\x1bb",
    "\ud800",
    [],
    {},
    [[]],
    "Train",
]
FREE = {"bos_token", "eot_token", "repository", "revision", "commit", "source", "file", "text_column", "pattern"}


def leaves(value, path=()):
    """The path to each leaf of JSON."""
    if isinstance(value, dict | list) and value:
        for key, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(below, (*path, key))
    else:
        yield path


def at(value, path):
    for key in path:
        value = value[key]
    return value


def said(kind, value) -> str | None:
    """What is found wrong with it."""
    try:
        parse_json(json.dumps(value).encode(), "here", kind)
    except ValueError as error:
        return str(error)
    return None


def replaced(value, path, other):
    value = copy.deepcopy(value)
    at(value, path[:-1])[path[-1]] = other
    return value


@pytest.fixture(scope="module")
def files(prepared, tmp_path_factory):
    """What is written of each kind: (kind, what it says)."""
    folder = tmp_path_factory.mktemp("schema") / "set"
    shutil.copytree(prepared[1], folder)
    hub = {"repository": "o/n", "revision": "main", "commit": "c" * 40}
    hub["files"] = [{"name": "a/b.parquet", "bytes": 3, "sha256": "d" * 64, "git_sha1": None}]
    manifest = read_manifest(folder)
    dropped = [{"place": 1} | manifest["shards"][0] | {"name": "gone"}]
    record = json.loads(min((folder / "shards").glob("*.json")).read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["ranks"] = dict(list(tokenizer["ranks"].items())[:3])
    return [
        ("tokens", manifest | {"hub": hub, "dropped": dropped, "earlier": ["0" * 16], "subfolders": 256}),
        ("shard", record),
        ("tokenizer", tokenizer),
        ("files", header("files") | hub),
        ("plan", header("plan") | {"text_bytes": 7}),
        ("counts", header("counts") | {"rows": [1, 2]}),
        ("checked", header("checked") | {"files": {"a/b.parquet": [1, 2, 3]}}),
    ]


def test_what_is_written_is_let_through(files):
    for kind, value in files:
        assert parse_json(json.dumps(value).encode(), "here", kind) == value


def test_every_leaf_that_is_something_else_is_an_error_that_says_where(files):
    """But where any text may stand, and among what no reader takes for anything."""
    for kind, value in files:
        for path in leaves(value):
            for other in OTHERS:
                if path[0] == "source" and path[-1] not in ("file",) and kind == "shard":
                    continue  # compared with what is planned, and taken for nothing else
                if (found := said(kind, replaced(value, path, other))) is not None:
                    assert found.startswith("here: "), (kind, path, other)
                    continue
                old = at(value, path)
                names = {"name", "dataset"} & {path[-1]} and is_plain(other)
                free = FREE & set(map(str, path)) and isinstance(other, str)
                optional = path[-1] in ("sha256", "git_sha1") and other is None
                assert other == old or names or free or optional, (kind, path, other)


def test_every_key_that_is_missing_is_an_error_or_is_not_needed(files):
    optional = {
        "max_document_bytes",
        "shard_text_bytes",
        "oversized_documents",
        "null_documents",
        "empty_documents",
        "repaired_documents",
        "broken_lines",
        "eot_token",
        "eot_id",
    }
    optional |= {
        "files",
        "records",
        "tokenizer.json",
        "token_bytes.npy",
        "hub",
        "dropped",
        "earlier",
        "subfolders",
        "more_sources",
        "kind",
        "ids",
    }
    for kind, value in files:
        for path in {leaf[:depth] for leaf in leaves(value) for depth in range(1, len(leaf) + 1)}:
            if not isinstance(path[-1], str) or (kind == "shard" and path[0] == "source" and path[-1] != "file"):
                continue
            less = copy.deepcopy(value)
            del at(less, path[:-1])[path[-1]]
            if (found := said(kind, less)) is not None:
                assert found.startswith("here: "), (kind, path)
            else:
                named_by_data = path[0] in ("ranks", "special_tokens", "records") or kind == "checked"
                assert path[-1] in optional or named_by_data, (kind, path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "Train"}, "split of a shard: expected train or val, found 'Train'"),
        ({"extra": 1}, "a shard of the list: expected .*, found .*'extra'"),
        ({"bin_sha256": "F" * 64}, "bin_sha256 of a shard: expected 64 hex digits"),
        ({"tokens": 2**63}, "tokens of a shard: expected a whole number"),
    ],
)
def test_a_manifest_says_what_is_wrong_with_a_shard(tmp_path, changes, message):
    folder = make_token_set(tmp_path / "set", train=[[5, 3], [4]], val=[[2]])
    manifest = read_manifest(folder)
    manifest["shards"][1] |= changes
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=f"manifest.json: {message}"):
        TokenSet(folder)


def test_a_type_that_does_not_hold_the_ids_is_refused(tmp_path):
    folder = make_token_set(tmp_path / "set", train=[[5, 3]], val=[[2]])
    (folder / "manifest.json").write_text(json.dumps(read_manifest(folder) | {"dtype": "uint32"}))
    with pytest.raises(ValueError, match="dtype: expected uint16 for"):
        TokenSet(folder)
