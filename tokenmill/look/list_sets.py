"""`tokenmill list`: the token sets on this disk.

    tokenmill list                      those under data/tokens
    tokenmill list /mnt/tokens          those in another folder

Every command and loader takes a set's folder, its name, or the name of its data set if no other set has that: `web` for
data/tokens/web-gpt2-1bd489c3.
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
    folders = (
        [root] if (root / "manifest.json").exists() else [*root.iterdir()] if root.is_dir() else []
    )
    folders = [path for path in folders if (path / "shards").is_dir()]
    if not folders:
        raise FileNotFoundError(
            f"{root}: expected token sets, found none; run `tokenmill prepare` first"
        )
    for path in sorted(folders, key=lambda path: path.stat().st_mtime_ns):
        yield path.name
        try:
            yield from (f"    {line}" for line in _about(TokenSet(path)))
        except FileNotFoundError:
            made = counted(len(list(path.glob("shards/*.json"))), "shard")
            yield f"    not finished: {made} made; run the command that prepares it again"
        except (ValueError, OSError) as error:
            yield f"    cannot be opened: {error}"


def _about(token_set: TokenSet) -> Iterator[str]:
    facts, tokenizer = token_set.manifest, token_set.tokenizer
    kind = ", conversations" * token_set.is_chat
    size = in_bytes(facts["tokens"] * token_set.numpy_dtype.itemsize)
    yield f"{facts['dataset']}, tokenizer {tokenizer['name']} of {tokenizer['vocab_size']:,} tokens{kind}, {size}"
    for split in SPLITS:
        entries = token_set.split(split)
        documents, tokens = (
            sum(entry.documents for entry in entries),
            sum(entry.tokens for entry in entries),
        )
        yield f"{split:5} {counted(documents, 'document'):>22} {tokens:>18,} tokens"
    if views := token_set.view_names():
        yield f"views: {', '.join(views)}"


def main(arguments: list[str], prog: str) -> None:
    """Lists the sets for these command-line arguments."""
    for line in lines(tyro.cli(ListSets, prog=prog, args=arguments, description=__doc__).root):
        print(sanitize(line))
