"""Why units are not made: one line for each, and the error that is raised once all other units are made."""

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


def failure_of(task: Any, error: BaseException) -> Failure:
    """The Failure for an error: its message, and a traceback too unless the user can do something about it."""
    expected = isinstance(error, ValueError | OSError | MemoryError)
    reason = str(error) if expected and str(error) else f"{type(error).__name__}: {error}"
    is_for_all = isinstance(error, ForAllError) or (isinstance(error, OSError) and error.errno in FULL)
    return Failure(task, reason, "" if expected else "".join(traceback.format_exception(error)), is_for_all)


class PreparationError(Exception):
    """Some units could not be made; the others are done. `failures` says which; `folder` has what is done."""

    def __init__(self, failures: list[Failure], folder: Path | str):
        reasons = "; ".join(dict.fromkeys(failure.reason for failure in failures))
        others = ", all others are done" * (not any(failure.is_for_all for failure in failures))
        super().__init__(f"{len(failures)} failed{others}: {reasons}")
        self.failures, self.folder = failures, folder
