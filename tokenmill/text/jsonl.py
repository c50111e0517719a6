"""jsonl: a JSON object per line.

The text is under a key (`text`), a key of an object (`doc.text`), or several keys, joined by a blank line
(`title,text`). A line without text is an error that names the line, or is left out and counted (--skip-broken).
"""

import json
from collections.abc import Callable, Iterator

import orjson
import pyarrow as pa

from tokenmill.text import separated
from tokenmill.text.decoding import JOINED_BY, checked
from tokenmill.text.formats import KeptColumn, ReadOptions
from tokenmill.text.kept_columns import MOST_VALUE, SURROGATE, columns_of_rows
from tokenmill.text.separated import Pieces
from tokenmill.text.units import BATCH_BYTES, Cut, Documents, FilePart, SourceFile, as_documents
from tokenmill.text_arrays import text_array

identify = separated.identify


class BrokenLine(ValueError):
    """A line of a jsonl file that is no object with text in it."""


def plan(
    file: SourceFile, raw: pa.NativeFile, options: ReadOptions, shard_text_bytes: int, known_text_bytes: int | None
) -> list[Cut]:
    """Cuts the file into ranges of bytes, one per shard."""
    return separated.plan_separated(file, raw, b"\n", shard_text_bytes, known_text_bytes)


def read(part: FilePart) -> Iterator[Documents]:
    """Streams the part's documents in order, a few MB at a time. ValueError for a broken line."""
    for lines in separated.read_separated(part, b"\n"):
        yield _documents(part, lines)


def _documents(part: FilePart, lines: Pieces) -> Documents:
    if part.options.conversations:
        return _rows(part, lines)
    try:
        rows, key = list(map(orjson.loads, lines.texts)), part.options.text_column
        texts = text_array([row[key] for row in rows])
        kept, found = _kept(part, rows)
        return as_documents(texts, lines.bytes, kept, kept_found=found, oversized_documents=lines.oversized)
    except (ValueError, LookupError, TypeError, AttributeError):
        # one of them is blank, broken or not UTF-8, or has its text in another place, or no id
        return _one_by_one(part, lines)


def _rows(part: FilePart, lines: Pieces) -> Documents:
    """Lines as they are, each the JSON of a conversation."""
    some = [(number, line.decode("utf-8", "replace")) for number, line in enumerate(lines.texts) if line.strip()]
    repaired = sum(text.encode() != lines.texts[number] for number, text in some if "\ufffd" in text)
    more = {"repaired_documents": repaired, "oversized_documents": lines.oversized}
    rows = [_object_of(lines.texts[number])[0] for number, _ in some] if part.options.kept else []
    kept, found = _kept(part, rows)
    documents = as_documents(text_array([text for _, text in some]), lines.bytes, kept, kept_found=found, **more)
    documents.locate = lambda number: f"line {_lines_before(part, lines.begin) + some[number][0] + 1:,}"
    return documents


def _one_by_one(part: FilePart, lines: Pieces) -> Documents:
    texts: list[str | None] = []
    rows: list[dict] = []
    broken, repaired, text_of = 0, 0, _text_at(part.options.text_column)
    for number, line in enumerate(lines.texts):
        if not line.strip():
            continue
        try:
            value, was_repaired = _object_of(line)
            text = text_of(value)
            _require_id(value, part.options.id_column)
        except BrokenLine as error:
            if not part.options.skip_broken:
                at = _lines_before(part, lines.begin) + number + 1
                raise ValueError(
                    f"{part.file.shown}: line {at:,}: expected a JSON object with text "
                    f"under {part.options.text_column!r}, found {error}; fix it, name the key with the text by "
                    "--text-column, or leave such lines out by --skip-broken"
                ) from error
            broken += 1
            continue
        whole = text and SURROGATE.sub("\ufffd", text)
        texts.append(whole)
        rows.append(value)
        repaired += whole != text or (was_repaired and "\ufffd" in (text or ""))
    column = text_array(texts)
    kept, found = _kept(part, rows)
    more = {"broken_lines": broken, "repaired_documents": repaired, "oversized_documents": lines.oversized}
    return as_documents(column, lines.bytes, kept, kept_found=found, **more)


def _kept(part: FilePart, rows: list[dict]) -> tuple[pa.Table | None, frozenset[str]]:
    """The columns to keep of these objects, None if none were asked for; and the names of those that were found."""
    if not part.options.kept:
        return None, frozenset()
    for row in rows:
        _require_id(row, part.options.id_column)
    table, found = columns_of_rows(rows, list(map(KeptColumn.parse, part.options.kept)))
    return checked(table), frozenset(found)


def _object_of(line: bytes) -> tuple[dict, bool]:
    """The object of a line, and whether it had invalid UTF-8, which is replaced."""
    whole = line.decode("utf-8", "replace")
    try:
        value = json.loads(whole)
    except ValueError as error:
        raise BrokenLine(f"no JSON ({error})") from error
    except RecursionError as error:
        raise BrokenLine("JSON that is nested too deep to be read") from error
    if not isinstance(value, dict):
        array = ": one JSON array, where an object a line is read" if isinstance(value, list) else ""
        raise BrokenLine(f"a {type(value).__name__}{array}")
    return value, whole.encode() != line


def _text_at(named: str) -> Callable[[dict], str | None]:
    """How to find the text of an object: under a key, a key of a key (`doc.text`), or several keys (`title,text`)."""

    def text_of(value: dict) -> str | None:
        names = [named] if named in value else named.split(",")
        found = [_at(value, name) for name in names]
        if _MISSING in found:
            raise BrokenLine(f"keys {', '.join(value)}" if value else "no keys")
        some = [text for text in found if text is not None]
        texts = [text for text in some if isinstance(text, str)]
        if len(texts) < len(some):
            raise BrokenLine(f"a {next(type(text).__name__ for text in some if not isinstance(text, str))} there")
        return (texts[0] if len(names) == 1 else JOINED_BY.join(filter(None, texts))) if texts else None

    return text_of


def _require_id(value: dict, named: str | None) -> None:
    """BrokenLine if an object has no id under this key; `named` is None if ids are not kept."""
    if named is None:
        return
    found = _at(value, named)
    if isinstance(found, dict | list) or (isinstance(found, str) and len(found) > MOST_VALUE):
        raise BrokenLine(f"an id under {named} that is a {type(found).__name__} of {len(found):,}")
    if found is _MISSING:
        raise BrokenLine(f"keys {', '.join(value)}, and none that --keep-ids {named} names")


_MISSING = object()


def _at(value: dict, name: str) -> object:
    if name in value:
        return value[name]
    found: object = value
    for key in name.split("."):
        if not isinstance(found, dict) or key not in found:
            return _MISSING
        found = found[key]
    return found


def _lines_before(part: FilePart, begin: int) -> int:
    with part.file.open_text() as stream:
        count = 0
        while begin > 0 and (block := stream.read(min(begin, BATCH_BYTES))):
            count, begin = count + block.count(b"\n"), begin - len(block)
        return count
