"""Preparing into a bucket: `--tokens-root s3://bucket/tokens`. A shard is uploaded once it is made, then deleted here.

    upload = BucketUpload("s3://bucket/tokens/web-gpt2-1bd489c3", folder)
    upload.fetch_records()       copies the bucket's records into `folder`: they say which shards are made
    make_and_upload(...)         in a worker; uploads the record last, and with it the shard counts
    upload.finish()              uploads the manifest, once all shards are made

`folder`, in the cache, has the records, the tokenizer and the shards that are being made. Other machines, which make
other parts, read from the records in the bucket what is done.
"""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tokenmill.addresses import display_address
from tokenmill.hub_client import is_hub_address
from tokenmill.remote.copy import push_rest, push_shard
from tokenmill.remote.files import read, require_writable, sizes
from tokenmill.store.columns import columns_of
from tokenmill.store.files import parse_json, read_json, write_file
from tokenmill.store.names import is_plain
from tokenmill.store.shards import shard_path
from tokenmill.store.token_sets import TokenSet
from tokenmill.text.units import Unit

THREADS = 16


class BucketUpload:
    """A token set in a bucket, and the local folder that it is made in."""

    def __init__(self, address: str, folder: Path):
        if is_hub_address(address):
            raise ValueError(
                f"{display_address(address)}: the hub takes few commits an hour, too few for one a shard; prepare into "
                "a folder, or a bucket, and then `tokenmill push`"
            )
        require_writable(address)
        self.address, self._folder = address, folder

    def fetch_records(self) -> None:
        """Fetches the records and manifests that the bucket has now, and deletes all other shards here.

        The folder is locked, so no other process makes them. Raises the errors of reading an address.
        """
        there = {name for name in sizes(self.address) if _kind_of(name) is not None}
        here = {str(path.relative_to(self._folder)) for path in self._folder.glob("shards/*")}
        for name in here - there:
            (self._folder / name).unlink(missing_ok=True)
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(self._fetch, sorted(there)))

    def _fetch(self, name: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data, shown = read(self.address, name), f"{display_address(self.address)}/{name}"
        if path.exists() and path.read_bytes() == data:
            return
        try:
            parse_json(data, shown, _kind_of(name) or "tokens")
        except ValueError as error:
            raise ValueError(f"{error}, in the bucket; what it belongs to is made again then") from error
        write_file(path, data, durable=False)

    def finish(self) -> None:
        """Uploads what makes the shards a token set, the manifest last."""
        push_rest(TokenSet(self._folder), self.address)


def _kind_of(name: str) -> str | None:
    """The kind of JSON that an object under the address is: "shard", "tokens" (a manifest), or None for all others.

    Whoever may write to the bucket chooses the names, so only those that this program gives are taken.
    """
    if name == "manifest.json" or re.fullmatch(r"manifests/[0-9a-f]{16}\.json", name):
        return "tokens"
    folder, _, file = name.partition("/")
    return "shard" if folder == "shards" and file.endswith(".json") and is_plain(file) else None


def make_and_upload(
    make: Callable[..., Any],
    folder: Path,
    address: str,
    state: Any,
    unit: Unit,
    report: Callable[..., None],
) -> Any:
    """Makes a shard, uploads it, and keeps only its record here; runs in a worker."""
    made = make(state, unit, report)
    record = read_json(shard_path(folder, unit.name, "json"), "shard")
    push_shard(folder, record, address)
    for suffix in columns_of(record):
        shard_path(folder, unit.name, suffix).unlink()
    return made
