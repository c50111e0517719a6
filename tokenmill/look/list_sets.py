"""`tokenmill list`: the token sets on this disk.

    tokenmill list                      those under data/tokens
    tokenmill list /mnt/tokens          those in another folder

Every command and loader takes a set's folder, its name, or the name of its data set if no other set
has that: `web` for data/tokens/web-gpt2-1bd489c3.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tokenmill.messages import counted, in_bytes, sanitize
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
    candidates: list[Path] = []
    if (root / "manifest.json").exists():
        candidates = [root]
    elif root.is_dir():
        candidates = list(root.iterdir())
    folders = [path for path in candidates if (path / "shards").is_dir()]
    if not folders:
        raise FileNotFoundError(
            f"{root}: expected token sets, found none; run `tokenmill prepare` first"
        )
    for path in sorted(folders, key=lambda path: path.stat().st_mtime_ns):
        yield path.name
        try:
            for line in _about(TokenSet(path)):
                yield f"    {line}"
        except FileNotFoundError:
            made = counted(len(list(path.glob("shards/*.json"))), "shard")
            yield f"    not finished: {made} made; run the command that prepares it again"
        except (ValueError, OSError) as error:
            yield f"    cannot be opened: {error}"


def _about(token_set: TokenSet) -> Iterator[str]:
    dataset = token_set.manifest["dataset"]
    name = token_set.tokenizer["name"]
    vocab_size = token_set.tokenizer["vocab_size"]
    size = in_bytes(token_set.manifest["tokens"] * token_set.numpy_dtype.itemsize)
    kind = ", conversations" if token_set.is_chat else ""
    yield f"{dataset}, tokenizer {name} of {vocab_size:,} tokens{kind}, {size}"
    for split in SPLITS:
        entries = token_set.split(split)
        documents = counted(sum(entry.documents for entry in entries), "document")
        tokens = sum(entry.tokens for entry in entries)
        yield f"{split:5} {documents:>22} {tokens:>18,} tokens"
    views = token_set.view_names()
    if views:
        names = ", ".join(views)
        yield f"views: {names}"


def main(arguments: list[str], prog: str) -> None:
    """Lists the sets for these command-line arguments."""
    config = tyro.cli(ListSets, prog=prog, args=arguments, description=__doc__)
    for line in lines(config.root):
        print(sanitize(line))
