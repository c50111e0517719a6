"""The libraries that run tokenizers: loaded when they are first needed, and named in their errors.

with naming_the_library("tiktoken", "gpt2"):
    tiktoken_package().Encoding(...)
"""

import contextlib
from collections.abc import Iterator
from types import ModuleType

from tokenmill.extras import naming_the_extra
from tokenmill.messages import first_line


class CannotRun(ValueError):
    """A library cannot run a tokenizer, or encode a text."""


@contextlib.contextmanager
def naming_the_library(
    library: str, name: str, passed_on: tuple[type[BaseException], ...] = ()
) -> Iterator[None]:
    """Turns what a library raises, even a Rust panic, into a ValueError, but for some errors."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError, ModuleNotFoundError, CannotRun):
        raise
    except passed_on:
        raise
    except BaseException as error:
        raise CannotRun(
            f"the {library} library cannot run tokenizer {name}: {first_line(error)}"
        ) from error


def tiktoken_package() -> ModuleType:
    """The package, loaded when it is first needed: to read and describe one needs none."""
    with naming_the_extra("prepare"):
        import tiktoken
    return tiktoken
