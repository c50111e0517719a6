"""Files of a dataset repository on the Hugging Face hub, listed once (downloads.py fetches them).

    karpathy/fineweb-edu-100b-shuffle, 46 files  ->  data/raw/karpathy--fineweb-edu-100b-shuffle/shard_00000.parquet ...

The list, with the commit, the sizes and the hashes that the hub states, is kept beside the files, so that every
later run means the same files, whatever the repository's branch has become. `huggingface_hub` asks, and takes the
token of private repositories as it always does (HF_TOKEN, `hf auth login`, HF_ENDPOINT).
"""

import re
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tokenmill.store.files import header, read_json, write_json
from tokenmill.store.names import plain_path
from tokenmill.text.formats import KINDS, SUFFIX, kind_of

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class RemoteFile:
    """What the hub states of a file. Of `sha256` and `git_sha1` it has one: large files have the first."""

    name: str
    bytes: int
    sha256: str | None
    git_sha1: str | None


@dataclass(frozen=True)
class Listing:
    """A repository's files of documents at one commit, in name order."""

    repository: str
    revision: str
    commit: str
    files: tuple[RemoteFile, ...]

    def __post_init__(self) -> None:
        """ValueError where a file would lie outside of the folder that it is fetched into."""
        for file in self.files:
            plain_path(f"{self.repository}: the name of a file", file.name)

    def facts(self, names: set[str]) -> dict:
        """For a manifest: where the files of these names are from."""
        return asdict(self) | {"files": [asdict(file) for file in self.files if file.name in names]}


def is_repository(source: str) -> bool:
    """Whether a source that is no local path reads as owner/name."""
    return bool(REPOSITORY.fullmatch(source)) and not source.startswith(".") and not SUFFIX.search(source)


def list_files(repository: str, revision: str, folder: Path, commit: str | None = None) -> Listing:
    """The list that `folder` has of this revision, or else the hub's, at `commit` where one is known already.

    ConnectionError where the hub does not answer, FileNotFoundError where it has no such
    repository or revision, or no files of documents in it.
    """
    path = folder / "files.json"
    if path.exists():
        known = read_json(path, "files")
        if (known["repository"], known["revision"]) == (repository, revision):
            files = tuple(RemoteFile(**file) for file in known["files"])
            return Listing(repository, revision, known["commit"], files)
    listing = _ask(repository, revision, commit, folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, header("files") | asdict(listing))
    return listing


def list_matching(repository: str, revision: str, pattern: str) -> Listing:
    """The files whose names are as a pattern says (`*` and `?`), of whatever kind. Raises what list_files does."""
    from huggingface_hub import HfApi

    try:
        commit = str(HfApi().dataset_info(repository, revision=revision).sha)
        tree = HfApi().list_repo_tree(repository, repo_type="dataset", revision=commit, recursive=True)
        names = [entry for entry in tree if hasattr(entry, "size")]
    except Exception as error:
        raise ConnectionError(
            f"hf://datasets/{repository}@{revision}: cannot be listed ({first_line(error)}); for a private repository "
            "log in with `hf auth login`, and check owner, name and revision"
        ) from error
    found = [_remote_file(entry) for entry in names if fnmatchcase(entry.path, pattern)]
    if not found:
        raise FileNotFoundError(
            f"hf://datasets/{repository}@{revision}: no file is called {pattern}; there are "
            f"{', '.join(entry.path for entry in names[:5])}{' ...' * (len(names) > 5)}"
        )
    return Listing(repository, revision, commit, tuple(sorted(found, key=lambda file: file.name)))


def _ask(repository: str, revision: str, commit: str | None, folder: Path) -> Listing:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    known = commit
    try:
        commit = commit or HfApi().dataset_info(repository, revision=revision).sha
        tree = HfApi().list_repo_tree(repository, repo_type="dataset", revision=commit, recursive=True)
        found = [_remote_file(entry) for entry in tree if kind_of(entry.path) and hasattr(entry, "size")]
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
    for kind in KINDS:
        of_kind = [file for file in found if kind_of(file.name) == kind]
        if commit and of_kind:
            return Listing(repository, revision, commit, tuple(sorted(of_kind, key=lambda file: file.name)))
    raise FileNotFoundError(f"{repository}: expected parquet, jsonl or txt files, found none; check --source")


def _remote_file(entry) -> RemoteFile:
    if entry.lfs is not None:
        return RemoteFile(entry.path, entry.lfs.size, entry.lfs.sha256, None)
    return RemoteFile(entry.path, entry.size, None, entry.blob_id)


def no_such_commit(repository: str, commit: str, folder: Path) -> FileNotFoundError:
    """The error for a repository whose history was rewritten since it was listed."""
    return FileNotFoundError(
        f"{repository}: has no commit {commit} any more, of which this data set is made: its history was rewritten. "
        f"What was fetched of it is still good, as --source {folder}; for the files of today give another --name and "
        "--raw-dir"
    )


def first_line(error: Exception) -> str:
    """What an error says first, or its name."""
    return (str(error) or type(error).__name__).splitlines()[0][:200]
