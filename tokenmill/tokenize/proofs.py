"""What was proven of an engine, kept in the user's cache, so that the next run need not prove it.

    path = proof_path("gigatoken", tokenizer, versions)
    write_proof(path, Proof(code_points))       or Proof(difference="...") where both differ
    read_proof(path)                            None if there is none, or a damaged one

A proof is of one tokenizer, engine, library and Unicode, and of the code that proves: the name of
its file is a digest of these. A proof that is lost is made again, and ids never come from it: the
documents that every shard proves are encoded by both, with a proof from the cache too.
"""

import functools
import hashlib
import json
import unicodedata
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tokenmill.addresses import user_cache
from tokenmill.store.files import write_file
from tokenmill.tokenize.tokenizer import Tokenizer, digest_of

NUM_CODE_POINTS = 0x110000


class Proof(NamedTuple):
    """What comparing an engine with the reference has shown."""

    code_points: np.ndarray  # (num_code_points,) int: those that the reference must encode
    difference: str = ""  # what both encode differently: the engine cannot be used


def proof_path(engine: str, tokenizer: Tokenizer, versions: dict[str, str]) -> Path:
    """Where the proof of an engine of these versions with this tokenizer is, or will be."""
    facts = [engine, tokenizer.fingerprint, versions, unicodedata.unidata_version, _code_digest()]
    return user_cache() / "engines" / f"{digest_of(facts)}.json"


@functools.cache
def _code_digest() -> str:
    """A digest of the code that proves: of this folder's."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def write_proof(path: Path, proof: Proof) -> None:
    """Keeps a proof, if the cache can be written to."""
    is_referred = np.zeros(NUM_CODE_POINTS, bool)
    is_referred[proof.code_points] = True
    edges = np.flatnonzero(np.diff(is_referred, prepend=False, append=False))
    ranges = np.stack([edges[::2], edges[1::2] - 1], axis=1).tolist()
    content = {"code_points": ranges, "difference": proof.difference}
    saved = {**content, "digest": digest_of(content)}
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(saved).encode())


def read_proof(path: Path) -> Proof | None:
    """The proof that `write_proof` kept, if it is whole."""
    try:
        saved = json.loads(path.read_bytes())
        digest = saved.pop("digest")
        if digest != digest_of(saved):
            return None
        parts = [np.arange(first, last + 1) for first, last in saved["code_points"]]
        return Proof(np.concatenate([np.array([], int), *parts]), saved["difference"])
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None
