"""Everything that fsspec knows and the others do not: gs://, az://, sftp://, memory:// ...

One attempt to read a range, within a time limit where the file system has one. A file system lives in the process that
made it: none survives a fork.
"""

import os
import time
from typing import Any
from urllib.parse import urlsplit

from tokenmill.addresses import display_address, joined
from tokenmill.extras import naming_the_extra
from tokenmill.remote.http_backend import RANGE_SECONDS, SLOWEST, Limits
from tokenmill.remote.retry import Again
from tokenmill.sanitize import sanitize

FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


class FsspecBackend:
    """Files under an address of a scheme that fsspec knows. ValueError if it knows none."""

    def __init__(self, address: str):
        self.address = address
        self._pid, self._found = 0, None
        self.system()

    def display(self, name: str) -> str:
        """The address of a file, to be shown."""
        return display_address(joined(self.address, name))

    def system(self) -> Any:
        """fsspec's file system, of this process."""
        if self._pid != os.getpid():
            with naming_the_extra("remote"):
                import fsspec
            scheme = urlsplit(self.address).scheme
            try:
                self._found = fsspec.filesystem(scheme, skip_instance_cache=scheme != "memory")
            except ImportError as error:
                raise ValueError(f"{self.display('')}: {error}") from error
            except (ValueError, TypeError) as error:
                raise ValueError(f"{self.display('')}: no such kind of address ({error})") from error
            self._pid = os.getpid()
        return self._found

    def path(self, name: str) -> str:
        """The name of a file in the file system."""
        return str(self.system()._strip_protocol(joined(self.address, name)))

    def read(self, name: str, start: int, stop: int | None, fresh: bool, limits: Limits) -> bytes:
        """The bytes `start` to `stop` of a file, or all. As HttpBackend.read."""
        if fresh:
            self._pid = 0
        system, path, most = self.system(), self.path(name), limits.most
        span = None if stop is None else (start, stop)
        try:
            size = system.info(path).get("size") if span is None else None
            found = self._cat(system, path, span, limits) if (size or 0) <= most else b""
        except FINAL as error:
            raise type(error)(f"{self.display(name)}: {sanitize(str(error))}") from None
        except Exception as error:  # of each client another
            raise Again(f"{type(error).__name__}: {sanitize(str(error))[:200]}") from None
        if max(size or 0, len(found)) > most:
            raise OSError(f"{self.display(name)}: expected at most {most:,} bytes, found {size:,}; not read")
        if span is not None and len(found) != most:
            raise Again(f"expected {most:,} bytes, found {len(found):,}")
        return found

    def _cat(self, system: Any, path: str, span: tuple[int, int] | None, limits: Limits) -> bytes:
        start, stop = span or (None, None)
        if not getattr(system, "async_impl", False):
            found: bytes = system.cat_file(path, start=start, end=stop)
            return found
        from fsspec.asyn import sync

        seconds = min(RANGE_SECONDS + limits.most / SLOWEST, max(0.1, limits.until - time.monotonic()))
        return bytes(sync(system.loop, system._cat_file, path, start=start, end=stop, timeout=seconds))
