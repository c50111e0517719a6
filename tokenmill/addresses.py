"""Addresses of token sets and of text that is not on this disk.

    s3://bucket/tokens/web/               in its one spelling: s3://bucket/tokens/web
    hf://datasets/owner/name@v1/web       a folder of a dataset repository on the hub, at a branch, tag or commit
    https://host/tokens/web?sig=...       what follows `?` is sent with every request, and never shown

Everything else that names a token set is a folder.
"""

import os
import re
import zlib
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*://")  # fsspec also knows zip://*.jsonl::s3://bucket/a.zip
LOST_SLASH = re.compile(r"(s3|gs|gcs|hf|https?|az|abfs):/(?!/)", re.IGNORECASE)  # a Path leaves one of the two
CACHE = "TOKENMILL_CACHE"


def has_scheme(text: str) -> bool:
    """Whether a text begins as a URL does: s3://, hf://, file://."""
    return SCHEME.match(text) is not None


def is_address(tokens: object) -> bool:
    """Whether this names a token set that is not on this disk."""
    return isinstance(tokens, str | os.PathLike) and not isinstance(named(tokens), Path)


def named(tokens: str | os.PathLike[str]) -> str | Path:
    """An address in its one spelling, or a folder. A Path made from an address is that address."""
    given = os.fspath(tokens)
    if isinstance(given, bytes):
        return Path(os.fsdecode(given))
    if LOST_SLASH.match(given) and not os.path.exists(given):
        given = given.replace(":/", "://", 1)
    if not has_scheme(given):
        return Path(given)
    scheme, host, path, query, fragment = urlsplit(given)
    if scheme == "file":
        return Path(path)
    if fragment:
        raise ValueError(f"{given}: expected an address, found a `#` in it, which none can have; rename what is there")
    path = re.sub("/{2,}", "/", path).rstrip("/")
    return f"{scheme.lower()}://{host}{path}" + (f"?{query}" if query else "")


def require_folder(what: str, given: object) -> None:
    """ValueError if an address is given where a folder on this disk is written."""
    if given is not None and is_address(given):
        raise ValueError(f"{what} must be on this disk, found an address, {given}; `tokenmill push` sends sets there")


def display_address(address: str) -> str:
    """An address, or a URL, to be shown: without passwords and signatures."""
    scheme, host, path, _, _ = urlsplit(address)
    return urlunsplit((scheme, host.rpartition("@")[2], path, "", ""))


def name_of(tokens: str | Path) -> str:
    """The name of a folder or an address: its last part. A hub's repository loses its revision."""
    path = urlsplit(tokens).path if isinstance(tokens, str) else str(tokens)
    last = path.rstrip("/").rpartition("/")[2] or (urlsplit(tokens).netloc if isinstance(tokens, str) else "")
    return last.partition("@")[0] if isinstance(tokens, str) and tokens.startswith("hf://") else last


def joined(address: str, name: str) -> str:
    """The address of a file of a token set."""
    scheme, host, path, query, _ = urlsplit(address)
    return urlunsplit((scheme, host, f"{path}/{name}", query, ""))


def remote_name(subfolders: int, shard: str, suffix: str) -> str:
    """The name of a shard's file under an address: in shards/, or in a folder below it if there are too many."""
    below = f"{zlib.crc32(shard.encode()) % subfolders:03d}/" if subfolders else ""
    return f"shards/{below}{shard}.{suffix}"


def cache_root(folder: str | os.PathLike[str] | None = None) -> Path:
    """The folder that keeps blocks of token sets: `folder`, or TOKENMILL_CACHE, or ~/.cache/tokenmill/sets."""
    if folder is not None:
        return Path(os.path.realpath(folder))
    if os.environ.get(CACHE):
        return Path(os.path.realpath(os.environ[CACHE]))
    return Path(os.path.realpath(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")) / "tokenmill" / "sets"
