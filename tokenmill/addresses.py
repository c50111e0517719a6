"""Addresses of token sets and of text that is not on this disk.

    s3://bucket/tokens/web/               in its one spelling: s3://bucket/tokens/web
    hf://datasets/owner/name@v1/web       a folder of a dataset repository on the hub, at a branch, tag or commit
    https://host/tokens/web?sig=...       what follows `?` is sent with every request, and never shown

Everything else that names a token set is a folder. No address has a password.
"""

import os
import re
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from tokenmill.messages import redact

SCHEME = re.compile(
    r"[A-Za-z][A-Za-z0-9+.:-]*://"
)  # fsspec also knows zip://*.jsonl::s3://bucket/a.zip
LOST_SLASH = re.compile(
    r"(s3|gs|gcs|hf|https?|az|abfs):/(?!/)", re.IGNORECASE
)  # a Path leaves one of the two
HAVE_USERS = ("sftp", "ssh", "abfs", "abfss")  # where what is before `@` is no secret


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
    require_no_password(given)
    scheme, host, path, query, fragment = urlsplit(given)
    if scheme == "file":
        return Path(path)
    if fragment:
        raise ValueError(f"{redact(given)}: expected an address without `#`; rename what is there")
    if scheme.lower() in ("s3", "s3a") and query:
        raise ValueError(
            f"{redact(given)}: expected s3://BUCKET/PATH, found an option; set it for botocore"
        )
    path = re.sub("/{2,}", "/", path).rstrip("/")
    return f"{scheme.lower()}://{host}{path}" + (f"?{query}" if query else "")


def require_no_password(address: str) -> None:
    """ValueError, which does not show the address, if something is before its host, or no port after it."""
    scheme = address.partition("://")[0]
    try:
        parts = urlsplit(address)
        _, has_user = parts.port, "@" in parts.netloc  # ValueError for a port that is no number
        is_right = not has_user or (scheme in HAVE_USERS and not parts.password)
    except ValueError:
        is_right = False
    if not is_right:
        raise ValueError(
            f"{scheme}://...: expected a host, perhaps with a port, and no user or password; set credentials where the "
            "library of such addresses reads them (the environment, a profile), or name a signed URL, with `?`"
        )


def require_folder(what: str, given: object) -> None:
    """ValueError if an address is given where a folder on this disk is written."""
    if given is not None and is_address(given):
        raise ValueError(f"{what} must be on this disk, found an address, {redact(str(given))}")


def name_of(tokens: str | Path) -> str:
    """The name of a folder or an address: its last part. A hub's repository loses its revision."""
    text = str(tokens)
    last = (text.partition("?")[0] if has_scheme(text) else text).rstrip("/").rpartition("/")[2]
    return last.partition("@")[0] if text.startswith("hf://") else last


def joined(address: str, name: str) -> str:
    """The address of a file of a token set."""
    scheme, host, path, query, _ = urlsplit(address)
    quoted = quote(name) if scheme in ("http", "https") else name
    return urlunsplit((scheme, host, f"{path}/{quoted}", query, ""))


def cache_root(folder: str | os.PathLike[str] | None = None) -> Path:
    """The cache of token sets at an address: `folder`, or TOKENMILL_CACHE, or ~/.cache/tokenmill/remote."""
    if folder := os.environ.get("TOKENMILL_CACHE") if folder is None else folder:
        require_folder("the cache", folder)
        return Path(os.path.realpath(folder))
    return (
        Path(os.path.realpath(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"))
        / "tokenmill"
        / "remote"
    )
