"""Which files a token set has, and the facts with which each is compared.

column_files(record)      {"shards/a.bin": {"bytes": 18, "sha256": ...}, "shards/a.idx": ...}
small_files(token_set)    ("tokenizer.json", {"sha256": ...}), ("manifests/9f86d0....json", {})
"""

from collections.abc import Callable, Iterator
from typing import Any

from tokenmill.store.columns import columns_of
from tokenmill.store.json_files import read_json
from tokenmill.store.manifests import SMALL_FILES
from tokenmill.store.token_sets import TokenSet
from tokenmill.store.views import FOLDER, VIEW_ARRAYS

THREADS = 8  # that push or pull files
Progress = Callable[[int, int], None]  # shards and bytes since the last call
Facts = dict[str, Any]  # the "sha256" of a file; of large ones its "bytes" and "crc32" too


def column_files(record: dict[str, Any]) -> dict[str, Facts]:
    """The files of a shard but its record, by their names in the set."""
    name = record["name"]
    return {f"shards/{name}.{suffix}": record[suffix] for suffix in columns_of(record)}


def record_file(name: str) -> str:
    return f"shards/{name}.json"


def small_files(token_set: TokenSet) -> Iterator[tuple[str, Facts]]:
    """The files of a set but its shards and its manifest; the arrays of views before their JSON."""
    checksums = token_set.manifest["files"]
    for name in SMALL_FILES:
        if name in checksums:
            yield name, {"sha256": checksums[name]}
    for digest in token_set.digests():
        token_set.knows(digest)  # fetches it; ValueError if it is another manifest
        yield f"manifests/{digest}.json", {}
    stems = token_set.view_stems()
    views = [read_json(token_set.view_file(f"{stem}.json"), "view") for stem in stems]
    by_digest = {facts["digest"]: facts for facts in views}
    for digest, facts in by_digest.items():
        for array in VIEW_ARRAYS:
            yield f"{FOLDER}/{digest}.{array}", facts[array]
    for stem in stems:
        yield f"{FOLDER}/{stem}.json", {}
