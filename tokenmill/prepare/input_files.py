"""The files that a preparation reads: the user's own, or those of a hub repository, which are fetched when needed."""

import re
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from tokenmill.prepare.prepare_config import Destination, InputRequest
from tokenmill.prepare.progress import Bars
from tokenmill.store.files import read_json
from tokenmill.text import hub
from tokenmill.text.document_split import default_fraction
from tokenmill.text.downloads import Downloads
from tokenmill.text.several_sources import list_sources
from tokenmill.text.sources import split_files, total_bytes
from tokenmill.text.units import SourceFile

STDLIB = "stdlib"
# test-00000-of-00001.parquet, web/validation/a.jsonl
FOR_TESTS = re.compile(r"(^|[/_.-])(test|validation|valid|val|dev)([/_.-]|$)", re.IGNORECASE)


@dataclass(frozen=True)
class InputFiles:
    """The files in their order. Files of a hub repository may still have to be fetched."""

    files: list[SourceFile]
    downloads: Downloads | None = None
    keep_raw: bool = True  # or each fetched file is deleted once its shards are made
    limit_documents: int | None = None  # these are the files of a trial set

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
        """What a manifest says about where its text is from: files of a hub, or only the first documents."""
        found: dict = {} if self.limit_documents is None else {"limit_documents": self.limit_documents}
        if self.downloads is not None:
            found["hub"] = self.downloads.listing.facts({file.listed_name for file in self.files})
        return found


def _own(future: Future) -> Future:
    """Another Future with the same outcome: two splits may wait for one file."""
    own: Future = Future()

    def pass_on(done: Future) -> None:
        error = done.exception()
        own.set_result(None) if error is None else own.set_exception(error)

    future.add_done_callback(pass_on)
    return own


def list_input_files(request: InputRequest, destination: Destination, bars: Bars) -> InputFiles:
    """The files that the request names; nothing is fetched yet.

    FileNotFoundError, ValueError or ConnectionError if there are none.
    """
    val_file = None if request.val_file == "last" else request.val_file
    on_hub = [source for source in request.sources if _is_on_hub(source)]
    if on_hub and len(request.sources) == 1:
        return _hub_files(request, on_hub[0], destination, bars)
    if on_hub:
        raise ValueError(
            f"{on_hub[0]}: a repository on the hub cannot be one of several sources, as its files are fetched; name it "
            f"as hf://datasets/{on_hub[0]}, which is read in place, or prepare two token sets and mix them"
        )
    listed = list_sources([_local(source, request.raw_dir, bars) for source in request.sources])
    for line in listed.left_out:
        bars.say(f"left out {line}")
    if request.val_file == "last":
        val_file = max(listed.files)
    fraction = request.val_fraction
    if fraction is None and val_file is None and len(request.sources) > 1:  # or all of one source might validate
        fraction = default_fraction(total_bytes({name: listed.bytes.get(name) for name in listed.files}))
    files = split_files(listed.files, val_file, listed.bytes, fraction)
    _warn_of_test_files(files, bars)
    return InputFiles(files)


def _warn_of_test_files(files: list[SourceFile], bars: Bars) -> None:
    """Says so if files are trained on whose names say that they are for something else."""
    trained = [file.name for file in files if file.split == "train"]
    found = [name for name in trained if FOR_TESTS.search(name)]
    if 0 < len(found) < len(trained):
        more = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
        bars.say(
            f"warning: {found[0]}{more}: trained on, though the name says otherwise; to leave it out, name only "
            "the others with --source (a folder, files or patterns), and what validates with --val-file"
        )


def _is_on_hub(source: str) -> bool:
    return source != STDLIB and not Path(source).expanduser().exists() and hub.is_repository(source)


def _local(source: str, raw_dir: Path, bars: Bars) -> str:
    """The source; for the standard library, the folder that it is written to."""
    if source != STDLIB:
        return source
    from tokenmill.text.stdlib import write_stdlib  # takes a twentieth of a second

    return str(write_stdlib(raw_dir, bars.say))


def _hub_files(request: InputRequest, repository: str, destination: Destination, bars: Bars) -> InputFiles:
    """The first num_shards files of a repository, and its validation file."""
    at = "" if request.revision == "main" else f"@{request.revision}"
    folder = request.raw_dir / f"{repository}{at}".replace("/", "--")
    commit = _commit_of_earlier_set(repository, request.revision, destination)
    listing = hub.list_files(repository, request.revision, folder, commit, bars.say)
    names = [file.name for file in listing.files]
    if len(names) < request.num_shards:
        raise ValueError(
            f"{repository}: expected {request.num_shards} files, found {len(names)} at commit "
            f"{listing.commit[:8]}; lower --num-shards"
        )
    taken = names[: request.num_shards]
    val_file = names[-1] if request.val_file == "last" else request.val_file
    if val_file in names and val_file not in taken:
        taken.append(val_file)
    sizes = {file.name: file.bytes for file in listing.files}
    files = split_files({name: folder / name for name in taken}, val_file, sizes, request.val_fraction)
    _warn_of_test_files(files, bars)
    return InputFiles(files, Downloads(listing, folder, request.download_workers, bars), request.keep_raw)


def _commit_of_earlier_set(repository: str, revision: str, destination: Destination) -> str | None:
    """The commit that a set of this data set was made from, so that another set is made from the same files."""
    for path in sorted(destination.root.glob(f"{destination.dataset}-*/manifest.json")):
        made_from = read_json(path, "tokens").get("hub", {})
        if (made_from.get("repository"), made_from.get("revision")) == (repository, revision):
            return made_from["commit"]
    return None
