"""Fetches the hub's files ahead of the workers, a few at a time, and says which units may begin.

fetching = Fetching(files, say, ahead=8)
fetching.state_of(unit)        True: its files are here; False: not yet; a text: why they cannot be fetched
fetching.forget()              makes room for one more
"""

import threading
from collections.abc import Callable, Iterator, Sequence

from tokenmill.humanize import in_bytes
from tokenmill.text.hub import fetch
from tokenmill.text.plan import Unit
from tokenmill.text.source_file import SourceFile

AT_ONCE = 4  # files


class Fetching:
    """Files on their way from the hub, `ahead` of those that are forgotten, in daemon threads: Ctrl-C ends them."""

    def __init__(self, files: Sequence[SourceFile], say: Callable[[str], None], ahead: int):
        self._states: dict[SourceFile, bool | str] = dict.fromkeys(files, False)
        self._room, self._say, left = threading.Semaphore(ahead), say, iter(files)  # each `next` is one thread's
        for _ in range(min(AT_ONCE, len(files))):
            threading.Thread(target=self._fetch, args=(left,), daemon=True, name="tokenmill-fetch").start()
        self.forget = self._room.release  # no unit needs one of the files any more

    def _fetch(self, left: Iterator[SourceFile]) -> None:
        for file in left:
            self._room.acquire()
            try:
                fetch(file)
                self._states[file] = True
                self._say(f"fetched {file.name}, {in_bytes(file.bytes)}")
            except Exception as error:
                self._states[file] = str(error)

    def state_of(self, unit: Unit) -> bool | str:
        """Whether a unit's files are all here, or why they never will be."""
        states = [self._states.get(file, True) for file in unit.files]
        return next((state for state in states if isinstance(state, str)), all(states))
