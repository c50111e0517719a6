"""Which shards a token set needs, and which of them are made.

Files are planned group by group (text/file_groups.py), as they arrive. A shard is made if its record says that it was
made from the unit that is planned now: the same bytes, read in the same way. If a group has a file that was deleted
since, or that would have to be decompressed to be planned, its records alone say how many shards it has. The size of
the text in a compressed file is kept in `planned/`, for the next run and for other parts.
"""

from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmill.prepare.metadata import lacking_columns
from tokenmill.prepare.shard_size import find_shard_text_bytes
from tokenmill.store.files import header, read_json, write_json
from tokenmill.store.shards import Split, finished_record, shard_path, sources_of
from tokenmill.store.token_sets import TokenSet
from tokenmill.text.file_groups import FileGroup, group_files
from tokenmill.text.formats import KeptColumn, ReadOptions
from tokenmill.text.sources import identify, plan_units
from tokenmill.text.units import SourceFile, Unit

if TYPE_CHECKING:
    from tokenmill.prepare.upload import BucketUpload

# options that a record has only if they matter, and their flags
READ_AS = {
    "text_column": "--text-column",
    "document_separator": "--document-separator",
    "id_column": "--keep-ids",
    "messages_column": "--messages-column",
    "val_fraction": "--val-fraction",
}


