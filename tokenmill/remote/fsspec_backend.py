"""Everything that fsspec knows and the others do not: gs://, az://, sftp://, memory:// ...

One attempt to read a range, within a time limit where the file system has one. A file system lives in the process that
made it: none survives a fork.
"""

import os
from typing import Any
from urllib.parse import urlsplit

from tokenmill.addresses import display_address, joined
from tokenmill.extras import naming_the_extra
from tokenmill.remote.http_backend import RANGE_SECONDS, SLOWEST, WHOLE
from tokenmill.remote.retry import Again

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
                raise ValueError(f"{self.address}: {error}") from error
            except ValueError as error:
                raise ValueError(f"{self.address}: no such kind of address ({error})") from error
            self._pid = os.getpid()
        return self._found

    def path(self, name: str) -> str:
        """The name of a file in the file system."""
        return str(self.system()._strip_protocol(joined(self.address, name)))

    def read(self, name: str, start: int = 0, stop: int | None = None, fresh: bool = False) -> bytes:
        """The bytes `start` to `stop` of a file, or all. As HttpBackend.read."""
        if fresh:
            self._pid = 0
        system, path = self.system(), self.path(name)
        try:
            size = system.info(path).get("size") if stop is None else None
            found = self._cat(system, path, None if stop is None else start, stop) if (size or 0) <= WHOLE else b""
        except FINAL as error:
            raise type(error)(f"{self.display(name)}: {error}") from error
        except Exception as error:  # of each client another
            raise Again(f"{type(error).__name__}: {str(error)[:200]}") from error
        if (size or 0) > WHOLE:
            raise OSError(f"{self.display(name)}: expected at most {WHOLE:,} bytes, found {size:,}; not read")
        if stop is not None and len(found) != stop - start:
            raise Again(f"expected {stop - start:,} bytes, found {len(found):,}")
        return found

    def _cat(self, system: Any, path: str, start: int | None, stop: int | None) -> bytes:
        if not getattr(system, "async_impl", False):
            found: bytes = system.cat_file(path, start=start, end=stop)
            return found
        from fsspec.asyn import sync

        seconds = RANGE_SECONDS + ((stop or 0) - (start or 0)) / SLOWEST
        return bytes(sync(system.loop, system._cat_file, path, start=start, end=stop, timeout=seconds))
