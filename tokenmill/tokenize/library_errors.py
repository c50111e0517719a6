"""One kind of error for whatever a library raises when it cannot run a tokenizer, or encode a text."""

import contextlib
from collections.abc import Iterator


class CannotRun(ValueError):
    """A library cannot run a tokenizer, or encode a text."""


@contextlib.contextmanager
def naming_the_library(library: str, name: str, kind: type[ValueError] | None = None) -> Iterator[None]:
    """Turns whatever a library raises, even a Rust panic, into a ValueError of this kind."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError, ModuleNotFoundError, CannotRun):
        raise
    except BaseException as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise (kind or CannotRun)(f"the {library} library cannot run tokenizer {name}: {reason:.300}") from error
