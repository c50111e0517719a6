"""What a token set needs, and what of it is there.

Files are planned lot by lot (text/lots.py), as they come. A shard is there when its record says that it was made from
the unit that is planned now: the same bytes, read in the same way. A lot whose file was deleted since, or would have to
be decompressed to be planned, is known by its records, which say how many there are. What decompressing a file told is
kept in `planned/`, for the next run and the other parts.
"""

from collections.abc import Callable, Container, Iterator
from pathlib import Path

from tokenmill.prepare.elsewhere import Elsewhere
from tokenmill.store.files import header, read_json, write_json
from tokenmill.store.shards import Split, finished_record, sources_of
from tokenmill.store.token_sets import TokenSet
from tokenmill.text.formats import Reading
from tokenmill.text.lots import Lot, lots_of
from tokenmill.text.sources import facts_of, plan_units
from tokenmill.text.units import SourceFile, Unit

READ_AS = ("text_column", "document_separator", "id_column")  # facts of a record that are there where they matter


class Inventory:
    """The shards of a token set: those that are planned, in `shards`, and those that are there, in `records`."""

    def __init__(
        self, folder: Path, fingerprint: str, how: Reading, shard_text_bytes: int, elsewhere: Elsewhere | None = None
    ):
        self.elsewhere = elsewhere  # where shards are sent to: of those that are done the record alone is here
        self.folder, self._fingerprint, self._how, self._shard_text_bytes = folder, fingerprint, how, shard_text_bytes
        self.shards: dict[str, list[str]] = {}  # by the names of their files
        self.records: dict[str, dict] = {}
        self._units: list[Unit] = []
        self._unplanned: list[tuple[Lot, Callable[[SourceFile], int | None]]] = []
        self._on_disk = dict(_records(folder, whole=elsewhere is None))
        there = (folder / "manifest.json").exists()
        self._dropped = [entry.sources for _, entry in TokenSet(folder).dropped] if there else []

    def lots(self, files: list[SourceFile]) -> list[Lot]:
        """Which files make shards together; those whose shards are there, or were until they were found damaged, as
        they were made. ValueError where shards share a file that they were not cut from.
        """
        known: dict[str, tuple[str, ...]] = {}
        made = [tuple(source["file"] for source in sources_of(record)) for record in self._on_disk.values()]
        for together in [*made, *self._dropped]:
            for name in together:
                if known.setdefault(name, together) != together:
                    raise ValueError(
                        f"{self.folder}: shards {known[name][0]} and {together[0]} both hold {name}, as two runs with "
                        "different files made them; prepare under another --name"
                    )
        return lots_of(files, known, self._shard_text_bytes)

    def plan(self, lot: Lot) -> list[Unit]:
        """All units of a lot. ValueError where a file is damaged."""
        path = self.folder / "planned" / f"{lot[0].stem}.json"
        learns = is_costly(lot)
        facts = facts_of(lot[0], self._how) if learns else {}
        known = read_json(path, "plan") if learns and path.exists() else {}
        same = all(known.get(key) == value for key, value in facts.items())
        units = plan_units(lot, self._how, self._shard_text_bytes, known.get("text_bytes") if same else None)
        if learns:
            path.parent.mkdir(exist_ok=True)
            write_json(path, header("plan") | facts | {"text_bytes": sum(unit.text_bytes for unit in units)})
        return units

    def take(self, units: list[Unit]) -> None:
        """Takes a lot's units into account, and what is there of them.

        ValueError where a shard of that name was made from something else: its bytes may be in use.
        """
        there = [record for unit in units if (record := self._made(unit)) is not None]
        self.records |= {record["name"]: record for record in there}
        self._units += units
        self.shards |= {file.name: [unit.name for unit in units] for file in units[0].files}

    def note(self, unit: Unit) -> None:
        """Takes note of a unit's shard, if it is there by now."""
        record = finished_record(self.folder, unit.name)
        if record is not None:
            self._on_disk[unit.name] = self.records[unit.name] = record

    def _made(self, unit: Unit) -> dict | None:
        """The record of the unit's shard, if it is there. ValueError where it was made from something else."""
        record = self._on_disk.get(unit.name)
        if record is None:
            return None
        made_from = sources_of(record)
        problem, path = self._difference(record), unit.parts[0].file.path
        if len(made_from) != len(unit.parts):
            problem = f"of {len(made_from):,} files then, and of {len(unit.parts):,} now"
        for was, part in zip(made_from, unit.parts, strict=False):
            if problem is None and (problem := _difference(was, part.identity)):
                path = part.file.path
        if problem:
            raise ValueError(
                f"{self.folder}: shard {unit.name} was made from other data: {problem} ({path}); put that back as it "
                "was, prepare under another --name, or delete the folder"
            )
        return record

    def _difference(self, record: dict) -> str | None:
        """How a shard was not made as it would be now, whatever its files."""
        if record["fingerprint"] != self._fingerprint:
            return f"fingerprint was {record['fingerprint']} then, is {self._fingerprint} now"
        if (broken := record.get("broken_lines", 0)) and not self._how.skip_broken_lines:
            return f"{broken:,} broken lines were left out then, and --skip-broken-lines is not given now"
        limit, now = record.get("max_document_bytes"), self._how.max_document_bytes
        if limit is not None and (now < limit or (now > limit and record.get("oversized_documents"))):
            return (
                f"documents of more than {limit:,} bytes were left out then, --max-document-bytes is {now:,} now: give "
                f"--max-document-bytes {limit}"
            )
        return None

    def note_made(self, lot: Lot, size_of: Callable[[SourceFile], int | None] = lambda file: None) -> bool:
        """Whether all shards of a lot are there, by their records alone; remembers them, or that they are to come.

        `size_of` a file that is not there says how many bytes it has; None of one that is.
        """
        records = self._records_of(lot)
        if records is None or not all(self._is_made_of(record, lot, size_of) for record in records):
            self._unplanned.append((lot, size_of))
            return False
        self.shards |= {file.name: [record["name"] for record in records] for file in lot}
        self.records |= {record["name"]: record for record in records}
        return True

    def _records_of(self, lot: Lot) -> list[dict] | None:
        first = self._on_disk.get(f"{lot[0].stem}.000")
        count = first["source"]["shards"] if first else 0
        found = [self._on_disk.get(f"{lot[0].stem}.{number:03d}") for number in range(count)]
        records = [record for record in found if record is not None]
        return records if count and len(records) == count else None

    def _is_made_of(self, record: dict, lot: Lot, size_of: Callable[[SourceFile], int | None]) -> bool:
        made_from = sources_of(record)
        if len(made_from) != len(lot) or self._difference(record):
            return False
        for was, file in zip(made_from, lot, strict=True):
            size = size_of(file)
            alone = {"file": file.name, "bytes": size} | self._how.facts(file.format)
            if _difference(was, alone if size is not None else facts_of(file, self._how)):
                return False
        return True

    def look_again(self) -> None:
        """Takes note of what other parts have made since."""
        if self.elsewhere is not None:
            self.elsewhere.bring()
        self._on_disk |= dict(_records(self.folder, self._on_disk, self.elsewhere is None))
        for unit in self._units:
            record = self._made(unit) if unit.name not in self.records else None
            self.records |= {record["name"]: record} if record else {}
        unplanned, self._unplanned = self._unplanned, []
        for lot, size_of in unplanned:
            if lot[0].name not in self.shards:
                self.note_made(lot, size_of)

    def missing(self, files: list[SourceFile]) -> list[str]:
        """Names of shards that are not there, or of files that were not planned."""
        names = dict.fromkeys(name for file in files for name in self.shards.get(file.name, [file.name]))
        return [name for name in names if name not in self.records]

    def entries(self, files: list[SourceFile]) -> list[tuple[dict, Split]]:
        """(record, split) of every shard, for a manifest."""
        splits = {name: file.split for file in files for name in self.shards[file.name]}
        return [(self.records[name], split) for name, split in splits.items()]


def is_costly(lot: Lot) -> bool:
    """Whether a lot is read whole to be planned: a compressed file that is not small."""
    return len(lot) == 1 and lot[0].compression is not None


def _difference(was: dict, now: dict) -> str | None:
    """How a source file, or how it is read, is not what a record says; of what the record does not say nothing."""
    for key in dict.fromkeys([*now, *READ_AS]):
        if was.get(key) != now.get(key):
            return f"{key} of {now['file']} was {was.get(key)} then, is {now.get(key)} now"
    return None


def _records(folder: Path, but: Container[str] = (), whole: bool = True) -> Iterator[tuple[str, dict]]:
    """The records of the shards that are done, by their names; with `whole` of those whose files are here."""
    for path in sorted(folder.glob("shards/*.json")):
        name = path.name.removesuffix(".json")
        if name in but:
            continue
        record = finished_record(folder, name) if whole else read_json(path, "shard")
        if record is not None:
            yield name, record
