"""Preparing into a bucket: `--tokens-root s3://bucket/tokens`. A shard is sent once it is made, and does not stay.

    elsewhere = Elsewhere("s3://bucket/tokens/web-gpt2-1bd489c3", folder)
    elsewhere.bring()            the records there come into `folder`: what is made
    send_shard(...)              in the worker that made it; the record last, so that it counts once it is there
    elsewhere.close()            the manifest, once all is there

`folder`, in the cache, has records, the tokenizer and what is being made. Other machines, as other parts, see by the
records in the bucket what is done.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tokenmill.remote.addresses import told
from tokenmill.remote.places import read
from tokenmill.remote.push import closing_items, items_of
from tokenmill.remote.sending import Sink, sink_of
from tokenmill.store.files import read_json, write_file
from tokenmill.store.shards import shard_path, suffixes_of
from tokenmill.store.token_sets import TokenSet
from tokenmill.text.units import Unit

THREADS = 16


class Elsewhere:
    """A set that is prepared at an address, and the folder here that it is made in."""

    def __init__(self, address: str, folder: Path):
        if address.startswith("hf://"):
            raise ValueError(
                f"{told(address)}: the hub takes few commits an hour, too few for one a shard; prepare into a folder, "
                "or a bucket, and then `tokenmill push`"
            )
        self.address, self._folder = address, folder
        self._sink: Sink = sink_of(address)

    def bring(self) -> None:
        """Has the records, and the manifests, that are there now; whatever else was here is nobody's.

        Raises what reading an address does.
        """
        there = {name for name in self._sink.sizes() if name.endswith(".json") and name != "tokenizer.json"}
        here = {str(path.relative_to(self._folder)) for path in self._folder.glob("shards/*")}
        for name in here - there:
            (self._folder / name).unlink(missing_ok=True)
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(self._bring_one, sorted(there)))

    def _bring_one(self, name: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = read(self._sink.place, name)
        if not (path.exists() and path.read_bytes() == data):
            write_file(path, data, durable=False)

    def close(self) -> None:
        """Sends what makes the shards a token set, the manifest last."""
        self._sink.put(closing_items(TokenSet(self._folder), 0, None))


def make_and_send(
    make: Callable[..., Any], folder: Path, address: str, state: Any, unit: Unit, report: Callable[..., None]
) -> Any:
    """Makes a shard in a folder, sends it, and leaves its record alone here; in a worker."""
    made = make(folder, state, unit, report)
    record = read_json(shard_path(folder, unit.name, "json"), "shard")
    sink_of(address).put(items_of(folder, record))
    for suffix in suffixes_of(record):
        shard_path(folder, unit.name, suffix).unlink()
    return made
