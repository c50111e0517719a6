"""`tokenmill pull s3://bucket/tokens/web`: fetches a token set whole and verified, into data/tokens/web.

If it is interrupted, run it again: it continues where it stopped. A web server cannot be listed, so https:// gives the
present manifest and its shards, without views.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tokenmill.addresses import is_address, name_of, named, require_folder
from tokenmill.exchange.push_command import counting
from tokenmill.humanize import counted
from tokenmill.remote.copy import pull
from tokenmill.remote.token_set import read_manifest
from tokenmill.sanitize import redact
from tokenmill.store.set_names import TOKENS_ROOT
from tokenmill.store.shards import DTYPES


@dataclass(frozen=True)
class Pull:
    """Fetches a token set from an address, whole and verified."""

    # s3://, gs://, hf://datasets/OWNER/NAME, https://
    address: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="ADDRESS")]]
    # where to; by default data/tokens/NAME
    folder: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="[FOLDER]")]] = None


def main(arguments: list[str], prog: str) -> None:
    """Fetches what the command line asks for, and prints where it is."""
    config = tyro.cli(Pull, prog=prog, args=arguments, description=__doc__)
    if not is_address(config.address):
        raise ValueError(f"{config.address}: expected an address, as s3://bucket/NAME; a folder is there already")
    address = str(named(config.address))
    require_folder("the folder", config.folder)
    folder, (_, manifest) = config.folder or TOKENS_ROOT / name_of(address), read_manifest(address)
    size = sum(shard["tokens"] for shard in manifest["shards"]) * DTYPES[manifest["dtype"]].itemsize
    with counting(f"pulling {redact(address)}", size) as count:
        came = pull(address, folder, count)
    print(f"fetched {counted(came, 'shard')}; here already: {len(manifest['shards']) - came:,}")
    print(folder)
