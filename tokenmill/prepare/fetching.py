"""The hub's files, fetched: ahead of the workers, a few at a time; or those of a unit, now.

fetching = Fetching(files, say, ahead=8)
fetching.state_of(unit)         True: its files are here; False: not yet; a text: why they cannot be
fetching.forget(file)           makes room for one more
fetch_files(unit)
"""

import threading
from collections.abc import Callable, Iterator, Sequence

from tokenmill.messages import in_bytes
from tokenmill.text.hub import fetch_file
from tokenmill.text.plan import Unit
from tokenmill.text.source_file import SourceFile

AT_ONCE = 4  # files


def fetch_files(unit: Unit, say: Callable[[str], None] = lambda name: None) -> None:
    """Fetches a unit's files that are not here yet, and says their names before."""
    for file in unit.files:
        if not file.is_there:
            say(file.name)
            fetch_file(file)


class Fetching:
    """Files on their way from the hub, at most `ahead` of those that are forgotten.

    They are fetched in daemon threads: Ctrl-C ends them.
    """

    def __init__(self, files: Sequence[SourceFile], say: Callable[[str], None], ahead: int):
        self._states: dict[SourceFile, bool | str] = dict.fromkeys(files, False)
        self._say = say
        self._room = threading.Semaphore(ahead)
        files_left = iter(files)  # each `next` is one thread's
        for _ in range(min(AT_ONCE, len(files))):
            threading.Thread(
                target=self._fetch, args=(files_left,), daemon=True, name="tokenmill-fetch"
            ).start()

    def _fetch(self, files_left: Iterator[SourceFile]) -> None:
        for file in files_left:
            self._room.acquire()
            try:
                fetch_file(file)
                self._states[file] = True
                self._say(f"fetched {file.name}, {in_bytes(file.bytes)}")
            except Exception as error:
                self._states[file] = str(error)

    def forget(self, file: SourceFile) -> None:
        """No unit needs a file any more, which may have been here before."""
        if file in self._states:
            self._room.release()

    def state_of(self, unit: Unit) -> bool | str:
        """Whether a unit's files are all here, or why they never will be."""
        states = [self._states.get(file, True) for file in unit.files]
        for state in states:
            if isinstance(state, str):
                return state
        return all(states)
