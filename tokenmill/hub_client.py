"""The Hugging Face hub, as everybody in tokenmill asks it: addresses, endpoint, token, files of a repository.

    parse_address("hf://datasets/owner/name@v1/web")     HubAddress("owner/name", "v1", "web")
    commit_of("owner/name", "v1")                        which commit the revision is now
    files_of("owner/name", commit)                       [HubFile("web/a.parquet", 1048576, "9f86d0...", None), ...]

Text is listed and downloaded by it (text/), token sets are read (remote/files.py) and sent
(remote/copy.py). HF_ENDPOINT names another hub. HF_TOKEN, or else `hf auth login`, says who asks. The environment is
read at each call.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tokenmill.addresses import display_address
from tokenmill.extras import naming_the_extra

if TYPE_CHECKING:
    from huggingface_hub import HfApi

ADDRESS = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@([^/]+))?(?:/(.+))?")
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
ACCESS = "for a private repository set HF_TOKEN, or log in with `hf auth login`"


class HubAddress(NamedTuple):
    """A dataset repository, and a folder or a pattern in it."""

    repository: str
    revision: str  # a branch, tag or commit
    path: str

    def under(self, name: str) -> str:
        """The path of a file below the folder."""
        return f"{self.path}/{name}" if self.path else name


class HubFile(NamedTuple):
    """What the hub states of a file. It has one of `sha256` and `git_sha1`: large files have the first."""

    name: str
    bytes: int
    sha256: str | None
    git_sha1: str | None


def is_hub_address(address: str) -> bool:
    """Whether an address is one of the hub's."""
    return address.startswith("hf://")


def parse_address(address: str) -> HubAddress:
    """The parts of an hf:// address. ValueError if it is not hf://datasets/OWNER/NAME[@REVISION][/PATH]."""
    found = ADDRESS.fullmatch(address)
    if found is None:
        shown = "hf://..." if ":" in address.removeprefix("hf://") else display_address(address)
        raise ValueError(f"{shown}: expected hf://datasets/OWNER/NAME, perhaps with @REVISION and /FOLDER")
    return HubAddress(found[1], found[2] or "main", found[3] or "")


def endpoint() -> str:
    """The address of the hub itself."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def token() -> str | None:
    """The token of whoever asks: HF_TOKEN, or the one that `hf auth login` saved."""
    if found := os.environ.get("HF_TOKEN"):
        return found
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    path = Path(os.environ.get("HF_TOKEN_PATH") or home / "token")
    return path.read_text().strip() or None if path.is_file() else None


def revision_url(repository: str, revision: str) -> str:
    """What answers with the commit of a revision, as {"sha": ...}."""
    return f"{endpoint()}/api/datasets/{repository}/revision/{revision}"


def api() -> "HfApi":
    """huggingface_hub's client, for this endpoint and token."""
    with naming_the_extra("remote"):
        from huggingface_hub import HfApi

    return HfApi(endpoint=endpoint(), token=token())


def commit_of(repository: str, revision: str) -> str:
    """The commit that a revision is now. Raises huggingface_hub's errors."""
    return str(api().dataset_info(repository, revision=revision).sha)


def files_of(repository: str, revision: str, folder: str = "") -> list[HubFile]:
    """The files below a folder of a repository. Raises huggingface_hub's errors."""
    tree = api().list_repo_tree(repository, folder or None, repo_type="dataset", revision=revision, recursive=True)
    return [_file(entry) for entry in tree if hasattr(entry, "size")]


def _file(entry) -> HubFile:
    if entry.lfs is not None:
        return HubFile(entry.path, entry.lfs.size, entry.lfs.sha256, None)
    return HubFile(entry.path, entry.size, None, entry.blob_id)


def first_line(error: Exception) -> str:
    """The first line of an error, or its name."""
    return (str(error) or type(error).__name__).splitlines()[0][:300]
