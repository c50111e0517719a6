"""What each worker process begins with: the tokenizer of the set and an encoder that is proven equal to its library.

The server that forks workers imports this module (pool.py) while the parent lists files. It builds the encoder once
the parent has written which one, so each worker has it from the start.
"""

import contextlib
import functools
import os
import time
from pathlib import Path

import tokenmill.prepare.make  # noqa: F401  # which workers run, so that they are forked with its packages
from tokenmill.tokenize.encoder import Encoder, choose_encoder
from tokenmill.tokenize.tokenizer import Tokenizer

ENCODER = "TOKENMILL_ENCODER"  # the environment variable that has the parent's pid and the file of `tell_server`
POLL_SECONDS = 0.005


@functools.cache
def encoder_of(path: Path, engine: str) -> tuple[Encoder, tuple[str, str]]:
    """What documents are encoded with; the name of its engine, and why no faster one is used, or "".

    ValueError if the named engine cannot be used.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # every core has its process, and threads do not survive a fork
    encoder, why = choose_encoder(engine, Tokenizer.load(path))
    return encoder, (encoder.engine, why)


def tell_server(file: Path, path: Path, engine: str) -> None:
    """Writes which encoder the server is to build."""
    temporary = file.with_suffix(".new")
    temporary.write_text(f"{engine} {path}")
    temporary.rename(file)


def _build(file: Path, parent: int) -> None:
    while not file.exists() and os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    with contextlib.suppress(Exception):  # a worker will meet it again, and report it
        engine, _, path = file.read_text().partition(" ")
        encoder_of(Path(path), engine)


if named := os.environ.get(ENCODER):  # in the server
    parent, _, file = named.partition(" ")
    _build(Path(file), int(parent))
