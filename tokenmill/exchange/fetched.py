"""Token files that others publish on the hub, fetched and checked: `hf://datasets/kjj0/fineweb10B-gpt2/*.bin`

They come into data/raw/OWNER--NAME, each compared with the hash that the hub states, and stay there: run again, those
that are there are not fetched again.
"""

from pathlib import Path

from tokenmill.remote.addresses import named
from tokenmill.remote.hub import parts_of
from tokenmill.text.downloads import Downloads
from tokenmill.text.hub import list_matching

WORKERS = 4


class _Lines:
    """Downloads, told a line each."""

    def say(self, text: str) -> None:
        print(text, flush=True)

    def begin(self, what: str) -> str:
        self.say(f"fetching {what}")
        return what

    def move(self, bar: str, done: float, total: float, rates: str) -> None:
        pass

    def end(self, bar: str) -> None:
        pass


def fetched(address: str, raw_dir: Path) -> list[Path]:
    """The files of a pattern in a repository, here. ConnectionError or FileNotFoundError where they cannot be had."""
    repository, revision, pattern = parts_of(str(named(address)))
    listing = list_matching(repository, revision, pattern or "*.bin")
    at = "" if revision == "main" else f"--{revision}"
    folder = Path(raw_dir) / f"{repository}{at}".replace("/", "--")
    downloads = Downloads(listing, folder, WORKERS, _Lines())
    try:
        coming = [(file.name, downloads.start(file.name)) for file in listing.files]
        for _, future in coming:
            future.result()
    finally:
        downloads.close()
    return [folder / name for name, _ in coming]
