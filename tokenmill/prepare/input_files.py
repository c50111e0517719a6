"""The files that a preparation reads: the user's own, or those of a hub repository, which are fetched when needed."""

import re
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from tokenmill.prepare.prepare_config import PrepareConfig
from tokenmill.prepare.progress import Bars
from tokenmill.store.files import read_json
from tokenmill.text import hub
from tokenmill.text.document_split import default_fraction
from tokenmill.text.downloads import Downloads
from tokenmill.text.several_sources import list_sources
from tokenmill.text.sources import for_validation, split_files, total_bytes
from tokenmill.text.units import SourceFile

STDLIB = "stdlib"
FOR_TESTS = re.compile(r"(^|[/_.-])(test|eval|heldout)([/_.-]|$)", re.IGNORECASE)  # test-00000-of-00001.parquet
DOWNLOADS = 4  # files at a time


@dataclass(frozen=True)
class InputFiles:
    """The files in their order. Files of a hub repository may still have to be fetched."""

    files: list[SourceFile]
    downloads: Downloads | None = None
    keep_raw: bool = True  # or each fetched file is deleted once its shards are made

    def close(self) -> None:
        if self.downloads is not None:
            self.downloads.close()

    def fetch(self, files: list[SourceFile]) -> dict[Future, SourceFile]:
        """Starts to fetch those of these files that belong to the hub; a Future for each."""
        if self.downloads is None:
            return {}
        return {_own(self.downloads.start(file.listed_name)): file for file in files if self.is_of_hub(file)}

    def is_of_hub(self, file: SourceFile) -> bool:
        """Whether the file belongs to the hub, and not to the user."""
        return self.downloads is not None and self.downloads.has(file.listed_name)

    def is_there(self, file: SourceFile) -> bool:
        return self.downloads is None or not self.is_of_hub(file) or self.downloads.is_there(file.listed_name)

    def size(self, file: SourceFile) -> int:
        """Bytes of a file that belongs to the hub."""
        assert self.downloads is not None, "only a hub's files may not be there"
        return self.downloads.size(file.listed_name)

    def size_of_absent(self, file: SourceFile) -> int | None:
        """Bytes of a file that is not fetched yet; None for any other."""
        return None if self.is_there(file) else self.size(file)

    def delete(self, file: SourceFile) -> None:
        """Deletes a file that belongs to the hub."""
        if self.downloads is not None and self.is_of_hub(file):
            self.downloads.delete(file.listed_name)

    def facts(self) -> dict:
        """What a manifest says about where its text is from: files of a hub."""
        if self.downloads is None:
            return {}
        return {"hub": self.downloads.listing.facts({file.listed_name for file in self.files})}


def _own(future: Future) -> Future:
    """Another Future with the same outcome: two splits may wait for one file."""
    own: Future = Future()

    def pass_on(done: Future) -> None:
        error = done.exception()
        own.set_result(None) if error is None else own.set_exception(error)

    future.add_done_callback(pass_on)
    return own


def list_input_files(config: PrepareConfig, bars: Bars) -> InputFiles:
    """The files that --source names; nothing is fetched yet.

    FileNotFoundError, ValueError or ConnectionError if there are none.
    """
    val_file = None if config.val_file == "last" else config.val_file
    on_hub = [source for source in config.sources if _is_on_hub(source)]
    if on_hub and len(config.sources) == 1:
        return _hub_files(config, on_hub[0], bars)
    if on_hub:
        raise ValueError(
            f"{on_hub[0]}: a repository on the hub cannot be one of several sources, as its files are fetched; name it "
            f"as hf://datasets/{on_hub[0]}, which is read in place, or prepare two token sets and mix them"
        )
    listed = list_sources([_local(source, Path(config.raw_dir), bars) for source in config.sources])
    for line in listed.left_out:
        bars.say(f"left out {line}")
    names = _without_tests(sorted(listed.files), val_file, bars)
    if config.val_file == "last":
        val_file = max(names)
    fraction = config.val_fraction
    is_open = fraction is None and val_file is None and not for_validation(names)
    if is_open and len(config.sources) > 1:  # or all of one source might validate
        fraction = default_fraction(total_bytes({name: listed.bytes.get(name) for name in names}))
    return InputFiles(split_files({name: listed.files[name] for name in names}, val_file, listed.bytes, fraction))


def _without_tests(names: list[str], val_file: str | None, bars: Bars) -> list[str]:
    """The files without those whose names say that they are for tests; all if all say so, or one is the --val-file."""
    tests = [name for name in names if FOR_TESTS.search(name)]
    if not tests or len(tests) == len(names) or (val_file is not None and any(val_file.endswith(t) for t in tests)):
        return names
    more = f" and {len(tests) - 1:,} more" if len(tests) > 1 else ""
    bars.say(
        f"left out {tests[0]}{more}, for tests as the name says; to use it, give it alone as --source or --val-file"
    )
    return [name for name in names if name not in tests]


def _is_on_hub(source: str) -> bool:
    return source != STDLIB and not Path(source).expanduser().exists() and hub.is_repository(source)


def _local(source: str, raw_dir: Path, bars: Bars) -> str:
    """The source; for the standard library, the folder that it is written to."""
    if source != STDLIB:
        return source
    from tokenmill.text.stdlib import write_stdlib  # takes a twentieth of a second

    return str(write_stdlib(raw_dir, bars.say))


def _hub_files(config: PrepareConfig, repository: str, bars: Bars) -> InputFiles:
    """The first num_shards files of a repository, and its validation file."""
    at = "" if config.revision == "main" else f"@{config.revision}"
    folder = Path(config.raw_dir) / f"{repository}{at}".replace("/", "--")
    commit = _commit_of_earlier_set(repository, config)
    listing = hub.list_files(repository, config.revision, folder, commit, bars.say)
    names = _without_tests([file.name for file in listing.files], config.val_file, bars)
    if len(names) < config.num_shards:
        raise ValueError(
            f"{repository}: expected {config.num_shards} files, found {len(names)} at commit "
            f"{listing.commit[:8]}; lower --num-shards"
        )
    taken = names[: config.num_shards]
    val_file = names[-1] if config.val_file == "last" else config.val_file
    if val_file in names and val_file not in taken:
        taken.append(val_file)
    sizes = {file.name: file.bytes for file in listing.files}
    files = split_files({name: folder / name for name in taken}, val_file, sizes, config.val_fraction)
    return InputFiles(files, Downloads(listing, folder, DOWNLOADS, bars), config.keep_raw)


def _commit_of_earlier_set(repository: str, config: PrepareConfig) -> str | None:
    """The commit that a set of this data set was made from, so that another set is made from the same files."""
    for path in sorted(config.root.glob(f"{config.dataset}-*/manifest.json")):
        made_from = read_json(path, "tokens").get("hub", {})
        if (made_from.get("repository"), made_from.get("revision")) == (repository, config.revision):
            return made_from["commit"]
    return None
