"""A dataset repository on the Hugging Face hub -> its files, and how one of them is fetched.

    list_hub("owner/name", "main", raw_dir)             the files of the repository, at the commit that main is
    list_hub("owner/name/sample/10BT", ...)             those of a folder, or of a pattern
    fetch(file)                                         into data/raw/owner--name/, compared with the hub's SHA-256

A repository of several configs is an error that lists patterns: they may be languages, or samples of each other.
"""

import hashlib
import os
import re
import time
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tokenmill.hub_client import ACCESS, commit_of, endpoint, files_of, first_line
from tokenmill.store.names import plain_path
from tokenmill.text.formats import format_of
from tokenmill.text.source_file import HubSource, SourceFile

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+(?:/.+)?")
NO_CONFIG = re.compile(
    "data|default|train|val|valid|validation|dev|test|", re.IGNORECASE
)  # of a folder
ATTEMPTS = 3  # to fetch a file; the client itself tries some requests again
SHOWN = 20  # folders in a message


def is_repository(source: str) -> bool:
    """Whether a source that is no local path reads as owner/name, perhaps with a folder or a pattern behind it."""
    owner_and_name = "/".join(source.split("/")[:2])
    is_path = source.startswith((".", "/", "~")) or re.search(r"[*?\[]", owner_and_name)
    return bool(REPOSITORY.fullmatch(source)) and not is_path and not format_of(owner_and_name)


def list_hub(source: str, revision: str, raw_dir: Path) -> list[SourceFile]:
    """The files of a repository, or of a folder or a pattern in it.

    ConnectionError if the hub does not answer, FileNotFoundError if it has no such repository, revision or file,
    ValueError that lists patterns if the repository has several configs.
    """
    from huggingface_hub.errors import (
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    owner, name, *rest = source.split("/", 2)
    repository, pattern = f"{owner}/{name}", rest[0].rstrip("/") if rest else None
    at = "" if revision == "main" else f"@{revision}"
    folder = raw_dir.absolute() / f"{repository}{at}".replace("/", "--")
    try:
        commit = commit_of(repository, revision)
        files = files_of(repository, commit)
    except RevisionNotFoundError as error:
        raise FileNotFoundError(
            f"{repository}: has no revision {revision!r}; check --revision"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise FileNotFoundError(
            f"{source}: no such local file or folder, and no such dataset repository on the hub ({ACCESS}); check "
            "--source"
        ) from error
    except Exception as error:
        fetched = (
            f", or prepare what was fetched already: --source {folder}" if folder.is_dir() else ""
        )
        raise ConnectionError(
            f"{source}: no such folder is here, and the Hugging Face hub, which may have it, could not be reached "
            f"({first_line(error)}); check --source, try again with a network{fetched}"
        ) from error
    if pattern is not None:
        files = [
            file
            for file in files
            if fnmatchcase(file.name, pattern) or file.name.startswith(f"{pattern}/")
        ]
        if not files:
            raise FileNotFoundError(
                f"{source}: {repository} has no file of this name or pattern; check --source"
            )
    found = []
    for name, size, sha256, git_sha1 in files:
        plain_path(f"{repository}: the name of a file", name)
        hub = HubSource(repository, commit, str(folder), sha256, git_sha1)
        found.append(SourceFile(name, str(folder / name), size, hub=hub))
    if (
        pattern is None
        and len(folders := _configs(file.name for file in found if format_of(file.name))) > 1
    ):
        listed = "".join(
            f"\n  --source '{repository}{f'/{one}' * bool(one)}/*'" for one in folders[:SHOWN]
        )
        raise ValueError(
            f"{repository}: has {len(folders):,} folders of data, which may be languages, or samples of each other; "
            f"name one, or a pattern:{listed}{f'{chr(10)}  ...' * (len(folders) > SHOWN)}"
        )
    return found


def _configs(names: Iterable[str]) -> list[str]:
    """The folders that files are in, if these are several configs: data/ and folders called after a split are none."""
    folders = {name.rpartition("/")[0] for name in names}
    found = {
        "/".join(part for part in folder.split("/") if not NO_CONFIG.fullmatch(part))
        for folder in folders
    }
    return sorted(folders) if len(found) > 1 else []


def fetch(file: SourceFile) -> None:
    """Makes a file of the hub a file of this disk; several processes may do so at once.

    ConnectionError if it cannot be fetched, or is not what the hub says.
    """
    if file.is_there or file.hub is None:
        return
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # of several files at a time
    where: Any = {"repo_type": "dataset", "revision": file.hub.commit, "local_dir": file.hub.folder}
    for attempt in range(ATTEMPTS):
        try:
            path = hf_hub_download(file.hub.repository, file.name, endpoint=endpoint(), **where)
            with open(path, "rb") as data:
                found = hashlib.file_digest(data, "sha256").hexdigest()
            if os.path.getsize(path) == file.bytes and file.hub.sha256 in (None, found):
                return
            os.unlink(path)
            raise OSError(
                f"expected {file.bytes:,} bytes of SHA-256 {file.hub.sha256}, fetched others, {found}"
            )
        except Exception as error:
            if attempt == ATTEMPTS - 1:
                why = f"{file.hub.repository}: fetching {file.name} failed ({first_line(error)})"
                raise ConnectionError(f"{why}; {ACCESS}, and run again") from error
        time.sleep(2**attempt)
