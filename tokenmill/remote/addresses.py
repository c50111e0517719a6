"""Addresses: token sets that lie elsewhere, in the one spelling that they are known by.

    s3://bucket/tokens/web/               ->  s3://bucket/tokens/web
    hf://datasets/owner/name@v1/web       a folder of a dataset repository on the hub, at a branch, tag or commit
    https://host/tokens/web?sig=...       what follows `?` is sent with every request, and never shown

Everything else that a token set is named by is a folder.
"""

import os
import re
import zlib
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
LOST_SLASH = re.compile(r"(s3|gs|gcs|hf|https?|az|abfs):/(?!/)", re.IGNORECASE)  # of which a Path leaves one
CACHE = "TOKENMILL_CACHE"


def is_address(tokens: object) -> bool:
    """Whether this names a token set that lies elsewhere."""
    return isinstance(tokens, str | os.PathLike) and not isinstance(named(tokens), Path)


def named(tokens: str | os.PathLike[str]) -> str | Path:
    """An address in its one spelling, or a folder. A Path that an address was made to is that address."""
    told = os.fspath(tokens)
    if isinstance(told, bytes):
        return Path(os.fsdecode(told))
    if LOST_SLASH.match(told) and not os.path.exists(told):
        told = told.replace(":/", "://", 1)
    if not ADDRESS.match(told):
        return Path(told)
    scheme, host, path, query, fragment = urlsplit(told)
    if scheme == "file":
        return Path(path)
    if fragment:
        raise ValueError(f"{told}: expected an address, found a `#` in it, which none can have; rename what is there")
    path = re.sub("/{2,}", "/", path).rstrip("/")
    return f"{scheme.lower()}://{host}{path}" + (f"?{query}" if query else "")


def require_folder(what: str, given: object) -> None:
    """ValueError where something is written to a folder here, and an address was given."""
    if given is not None and is_address(given):
        raise ValueError(f"{what} must be on this disk, found an address, {given}; `tokenmill push` sends sets there")


def told(address: str) -> str:
    """An address, or a URL, as it may be shown: without passwords and signatures."""
    scheme, host, path, _, _ = urlsplit(address)
    return urlunsplit((scheme, host.rpartition("@")[2], path, "", ""))


def name_of(tokens: str | Path) -> str:
    """What a folder or an address is called: its last part, of a hub's repository without its revision."""
    path = urlsplit(tokens).path if isinstance(tokens, str) else str(tokens)
    last = path.rstrip("/").rpartition("/")[2] or (urlsplit(tokens).netloc if isinstance(tokens, str) else "")
    return last.partition("@")[0] if isinstance(tokens, str) and tokens.startswith("hf://") else last


def joined(address: str, name: str) -> str:
    """The address of a file of a token set."""
    scheme, host, path, query, _ = urlsplit(address)
    return urlunsplit((scheme, host, f"{path}/{name}", query, ""))


def remote_name(subfolders: int, shard: str, suffix: str) -> str:
    """Where a shard's file lies under an address: in shards/, or where that would be too many in a folder below it."""
    below = f"{zlib.crc32(shard.encode()) % subfolders:03d}/" if subfolders else ""
    return f"shards/{below}{shard}.{suffix}"


def cache_root(told: str | os.PathLike[str] | None = None) -> Path:
    """Where blocks of token sets are kept: as told, or what TOKENMILL_CACHE says, or ~/.cache/tokenmill/sets."""
    if told is not None:
        return Path(os.path.realpath(told))
    if os.environ.get(CACHE):
        return Path(os.path.realpath(os.environ[CACHE]))
    return Path(os.path.realpath(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")) / "tokenmill" / "sets"
