"""The Hugging Face hub, as everybody in tokenmill asks it: addresses, endpoint, files of a
repository.

    parse_address("hf://datasets/owner/name@v1/web")     HubAddress("owner/name", "v1", "web")
    commit_of("owner/name", "v1")                        which commit the revision is now
    files_of("owner/name", commit)                       [HubFile("web/a.parquet", 1048576, ...]

HF_ENDPOINT names another hub. HF_TOKEN, or else `hf auth login`, says who asks.
"""

import os
import re
from typing import Any, NamedTuple

from tokenmill.extras import naming_the_extra
from tokenmill.messages import redact

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
    """What the hub states of a file.

    It has one of `sha256` and `git_sha1`: large files have the first.
    """

    name: str
    bytes: int
    sha256: str | None
    git_sha1: str | None


def parse_address(address: str) -> HubAddress:
    """The parts of an hf:// address.

    ValueError if it is not hf://datasets/OWNER/NAME[@REVISION][/PATH].
    """
    match = ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(
            f"{redact(address)}: expected hf://datasets/OWNER/NAME, perhaps with @REVISION and "
            "/FOLDER"
        )
    return HubAddress(match[1], match[2] or "main", match[3] or "")


def endpoint() -> str:
    """The address of the hub itself."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def api() -> Any:
    """huggingface_hub's HfApi, for this endpoint."""
    with naming_the_extra("remote"):
        from huggingface_hub import HfApi

    return HfApi(endpoint=endpoint())


def commit_of(repository: str, revision: str) -> str:
    """The commit that a revision is now. Raises huggingface_hub's errors."""
    return str(api().dataset_info(repository, revision=revision).sha)


def files_of(repository: str, revision: str, folder: str = "") -> list[HubFile]:
    """The files below a folder of a repository. Raises huggingface_hub's errors."""
    tree = api().list_repo_tree(
        repository, folder or None, repo_type="dataset", revision=revision, recursive=True
    )
    return [_hub_file(entry) for entry in tree if hasattr(entry, "size")]


def _hub_file(file: Any) -> HubFile:
    if file.lfs:
        return HubFile(file.path, file.lfs.size, file.lfs.sha256, None)
    return HubFile(file.path, file.size, None, file.blob_id)
