"""Token sets in a dataset repository of the Hugging Face hub, read by ranges.

    hf://datasets/owner/name              its branch main
    hf://datasets/owner/name@v1/web       a folder in it, at a branch, tag or commit

The revision is looked up once, so that all files are of one commit. Large files are elsewhere: the hub redirects, once
a file, to a URL that expires. HF_ENDPOINT names another hub, HF_TOKEN (or `hf auth login`) who asks.
"""

import json
import os
import re
from pathlib import Path

from tokenmill.remote.http import Answer, Web, get
from tokenmill.remote.patience import patiently

REPOSITORY = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@([^/]+))?(?:/(.+))?")


def parts_of(address: str) -> tuple[str, str, str]:
    """(repository, revision, folder in it) of an hf:// address. ValueError where it is none."""
    found = REPOSITORY.fullmatch(address)
    if found is None:
        raise ValueError(f"{address}: expected hf://datasets/OWNER/NAME, perhaps with @REVISION and /FOLDER")
    return found[1], found[2] or "main", found[3] or ""


def endpoint() -> str:
    """The hub's own address."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def token() -> str | None:
    """Who asks: HF_TOKEN, or who logged in."""
    if found := os.environ.get("HF_TOKEN"):
        return found
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    path = Path(os.environ.get("HF_TOKEN_PATH") or home / "token")
    return path.read_text().strip() or None if path.is_file() else None


class Hub(Web):
    """Files of a dataset repository at one commit."""

    access = "for a private repository set HF_TOKEN, or log in with `hf auth login`"

    def __init__(self, address: str):
        super().__init__(address)
        self.repository, self._revision, self._folder = parts_of(address)
        self._commit: str | None = None

    @property
    def commit(self) -> str:
        """The commit that the revision was when it was looked up first."""
        if self._commit is None:
            what = f"hf://datasets/{self.repository}@{self._revision}"
            url = f"{endpoint()}/api/datasets/{self.repository}/revision/{self._revision}"

            def ask(_: int) -> str:
                answer = get(url, self._headers(), None, False, what)
                if answer.status in (401, 404):  # which the hub tells apart for nobody without access
                    raise FileNotFoundError(f"{what}: no such dataset repository or revision; {self.access}")
                found: str = json.loads(self._body("", None, answer))["sha"]
                return found

            self._commit = patiently(ask, what)
        return self._commit

    def url_of(self, name: str) -> tuple[str, dict[str, str]]:
        path = f"{self._folder}/{name}" if self._folder else name
        return f"{endpoint()}/datasets/{self.repository}/resolve/{self.commit}/{path}", self._headers()

    def renew(self, name: str, answer: Answer) -> None:
        """Asks the hub for another redirect; without one a refusal is final."""
        if self._redirects.pop(name, None) is None:
            self._body(name, None, answer)

    def _headers(self) -> dict[str, str]:
        found = token()
        return {"Authorization": f"Bearer {found}"} if found else {}
