"""Where a token set is made: a folder, or an address that fsspec writes to.

A set at an address has a folder here too, with its records and small files. A worker makes a unit's
shards in a temporary folder and sends them, columns first, the unit's record last. So a record at
the address means a whole unit, whoever made it. Two runs may make the same unit at once: they write
the same bytes.
"""

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.addresses import has_scheme, joined
from tokenmill.messages import redact
from tokenmill.prepare.remembered import command_of, command_path
from tokenmill.remote.files import read, require_writable, sizes, write
from tokenmill.remote.push import push_rest, push_shard
from tokenmill.remote.token_set import read_manifest
from tokenmill.store.files import remove_temporary_files, write_changed, write_file
from tokenmill.store.json_files import parse_json, read_json
from tokenmill.store.locks import held_for
from tokenmill.store.manifests import SMALL_FILES, digest_of, write_token_bytes
from tokenmill.store.names import is_plain
from tokenmill.store.shards import is_finished, read_record, shard_path, sources_of
from tokenmill.store.token_sets import TokenSet
from tokenmill.tokenize.tokenizer import Tokenizer

SUBFOLDERS = ("shards", "manifests")
THREADS = 16
PREFIX = "tokenmill-"  # of temporary folders


@dataclass(frozen=True)
class Destination:
    """A token set that is being made. It travels to workers."""

    folder: Path  # absolute: the set; or, of one at an address, its records and small files
    shown: str  # as the user named it, or the address without secrets
    address: str | None = None
    purpose: str = ""  # what tells a run from those that would make other shards of this name

    @property
    def named(self) -> Path | str:
        """The folder as the user named it, or the address."""
        return Path(self.shown) if self.address is None else self.shown

    @classmethod
    @contextlib.contextmanager
    def of(cls, root: str, name: str) -> Iterator["Destination"]:
        """The set of this name below a folder or an address.

        ValueError for an address that cannot be written to.
        """
        if not has_scheme(root):
            yield cls(Path(root).absolute() / name, str(Path(root) / name))
            return
        if root.startswith("hf://"):
            raise ValueError(
                f"{redact(root)}: the hub takes few commits an hour, too few for one a unit; "
                "prepare into a folder, or a bucket, and then `tokenmill push`"
            )
        if root.startswith("memory:"):
            raise ValueError(
                f"{root}: workers cannot write into this process's memory; name a folder or a "
                "bucket"
            )
        require_writable(root)
        with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
            address = joined(root, name)
            yield cls(Path(folder) / name, redact(address), address)

    @property
    def command(self) -> str:
        """The command that made the set; "" if it is not known, as of a set at an address."""
        return command_of(self.folder)

    def begin(self, tokenizer: Tokenizer, command: str) -> None:
        """Makes the folder, without what killed runs left in it, and its small files.

        Sends these first: a missing bucket is found. A set that grows keeps its command until it
        has grown.
        """
        folders = [self.folder, *(self.folder / name for name in SUBFOLDERS)]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            remove_temporary_files(folder)
        if not (self.folder / "manifest.json").exists():
            self.keep_command(command)
        tokenizer.save(self.folder / "tokenizer.json")
        write_token_bytes(self.folder, tokenizer.token_bytes())
        if self.address is not None:
            for name in SMALL_FILES:
                write(self.address, name, self.folder / name)

    def keep_command(self, command: str) -> None:
        """Keeps the command that makes the set beside its folder."""
        write_changed(command_path(self.folder), f"{command}\n".encode())

    def has_training_documents(self) -> bool:
        """Whether any shard with documents to train on is made."""
        for path in self.folder.glob("shards/*.json"):
            record = read_json(path, "shard")
            validates = record["name"].endswith("-val") or all(
                source.get("validates") == 1.0 for source in sources_of(record)
            )
            if record["documents"] and not validates:
                return True
        return False

    @property
    def _lock(self) -> Path:
        folder = self.folder.resolve()  # a link to a set is that set
        return folder.with_name(f".{folder.name}.lock")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Admits runs of the same purpose, as other parts. BlockingIOError if another is there.

        Workers hold it too, as they may outlive a run that was killed.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(held_for(self._lock, self.purpose))
            except BlockingIOError as error:
                raise BlockingIOError(
                    f"{self.shown}: another run makes this set from other files, or with other "
                    "settings; once it has ended, run this again, with the sources of both"
                ) from error
            yield

    def remove(self) -> None:
        """Removes the folder, which a refusal would leave unfinished; not what is at an address.

        It stays if another run is in there, or has made it a token set.
        """
        with contextlib.suppress(OSError), held_for(self._lock, "removing"):
            if self.manifest() is not None:
                return
            shutil.rmtree(self.folder)
            command_path(self.folder).unlink()

    def record(self, name: str) -> dict[str, Any] | None:
        """The record of a shard; None if there is none."""
        path = shard_path(self.folder, name, "json")
        return read_record(path, name, "; delete it") if path.exists() else None

    def has_files(self, record: dict[str, Any]) -> bool:
        """Whether the files of a shard are there. At an address, its record is sent last."""
        return self.address is not None or is_finished(self.folder, record)

    def read(self, name: str) -> bytes:
        """A file of the set."""
        if self.address is None:
            return (self.folder / name).read_bytes()
        return read(self.address, name)

    def manifest(self) -> dict[str, Any] | None:
        """The manifest of a set that is there already."""
        path = self.folder / "manifest.json"
        return read_json(path, "tokens") if path.exists() else None

    def fetch_records(self) -> None:
        """Fetches the manifests that an address has, and the records that are missing here."""
        if self.address is None:
            return
        names = []
        for name in sorted(sizes(self.address)):
            kind = _kind_of(name)
            is_new = kind == "tokens" or not (self.folder / name).exists()
            if kind is not None and is_new:
                names.append(name)
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(self._fetch, names))

    def fetch_manifest(self) -> None:
        """Fetches the manifest that an address has now."""
        if self.address is None:
            return
        with contextlib.suppress(FileNotFoundError):  # there is none yet
            self._fetch("manifest.json")

    def _fetch(self, name: str) -> None:
        data = read(self.address or "", name)
        parse_json(data, f"{self.shown}/{name}", _kind_of(name) or "tokens")
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, data, durable=False)

    def foreign_file(self, names: set[str]) -> str | None:
        """A source file of a shard that is here and has none of these names, if there is one."""
        for path in self.folder.glob("shards/*.json"):
            if path.name.removesuffix(".json") in names:
                continue
            for source in sources_of(read_json(path, "shard")):
                return source["file"]
        return None

    @contextlib.contextmanager
    def unit_folder(self) -> Iterator[Path]:
        """A folder for a unit's shards: the set's own, or a temporary one."""
        if self.address is None:
            yield self.folder
            return
        with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
            yield Path(folder)

    def send(self, folder: Path, records: list[dict[str, Any]]) -> None:
        """Sends shards from a temporary folder to the address, in this order."""
        if self.address is None:
            return
        for record in records:
            push_shard(folder, record, self.address)

    def finish(self) -> None:
        """Sends what makes the shards at an address a token set, the manifest last.

        ValueError if another run has sent one at the same time.
        """
        for name in SUBFOLDERS:  # what a worker that was killed left there
            remove_temporary_files(self.folder / name)
        if self.address is None:
            return
        token_set = TokenSet(self.folder)
        push_rest(token_set, self.address)
        _, manifest = read_manifest(self.address)
        if digest_of(manifest) != token_set.digest:
            raise ValueError(
                f"{self.shown}: another run has written its manifest at the same time, of other "
                "files; run this again with the sources of both"
            )


def _kind_of(name: str) -> str | None:
    """The kind of JSON of an object below the address: "shard", or "tokens" (a manifest).

    None for a strange name.
    """
    if name == "manifest.json" or re.fullmatch(r"manifests/[0-9a-f]{16}\.json", name):
        return "tokens"
    folder, _, file = name.partition("/")
    is_record = folder == "shards" and file.endswith(".json") and is_plain(file)
    return "shard" if is_record else None
