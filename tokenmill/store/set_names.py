"""Finds token sets on this disk by their names.

    set_folder("data/tokens/web-gpt2-1bd489c3")   a path is taken as it is, and so is "./web"
    set_folder("web-gpt2-1bd489c3")               if there is no such set here: the folder under data/tokens
    set_folder("web")                             the one set under data/tokens whose data set is called web
    find_token_set("data/tokens")                 the one set in there, whatever its name is

A data set's name that fits two sets is an error that lists them; a folder of this name comes first.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tokenmill.addresses import named
from tokenmill.store.files import read_json

TOKENS_ROOT = Path("data/tokens")  # where prepare writes sets, and where names are looked up


def set_folder(tokens: str | os.PathLike[str], here: Path = Path()) -> str | Path:
    """The folder, or the address, that names a token set. `here` is what relative paths start from.

    ValueError if a short name fits several sets. A folder that does not exist is returned as it was given.
    """
    where = named(tokens)
    if (
        isinstance(where, str)
        or where.name != str(where)
        or (here / where / "manifest.json").exists()
    ):
        return where
    if os.fsdecode(tokens) != where.name:  # "./web", of which Path keeps "web"
        return Path(os.path.abspath(here / where))
    if (here / TOKENS_ROOT / where).exists():
        return TOKENS_ROOT / where
    found = list(_sets_of(here / TOKENS_ROOT, where.name))
    if len(found) > 1:
        listed = "".join(f"\n  {TOKENS_ROOT / path.name}" for path in found)
        raise ValueError(
            f"{where}: {len(found)} token sets have this name; give the name of one of these folders:{listed}"
        )
    return TOKENS_ROOT / found[0].name if found else where


def _sets_of(root: Path, dataset: str) -> Iterator[Path]:
    """The folders of finished sets of a data set."""
    for manifest in sorted(root.glob("*/manifest.json")):
        with contextlib.suppress(ValueError):  # damaged, or of another version: no set to train on
            if read_json(manifest, "tokens").get("dataset") == dataset:
                yield manifest.parent


def find_token_set(root: str | os.PathLike[str]) -> Path:
    """The one token set under root; FileNotFoundError for none, ValueError that lists several, the newest last, or that
    names one that is not finished.
    """
    found = sorted(
        Path(root).glob("*/manifest.json"), key=lambda path: (path.stat().st_mtime_ns, path)
    )
    if not found:
        raise FileNotFoundError(
            f"{Path(root).absolute()}: expected a token set, found none; run `tokenmill prepare` "
            "(in a clone `python prepare_data.py`) first, or name its folder with tokens="
        )
    if len(found) > 1:
        listed = "".join(
            f"\n  {path.parent}, of {time.ctime(path.stat().st_mtime)}" for path in found
        )
        raise ValueError(
            f"{root}: {len(found)} token sets are here, and none was named:{listed}\n"
            f'name one where the loader is made; the last one that was prepared is\n  tokens="{found[-1].parent}"'
        )
    begun = sorted(
        {path.parent for path in Path(root).glob("*/shards")} - {path.parent for path in found}
    )
    if begun:
        raise ValueError(
            f"{root}: none was named, and beside {found[0].parent} is {begun[0]}, which is not finished: finish it, "
            f'delete it, or name the set where the loader is made, as tokens="{found[0].parent}"'
        )
    return found[0].parent
