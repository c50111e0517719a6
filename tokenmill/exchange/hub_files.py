"""Fetches token files that others publish on the hub: `hf://datasets/kjj0/fineweb10B-gpt2/*.bin`

They come into data/raw/OWNER--NAME. Each is compared with the hash that the hub states. If you run it again, files that
are there are not fetched again.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tokenmill.addresses import named
from tokenmill.hub_client import parse_address
from tokenmill.text.hub import fetch, list_hub

AT_ONCE = 4  # files


def fetched(address: str, raw_dir: Path) -> list[Path]:
    """The files of a repository that match a pattern, on this disk. ConnectionError or FileNotFoundError if they
    cannot be fetched.
    """
    repository, revision, pattern = parse_address(str(named(address)))
    files = list_hub(f"{repository}/{pattern or '*.bin'}", revision, Path(raw_dir))
    print(f"fetching {len(files):,} files, as far as they are not here, into {raw_dir}", flush=True)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(fetch, files))
    return [Path(file.path) for file in files]
