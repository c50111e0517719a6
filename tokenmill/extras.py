"""Optional packages: a one-line error that says what to install when one is missing.

`pip install tokenmill` installs only numpy, which is enough for tokenmill.numpy. pyproject.toml has
the extras.
"""

import contextlib
from collections.abc import Iterator

INSTEAD = {
    "torch": "; or use RowLoader and position_ids of tokenmill.numpy or tokenmill.jax, which do "
    "not need torch"
}


class MissingExtra(ModuleNotFoundError):
    """A package of an extra is not installed. The message says what to install."""


@contextlib.contextmanager
def naming_the_extra(extra: str) -> Iterator[None]:
    """Raises MissingExtra, which names the extra to install, where a package is not installed.

    A missing module of tokenmill, or inside a package that is installed, is another error, which
    stays as it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if isinstance(error, MissingExtra) or error.name is None or "." in error.name:
            raise
        advice = f"{error.name} is not installed; {pip_line(extra)}{INSTEAD.get(error.name, '')}"
        raise MissingExtra(advice, name=error.name) from error


def pip_line(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'tokenmill[{extra}]' (in a clone: pip install '.[{extra}]')"
