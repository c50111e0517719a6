"""The metadata of a shard: the columns of its source that are kept beside the tokens.

`make_shard` writes them with the tokens. `add_metadata` adds them to a shard that is there: it reads the documents as
they were read then, compares their number and their text's size with the record, and tokenizes nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokenmill.store.columns import META
from tokenmill.store.files import read_json, write_json
from tokenmill.store.shard_writer import TableFile
from tokenmill.store.shards import shard_path, sources_of
from tokenmill.text.formats import KeptColumn, ReadOptions, format_of
from tokenmill.text.kept_columns import nulls
from tokenmill.text.sources import read_documents
from tokenmill.text.units import Documents, FilePart, SourceFile, Unit


def kept_columns_of(unit: Unit) -> list[KeptColumn]:
    """The columns to keep of a unit's files; none if their formats have no columns."""
    if not any(file.format.has_columns for file in unit.files):
        return []
    return list(map(KeptColumn.parse, unit.parts[0].options.kept))


def kept_table(documents: Documents, kept: list[KeptColumn]) -> pa.Table:
    """The kept columns of some documents, null for those of a file whose format has no columns."""
    if documents.kept is not None:
        return documents.kept
    return nulls(list(dict.fromkeys(column.name.split(".")[0] for column in kept)), len(documents.texts))


def no_rows(kept: list[KeptColumn]) -> pa.Table:
    """The kept columns of no document, so that a shard without documents has them too."""
    return nulls(list(dict.fromkeys(column.name.split(".")[0] for column in kept)), 0)


def require_found(unit: Unit, missing: set[str], documents: int) -> None:
    """ValueError if no document of a shard has a column that is to be kept."""
    if missing and documents:
        names = ", ".join(sorted(missing))
        raise ValueError(
            f"{unit.parts[0].file.shown}: none of the {documents:,} documents of shard {unit.name} has {names}, which "
            f"--keep-columns names; check the name, or write {sorted(missing)[0]}? if documents may lack it"
        )


def lacks_metadata(record: dict[str, Any], kept: Sequence[str]) -> bool:
    """Whether a shard was made without some of the columns to keep."""
    kept_then = record.get("metadata", ()) if META.suffix in record else ()  # none if its table was cut
    have = {KeptColumn.parse(name).name for name in kept_then}
    has_columns = any(map(_has_columns, sources_of(record)))
    return has_columns and any(KeptColumn.parse(name).name not in have for name in kept)


def _has_columns(source: dict[str, Any]) -> bool:
    entry = format_of(source["file"])
    return entry is None or entry.has_columns


def unit_of_record(record: dict[str, Any], files: Mapping[str, SourceFile], options: ReadOptions) -> Unit:
    """The unit of work that a shard was made from."""
    sources, alone = sources_of(record), "files" not in record["source"]
    parts = []
    for source in sources:
        file = files[source["file"]]
        span = source.get("row_groups" if file.format.has_row_groups else "span") if alone else None
        text_bytes = record["text_bytes"] // len(sources)
        parts.append(FilePart(file, options, None if span is None else tuple(span), text_bytes, {}))
    number = int(record["name"].rpartition(".")[2])
    return Unit(tuple(parts), number, record["source"].get("shards", 1))


def add_metadata(folder: Path, address: str | None, state: None, unit: Unit, report: Callable[..., None]) -> int:
    """Adds the kept columns to the unit's shard, which is there, and returns its number of documents. With `address`
    the shard is there, and only its record is in the folder.

    ValueError if the source does not have the documents that the shard was made of.
    """
    path = shard_path(folder, unit.name, "json")
    record, kept = read_json(path, "shard"), kept_columns_of(unit)
    missing = {column.name for column in kept if not column.optional}
    documents = text_bytes = 0
    identities: list[dict[str, Any]] = []
    with TableFile(folder, unit.name, META) as file:
        file.write_values(no_rows(kept))
        for some in read_documents(unit, identities):
            file.write_values(kept_table(some, kept))
            missing -= some.kept_found
            documents, text_bytes = documents + len(some.texts), text_bytes + some.text_bytes
            report(len(some.texts), 0, some.text_bytes, some.share)
        _require_same(unit, record, identities, documents, text_bytes)
        require_found(unit, missing, documents)
        file.require_count(documents, 0)
        checksums = file.commit()
    record["metadata"] = [str(column) for column in kept]
    record[META.suffix] = checksums
    write_json(path, record)
    if address is not None:
        from tokenmill.remote.files import write

        table = shard_path(folder, unit.name, META.suffix)
        for sent in (table, path):
            write(address, f"shards/{sent.name}", sent)
        table.unlink()
    return documents


def _require_same(
    unit: Unit, record: dict[str, Any], identities: list[dict[str, Any]], documents: int, text_bytes: int
) -> None:
    """ValueError if these are not the documents that a shard has."""
    for was, now in zip(sources_of(record), identities, strict=True):
        for key, value in now.items():
            if key in was and was[key] != value:
                raise ValueError(
                    f"{unit.parts[0].file.shown}: {key} of {was['file']} was {was[key]} when shard {unit.name} was "
                    f"made, is {value} now; put the file back as it was, or prepare under another --name"
                )
    expected, found = {"documents": record["documents"]}, {"documents": documents}
    if not unit.parts[0].options.conversations:  # whose text is not in the source as it was tokenized
        expected["bytes of text"], found["bytes of text"] = record["text_bytes"], text_bytes
    for what, many in expected.items():
        if found[what] != many:
            raise ValueError(
                f"{unit.parts[0].file.shown}: expected the {many:,} {what} that shard {unit.name} was made of, found "
                f"{found[what]:,}; its columns cannot be added: prepare under another --name"
            )


def no_setup(task: Unit) -> None:
    """Workers that add metadata need no tokenizer."""
