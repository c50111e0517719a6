"""Token sets in a dataset repository of the Hugging Face hub, read by ranges.

    hf://datasets/owner/name              its branch main
    hf://datasets/owner/name@v1/web       a folder in it, at a branch, tag or commit

The revision is looked up once, so that all files are of one commit. Large files are stored elsewhere: the hub
redirects, once for each file, to a URL that expires.
"""

import json

from tokenmill import hub_client
from tokenmill.remote.http_backend import Answer, HttpBackend, Limits, get
from tokenmill.remote.retry import patiently

LISTING_BYTES = 64 << 20  # of what the hub says about a commit, which lists its files


class HubBackend(HttpBackend):
    """Files of a dataset repository at one commit."""

    access = hub_client.ACCESS

    def __init__(self, address: str):
        super().__init__(address)
        self.where = hub_client.parse_address(address)
        self._commit: str | None = None

    @property
    def commit(self) -> str:
        """The commit of the revision, when it was looked up first."""
        if self._commit is None:
            what = f"hf://datasets/{self.where.repository}@{self.where.revision}"
            url = hub_client.revision_url(self.where.repository, self.where.revision)

            def ask(until: float) -> str:
                answer = get(url, hub_client.headers(), None, False, what, Limits(LISTING_BYTES, until))
                if answer.status in (401, 404):  # without access, the hub answers both for what is not there
                    raise FileNotFoundError(f"{what}: no such dataset repository or revision; {self.access}")
                found: str = json.loads(self._body("", None, answer))["sha"]
                return found

            self._commit = patiently(ask, what)
        return self._commit

    def url_of(self, name: str) -> tuple[str, dict[str, str]]:
        url = hub_client.file_url(self.where.repository, self.commit, self.where.under(name))
        return url, hub_client.headers()

    def renew(self, name: str, answer: Answer) -> None:
        """Asks the hub for another redirect; without one a refusal is final."""
        if self._redirects.pop(name, None) is None:
            self._body(name, None, answer)
