"""Addresses of token sets and of text that is not on this disk.

    s3://bucket/tokens/web/               in its one spelling: s3://bucket/tokens/web
    hf://datasets/owner/name@v1/web       a folder of a repository, at a branch, tag or commit
    https://host/tokens/web?sig=...       what follows `?` is always sent, and never shown

Everything else that names a token set is a folder. No address has a password.
"""

import os
import re
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from tokenmill.checks import text_of
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
    if isinstance(tokens, bytes):
        return Path(os.fsdecode(tokens))
    name = text_of("a folder or an address", tokens)
    if LOST_SLASH.match(name) and not os.path.exists(name):
        name = name.replace(":/", "://", 1)
    if not has_scheme(name):
        return path_of(name)
    require_no_password(name)
    url = urlsplit(name)
    scheme = url.scheme.lower()
    if scheme == "file":
        if url.netloc not in ("", "localhost") or url.query or url.fragment:
            raise ValueError(
                f"{redact(name)}: expected file:///FOLDER, found a host, ? or #; name the folder"
            )
        return Path(url.path)
    if url.fragment:
        raise ValueError(f"{redact(name)}: expected an address without `#`; rename what is there")
    if scheme == "s3a":
        raise ValueError(f"{redact(name)}: write s3:// in place of s3a://, which is Hadoop's name")
    if scheme == "s3" and url.query:
        raise ValueError(
            f"{redact(name)}: expected s3://BUCKET/PATH, found an option; set it for botocore"
        )
    path = re.sub("/{2,}", "/", url.path).rstrip("/")
    address = f"{scheme}://{url.netloc}{path}"
    return f"{address}?{url.query}" if url.query else address


def path_of(name: str | os.PathLike[str]) -> Path:
    """The path that a user names, where `~` is the home folder."""
    return Path(os.path.expanduser(name))


def require_no_password(address: str) -> None:
    """ValueError, which does not show the address, for a user before its host or a wrong port."""
    scheme = address.partition("://")[0]
    if not _is_right(address, scheme):
        raise ValueError(
            f"{scheme}://...: expected a host, perhaps with a port, and no user or password; set "
            "credentials where the library of such addresses reads them (the environment, a "
            "profile), or name a signed URL, with `?`"
        )


def _is_right(address: str, scheme: str) -> bool:
    """Whether an address has no secret before its host, and a number as its port, if any."""
    try:
        url = urlsplit(address)
        _ = url.port  # ValueError if it is no number
    except ValueError:
        return False
    if "@" not in url.netloc:
        return True
    return scheme in HAVE_USERS and not url.password


def require_folder(what: str, location: object) -> None:
    """ValueError for an address where a folder on this disk is written."""
    if location is not None and is_address(location):
        raise ValueError(f"{what} must be on this disk, found an address, {redact(str(location))}")


def name_of(tokens: str | Path) -> str:
    """The name of a folder or an address: its last part. A hub's repository loses its revision."""
    text = str(tokens)
    path = text
    if has_scheme(text):
        path, _, _ = text.partition("?")
    _, _, name = path.rstrip("/").rpartition("/")
    if text.startswith("hf://"):
        name, _, _ = name.partition("@")
    return name


def joined(address: str, name: str) -> str:
    """The address of a file of a token set."""
    scheme, host, path, query, _ = urlsplit(address)
    quoted = quote(name) if scheme in ("http", "https") else name
    return urlunsplit((scheme, host, f"{path}/{quoted}", query, ""))


def cache_root(folder: str | os.PathLike[str] | None = None) -> Path:
    """The cache of token sets at an address.

    It is `folder`, or TOKENMILL_CACHE, or ~/.cache/tokenmill/remote.
    """
    if folder is None:
        folder = os.environ.get("TOKENMILL_CACHE")
    if folder:
        text_of("the cache", folder)
        require_folder("the cache", folder)
        return Path(os.path.realpath(path_of(folder)))
    return user_cache() / "remote"


def user_cache() -> Path:
    """The folder of this package among the user's caches."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.path.realpath(caches)) / "tokenmill"
