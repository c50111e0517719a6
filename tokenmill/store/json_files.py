"""JSON files, which begin with their format and version.

write_json(path, header("shard") | record)
read_json(path, "shard")                 ValueError if schema.py finds it wrong
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from tokenmill.store.files import read_bounded, write_changed
from tokenmill.store.schema import KINDS, check

VERSION = 1
LARGEST = 128 << 20  # bytes of a JSON file: a manifest of 300,000 shards


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes value as JSON in one rename, unless the file has it already."""
    write_changed(path, as_json(value))


def as_json(value: dict[str, Any]) -> bytes:
    """The content of a JSON file."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def read_json(path: Path, kind: str) -> dict[str, Any]:
    """Reads what `write_json` wrote. FileNotFoundError, or what `parse_json` raises."""
    expected = KINDS[kind].shown
    try:
        data = read_bounded(path, LARGEST, expected)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{path}: expected {expected}, found no such file; prepare again"
        ) from error
    return parse_json(data, path, kind)


def checksum_of(value: dict[str, Any]) -> str:
    """The SHA-256 of everything else that a JSON file with a `checksum` says."""
    content = {key: item for key, item in value.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_unchanged(path: Path, kind: str) -> dict[str, Any]:
    """Reads a JSON file with a `checksum`. ValueError if it is not as it was written."""
    value = read_json(path, kind)
    if value["checksum"] != checksum_of(value):
        raise ValueError(
            f"{path}: it was changed since it was written, as its checksum says; put it back"
        )
    return value


def parse_json(data: bytes, path: Path | str, kind: str) -> dict[str, Any]:
    """Parses the bytes of a JSON file.

    ValueError if they are of another kind or version, or their content is wrong.
    """
    expected = KINDS[kind].shown
    try:
        value: dict[str, Any] = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: expected {expected}, found broken JSON ({error}); delete it and prepare again"
        ) from error
    _require_header(value, path, kind)
    try:
        check(kind, value)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return value


def _require_header(value: Any, path: Path | str, kind: str) -> None:
    expected = (f"tokenmill-{kind}", VERSION)
    if isinstance(value, dict):
        actual: object = (value.get("format"), value.get("version"))
    else:
        actual = f"a {type(value).__name__}"
    if actual != expected:
        raise ValueError(
            f"{path}: expected {KINDS[kind].shown}, of format tokenmill-{kind}, version {VERSION}, "
            f"found {actual}; if it is a file of a token set, delete it and prepare again"
        )


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number")


def header(kind: str) -> dict[str, Any]:
    """The first keys of every JSON file."""
    return {"format": f"tokenmill-{kind}", "version": VERSION}
