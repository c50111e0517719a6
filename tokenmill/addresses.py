"""Addresses of token sets and of text that is not on this disk.

    s3://bucket/tokens/web/               in its one spelling: s3://bucket/tokens/web
    hf://datasets/owner/name@v1/web       a folder of a dataset repository on the hub, at a branch, tag or commit
    https://host/tokens/web?sig=...       what follows `?` is sent with every request, and never shown

Everything else that names a token set is a folder.
"""

import os
import re
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from tokenmill.sanitize import HIDDEN, hide, redact

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*://")  # fsspec also knows zip://*.jsonl::s3://bucket/a.zip
LOST_SLASH = re.compile(r"(s3|gs|gcs|hf|https?|az|abfs):/(?!/)", re.IGNORECASE)  # a Path leaves one of the two
CACHE = "TOKENMILL_CACHE"
LONG_SECRET = 16  # characters of a value after `?`, or of a user, that is hidden wherever it appears


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
    hide_secrets(given)
    scheme, host, path, query, fragment = urlsplit(given)
    if scheme == "file":
        return Path(path)
    require_readable_host(given)
    if fragment:
        raise ValueError(f"{display_address(given)}: expected an address without `#`; rename what is there")
    if scheme.lower() in ("s3", "s3a") and ("@" in host or query):
        raise ValueError(
            f"{display_address(given)}: expected s3://BUCKET/PATH, found credentials or an option; botocore finds "
            "credentials in the environment, a profile or the instance"
        )
    path = re.sub("/{2,}", "/", path).rstrip("/")
    return f"{scheme.lower()}://{host}{path}" + (f"?{query}" if query else "")


def require_folder(what: str, given: object) -> None:
    """ValueError if an address is given where a folder on this disk is written."""
    if given is not None and is_address(given):
        shown = display_address(os.fspath(given))  # type: ignore[call-overload]  # is_address has looked
        raise ValueError(f"{what} must be on this disk, found an address, {shown}")


def require_readable_host(address: str) -> None:
    """ValueError if a password has characters that end it: what follows would be taken for a path, and shown."""
    scheme, host, _, _, _ = urlsplit(address)
    if not _is_readable(host):
        raise ValueError(
            f"{scheme}://: expected a port after the host's `:`, found something else; in a password, write %23 for #, "
            "%2F for /, %3A for : and %3F for ?"
        )


def _is_readable(host: str) -> bool:
    """Whether what follows the last `:` of a URL's host is a port, or the end of an IPv6 address."""
    _, colon, port = host.rpartition("@")[2].rpartition(":")
    return not colon or port.isdecimal() or port.endswith("]")


def hide_secrets(address: str) -> None:
    """Notes the password and the query of an address, so that nothing that is printed has them.

    ValueError, without the address, if it cannot be read.
    """
    try:
        _, host, _, query, _ = urlsplit(address)
    except ValueError:
        raise ValueError(
            f"{address.partition('://')[0][:20]}://: expected an address, found characters that no host has; write "
            "special characters of a password as %XX"
        ) from None
    user, _, password = host.rpartition("@")[0].partition(":")
    values = [
        user,
        *re.split("[&=:]", query),
        *([] if _is_readable(host) else host.split(":")),
        *re.findall(":([^/:@]+)@", address),
    ]
    hide(password, query if "=" in query else "", *(value for value in values if len(value) >= LONG_SECRET))


def display_address(address: str) -> str:
    """An address, or a URL, to be shown: without passwords and signatures."""
    try:
        hide_secrets(address)
    except ValueError:
        return f"{address.partition('://')[0][:20]}://{HIDDEN}"
    scheme, host, path, _, _ = urlsplit(address)
    if not _is_readable(host):
        return f"{scheme}://{HIDDEN}"
    return redact(urlunsplit((scheme, host.rpartition("@")[2], path, "", "")))


def name_of(tokens: str | Path) -> str:
    """The name of a folder or an address: its last part. A hub's repository loses its revision."""
    path = urlsplit(tokens).path if isinstance(tokens, str) else str(tokens)
    last = path.rstrip("/").rpartition("/")[2] or (urlsplit(tokens).netloc if isinstance(tokens, str) else "")
    return last.partition("@")[0] if isinstance(tokens, str) and tokens.startswith("hf://") else last


def joined(address: str, name: str) -> str:
    """The address of a file of a token set."""
    scheme, host, path, query, _ = urlsplit(address)
    quoted = quote(name) if scheme in ("http", "https") else name
    return urlunsplit((scheme, host, f"{path}/{quoted}", query, ""))


def cache_root(folder: str | os.PathLike[str] | None = None) -> Path:
    """The cache of token sets at an address: `folder`, or TOKENMILL_CACHE, or ~/.cache/tokenmill/remote."""
    if folder := os.environ.get(CACHE) if folder is None else folder:
        require_folder("the cache", folder)
        return Path(os.path.realpath(folder))
    return Path(os.path.realpath(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")) / "tokenmill" / "remote"
