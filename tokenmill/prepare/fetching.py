"""Fetches the hub's files ahead of the workers, a few at a time, and says which units may begin.

fetching = Fetching(files, bars, ahead=8)
fetching.state_of(unit)        True: its files are here; False: not yet; a text: why they cannot be fetched
fetching.forget(file)          makes room for one more
"""

import threading
from collections.abc import Iterator, Sequence

from tokenmill.humanize import in_bytes
from tokenmill.prepare.progress import Bars
from tokenmill.text.hub import fetch
from tokenmill.text.plan import Unit
from tokenmill.text.source_file import SourceFile

AT_ONCE = 4  # files


class Fetching:
    """Files on their way from the hub, at most `ahead` of what is forgotten, in daemon threads: Ctrl-C ends them."""

    def __init__(self, files: Sequence[SourceFile], bars: Bars, ahead: int):
        self._states: dict[SourceFile, bool | str] = dict.fromkeys(files, False)
        self._room, self._bars = threading.Semaphore(ahead), bars
        left = iter(files)  # each `next` is one thread's, as the interpreter runs it whole
        for _ in range(min(AT_ONCE, len(files))):
            threading.Thread(target=self._fetch, args=(left,), daemon=True, name="tokenmill-fetch").start()

    def _fetch(self, left: Iterator[SourceFile]) -> None:
        for file in left:
            self._room.acquire()
            try:
                fetch(file)
                self._states[file] = True
                self._bars.say(f"fetched {file.name}, {in_bytes(file.bytes)}")
            except Exception as error:
                self._states[file] = str(error)

    def state_of(self, unit: Unit) -> bool | str:
        """Whether a unit's files are all here, or why they never will be."""
        states = [self._states.get(file, True) for file in unit.files]
        return next((state for state in states if isinstance(state, str)), all(states))

    def forget(self, file: SourceFile) -> None:
        """Makes room for one more file, as no unit needs this one any more."""
        self._room.release()
