"""Draws one packed batch, and decodes it: what training sees.

    python examples/show_batch.py --rows 8 --seq-len 8192

A bar is a row; each stretch of letters in one colour is a document, or the part of one that lies in
this row. Every stretch begins with BOS, and so does every row.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data import RowLoader
from tokenmill.tokenizer import Tokenizer

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class ShowConfig:
    """Draws and decodes one packed batch of a token set."""

    tokens: Path | None = None  # the token set's folder; by default the one under data/tokens
    split: str = "train"  # train or val
    rows: int = 8  # rows in the batch
    seq_len: int = 8192  # tokens of an input


def main(config: ShowConfig) -> None:
    loader = RowLoader(config.tokens, config.split, batch_size=config.rows, seq_len=config.seq_len)
    tokenizer = Tokenizer.load(loader.token_set.path / "tokenizer.json")
    inputs, targets = next(loader)  # each (B, T)
    rows = np.concatenate([inputs.numpy(), targets.numpy()[:, -1:]], axis=1)  # (B, T + 1)
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"\none batch of {loader.token_set.path.name}: {config.rows} rows of {config.seq_len} + 1 tokens\n")
    pieces = [np.split(row, np.flatnonzero(row == tokenizer.bos_id)[1:]) for row in rows]
    for number, row in enumerate(pieces):
        console.print(f"row {number} ", bar(row, width=max(40, console.width - 8)), sep="")
    for number, row in enumerate(pieces):
        console.print(f"\nrow {number}")
        for index, piece in enumerate(row):
            console.print(line(tokenizer.decode(piece), len(piece), index, console.width))


def bar(row: list[np.ndarray], width: int) -> Text:
    """A row as letters: each piece as wide as its share of the tokens."""
    text, ends = Text(), np.cumsum([len(piece) for piece in row])
    columns = np.round(np.concatenate([[0], ends]) / ends[-1] * width).astype(int)
    for index, count in enumerate(np.diff(columns)):
        text.append(LETTERS[index % len(LETTERS)] * count, style=f"black on {COLOURS[index % len(COLOURS)]}")
    return text


def line(decoded: str, num_tokens: int, index: int, width: int) -> Text:
    """A piece as one line: its letter, its tokens, the beginning and the end of its text."""
    head = f"  {LETTERS[index % len(LETTERS)]} {num_tokens:5,} tokens  "
    shown, room = decoded.replace("\n", "⏎").replace("\t", "→"), max(40, width - len(head) - 5)
    if len(shown) > room:
        shown = f"{shown[: room * 2 // 3]} ... {shown[len(shown) - room // 3 :]}"
    return Text(head + shown, style=COLOURS[index % len(COLOURS)])


if __name__ == "__main__":
    main(tyro.cli(ShowConfig))
