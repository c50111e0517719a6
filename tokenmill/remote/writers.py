"""Sends files to an address: a bucket, a dataset repository of the hub, or wherever fsspec writes.

    sink = sink_of("s3://bucket/tokens/web")
    sink.put([("shards/a.000.bin", path), ("shards/a.000.json", data)])       in this order

Files that are put together into a repository of the hub are one commit. In buckets and on the hub, objects appear
whole. So if a record is put after the files it lists, and a manifest after its records, readers never see half a set.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tokenmill import hub_client
from tokenmill.addresses import display_address
from tokenmill.extras import naming_the_extra
from tokenmill.remote.backends import Backend, backend_of
from tokenmill.remote.fsspec_backend import FsspecBackend
from tokenmill.remote.hub_backend import HubBackend
from tokenmill.remote.retry import Again, patiently
from tokenmill.remote.s3_backend import S3Backend
from tokenmill.sanitize import sanitize

Item = tuple[str, Path | bytes]  # the name of a file under the address, and its path on this disk or its bytes


class Sink(Protocol):
    """Takes files under an address. `together` is how many shards are best put at once."""

    together: int
    most_in_a_folder: int

    @property
    def backend(self) -> Backend: ...

    def put(self, items: Sequence[Item]) -> None:
        """Sends files, one after the other. Raises PermissionError, ConnectionError or OSError, with the address."""
        ...

    def sizes(self) -> dict[str, int]:
        """The files at the address, and their sizes in bytes. Raises what `put` does."""
        ...


class _Bucket:
    """S3, with boto3, which sends large files in parts and retries."""

    together, most_in_a_folder = 1, 1 << 40

    def __init__(self, backend: S3Backend):
        self.backend = backend

    def put(self, items: Sequence[Item]) -> None:
        with naming_the_extra("remote"):
            from boto3.exceptions import Boto3Error
            from botocore.exceptions import BotoCoreError, ClientError

        for name, what in items:
            where = {"Bucket": self.backend.bucket, "Key": self.backend.key(name)}
            try:
                if isinstance(what, bytes):
                    self.backend.client().put_object(**where, Body=what)
                else:
                    self.backend.client().upload_file(str(what), **where)
            except (Boto3Error, BotoCoreError, ClientError) as error:
                raise self._refused(name, "written", error) from error

    def sizes(self) -> dict[str, int]:
        with naming_the_extra("remote"):
            from botocore.exceptions import BotoCoreError, ClientError

        prefix, found = self.backend.key(""), dict[str, int]()
        try:
            pages = (
                self.backend.client()
                .get_paginator("list_objects_v2")
                .paginate(Bucket=self.backend.bucket, Prefix=prefix)
            )
            for page in pages:
                found |= {item["Key"].removeprefix(prefix): item["Size"] for item in page.get("Contents", ())}
        except (BotoCoreError, ClientError) as error:
            raise self._refused("", "listed", error) from error
        return found

    def _refused(self, name: str, what: str, error: Exception) -> OSError:
        """The error for a file that cannot be `what`: a missing bucket is not for want of credentials."""
        advice = self.backend.access
        if "NoSuchBucket" in str(error):
            advice = f"there is no bucket {self.backend.bucket!r}; make it first, or correct its name"
        return OSError(f"{self.backend.display(name)}: cannot be {what} ({sanitize(str(error))}); {advice}")


class _Files:
    """Whatever fsspec writes to."""

    together, most_in_a_folder = 1, 1 << 40

    def __init__(self, backend: FsspecBackend):
        self.backend = backend
        self._made: set[str] = set()
        self._lock = threading.Lock()

    def put(self, items: Sequence[Item]) -> None:
        for name, what in items:
            patiently(lambda _, name=name, what=what: self._put(name, what), self.backend.display(name))  # type: ignore[misc]

    def _put(self, name: str, what: Path | bytes) -> None:
        system, path = self.backend.system(), self.backend.path(name)
        try:
            self._make(path.rpartition("/")[0])
            if isinstance(what, bytes):
                system.pipe_file(path, what)
            else:
                system.put_file(str(what), path)
        except (PermissionError, NotImplementedError) as error:
            raise PermissionError(f"{self.backend.display(name)}: cannot be written ({sanitize(str(error))})") from None
        except Exception as error:  # of each client another
            raise Again(f"{type(error).__name__}: {sanitize(str(error))[:200]}") from None

    def _make(self, folder: str) -> None:
        with self._lock:
            if folder not in self._made:
                self.backend.system().makedirs(folder, exist_ok=True)
                self._made.add(folder)

    def sizes(self) -> dict[str, int]:
        def look(_: float) -> dict[str, int]:
            system, root = self.backend.system(), self.backend.path("")
            try:
                found = system.find(root, detail=True)
                return {path.removeprefix(root).lstrip("/"): facts["size"] for path, facts in found.items()}
            except FileNotFoundError:
                return {}
            except Exception as error:  # of each client another
                raise Again(f"{type(error).__name__}: {sanitize(str(error))[:200]}") from None

        return patiently(look, self.backend.display(""))


class _Repository:
    """The hub, with huggingface_hub. Each `put` is one commit; files that the hub has already are not sent again."""

    together, most_in_a_folder = 50, 10_000

    def __init__(self, backend: HubBackend, private: bool):
        self.backend, self._api, self._where = backend, hub_client.api(), backend.where
        self._of_hub(
            lambda: self._api.create_repo(self._where.repository, repo_type="dataset", private=private, exist_ok=True)
        )

    def put(self, items: Sequence[Item]) -> None:
        from huggingface_hub import CommitOperationAdd

        operations = [CommitOperationAdd(self._where.under(name), _readable(what)) for name, what in items]
        names = f"{items[0][0]} and {len(items) - 1} more" if len(items) > 1 else items[0][0]
        self._of_hub(
            lambda: self._api.create_commit(
                self._where.repository,
                operations,
                commit_message=f"tokenmill push: {names}",
                repo_type="dataset",
                revision=self._where.revision,
            )
        )

    def sizes(self) -> dict[str, int]:
        from huggingface_hub.errors import EntryNotFoundError

        def look() -> dict[str, int]:
            repository, revision, folder = self._where
            try:
                files = hub_client.files_of(repository, revision, folder)
            except EntryNotFoundError:
                return {}
            return {file.name.removeprefix(self._where.under("")): file.bytes for file in files}

        found: dict[str, int] = self._of_hub(look)
        return found

    def _of_hub(self, ask: Any) -> Any:
        try:
            return ask()
        except Exception as error:  # of several libraries
            raise OSError(
                f"{display_address(self.backend.address)}: the hub did not take it ({hub_client.first_line(error)}); "
                f"{self.backend.access}, and one that may write"
            ) from error


def _readable(what: Path | bytes) -> Any:
    return what if isinstance(what, bytes) else str(what)


def sink_of(address: str, private: bool = False) -> Sink:
    """The sink of an address. A missing repository of the hub is created. ValueError if files cannot be sent there."""
    backend = backend_of(address)
    if isinstance(backend, S3Backend):
        return _Bucket(backend)
    if isinstance(backend, HubBackend):
        return _Repository(backend, private)
    if isinstance(backend, FsspecBackend):
        return _Files(backend)
    raise ValueError(
        f"{display_address(address)}: files cannot be sent to a web server; name s3://, gs://, "
        "hf://datasets/OWNER/NAME, or what else fsspec writes to"
    )
