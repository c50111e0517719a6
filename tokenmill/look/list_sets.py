"""`tokenmill list`: the token sets on this disk.

    tokenmill list                      those under data/tokens
    tokenmill list /mnt/tokens          those in another folder

Every command and loader takes a set's folder, its name, or the name of its data set if no other set has that: `web` for
data/tokens/web-gpt2-1bd489c3.
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from tokenmill.humanize import counted, in_bytes
from tokenmill.sanitize import sanitize
from tokenmill.store.set_names import TOKENS_ROOT
from tokenmill.store.shards import SPLITS
from tokenmill.store.token_sets import TokenSet


@dataclass(frozen=True)
class ListSets:
    """Lists the token sets on this disk, the newest last."""

    # the folder that they are in
    root: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FOLDER")]] = TOKENS_ROOT


def lines(root: Path) -> Iterator[str]:
    """A few lines for each set. FileNotFoundError if there is no such folder, or nothing in it."""
    folders = [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
    if (root / "manifest.json").exists():
        folders = [root]
    finished = [path for path in folders if (path / "manifest.json").exists()]
    others = [path for path in folders if path not in finished and (path / "shards").is_dir()]
    if not finished and not others:
        raise FileNotFoundError(f"{root}: expected token sets, found none; run `tokenmill prepare` first")
    sets = []
    for path in sorted(finished, key=lambda path: (path / "manifest.json").stat().st_mtime_ns):
        try:
            sets.append((path, TokenSet(path)))
        except (ValueError, OSError) as error:
            yield f"{path.name}\n    cannot be opened: {error}"
    same = Counter(token_set.manifest["dataset"] for _, token_set in sets)
    for path, token_set in sets:
        dataset = token_set.manifest["dataset"]
        yield f"{path.name}  ({dataset})" if same[dataset] == 1 and root == TOKENS_ROOT else path.name
        yield from (f"    {line}" for line in _about(token_set))
    for path in sorted(others):
        made = len(list(path.glob("shards/*.json")))
        yield f"{path.name}\n    not finished: {counted(made, 'shard')} made; run the command that prepares it again"


def _about(token_set: TokenSet) -> Iterator[str]:
    facts, tokenizer = token_set.manifest, token_set.tokenizer
    size = facts["tokens"] * token_set.numpy_dtype.itemsize
    kind = ", conversations" if token_set.is_chat else ""
    yield f"tokenizer {tokenizer['name']} of {tokenizer['vocab_size']:,} tokens{kind}, {in_bytes(size)}"
    for split in SPLITS:
        entries = token_set.split(split)
        documents, tokens = (sum(getattr(entry, what) for entry in entries) for what in ("documents", "tokens"))
        yield f"{split:5} {counted(documents, 'document'):>22} {tokens:>18,} tokens"
    if views := token_set.view_names():
        yield f"views: {', '.join(views)}"
    prepared = (token_set.path / "manifest.json").stat().st_mtime
    yield f"prepared {time.strftime('%Y-%m-%d %H:%M', time.localtime(prepared))}"


def main(arguments: list[str], prog: str) -> None:
    """Lists the sets for these command-line arguments."""
    config = tyro.cli(ListSets, prog=prog, args=arguments, description=__doc__)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for line in lines(config.root):
        console.print(sanitize(line))
