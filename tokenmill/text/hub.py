"""A dataset repository on the Hugging Face hub -> its files, and how one of them is fetched.

    list_hub("owner/name", "main", raw_dir)         the repository's, at the commit that main is
    list_hub("owner/name/sample/10BT", ...)         those of a folder, or of a pattern
    fetch_file(file)                         into data/raw/owner--name/, compared by checksum

A repository of several configs is an error that lists patterns: they may be languages, or samples
of each other.
"""

import hashlib
import os
import re
import time
from fnmatch import fnmatchcase
from pathlib import Path

from tokenmill.hub_client import ACCESS, HubFile, commit_of, endpoint, files_of
from tokenmill.messages import first_line
from tokenmill.store.names import plain_path
from tokenmill.text.formats import format_of
from tokenmill.text.source_file import HubSource, SourceFile

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+(?:/.*)?")
# parts of a folder's name that name no config
NO_CONFIG = re.compile("data|default|train|val|valid|validation|dev|test|", re.IGNORECASE)
ATTEMPTS = 3  # to fetch a file; the client itself tries some requests again
SHOWN = 20  # folders in a message


def is_repository(source: str) -> bool:
    """Whether a source that is no local path reads as owner/name, perhaps with more behind it."""
    if source.startswith((".", "/", "~")) or not REPOSITORY.fullmatch(source):
        return False
    owner_and_name = "/".join(source.split("/")[:2])
    is_pattern = re.search(r"[*?\[]", owner_and_name)
    return not is_pattern and not format_of(owner_and_name)


def list_hub(source: str, revision: str, raw_dir: Path) -> list[SourceFile]:
    """The files of a repository, or of a folder or a pattern in it.

    ConnectionError if the hub does not answer, FileNotFoundError if it has no such repository,
    revision or file, ValueError that lists patterns if the repository has several configs.
    """
    owner, name, *below = source.rstrip("/").split("/", 2)
    repository = f"{owner}/{name}"
    at = "" if revision == "main" else f"@{revision}"
    folder = raw_dir.absolute() / f"{repository}{at}".replace("/", "--")
    commit, hub_files = _ask(source, repository, revision, folder)
    if below:
        hub_files = [file for file in hub_files if _is_at(file.name, below[0])]
        if not hub_files:
            raise FileNotFoundError(
                f"{source}: {repository} has no file of this name or pattern; check --source"
            )
    files = []
    for file in hub_files:
        plain_path(f"{repository}: the name of a file", file.name)
        hub = HubSource(repository, commit, str(folder), file.sha256, file.git_sha1)
        files.append(SourceFile(file.name, str(folder / file.name), file.bytes, hub=hub))
    if not below:
        _require_one_config(repository, files)
    return files


def _is_at(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern}/")


def _ask(source: str, repository: str, revision: str, folder: Path) -> tuple[str, list[HubFile]]:
    """The commit that a revision is now, and its files."""
    from huggingface_hub import errors

    try:
        commit = commit_of(repository, revision)
        return commit, files_of(repository, commit)
    except errors.RevisionNotFoundError as error:
        raise FileNotFoundError(
            f"{repository}: has no revision {revision!r}; check --revision"
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise FileNotFoundError(
            f"{source}: no such local file or folder, and no such dataset repository on the hub "
            f"({ACCESS}); check --source"
        ) from error
    except Exception as error:
        advice = "check --source, try again with a network"
        if folder.is_dir():
            advice += f", or prepare what was fetched already: --source {folder}"
        raise ConnectionError(
            f"{source}: no such folder is here, and the Hugging Face hub, which may have it, could "
            f"not be reached ({first_line(error)}); {advice}"
        ) from error


def _require_one_config(repository: str, files: list[SourceFile]) -> None:
    """ValueError if the folders with text are several configs, but for those named as a split."""
    folders = {file.name.rpartition("/")[0] for file in files if format_of(file.name)}
    configs = set()
    for folder in folders:
        parts = [part for part in folder.split("/") if not NO_CONFIG.fullmatch(part)]
        configs.add("/".join(parts))
    if len(configs) <= 1:
        return
    advice = ""
    for folder in sorted(folders)[:SHOWN]:
        path = f"{repository}/{folder}" if folder else repository
        advice += f"\n  --source '{path}/*'"
    if len(folders) > SHOWN:
        advice += "\n  ..."
    raise ValueError(
        f"{repository}: has {len(folders):,} folders of data, which may be languages, or samples "
        f"of each other; name one, or a pattern:{advice}"
    )


def fetch_file(file: SourceFile) -> None:
    """Makes a file of the hub a file of this disk; several processes may do so at once.

    ConnectionError if it cannot be fetched, or is not what the hub says.
    """
    if file.is_there or file.hub is None:
        return
    for attempt in range(ATTEMPTS):
        try:
            _download(file, file.hub)
            return
        except Exception as error:
            if attempt == ATTEMPTS - 1:
                why = f"fetching {file.name} failed ({first_line(error)})"
                raise ConnectionError(
                    f"{file.hub.repository}: {why}; {ACCESS}, and run again"
                ) from error
        time.sleep(2**attempt)


def _download(file: SourceFile, hub: HubSource) -> None:
    """OSError if what was fetched is not what the hub says."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # of several files at a time
    path = hf_hub_download(
        hub.repository,
        file.name,
        repo_type="dataset",
        revision=hub.commit,
        local_dir=hub.folder,
        endpoint=endpoint(),
    )
    kind = "SHA-256" if hub.sha256 else "Git's SHA-1"
    checksum = _sha256(path) if hub.sha256 else _git_sha1(path)
    if checksum == hub.checksum:
        return
    os.unlink(path)
    raise OSError(
        f"expected {file.bytes:,} bytes of {kind} {hub.checksum}, fetched others, {checksum}"
    )


def _sha256(path: str) -> str:
    with open(path, "rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _git_sha1(path: str) -> str:
    """The name that Git gives a file's content. Files that are not in LFS have at most 10 MB."""
    content = Path(path).read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