class Inventory:
    """The shards of a token set: those that are planned, in `shards`, and those that are made, in `records`."""

    def __init__(
        self,
        folder: Path,
        fingerprint: str,
        options: ReadOptions,
        files: list[SourceFile],
        shard_text_bytes: int | None,
        upload: "BucketUpload | None" = None,
    ):
        self.upload = upload  # if shards are uploaded, only their records stay here
        self.folder, self._fingerprint = folder, fingerprint
        self.shards: dict[str, list[str]] = {}  # by the names of their files
        self.records: dict[str, dict] = {}
        self._units: list[Unit] = []
        self._unplanned: list[tuple[FileGroup, Callable[[SourceFile], int | None]]] = []
        self._on_disk = dict(_records(folder, whole=upload is None))
        self._options = self._keeping_what_it_has(options)
        self.shard_text_bytes = self._find_shard_text_bytes(files, shard_text_bytes)
        is_set = (folder / "manifest.json").exists()
        self._listed = [entry.sources for entry in TokenSet(folder).entries] if is_set else []

    def _find_shard_text_bytes(self, files: list[SourceFile], named: int | None) -> int:
        try:
            return find_shard_text_bytes(self._on_disk.values(), named, files)
        except ValueError as error:
            raise ValueError(f"{self.folder}: {error}") from error

    def _keeping_what_it_has(self, options: ReadOptions) -> ReadOptions:
        """The options with the columns that the set keeps. ValueError if a shard was made without one to keep now."""
        records = [record for _, record in _records(self.folder, self._on_disk, whole=False)]  # damaged ones too
        have = [name for record in (*self._on_disk.values(), *records) for name in record.get("metadata", ())]
        for record in self._on_disk.values():
            if missing := lacking_columns(record, options.kept):
                raise ValueError(
                    f"{self.folder}: shard {record['name']} was made without {missing[0]}, which --keep-columns names; "
                    "prepare under another --name"
                )
        kept = {KeptColumn.parse(name).name: name for name in (*have, *options.keep_columns)}
        return replace(options, keep_columns=tuple(kept.values()))

    def groups(self, files: list[SourceFile]) -> list[FileGroup]:
        """Which files make shards together. Files whose shards exist, or are in the manifest, stay grouped.

        ValueError if two shards hold the same file and were not cut from it, or if files were read in another way.
        """
        self._require_read_alike(files)
        known: dict[str, tuple[str, ...]] = {}
        made = [tuple(source["file"] for source in sources_of(record)) for record in self._on_disk.values()]
        for together in [*made, *self._listed]:
            for name in together:
                if known.setdefault(name, together) != together:
                    raise ValueError(
                        f"{self.folder}: shards {known[name][0]} and {together[0]} both hold {name}, as two runs with "
                        "different files made them; prepare under another --name"
                    )
        return group_files(files, known, self.shard_text_bytes)

    def _require_read_alike(self, files: list[SourceFile]) -> None:
        """ValueError if files of this set would be read in another way now: before anything is made."""
        by_name = {file.name: file for file in files}
        made_from = (source for record in self._on_disk.values() for source in sources_of(record))
        for was in made_from:
            now = by_name[was["file"]].facts(self._options) if was["file"] in by_name else was
            for key, flag in READ_AS.items():
                if was.get(key) != now.get(key):
                    raise ValueError(
                        f"{self.folder}: {key} of {was['file']} was {_shown(was.get(key))} then, is "
                        f"{_shown(now.get(key))} now; give "
                        f"{flag} as it was, or prepare under another --name"
                    )

    def plan(self, group: FileGroup) -> list[Unit]:
        """All units of a group. ValueError if a file is damaged."""
        path = self.folder / "planned" / f"{group[0].stem}.json"
        learns = is_costly(group)
        facts = identify(group[0], self._options) if learns else {}
        known = read_json(path, "plan") if learns and path.exists() else {}
        same = all(known.get(key) == value for key, value in facts.items())
        units = plan_units(group, self._options, self.shard_text_bytes, known.get("text_bytes") if same else None)
        if learns:
            path.parent.mkdir(exist_ok=True)
            write_json(
                path,
                header("plan") | facts | {"text_bytes": sum(part.text_bytes for unit in units for part in unit.parts)},
            )
        return units

    def take(self, units: list[Unit]) -> None:
        """Adds a group's units, and the records of those that are made.

        ValueError if a shard of that name was made from something else: its bytes may be in use.
        """
        found = [record for unit in units if (record := self._made(unit)) is not None]
        self.records |= {record["name"]: record for record in found}
        self._units += units
        self.shards |= {file.name: [unit.name for unit in units] for file in units[0].files}

    def note(self, unit: Unit) -> None:
        """Adds the record of a unit's shard, if it is made by now."""
        self._reload(unit.name)

    def _reload(self, name: str) -> None:
        whole = self.upload is None
        record = finished_record(self.folder, name) if whole else read_record(self.folder, name)
        if record is not None:
            self._on_disk[name] = self.records[name] = record

    def _made(self, unit: Unit) -> dict | None:
        """The record of the unit's shard, if it is made. ValueError if it was made from something else."""
        record = self._on_disk.get(unit.name)
        if record is None:
            return None
        made_from = sources_of(record)
        problem, path = self._difference(record), unit.parts[0].file.path
        if len(made_from) != len(unit.parts):
            problem = f"of {len(made_from):,} files then, and of {len(unit.parts):,} now"
        for was, part in zip(made_from, unit.parts, strict=False):
            if problem is None and (problem := _difference(was, part.identity or identify(part.file, part.options))):
                path = part.file.path
        if problem:
            raise ValueError(
                f"{self.folder}: shard {unit.name} was made from other data: {problem} ({path}); put that back as it "
                "was (more text goes into a new file), prepare under another --name, or delete the folder"
            )
        return record

    def _difference(self, record: dict) -> str | None:
        """How a shard was made differently from how it would be made now, apart from its files."""
        if record["fingerprint"] != self._fingerprint:
            return f"fingerprint was {record['fingerprint']} then, is {self._fingerprint} now"
        broken = record.get("broken_lines", 0) + record.get("broken_conversations", 0)
        if broken and not self._options.skip_broken:
            return f"{broken:,} broken lines or rows were left out then, and --skip-broken is not given now"
        limit, now = record.get("max_document_bytes"), self._options.max_document_bytes
        if limit is not None and (now < limit or (now > limit and record.get("oversized_documents"))):
            return (
                f"documents of more than {limit:,} bytes were left out then, --max-document-bytes is {now:,} now: give "
                f"--max-document-bytes {limit}"
            )
        return None

    def note_made(self, group: FileGroup, size_of: Callable[[SourceFile], int | None] = lambda file: None) -> bool:
        """Whether all shards of a group are made, judged by their records alone; otherwise looks for them again later.

        `size_of` returns the bytes of a file that is not here, and None for a file that is.
        """
        records = self._records_of(group)
        if records is None or not all(self._is_made_of(record, group, size_of) for record in records):
            self._unplanned.append((group, size_of))
            return False
        self.shards |= {file.name: [record["name"] for record in records] for file in group}
        self.records |= {record["name"]: record for record in records}
        return True

    def _records_of(self, group: FileGroup) -> list[dict] | None:
        first = self._on_disk.get(f"{group[0].stem}.000")
        count = first["source"]["shards"] if first else 0
        found = [self._on_disk.get(f"{group[0].stem}.{number:03d}") for number in range(count)]
        records = [record for record in found if record is not None]
        return records if count and len(records) == count else None

    def _is_made_of(self, record: dict, group: FileGroup, size_of: Callable[[SourceFile], int | None]) -> bool:
        made_from = sources_of(record)
        if len(made_from) != len(group) or self._difference(record):
            return False
        for was, file in zip(made_from, group, strict=True):
            size = size_of(file)
            alone = {"file": file.name, "bytes": size} | file.facts(self._options)
            if _difference(was, alone if size is not None else identify(file, self._options)):
                return False
        return True

    def look_again(self) -> None:
        """Adds the shards that other parts have made since."""
        if self.upload is not None:
            self.upload.fetch_records()
        self._on_disk |= dict(_records(self.folder, self._on_disk, self.upload is None))
        for unit in self._units:
            record = self._made(unit) if unit.name not in self.records else None
            self.records |= {record["name"]: record} if record else {}
        unplanned, self._unplanned = self._unplanned, []
        for group, size_of in unplanned:
            if group[0].name not in self.shards:
                self.note_made(group, size_of)

    def missing(self, files: list[SourceFile]) -> list[str]:
        """Names of shards that are not made, or of files that are not planned."""
        names = dict.fromkeys(name for file in files for name in self.shards.get(file.name, [file.name]))
        return [name for name in names if name not in self.records]

    def entries(self, files: list[SourceFile]) -> list[tuple[dict, Split]]:
        """(record, split) of every shard, for a manifest."""
        splits = {name: file.split for file in files for name in self.shards[file.name]}
        return [(self.records[name], split) for name, split in splits.items()]


