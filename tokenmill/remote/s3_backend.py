"""Token sets in S3 and what speaks like it: boto3 signs, and plain HTTP (http_backend.py) reads.

    s3://bucket/tokens/web                credentials as boto3 finds them; AWS_ENDPOINT_URL names another server
    s3://bucket/tokens/web?anonymous      nobody's: for public buckets

A signed URL is used for some minutes; then it is signed again, with the credentials of that time.
"""

import threading
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tokenmill.addresses import display_address
from tokenmill.extras import naming_the_extra
from tokenmill.remote.http_backend import Answer, HttpBackend, Recent
from tokenmill.sanitize import sanitize

SIGNED_SECONDS = 3600  # how long a URL is good for, at most
USED_SECONDS = 300.0  # how long it is used: botocore renews temporary credentials ten minutes before they expire


class S3Backend(HttpBackend):
    """Files under a prefix of a bucket."""

    def __init__(self, address: str):
        super().__init__(address)
        _, self.bucket, path, query, _ = urlsplit(address)
        self.prefix, shown = path.strip("/"), display_address(address)
        if not self.bucket:
            raise ValueError(f"{shown}: expected a bucket, as s3://bucket/tokens/NAME, found none")
        if "@" in self.bucket:
            raise ValueError(f"{shown}: expected a bucket, found credentials before it; boto3 finds them elsewhere")
        options = parse_qs(query, keep_blank_values=True)
        if unknown := options.keys() - {"anonymous"}:
            raise ValueError(f"{shown}: after `?` only `anonymous` may follow, found {sorted(unknown)[0]!r}")
        self.anonymous = "anonymous" in options
        self._lock, self._region = threading.Lock(), None
        self._client: Any = None
        self._signed = Recent()  # by name: until when it is used, and the URL

    @property
    def access(self) -> str:
        if self.anonymous:
            return "it is not public: give AWS credentials, and leave ?anonymous out"
        return "give AWS credentials that may, or, to read a public bucket, write ?anonymous after the address"

    def display(self, name: str) -> str:
        return f"s3://{self.bucket}/{self.key(name)}"

    def key(self, name: str) -> str:
        """A file's key in the bucket."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def url_of(self, name: str) -> tuple[str, dict[str, str]]:
        until, url = self._signed.get(name, (0.0, ""))
        if time.monotonic() > until:
            url = self._sign(name)
            self._signed[name] = (time.monotonic() + USED_SECONDS, url)
        return url, {}

    def renew(self, name: str, answer: Answer) -> None:
        """Signs again, with credentials that are looked up again, for the region that the answer names."""
        super().renew(name, answer)
        with self._lock:
            self._signed, self._client = Recent(), None
            self._region = answer.headers.get("x-amz-bucket-region") or self._region

    def _sign(self, name: str) -> str:
        what = {"Bucket": self.bucket, "Key": self.key(name)}
        with naming_the_extra("remote"):
            from botocore.exceptions import BotoCoreError
        try:
            url: str = self.client().generate_presigned_url("get_object", Params=what, ExpiresIn=SIGNED_SECONDS)
        except BotoCoreError as error:
            raise PermissionError(f"{self.display(name)}: {sanitize(str(error))}; {self.access}") from None
        return url

    def client(self) -> Any:
        """boto3's client, one for all threads of a process."""
        with self._lock:
            if self._client is None:
                self._client = self._make_client()
            return self._client

    def _make_client(self) -> Any:
        with naming_the_extra("remote"):
            import boto3
            import botocore
        from botocore.config import Config

        how: dict[str, Any] = {"signature_version": botocore.UNSIGNED if self.anonymous else "s3v4"}
        session = boto3.Session()
        region = self._region or session.region_name or "us-east-1"
        return session.client("s3", region_name=region, config=Config(connect_timeout=10, read_timeout=60, **how))
