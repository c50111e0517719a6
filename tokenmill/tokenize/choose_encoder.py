"""Which engine tokenizes: the fastest one that is proven equal to the reference, if that pays.

engine, sentence = engine_for("auto", text_bytes, tokenizer)     before anything is made
encoder, why = choose_encoder(engine, tokenizer)                 proves the engine, once
"""

from typing import NamedTuple

import numpy as np

from tokenmill.tokenize.encoder import Encoder
from tokenmill.tokenize.engine import ENGINES, REFERENCE, load_engine
from tokenmill.tokenize.proofs import Proof, proof_path, read_proof, write_proof
from tokenmill.tokenize.tokenizer import Tokenizer

LONG_SECONDS = 1.0  # a proof that takes longer is announced


class Costs(NamedTuple):
    """What a library costs on one core, measured with gpt2, cl100k, o200k and a tokenizer.json."""

    bytes_a_second: float  # that it encodes
    seconds_a_token: float  # of the vocabulary, to make an engine in its place
    seconds_to_prove: float


COSTS = {"tiktoken": Costs(5e6, 6e-6, 0.2), "tokenizers": Costs(1.5e6, 1e-5, 5.0)}


def engine_for(wanted: str, text_bytes: float, tokenizer: Tokenizer) -> tuple[str, str]:
    """The engine to try, and what to say of a wait for its proof, or "".

    `text_bytes` are those of one core: little text goes to the reference, if it is done sooner.
    """
    if wanted == "auto" and not engine_pays(tokenizer, text_bytes):
        return REFERENCE, ""
    if wanted == REFERENCE or seconds_to_prove(tokenizer) <= LONG_SECONDS:
        return wanted, ""
    return wanted, (
        "a faster engine is compared with the tokenizer's library first, once for this tokenizer, "
        "which takes some seconds"
    )


def engine_pays(tokenizer: Tokenizer, text_bytes: float) -> bool:
    """Whether an engine is made, and proven if need be, before the reference has encoded this.

    `text_bytes` are those of one core.
    """
    costs = COSTS[tokenizer.library]
    seconds = costs.seconds_a_token * tokenizer.vocab_size + seconds_to_prove(tokenizer)
    return text_bytes > seconds * costs.bytes_a_second


def seconds_to_prove(tokenizer: Tokenizer) -> float:
    """How long the proof of an engine takes, about; 0 if one is kept."""
    paths = [proof_path(name, tokenizer, load_engine(name).VERSIONS) for name in ENGINES]
    is_kept = any(path.exists() for path in paths)
    return 0.0 if is_kept else COSTS[tokenizer.library].seconds_to_prove


def choose_encoder(wanted: str, tokenizer: Tokenizer) -> tuple[Encoder, str]:
    """What to encode with, and why not a faster engine, or "".

    "auto" takes the fastest engine that is proven, or else the reference. Proving takes a fraction
    of a second or, for a tokenizer.json, some seconds, once on a machine (proofs.py). ValueError
    if an engine is named and is not proven.
    """
    if wanted == REFERENCE:
        return Encoder(tokenizer), ""
    reasons = []
    engines = [*ENGINES] if wanted == "auto" else [wanted]
    for engine in engines:
        try:
            return _proven_encoder(engine, tokenizer), ""
        except ValueError as error:
            if wanted != "auto":
                raise ValueError(
                    f"--engine {wanted}: {error}; use --engine auto or tiktoken"
                ) from error
            reasons.append(str(error))
    return Encoder(tokenizer), "; ".join(reasons)


def _proven_encoder(name: str, tokenizer: Tokenizer) -> Encoder:
    """The encoder by an engine that is proven, now or before. ValueError if it is not."""
    engine = load_engine(name)
    engine.require_usable(tokenizer)
    path = proof_path(name, tokenizer, engine.VERSIONS)
    known = read_proof(path)
    if known is not None:
        if known.difference:
            raise ValueError(known.difference)
        return Encoder(tokenizer, name, known)
    try:
        encoder = Encoder(tokenizer, name)
        encoder.prove_at_start()
    except ValueError as error:
        write_proof(path, Proof(np.array([], int), str(error)))
        raise
    write_proof(path, encoder.proof)
    return encoder
