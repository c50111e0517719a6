"""Finds token sets on this disk by their names.

    set_folder("data/tokens/web-gpt2-1bd489c3")   a path is taken as it is, and so is "./web"
    set_folder("web-gpt2-1bd489c3")               if it is not here: the folder under data/tokens
    set_folder("web")                             the one set under data/tokens of the data set web
    find_token_set("data/tokens")                 the one set in there, whatever its name is

A data set's name that fits two sets is an error that lists them; a folder of this name comes first.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tokenmill.addresses import named, path_of
from tokenmill.store.json_files import read_json

TOKENS_ROOT = Path("data/tokens")  # where prepare writes sets, and where names are looked up


def set_folder(tokens: str | os.PathLike[str], here: Path = Path()) -> str | Path:
    """The folder, or the address, that names a token set. `here` is what relative paths start from.

    ValueError if a short name fits several sets. A folder that does not exist is returned as it was
    given.
    """
    location = named(tokens)
    if isinstance(location, str):
        return location
    is_short = location.name == str(location)
    if not is_short or (here / location / "manifest.json").exists():
        return location
    if os.fsdecode(tokens) != location.name:  # "./web", of which Path keeps "web"
        return Path(os.path.abspath(here / location))
    if (here / TOKENS_ROOT / location).exists():
        return TOKENS_ROOT / location
    sets = list(_sets_of(here / TOKENS_ROOT, location.name))
    if not sets:
        return location
    if len(sets) > 1:
        folders = [str(TOKENS_ROOT / path.name) for path in sets]
        listed = "\n  ".join(["", *folders])
        raise ValueError(
            f"{location}: {len(sets)} token sets have this name; give the name of one of these "
            f"folders:{listed}"
        )
    return TOKENS_ROOT / sets[0].name


def _sets_of(root: Path, dataset: str) -> Iterator[Path]:
    """The folders of finished sets of a data set."""
    for manifest in sorted(root.glob("*/manifest.json")):
        with contextlib.suppress(ValueError):  # damaged, or of another version: no set to train on
            if read_json(manifest, "tokens").get("dataset") == dataset:
                yield manifest.parent


def set_with_manifest(digest: str) -> Path | None:
    """The folder under data/tokens that has, or once had, a manifest; None if none has."""
    paths = sorted(TOKENS_ROOT.glob(f"*/manifests/{digest}.json"))
    return paths[0].parent.parent if paths else None


def find_token_set(root: str | os.PathLike[str]) -> Path:
    """The one token set under root.

    FileNotFoundError for none. ValueError that lists several, the newest last, or that names one
    that is not finished.
    """
    root = path_of(root)
    manifests = sorted(root.glob("*/manifest.json"), key=_age)
    if not manifests:
        raise FileNotFoundError(
            f"{root.absolute()}: expected a token set, found none; run `tokenmill prepare` "
            "(in a clone `python prepare_data.py`) first, or name its folder with tokens="
        )
    newest = manifests[-1].parent
    if len(manifests) > 1:
        listed = "".join(f"\n  {path.parent}, of {_made_at(path)}" for path in manifests)
        raise ValueError(
            f"{root}: {len(manifests)} token sets are here, and none was named:{listed}\n"
            "name one where the loader is made; the last one that was prepared is\n"
            f'  tokens="{newest}"'
        )
    begun = {path.parent for path in root.glob("*/shards")}
    unfinished = sorted(begun - {newest})
    if unfinished:
        raise ValueError(
            f"{root}: none was named, and beside {newest} is {unfinished[0]}, which is not "
            "finished: finish it, delete it, or name the set where the loader is made, as "
            f'tokens="{newest}"'
        )
    return newest


def _age(manifest: Path) -> tuple[int, Path]:
    return manifest.stat().st_mtime_ns, manifest


def _made_at(manifest: Path) -> str:
    return time.ctime(manifest.stat().st_mtime)
