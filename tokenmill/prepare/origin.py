"""The files that a preparation reads: the user's own, or a hub repository's, which come when they are asked for."""

from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from tokenmill.prepare.config import PrepareConfig
from tokenmill.prepare.progress import Bars
from tokenmill.store.files import read_json
from tokenmill.text import hub
from tokenmill.text.downloads import Downloads
from tokenmill.text.listing import list_source
from tokenmill.text.sources import split_files
from tokenmill.text.stdlib import write_stdlib
from tokenmill.text.units import SourceFile


@dataclass(frozen=True)
class Source:
    """The source's files in their order; those of a hub repository may still have to be fetched."""

    files: list[SourceFile]
    downloads: Downloads | None = None

    def close(self) -> None:
        if self.downloads is not None:
            self.downloads.close()

    def fetch(self, files: list[SourceFile]) -> dict[Future, SourceFile]:
        """Begins to fetch what is the hub's of these files; a Future for each."""
        if self.downloads is None:
            return {}
        return {self.downloads.start(file.name): file for file in files if self.is_fetched(file)}

    def is_fetched(self, file: SourceFile) -> bool:
        """Whether the file is the hub's, and not the user's own."""
        return self.downloads is not None and self.downloads.has(file.name)

    def is_there(self, file: SourceFile) -> bool:
        return self.downloads is None or not self.is_fetched(file) or self.downloads.is_there(file.name)

    def size(self, file: SourceFile) -> int:
        """Bytes of a file that is the hub's."""
        assert self.downloads is not None, "only a hub's files may not be there"
        return self.downloads.size(file.name)

    def size_of_absent(self, file: SourceFile) -> int | None:
        """Bytes of a hub's file that is not there; None of any other."""
        return None if self.is_there(file) else self.size(file)

    def delete(self, file: SourceFile) -> None:
        """Deletes a file that is the hub's."""
        if self.downloads is not None and self.is_fetched(file):
            self.downloads.delete(file.name)

    def facts(self) -> dict:
        """What a manifest says of a hub's files."""
        if self.downloads is None:
            return {}
        return {"hub": self.downloads.listing.facts({file.name for file in self.files})}


def find_source(config: PrepareConfig, bars: Bars) -> Source:
    """The files that the configuration names; nothing is fetched yet.

    FileNotFoundError, ValueError or ConnectionError where there are none.
    """
    val_file = None if config.val_file == "last" else config.val_file
    named = config.source
    if named == "stdlib":
        named = str(write_stdlib(Path(config.raw_dir), bars.say))
    elif not Path(named).expanduser().exists() and hub.is_repository(named):
        return _hub_source(config, bars)
    listed = list_source(named)
    for told in listed.left_out:
        bars.say(f"left out of {named}: {told}")
    return Source(split_files(listed.files, val_file, listed.bytes))


def _hub_source(config: PrepareConfig, bars: Bars) -> Source:
    """The first num_shards files of a repository, and its validation file."""
    at = "" if config.revision == "main" else f"@{config.revision}"
    folder = Path(config.raw_dir) / f"{config.source}{at}".replace("/", "--")
    listing = hub.list_files(config.source, config.revision, folder, _commit_of_an_earlier_set(config))
    names = [file.name for file in listing.files]
    if len(names) < config.num_shards:
        raise ValueError(
            f"{config.source}: expected {config.num_shards} files, found {len(names)} at commit {listing.commit[:8]}; "
            "lower --num-shards"
        )
    taken = names[: config.num_shards]
    val_file = names[-1] if config.val_file == "last" else config.val_file
    if val_file in names and val_file not in taken:
        taken.append(val_file)
    sizes = {file.name: file.bytes for file in listing.files}
    files = split_files({name: folder / name for name in taken}, val_file, sizes)
    return Source(files, Downloads(listing, folder, config.download_workers, bars))


def _commit_of_an_earlier_set(config: PrepareConfig) -> str | None:
    """The commit that a set of this data set was made from, so that another one means the same files."""
    for path in sorted(config.here.glob(f"{config.dataset}-*/manifest.json")):
        origin = read_json(path, "tokens").get("hub", {})
        if (origin.get("repository"), origin.get("revision")) == (config.source, config.revision):
            return origin["commit"]
    return None
