"""What each worker process begins with: the tokenizer of the set and an encoder that is proven equal to its library.

The server that forks workers imports this module once (pool.py), so it computes this once.
"""

import contextlib
import functools
import os
from pathlib import Path

from tokenmill.text_arrays import text_array
from tokenmill.tokenize.encoder import Encoder, choose_encoder
from tokenmill.tokenize.tokenizer import Tokenizer

ENCODER = "TOKENMILL_ENCODER"  # the environment variable that says what to build: an engine, and a tokenizer.json


@functools.cache
def encoder_of(path: Path, engine: str) -> tuple[Encoder, tuple[str, str]]:
    """What documents are encoded with; the name of its engine, and why no faster one is used, or "".

    ValueError if the named engine cannot be used.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # every core has its process, and threads do not survive a fork
    encoder, why = choose_encoder(engine, Tokenizer.load(path), text_array([]))
    return encoder, (encoder.engine, why)


if words := os.environ.get(ENCODER):  # in the server
    name, _, file = words.partition(" ")
    with contextlib.suppress(Exception):  # a worker will meet it again, and report it
        encoder_of(Path(file), name)
