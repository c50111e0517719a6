"""Why a task has no result, in one line for the user."""

import errno
import traceback
from pathlib import Path
from typing import Any, NamedTuple

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


class ForAllError(ValueError):
    """What every task would fail for."""


class Failure(NamedTuple):
    """Why a task has no result: one line for the user, and a traceback if it looks like a bug."""

    task: Any
    reason: str
    traceback: str = ""
    is_for_all: bool = False  # every other task would fail for it too: a full disk
    is_refusal: bool = False  # of the settings: a ForAllError


def failure_of(task: Any, error: BaseException) -> Failure:
    """The Failure for an error: its message; and a traceback unless the user can do something."""
    is_full = isinstance(error, OSError) and error.errno in FULL
    is_refusal = isinstance(error, ForAllError)
    named = f"{type(error).__name__}: {error}"
    if isinstance(error, ValueError | OSError | MemoryError):
        return Failure(task, str(error) or named, "", is_full or is_refusal, is_refusal)
    return Failure(task, named, "".join(traceback.format_exception(error)), is_full)


class PreparationError(Exception):
    """Some units could not be made; the others are done.

    `failures` says which, `folder` has the others.
    """

    def __init__(self, failures: list[Failure], folder: Path | str):
        reasons = "; ".join(dict.fromkeys(failure.reason for failure in failures))
        stops_all = any(failure.is_for_all for failure in failures)
        others_done = "" if stops_all else ", all others are done"
        super().__init__(f"{len(failures)} failed{others_done}: {reasons}")
        self.failures = failures
        self.is_refusal = any(failure.is_refusal for failure in failures)
        self.folder = folder
