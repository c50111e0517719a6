"""`tokenmill push` and `tokenmill pull`: a token set goes to an address whole, or comes from it verified."""

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
from tokenmill.remote.push import Progress, push
from tokenmill.remote.token_set import read_manifest
from tokenmill.store.set_names import TOKENS_ROOT
from tokenmill.store.shards import DTYPES, SPLITS
from tokenmill.store.token_sets import TokenSet


@dataclass(frozen=True)
class Push:
    """Sends a token set to an address, for others to train on.

        tokenmill push data/tokens/NAME s3://bucket/tokens/NAME
        tokenmill push data/tokens/web hf://datasets/owner/web --license odc-by

    Shards are sent first, manifest and card last: readers see the old set or the new one. If it is interrupted, run it
    again: it continues where it stopped. On the hub, a dataset card is written from the manifest.
    """

    # the token set's folder
    tokens: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]
    # s3://, gs://, hf://datasets/OWNER/NAME
    address: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="ADDRESS")]]
    license: str | None = None  # of the text, for the hub's card, as odc-by
    # make the hub's repository, where it is not there, one that not everybody sees
    private: bool = False


def main(arguments: list[str], prog: str) -> None:
    """Runs the command whose name ends `prog`."""
    (send if prog.endswith("push") else fetch)(arguments, prog)


def send(arguments: list[str], prog: str) -> None:
    """Sends what the command line names, and prints where it is."""
    config = tyro.cli(Push, prog=prog, args=arguments)
    if is_address(config.tokens) or not is_address(config.address):
        raise ValueError(
            f"{config.address}: expected a folder, then s3://bucket/NAME or hf://datasets/OWNER/NAME (to a folder: cp)"
        )
    token_set, address, card = TokenSet(config.tokens), str(named(config.address)), b""
    if address.startswith("hf://"):
        parse_address(address)
        if not config.license:
            raise ValueError(
                "expected --license, of the text, for the dataset card, as odc-by, cc-by-4.0 or unknown"
            )
        card = card_of(token_set, address, config.license).encode()
    elif config.license or config.private:
        raise ValueError(
            "--license and --private are for the hub, hf://datasets/OWNER/NAME; leave them out"
        )
    size = sum(entry.tokens for entry in token_set.entries) * token_set.numpy_dtype.itemsize
    with counting(f"pushing to {redact(address)}", size) as count:
        sent = push(token_set, address, count, card, config.private)
    print(f"sent {counted(sent, 'shard')}; there already: {len(token_set.entries) - sent:,}")
    print(redact(address))


@contextlib.contextmanager
def counting(what: str, size: int) -> Iterator[Progress]:
    """Says on stderr how much of `size` bytes has come: a bar in a terminal, else a line now and then."""
    seconds, lock = 0.1 if sys.stderr.isatty() else 15, threading.Lock()
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

Token ids for pretraining, prepared by tokenmill from {text_bytes:,} bytes of text. Every document begins with `{bos}`.

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
    manifest, tokenizer, rows = token_set.manifest, token_set.tokenizer, list[str]()
    for split in SPLITS:
        entries = token_set.split(split)
        tokens, documents = (
            sum(entry.tokens for entry in entries),
            sum(entry.documents for entry in entries),
        )
        rows.append(f"| {split} | {tokens:,} tokens, {documents:,} documents |")
    if hub := manifest.get("hub"):
        rows.append(f"| from | {hub['repository']} on the hub, at commit `{hub['commit']}` |")
    facts = {
        "name": manifest["dataset"],
        "text_bytes": manifest["text_bytes"],
        "bos": tokenizer["bos_token"],
    }
    facts |= {
        "tokenizer": tokenizer["name"],
        "fingerprint": tokenizer["fingerprint"],
        "digest": token_set.digest,
    }
    return CARD.format(**facts, license=json.dumps(license), rows="\n".join(rows), address=address)


@dataclass(frozen=True)
class Pull:
    """Fetches a token set from an address, whole and verified: by default into data/tokens/NAME.

        tokenmill pull s3://bucket/tokens/web

    If it is interrupted, run it again: it continues where it stopped. A web server cannot be listed, so https:// gives
    the present manifest and its shards, without views.
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
    folder, (_, manifest) = config.folder or TOKENS_ROOT / name_of(address), read_manifest(address)
    size = sum(shard["tokens"] for shard in manifest["shards"]) * DTYPES[manifest["dtype"]].itemsize
    with counting(f"pulling {redact(address)}", size) as count:
        came = pull(address, folder, count)
    print(f"fetched {counted(came, 'shard')}; here already: {len(manifest['shards']) - came:,}")
    print(folder)
