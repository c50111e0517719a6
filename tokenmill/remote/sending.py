"""Files to an address: into a bucket, a dataset repository of the hub, or wherever fsspec writes.

    sink = sink_of("s3://bucket/tokens/web")
    sink.put([("shards/a.000.bin", path), ("shards/a.000.json", data)])       in this order

What is put together into a hub's repository is one commit. Objects appear whole, in buckets and on the hub; so whoever
puts a record after what it tells of, and a manifest after its records, never shows a half.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tokenmill.extras import naming_the_extra
from tokenmill.remote.addresses import told
from tokenmill.remote.fs import FileSystem
from tokenmill.remote.hub import Hub, endpoint, parts_of, token
from tokenmill.remote.patience import Again, patiently
from tokenmill.remote.places import Place, place_of
from tokenmill.remote.s3 import S3

Item = tuple[str, Path | bytes]  # a file's name under the address, and where it lies, or its bytes


class Sink(Protocol):
    """Takes files under an address. `together` is how many are best put at once."""

    together: int
    most_in_a_folder: int

    @property
    def place(self) -> Place: ...

    def put(self, items: Sequence[Item]) -> None:
        """Sends files, one after the other. PermissionError, ConnectionError or OSError, with the address."""
        ...

    def sizes(self) -> dict[str, int]:
        """The files that are there, and their bytes. Raises what `put` does."""
        ...


class _Bucket:
    """S3, by boto3, which sends large files in parts and tries again."""

    together, most_in_a_folder = 1, 1 << 40

    def __init__(self, place: S3):
        self.place = place

    def put(self, items: Sequence[Item]) -> None:
        with naming_the_extra("remote"):
            from boto3.exceptions import Boto3Error
            from botocore.exceptions import BotoCoreError, ClientError

        for name, what in items:
            where = {"Bucket": self.place.bucket, "Key": self.place.key(name)}
            try:
                if isinstance(what, bytes):
                    self.place.client().put_object(**where, Body=what)
                else:
                    self.place.client().upload_file(str(what), **where)
            except (Boto3Error, BotoCoreError, ClientError) as error:
                raise OSError(f"{self.place.told(name)}: cannot be written ({error}); {self.place.access}") from error

    def sizes(self) -> dict[str, int]:
        with naming_the_extra("remote"):
            from botocore.exceptions import BotoCoreError, ClientError

        prefix, found = self.place.key(""), dict[str, int]()
        try:
            pages = (
                self.place.client().get_paginator("list_objects_v2").paginate(Bucket=self.place.bucket, Prefix=prefix)
            )
            for page in pages:
                found |= {item["Key"].removeprefix(prefix): item["Size"] for item in page.get("Contents", ())}
        except (BotoCoreError, ClientError) as error:
            raise OSError(f"{self.place.told('')}: cannot be listed ({error}); {self.place.access}") from error
        return found


class _Files:
    """Whatever fsspec writes to."""

    together, most_in_a_folder = 1, 1 << 40

    def __init__(self, place: FileSystem):
        self.place = place
        self._made: set[str] = set()
        self._lock = threading.Lock()

    def put(self, items: Sequence[Item]) -> None:
        for name, what in items:
            patiently(lambda _, name=name, what=what: self._put(name, what), self.place.told(name))  # type: ignore[misc]

    def _put(self, name: str, what: Path | bytes) -> None:
        system, path = self.place.system(), self.place.path(name)
        try:
            self._make(path.rpartition("/")[0])
            if isinstance(what, bytes):
                system.pipe_file(path, what)
            else:
                system.put_file(str(what), path)
        except (PermissionError, NotImplementedError) as error:
            raise PermissionError(f"{self.place.told(name)}: cannot be written ({error})") from error
        except Exception as error:  # of each client another
            raise Again(f"{type(error).__name__}: {str(error)[:200]}") from error

    def _make(self, folder: str) -> None:
        with self._lock:
            if folder not in self._made:
                self.place.system().makedirs(folder, exist_ok=True)
                self._made.add(folder)

    def sizes(self) -> dict[str, int]:
        def look(_: int) -> dict[str, int]:
            system, root = self.place.system(), self.place.path("")
            try:
                found = system.find(root, detail=True)
                return {path.removeprefix(root).lstrip("/"): facts["size"] for path, facts in found.items()}
            except FileNotFoundError:
                return {}
            except Exception as error:  # of each client another
                raise Again(f"{type(error).__name__}: {str(error)[:200]}") from error

        return patiently(look, self.place.told(""))


class _Repository:
    """The hub, by huggingface_hub: what is put together is one commit, and what it has already is not sent again."""

    together, most_in_a_folder = 50, 10_000

    def __init__(self, place: Hub, private: bool):
        with naming_the_extra("remote"):
            from huggingface_hub import HfApi

        self.place, self._api = place, HfApi(endpoint=endpoint(), token=token())
        self._repository, self._revision, self._folder = parts_of(place.address)
        self._of_hub(
            lambda: self._api.create_repo(self._repository, repo_type="dataset", private=private, exist_ok=True)
        )

    def put(self, items: Sequence[Item]) -> None:
        from huggingface_hub import CommitOperationAdd

        operations = [CommitOperationAdd(self._path(name), _readable(what)) for name, what in items]
        names = f"{items[0][0]} and {len(items) - 1} more" if len(items) > 1 else items[0][0]
        self._of_hub(
            lambda: self._api.create_commit(
                self._repository,
                operations,
                commit_message=f"tokenmill push: {names}",
                repo_type="dataset",
                revision=self._revision,
            )
        )

    def sizes(self) -> dict[str, int]:
        from huggingface_hub.errors import EntryNotFoundError

        def look() -> dict[str, int]:
            where = (self._repository, self._folder or None)
            try:
                found = self._api.list_repo_tree(*where, repo_type="dataset", revision=self._revision, recursive=True)
                tree = list(found)
            except EntryNotFoundError:
                return {}
            below = f"{self._folder}/" if self._folder else ""
            return {entry.path.removeprefix(below): entry.size for entry in tree if hasattr(entry, "size")}

        found: dict[str, int] = self._of_hub(look)
        return found

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}" if self._folder else name

    def _of_hub(self, ask: Any) -> Any:
        try:
            return ask()
        except Exception as error:  # of several libraries
            first = (str(error) or type(error).__name__).splitlines()[0][:300]
            raise OSError(
                f"{told(self.place.address)}: the hub did not take it ({first}); {self.place.access}, and one that may "
                "write"
            ) from error


def _readable(what: Path | bytes) -> Any:
    return what if isinstance(what, bytes) else str(what)


def sink_of(address: str, private: bool = False) -> Sink:
    """What takes files at an address; a repository of the hub that is not there is made. ValueError where none can."""
    place = place_of(address)
    if isinstance(place, S3):
        return _Bucket(place)
    if isinstance(place, Hub):
        return _Repository(place, private)
    if isinstance(place, FileSystem):
        return _Files(place)
    raise ValueError(
        f"{told(address)}: files cannot be sent to a web server; name s3://, gs://, hf://datasets/OWNER/NAME, or what "
        "else fsspec writes to"
    )
