"""Converts token sets to other programs' token files, and back, without tokenizing again.

    tokenmill convert out llm.c data/tokens/NAME FOLDER
    tokenmill convert out raw data/tokens/NAME FOLDER --eos
    tokenmill convert in llm.c fineweb10B/*.bin --tokenizer gpt2 --name fineweb10B

Optional columns are named and left out, but for the loss mask of a chat set, which parquet has a
place for. What is taken in has its documents from the index where the layout has one, else from the
BOS (or EOT) tokens between them; a trailing one is no empty document.

    nanoGPT:     w w w E w w E w E w w    ->    B w w w | B w w | B w | B w w    B, E are one id
    out --eos:   B w w w | B w w          ->    w w w E w w E
"""

from collections.abc import Callable

import tyro

from tokenmill.exchange.convert_in import In, take_in
from tokenmill.exchange.convert_out import Out, export


def main(arguments: list[str], prog: str) -> None:
    """Converts, and prints the new folder."""
    verbs: dict[str, Callable] = {"out": Out, "in": In}
    config = tyro.extras.subcommand_cli_from_dict(
        verbs, prog=prog, args=arguments, description=__doc__
    )
    print(export(config) if isinstance(config, Out) else take_in(config))
