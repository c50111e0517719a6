"""`tokenmill push data/tokens/NAME s3://bucket/tokens/NAME`: sends a token set to an address, for others to train on.

    tokenmill push data/tokens/web hf://datasets/owner/web --license odc-by

Shards are sent first, manifest and card last: readers see the old set or the new one. If it is interrupted, run it
again: it continues where it stopped. On the hub, a dataset card is written from the manifest.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import tyro
from tqdm import tqdm

from tokenmill.addresses import is_address, named
from tokenmill.exchange.card import card_of
from tokenmill.hub_client import parse_address
from tokenmill.humanize import counted
from tokenmill.remote.copy import Progress, push
from tokenmill.sanitize import redact
from tokenmill.store.token_sets import TokenSet


@dataclass(frozen=True)
class Push:
    """Sends a token set to an address, for others to train on."""

    tokens: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]  # the token set's folder
    # s3://, gs://, hf://datasets/OWNER/NAME
    address: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="ADDRESS")]]
    license: str | None = None  # of the text, for the hub's card, as odc-by
    private: bool = False  # make the hub's repository, where it is not there, one that not everybody sees


def main(arguments: list[str], prog: str) -> None:
    """Sends what the command line names, and prints where it is."""
    config = tyro.cli(Push, prog=prog, args=arguments, description=__doc__)
    if is_address(config.tokens) or not is_address(config.address):
        raise ValueError("expected a folder and then an address: tokenmill push data/tokens/NAME s3://bucket/NAME")
    token_set, address, card = TokenSet(config.tokens), str(named(config.address)), b""
    if address.startswith("hf://"):
        parse_address(address)
        if not config.license:
            raise ValueError("expected --license, of the text, for the dataset card, as odc-by, cc-by-4.0 or unknown")
        card = card_of(token_set, address, config.license).encode()
    elif config.license or config.private:
        raise ValueError("--license and --private are for the hub, hf://datasets/OWNER/NAME; leave them out")
    size = sum(entry.tokens for entry in token_set.entries) * token_set.numpy_dtype.itemsize
    with counting(f"pushing to {redact(address)}", size) as count:
        sent = push(token_set, address, count, card, config.private)
    print(f"sent {counted(sent, 'shard')}; there already: {len(token_set.entries) - sent:,}")
    print(redact(address))


@contextlib.contextmanager
def counting(what: str, size: int) -> Iterator[Progress]:
    """Says on stderr how much of `size` bytes has come: a bar in a terminal, else a line now and then."""
    seconds, lock = 0.1 if sys.stderr.isatty() else 15, threading.Lock()
    with tqdm(desc=what, total=size, unit="B", unit_scale=True, mininterval=seconds, leave=False) as bar:

        def count(shards: int, size: int) -> None:  # from any thread
            with lock:
                bar.update(size)

        yield count
