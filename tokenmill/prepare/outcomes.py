"""The outcome of a preparation: a token set's folder, or what went wrong, as values that workers can send."""

import errno
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tokenmill.extras import what_to_install
from tokenmill.sanitize import redact

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


@dataclass(frozen=True)
class Failure:
    """Why a task has no result: one line for the user, and a traceback if it looks like a bug."""

    reason: str
    traceback: str = ""
    is_for_all: bool = False  # every other task would fail for it too: a full disk


def failure_of(error: BaseException) -> Failure:
    """The Failure for an error: its message, and a traceback too unless the user can do something about it."""
    if isinstance(error, ModuleNotFoundError) and (advice := what_to_install(error.name)):
        return Failure(f"{advice}, where the worker runs")
    if isinstance(error, OSError) and error.errno in FULL:
        return Failure(str(error), is_for_all=True)
    expected = isinstance(error, ValueError | OSError | MemoryError)
    reason = str(error) if expected and str(error) else f"{type(error).__name__}: {error}"
    return Failure(reason, "" if expected else "".join(traceback.format_exception(error)))


class PreparationError(Exception):
    """Some shards could not be made; the others are done. Has (what, Failure) for each, and the others' folder."""

    def __init__(self, failures: list[tuple[str, Failure]]):
        reasons = redact("; ".join(f"{what}: {failure.reason}" for what, failure in failures))
        super().__init__(f"{len(failures)} failed, all others are done: {reasons}")
        self.failures = failures
        self.folder: Path | None = None  # which has what is done; None if nothing is


class Prepared(NamedTuple):
    """A token set's folder or address, and how many of its shards other parts must still make."""

    folder: Path | str
    missing: int
