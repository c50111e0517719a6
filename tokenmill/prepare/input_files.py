"""The files that a preparation reads: those of the source, perhaps some of them, and one from elsewhere that validates.

files, config = list_files(config, say)      --val-file then has a name among the files
fetching = Fetching(files, say, ahead=8)     fetches the hub's ahead of the workers, a few at a time
fetching.state_of(unit)                      True: its files are here; False: not yet; a text: why they cannot be
fetching.forget()                            makes room for one more
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tokenmill.addresses import has_scheme
from tokenmill.messages import in_bytes
from tokenmill.prepare.config import PrepareConfig
from tokenmill.prepare.validation import LAST
from tokenmill.text.formats import ReadOptions
from tokenmill.text.hub import fetch
from tokenmill.text.listing import list_sources
from tokenmill.text.plan import Unit
from tokenmill.text.source_file import SourceFile


def list_files(
    config: PrepareConfig, say: Callable[[str], None]
) -> tuple[list[SourceFile], PrepareConfig]:
    """The files in the order of their names. Raises what `list_sources` raises, and ValueError for flags that do not go
    with these files.
    """
    listing = list_sources(config.source, Path(config.raw_dir), config.revision)
    for line in listing.left_out:
        say(f"left out {line}")
    files, val = listing.files, config.val_file or ""
    if config.num_shards is not None:
        if config.num_shards > len(files):
            raise ValueError(
                f"expected {config.num_shards} files, found {len(files)}; give a smaller --num-shards"
            )
        last = [file for file in files if file.name == (files[-1].name if val == LAST else val)]
        files = list(dict.fromkeys([*files[: config.num_shards], *last]))
    names = {file.path: file.name for file in files}
    if val not in (LAST, *names.values()) and (has_scheme(val) or Path(val).is_file()):
        other, *more = list_sources([val]).files
        if more:
            raise ValueError(
                f"--val-file {val}: expected one file, found {len(more) + 1:,}; name one"
            )
        name = names.get(other.path) or (
            f"val/{other.name}" if other.name in names.values() else other.name
        )
        files = files if other.path in names else [*files, replace(other, name=name)]
        config = replace(config, val_file=name)
    _require_fitting(files, config, config.options)
    return files, config


def _require_fitting(files: list[SourceFile], config: PrepareConfig, options: ReadOptions) -> None:
    """ValueError for options that mean nothing to these files, or if the only file is one document."""
    file, has_separator = files[0], options.document_separator is not None
    if config.revision != "main" and file.hub is None:
        raise ValueError(f"{file.shown}: --revision is for repositories on the hub; leave it out")
    if not file.format.is_text and has_separator:
        raise ValueError(f"{file.shown}: --document-separator is for files of text; leave it out")
    if file.format.is_text and (options.kept or options.text_column != ReadOptions().text_column):
        raise ValueError(
            f"{file.shown}: a file of text has no columns; leave out --text-column and --keep-columns"
        )
    if file.format.is_text and len(files) == 1 and not has_separator:
        raise ValueError(
            f"{file.shown}: found this one file, which is one document, so nothing would be left to validate with; say "
            r"what separates its documents, as --document-separator '\n\n' or '<|endoftext|>', or add files"
        )


AT_ONCE = 4  # files


class Fetching:
    """Files on their way from the hub, `ahead` of those that are forgotten, in daemon threads: Ctrl-C ends them."""

    def __init__(self, files: Sequence[SourceFile], say: Callable[[str], None], ahead: int):
        self._states: dict[SourceFile, bool | str] = dict.fromkeys(files, False)
        self._room, self._say, left = (
            threading.Semaphore(ahead),
            say,
            iter(files),
        )  # each `next` is one thread's
        for _ in range(min(AT_ONCE, len(files))):
            threading.Thread(
                target=self._fetch, args=(left,), daemon=True, name="tokenmill-fetch"
            ).start()
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
