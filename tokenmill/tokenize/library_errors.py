"""One kind of error for whatever a library raises when it cannot run a tokenizer, or encode a text."""

import contextlib
from collections.abc import Iterator


class CannotRun(ValueError):
    """A library cannot run a tokenizer, or encode a text."""


@contextlib.contextmanager
def naming_the_library(library: str, name: str, but: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
    """Turns whatever a library raises, even a Rust panic, into a ValueError, but for some errors."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError, ModuleNotFoundError, CannotRun, *but)):
            raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CannotRun(f"the {library} library cannot run tokenizer {name}: {reason:.300}") from error
