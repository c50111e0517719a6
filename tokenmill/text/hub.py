"""Lists the files of a dataset repository on the Hugging Face hub, once (downloads.py fetches them).

    karpathy/fineweb-edu-100b-shuffle, 46 files  ->  data/raw/karpathy--fineweb-edu-100b-shuffle/shard_00000.parquet ...

The list is kept beside the files, with the commit, the sizes and the hashes that the hub states. So every later run
means the same files, even if the repository's branch has moved. hub_client.py asks the hub.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tokenmill.hub_client import ACCESS, REPOSITORY, HubFile, commit_of, files_of, first_line
from tokenmill.store.files import header, read_json, write_json
from tokenmill.store.names import plain_path
from tokenmill.text.formats import format_of
from tokenmill.text.listing import of_one_kind

NO_CONFIG = re.compile("data|default|train|val|valid|validation|dev|test|", re.IGNORECASE)  # of a folder
SHOWN = 20  # folders in a message


@dataclass(frozen=True)
class Listing:
    """A repository's files of documents at one commit, in name order."""

    repository: str
    revision: str
    commit: str
    files: tuple[HubFile, ...]

    def __post_init__(self) -> None:
        """ValueError where a file would lie outside of the folder that it is fetched into."""
        for file in self.files:
            plain_path(f"{self.repository}: the name of a file", file.name)

    def facts(self, names: set[str]) -> dict:
        """For a manifest: where the files of these names are from."""
        return self.as_json() | {"files": [file._asdict() for file in self.files if file.name in names]}

    def as_json(self) -> dict:
        return asdict(self) | {"files": [file._asdict() for file in self.files]}


def is_repository(source: str) -> bool:
    """Whether a source that is no local path reads as owner/name."""
    return bool(REPOSITORY.fullmatch(source)) and not source.startswith(".") and not format_of(source)


def list_files(
    repository: str, revision: str, folder: Path, commit: str | None = None, say: Callable[[str], None] = print
) -> Listing:
    """The list that `folder` has of this revision, or else the hub's, at `commit` if one is known already.

    ConnectionError if the hub does not answer, FileNotFoundError if it has no such repository or revision, or no files
    of documents in it, ValueError if these have several formats.
    """
    path = folder / "files.json"
    if path.exists():
        known = read_json(path, "files")
        if (known["repository"], known["revision"]) == (repository, revision):
            files = tuple(HubFile(**file) for file in known["files"])
            return Listing(repository, revision, known["commit"], files)
    listing, left_out = _ask(repository, revision, commit, folder)
    for line in left_out:
        say(f"left out of {repository}: {line}")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, header("files") | listing.as_json())
    return listing


def list_matching(repository: str, revision: str, pattern: str) -> Listing:
    """The files whose names match a pattern (`*` and `?`), of any kind. Raises what list_files does."""
    try:
        commit = commit_of(repository, revision)
        files = files_of(repository, commit)
    except Exception as error:
        raise ConnectionError(
            f"hf://datasets/{repository}@{revision}: cannot be listed ({first_line(error)}); {ACCESS}, and check "
            "owner, name and revision"
        ) from error
    found = [file for file in files if fnmatchcase(file.name, pattern)]
    if not found:
        raise FileNotFoundError(
            f"hf://datasets/{repository}@{revision}: no file is called {pattern}; there are "
            f"{', '.join(file.name for file in files[:5])}{' ...' * (len(files) > 5)}"
        )
    return Listing(repository, revision, commit, tuple(sorted(found, key=lambda file: file.name)))


def _ask(repository: str, revision: str, commit: str | None, folder: Path) -> tuple[Listing, list[str]]:
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    known = commit
    try:
        commit = commit or commit_of(repository, revision)
        found = {file.name: file for file in files_of(repository, commit)}
    except RevisionNotFoundError as error:
        if known:
            raise no_such_commit(repository, known, folder) from error
        raise FileNotFoundError(f"{repository}: has no revision {revision!r}; check --revision") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise FileNotFoundError(
            f"{repository}: no such local file or folder, and no such dataset repository on the hub "
            "(for a private one, log in with `hf auth login`); check --source"
        ) from error
    except Exception as error:
        raise ConnectionError(
            f"{repository}: no such folder is here, and the Hugging Face hub, which may have it, could not be reached "
            f"({first_line(error)}); check --source, try again with a network"
            + (f", or prepare what was fetched already: --source {folder}" if folder.is_dir() else "")
        ) from error
    for name in filter(format_of, found):
        plain_path(f"{repository}: the name of a file", name)
    address = f"hf://datasets/{repository}" + ("" if revision == "main" else f"@{revision}")
    names, left_out = of_one_kind({name: file.bytes for name, file in found.items()}, address)
    if len(folders := _configs(names)) > 1:
        listed = "".join(f"\n  --source '{address}{f'/{folder}' * bool(folder)}/*'" for folder in folders[:SHOWN])
        raise ValueError(
            f"{repository}: has {len(folders):,} folders of data, which may be languages, or samples of each other; "
            f"name one, or a pattern:{listed}{f'{chr(10)}  ...' * (len(folders) > SHOWN)}"
        )
    return Listing(repository, revision, commit, tuple(found[name] for name in sorted(names))), left_out


def _configs(names: Iterable[str]) -> list[str]:
    """The folders that files are in, if these are several configs: data/ and folders called after a split are none."""
    folders = {name.rpartition("/")[0] for name in names}
    found = {"/".join(part for part in folder.split("/") if not NO_CONFIG.fullmatch(part)) for folder in folders}
    return sorted(folders) if len(found) > 1 else []


def no_such_commit(repository: str, commit: str, folder: Path) -> FileNotFoundError:
    """The error for a repository whose history was rewritten since it was listed."""
    return FileNotFoundError(
        f"{repository}: has no commit {commit} any more, of which this data set is made: its history was rewritten. "
        f"What was fetched of it is still good, as --source {folder}; for the files of today give another --name and "
        "--raw-dir"
    )
