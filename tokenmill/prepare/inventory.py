"""What a token set needs, and what of it is there.

Files are planned one by one, as they come. A shard is there when its record says that it was made from the unit
that is planned now. A file that was deleted after its shards were made is known by their records, which say
how many there are.
"""

from pathlib import Path

from tokenmill.store.shards import Split, finished_record
from tokenmill.text.formats import Reading
from tokenmill.text.sources import plan_units
from tokenmill.text.units import SourceFile, Unit


class Inventory:
    """The shards of a token set: those that are planned, in `shards`, and those that are there, in `records`."""

    def __init__(self, folder: Path, fingerprint: str, how: Reading, shard_text_bytes: int):
        self.folder, self._fingerprint, self._how, self._shard_text_bytes = folder, fingerprint, how, shard_text_bytes
        self.shards: dict[str, list[str]] = {}  # by the names of their files
        self.records: dict[str, dict] = {}
        self._units: list[Unit] = []

    def plan(self, file: SourceFile) -> list[Unit]:
        """All units of a file, taken into account. ValueError where the file is damaged; see `take`."""
        units = plan_units(file, self._how, self._shard_text_bytes)
        self.take(file, units)
        return units

    def take(self, file: SourceFile, units: list[Unit]) -> None:
        """Takes a file's units into account, and what is there of them.

        ValueError where a shard of that name was made from something else: its bytes may be in use.
        """
        for unit in units:
            self.note(unit)
        self._units += units
        self.shards[file.name] = [unit.name for unit in units]

    def note(self, unit: Unit) -> bool:
        """Whether the unit's shard is there; remembers its record."""
        record = finished_record(self.folder, unit.name)
        if record is None:
            return False
        made_from = record["source"] | {"fingerprint": record["fingerprint"]}
        for key, expected in (unit.identity | {"fingerprint": self._fingerprint}).items():
            if made_from.get(key) != expected:
                raise ValueError(
                    f"{self.folder}: shard {unit.name} was made from other data: {key} of {unit.file.path} was "
                    f"{made_from.get(key)} then, is {expected} now; prepare under another --name, or delete the folder"
                )
        self.records[unit.name] = record
        return True

    def look_again(self) -> None:
        """Takes note of what others have made since."""
        for unit in self._units:
            if unit.name not in self.records:
                self.note(unit)

    def note_without_file(self, file: SourceFile, size: int) -> bool:
        """Whether all shards of a file of `size` bytes that is not there are; remembers their records."""
        first = finished_record(self.folder, f"{file.stem}.000")
        if first is None or first["source"]["bytes"] != size or first["fingerprint"] != self._fingerprint:
            return False
        names = [f"{file.stem}.{number:03d}" for number in range(first["source"]["shards"])]
        found = {name: finished_record(self.folder, name) for name in names}
        records = {name: record for name, record in found.items() if record is not None}
        if len(records) < len(names):
            return False
        self.shards[file.name], self.records = names, self.records | records
        return True

    def missing(self, files: list[SourceFile]) -> list[str]:
        """Names of shards that are not there, or of files that were not planned."""
        return [name for file in files for name in self.shards.get(file.name, [file.name]) if name not in self.records]

    def entries(self, files: list[SourceFile]) -> list[tuple[dict, Split]]:
        """(record, split) of every shard, for a manifest."""
        return [(self.records[name], file.split) for file in files for name in self.shards[file.name]]
