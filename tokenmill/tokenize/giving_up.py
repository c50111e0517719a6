"""What a library says where it cannot run a tokenizer, or a text, in one kind of error."""

import contextlib
from collections.abc import Iterator


class CannotRun(ValueError):
    """What a library says of a tokenizer that it cannot run, or of a text."""


@contextlib.contextmanager
def naming_the_library(library: str, name: str, kind: type[ValueError] | None = None) -> Iterator[None]:
    """Whatever a library says of a tokenizer that it cannot run, a Rust panic too, as a ValueError of this kind."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError, ModuleNotFoundError, CannotRun):
        raise
    except BaseException as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise (kind or CannotRun)(f"the {library} library cannot run tokenizer {name}: {reason:.300}") from error
