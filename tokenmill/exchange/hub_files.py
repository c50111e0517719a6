"""Fetches token files that others publish on the hub: `hf://datasets/kjj0/fineweb10B-gpt2/*.bin`

They come into data/raw/OWNER--NAME. Each is compared with the hash that the hub states. If you run it again, files that
are there are not fetched again.
"""

from pathlib import Path

from tokenmill.addresses import named
from tokenmill.hub_client import parse_address
from tokenmill.text.downloads import Downloads
from tokenmill.text.hub import list_matching

WORKERS = 4


class _Lines:
    """Prints a line for each download."""

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
    """The files of a repository that match a pattern, on this disk. ConnectionError or FileNotFoundError if they
    cannot be fetched.
    """
    repository, revision, pattern = parse_address(str(named(address)))
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
