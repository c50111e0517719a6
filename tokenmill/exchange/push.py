"""`tokenmill push data/tokens/NAME s3://bucket/tokens/NAME`: a token set to an address, from where others train.

    tokenmill push data/tokens/web s3://bucket/tokens/web
    tokenmill push data/tokens/web hf://datasets/owner/web --license odc-by

Shards come first, manifest and card last: readers see the old set or the new one. Run it again and it goes on where it
was. On the hub a dataset card is written from the manifest.
"""

import sys
from dataclasses import dataclass

import tyro

from tokenmill.exchange.card import card_of
from tokenmill.exchange.counting import counting
from tokenmill.remote.addresses import is_address, named, told
from tokenmill.remote.places import read
from tokenmill.remote.push import push
from tokenmill.remote.sending import sink_of
from tokenmill.store.files import parse_json
from tokenmill.store.token_sets import TokenSet, digest_of


@dataclass(frozen=True)
class Push:
    """Sends a token set to an address, from where others train."""

    tokens: tyro.conf.Positional[str]  # the token set's folder
    address: tyro.conf.Positional[str]  # s3://, gs://, hf://datasets/OWNER/NAME
    license: str | None = None  # of the text, for the hub's card, as odc-by; asked for where it is not given
    private: bool = False  # make the hub's repository, where it is not there, one that not everybody sees


def send(config: Push) -> str:
    """Where it is then, as it may be shown. ValueError or OSError where it cannot be sent."""
    if is_address(config.tokens) or not is_address(config.address):
        raise ValueError("expected a folder and then an address: tokenmill push data/tokens/NAME s3://bucket/NAME")
    token_set, address = TokenSet(config.tokens), str(named(config.address))
    card = None
    if address.startswith("hf://"):
        card = card_of(token_set, address, config.license or _ask_for_license()).encode()
    sink = sink_of(address, config.private)
    size = sum(entry.tokens for entry in token_set.entries) * token_set.numpy_dtype.itemsize
    if card is None and _is_all_there(token_set, sink.place):
        print(f"all {len(token_set.entries):,} shards are there already, with manifest {token_set.digest}")
        return told(address)
    with counting(f"pushing to {told(address)}") as count:
        count.of(size)
        sent = push(token_set, sink, card, count)
    print(f"{sent:,} shards were sent, {len(token_set.entries) - sent:,} were there already")
    return told(address)


def _is_all_there(token_set: TokenSet, place) -> bool:
    """Whether the manifest there, which is sent last, is this one."""
    try:
        found = parse_json(read(place, "manifest.json"), place.told("manifest.json"), "tokens")
        return digest_of(found) == token_set.digest
    except (FileNotFoundError, ValueError, KeyError):
        return False


def _ask_for_license() -> str:
    if not sys.stdin.isatty():
        raise ValueError("expected --license, of the text, for the dataset card, as odc-by, cc-by-4.0 or unknown")
    return input("license of the text, as odc-by, cc-by-4.0 or unknown: ").strip() or "unknown"


def main(arguments: list[str], prog: str) -> None:
    """Sends what the command line names, and prints where it is."""
    print(send(tyro.cli(Push, prog=prog, args=arguments, description=__doc__)))