def is_costly(group: FileGroup) -> bool:
    """Whether a whole file must be read to plan the group: a compressed file that is not small."""
    return len(group) == 1 and group[0].compression is not None


def _shown(value: object) -> str:
    """A value in a message: a text with line breaks as Python writes it."""
    return repr(value) if isinstance(value, str) and not value.isprintable() else str(value)


def _difference(was: dict, now: dict) -> str | None:
    """How a source file, or the way it is read, differs from what a record says."""
    for key in dict.fromkeys([*now, *READ_AS]):
        if was.get(key) != now.get(key):
            return f"{key} of {now['file']} was {was.get(key)} then, is {now.get(key)} now"
    return None


def read_record(folder: Path, name: str) -> dict | None:
    """The record of a shard, wherever its files are; None if there is none."""
    path = shard_path(folder, name, "json")
    return read_json(path, "shard") if path.exists() else None


def any_record(folder: Path) -> dict | None:
    """The record of any shard of a set; None if there is none yet."""
    path = next(folder.glob("shards/*.json"), None)
    return None if path is None else read_json(path, "shard")


def _records(folder: Path, but: Container[str] = (), whole: bool = True) -> Iterator[tuple[str, dict]]:
    """The records of the shards that are made, by name; with `whole`, only of shards whose files are here."""
    for path in sorted(folder.glob("shards/*.json")):
        name = path.name.removesuffix(".json")
        if name in but:
            continue
        record = finished_record(folder, name) if whole else read_record(folder, name)
        if record is not None:
            yield name, record
