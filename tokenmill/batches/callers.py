"""Who called: the frames that led here, and warnings that point at the user's own line."""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

PACKAGE = str(Path(__file__).resolve().parents[1])


def frames() -> Iterator[FrameType]:
    """Those that called, the innermost first; of a worker that was forked, its parent's too."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def warn(message: str) -> None:
    """Warns at the line outside of this package that led here."""
    inside = 0
    for frame in frames():
        if not frame.f_code.co_filename.startswith(PACKAGE):
            break
        inside += 1
    warnings.warn(message, stacklevel=inside + 1)
