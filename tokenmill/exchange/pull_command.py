"""`tokenmill pull s3://bucket/tokens/web`: fetches a token set whole and verified, or its first windows.

    tokenmill pull hf://datasets/owner/web                    into data/tokens/web, as if it had been prepared there
    tokenmill pull s3://bucket/tokens/web --tokens 1e9        into the cache: what training needs first

If it is interrupted, run it again: it continues where it stopped.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tokenmill.addresses import display_address, is_address, name_of, named, require_folder
from tokenmill.exchange.transfer_progress import counting
from tokenmill.feed.config import LoaderConfig, Packing
from tokenmill.feed.mixture import ONE_SET, Mixture, tokens_of
from tokenmill.feed.source import Order, Source
from tokenmill.remote.fetcher import fetcher
from tokenmill.remote.pull import pull
from tokenmill.remote.sets import manifest_at
from tokenmill.rows import plan
from tokenmill.rows.run import Documents, Run, Setting
from tokenmill.store.set_names import TOKENS_ROOT
from tokenmill.store.shards import DTYPES, Split


@dataclass(frozen=True)
class Pull:
    """Fetches a token set from an address, whole and verified; or, with --tokens, what training needs of it first."""

    # s3://, gs://, hf://datasets/OWNER/NAME, https://
    address: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="ADDRESS")]]
    # where to; by default data/tokens/NAME
    folder: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="[FOLDER]")]] = None
    tokens: str | None = None  # fetch only the first windows into the cache, of so many tokens, as 1e9 or 10B
    split: Split = "train"  # of which split, with --tokens
    seed: int = LoaderConfig.seed  # as in the training, with --tokens
    packing: Packing = LoaderConfig.packing  # as in the training, with --tokens
    cache_dir: str | None = None  # with --tokens; by default as TOKENMILL_CACHE says
    cache_bytes: str | None = None  # with --tokens, as 50G; by default nine tenths of what is free


def fetch(config: Pull) -> Path:
    """The folder of the set, or of its cache. ValueError or OSError if the set cannot be fetched."""
    if not is_address(config.address):
        raise ValueError(f"{config.address}: expected an address, as s3://bucket/NAME; a folder is there already")
    address = str(named(config.address))
    if config.tokens is not None:
        if config.folder is not None:
            raise ValueError("--tokens fetches into the cache; leave the folder out, or name a --cache-dir")
        return _warm(config, address)
    if config.cache_dir is not None or config.cache_bytes is not None:
        raise ValueError("--cache-dir and --cache-bytes are for --tokens; a whole set comes into its folder")
    require_folder("the folder", config.folder)
    folder = config.folder or TOKENS_ROOT / name_of(address)
    with counting(f"pulling {display_address(address)}") as count:
        count.of(_size_of(address))
        came = pull(address, folder, count)
    print(f"{came:,} shards came, {count.shards - came:,} were there already")
    if came < count.shards:
        print(f"what was there is taken by its records; to read its bytes: tokenmill verify {folder}")
    return folder


def _size_of(address: str) -> int:
    """Bytes of a set's tokens."""
    _, manifest = manifest_at(address)
    return sum(shard["tokens"] for shard in manifest["shards"]) * DTYPES[manifest["dtype"]].itemsize


def _warm(config: Pull, address: str) -> Path:
    """Fetches the first windows of training into the cache."""
    asked = tokens_of("--tokens", config.tokens)
    loader = LoaderConfig(
        tokens=address,
        split=config.split,
        batch_size=1,
        seq_len=2048,
        packing=config.packing,
        seed=config.seed,
        cache_dir=config.cache_dir,
        cache_bytes=config.cache_bytes,
    )
    if loader.packing == "nanochat":
        raise ValueError(f"--tokens is not supported with --packing {loader.packing}: each rank reads another part")
    token_set = Mixture.of(address).open(loader.kept)[ONE_SET]
    sets = {ONE_SET: Documents(token_set.digest, "", ONE_SET)}
    run = Run.start(Setting(1, 1, loader.seq_len, [], {}, sets))
    source = Source(ONE_SET, token_set, Order(loader.split, plan.Packing(loader.packing), loader.order_seed), run.legs)
    done, window, sizes = 0, 0, source.documents(0).windows.tokens.tolist()
    while done < asked and window < len(sizes):
        for cache, blocks in source.table(0, window).blocks:
            fetcher().require(cache, blocks)
        done, window = done + sizes[window], window + 1
        print(f"{window:,} of {len(sizes):,} windows, {done:,} tokens", flush=True)
    if done < asked:
        print(f"that is all of split {config.split!r}")
    return token_set.path


def main(arguments: list[str], prog: str) -> None:
    """Fetches what the command line asks for, and prints where it is."""
    print(fetch(tyro.cli(Pull, prog=prog, args=arguments, description=__doc__)))
