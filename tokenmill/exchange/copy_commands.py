"""`tokenmill push` and `tokenmill pull`: a token set goes to an address whole, or comes from it
verified.
"""

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tqdm import tqdm

from tokenmill.addresses import is_address, name_of, named, require_folder
from tokenmill.hub_client import parse_address
from tokenmill.messages import counted, redact
from tokenmill.remote.pull import pull
from tokenmill.remote.push import push
from tokenmill.remote.set_files import Progress
from tokenmill.remote.token_set import read_manifest
from tokenmill.store.set_names import TOKENS_ROOT
from tokenmill.store.shards import DTYPES, SPLITS
from tokenmill.store.token_sets import TokenSet


@dataclass(frozen=True)
class Push:
    """Sends a token set to an address, for others to train on.

        tokenmill push data/tokens/NAME s3://bucket/tokens/NAME
        tokenmill push data/tokens/web hf://datasets/owner/web --license odc-by

    Shards are sent first, manifest and card last: readers see the old set or the new one. If it is
    interrupted, run it again: it continues where it stopped. On the hub, a dataset card is written
    from the manifest.
    """

    # the token set's folder
    tokens: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]
    # s3://, gs://, hf://datasets/OWNER/NAME
    address: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="ADDRESS")]]
    license: str | None = None  # of the text, for the hub's card, as odc-by
    # make the hub's repository, where it is not there, one that not everybody sees
    private: bool = False


def send(arguments: list[str], prog: str) -> None:
    """Sends what the command line names, and prints where it is."""
    config = tyro.cli(Push, prog=prog, args=arguments)
    if is_address(config.tokens) or not is_address(config.address):
        raise ValueError(
            f"{config.address}: expected a folder, then s3://bucket/NAME or "
            "hf://datasets/OWNER/NAME (to a folder: cp)"
        )
    token_set = TokenSet(config.tokens)
    address = str(named(config.address))
    card = b""
    if address.startswith("hf://"):
        parse_address(address)
        if not config.license:
            raise ValueError(
                "expected --license, of the text, for the dataset card, as odc-by, cc-by-4.0 or "
                "unknown"
            )
        card = card_of(token_set, address, config.license).encode()
    elif config.license or config.private:
        raise ValueError(
            "--license and --private are for the hub, hf://datasets/OWNER/NAME; leave them out"
        )
    size = sum(entry.tokens for entry in token_set.entries) * token_set.numpy_dtype.itemsize
    with counting(f"pushing to {redact(address)}", size) as count:
        num_sent = push(token_set, address, count, card, config.private)
    num_present = len(token_set.entries) - num_sent
    print(f"sent {counted(num_sent, 'shard')}; there already: {num_present:,}")
    print(redact(address))


@contextlib.contextmanager
def counting(what: str, size: int) -> Iterator[Progress]:
    """Says on stderr how much of `size` bytes has come: a bar in a terminal, else a line now and
    then.
    """
    seconds = 0.1 if sys.stderr.isatty() else 15
    lock = threading.Lock()
    with tqdm(
        desc=what, total=size, unit="B", unit_scale=True, mininterval=seconds, leave=False
    ) as bar:

        def count(shards: int, size: int) -> None:  # from any thread
            with lock:
                bar.update(size)

        yield count


CARD = """---
license: {license}
viewer: false
tags: [tokenmill, pretraining, tokens]
---

# {name}

Token ids for pretraining, prepared by tokenmill from {text_bytes:,} bytes of text. \
Every document begins with `{bos}`.

| tokenizer | {tokenizer}, fingerprint `{fingerprint}` |
| --- | --- |
{rows}
| manifest | `{digest}` |

```python
from tokenmill import RowLoader        # or first: tokenmill pull {address}

loader = RowLoader("{address}", batch_size=32, seq_len=2048, device="cuda")
```
"""


def card_of(token_set: TokenSet, address: str, license: str) -> str:
    """README.md for the hub: YAML that it reads, and a page for people."""
    manifest = token_set.manifest
    tokenizer = token_set.tokenizer
    rows = []
    for split in SPLITS:
        entries = token_set.split(split)
        tokens = sum(entry.tokens for entry in entries)
        documents = sum(entry.documents for entry in entries)
        rows.append(f"| {split} | {tokens:,} tokens, {documents:,} documents |")
    hub = manifest.get("hub")
    if hub:
        rows.append(f"| from | {hub['repository']} on the hub, at commit `{hub['commit']}` |")
    return CARD.format(
        license=json.dumps(license),
        name=manifest["dataset"],
        text_bytes=manifest["text_bytes"],
        bos=tokenizer["bos_token"],
        tokenizer=tokenizer["name"],
        fingerprint=tokenizer["fingerprint"],
        rows="\n".join(rows),
        digest=token_set.digest,
        address=address,
    )


@dataclass(frozen=True)
class Pull:
    """Fetches a token set from an address, whole and verified: by default into data/tokens/NAME.

        tokenmill pull s3://bucket/tokens/web

    If it is interrupted, run it again: it continues where it stopped. A web server cannot be
    listed, so https:// gives the present manifest and its shards, without views.
    """

    # s3://, gs://, hf://datasets/OWNER/NAME, https://
    address: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="ADDRESS")]]
    # where to; by default data/tokens/NAME
    folder: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="[FOLDER]")]] = None


def fetch(arguments: list[str], prog: str) -> None:
    """Fetches what the command line asks for, and prints where it is."""
    config = tyro.cli(Pull, prog=prog, args=arguments)
    if not is_address(config.address):
        raise ValueError(
            f"{config.address}: expected an address, as s3://bucket/NAME; copy a folder by cp -r"
        )
    address = str(named(config.address))
    require_folder("the folder", config.folder)
    folder = config.folder or TOKENS_ROOT / name_of(address)
    _, manifest = read_manifest(address)
    shards = manifest["shards"]
    size = sum(shard["tokens"] for shard in shards) * DTYPES[manifest["dtype"]].itemsize
    with counting(f"pulling {redact(address)}", size) as count:
        num_fetched = pull(address, folder, count)
    num_present = len(shards) - num_fetched
    print(f"fetched {counted(num_fetched, 'shard')}; here already: {num_present:,}")
    print(folder)
