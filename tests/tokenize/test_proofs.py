"""An engine is proven once on a machine, and what is wrong with the cache costs a proof, no id."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from making import make_text

from tokenmill.addresses import user_cache
from tokenmill.tokenize import encoder as encoders
from tokenmill.tokenize import gigatoken, patterns
from tokenmill.tokenize.choose_encoder import choose_encoder
from tokenmill.tokenize.encoder import Encoder
from tokenmill.tokenize.proofs import read_proof


@pytest.fixture
def proofs(monkeypatch):
    """How often hard texts were made, to prove an engine."""
    count = []
    make_texts = encoders.hard_texts

    def hard_texts(spelled):
        count.append(1)
        return make_texts(spelled)

    monkeypatch.setattr(encoders, "hard_texts", hard_texts)
    return count


def proof_files():
    return list((user_cache() / "engines").iterdir())


def test_the_second_run_does_not_prove_again_and_gives_the_same_ids(tokenizer, proofs):
    texts = pa.array([*make_text(20, seed=1), "\u180e a", "\u088f"], pa.large_string())
    first, _ = choose_encoder("auto", tokenizer)
    second, _ = choose_encoder("auto", tokenizer)
    assert len(proofs) == 1
    assert second.engine == first.engine == "gigatoken"
    tokens, lengths, referred = second.encode(texts)
    expected, expected_lengths, expected_referred = first.encode(texts)
    assert tokens.tolist() == expected.tolist() == Encoder(tokenizer).encode(texts)[0].tolist()
    assert lengths.tolist() == expected_lengths.tolist()
    assert referred == expected_referred > 0


def test_what_differs_is_remembered_with_its_reason(tokenizer, proofs, monkeypatch):
    make = gigatoken.make

    def make_wrong(tokenizer):
        encode = make(tokenizer)

        def encode_wrong(documents):
            ids, offsets = encode(documents)
            return np.where(ids == ids.max(initial=0), 0, ids), offsets

        return encode_wrong

    monkeypatch.setattr(gigatoken, "make", make_wrong)
    engine, reason = choose_encoder("auto", tokenizer)
    assert engine.engine == "tiktoken"
    assert "encode a text differently near" in reason
    monkeypatch.setattr(gigatoken, "make", make)
    again, same_reason = choose_encoder("auto", tokenizer)
    assert (again.engine, same_reason, len(proofs)) == ("tiktoken", reason, 1)


@pytest.mark.parametrize(
    "damaged", [b"", b"{", b"[]", b"null", b'{"code_points": [], "difference": "", "digest": ""}']
)
def test_a_damaged_proof_is_made_again(tokenizer, proofs, damaged):
    choose_encoder("auto", tokenizer)
    (path,) = proof_files()
    whole = path.read_bytes()
    path.write_bytes(damaged)
    encoder, why = choose_encoder("auto", tokenizer)
    assert (encoder.engine, why, len(proofs)) == ("gigatoken", "", 2)
    assert path.read_bytes() == whole
    edited = json.loads(whole) | {"code_points": []}
    path.write_text(json.dumps(edited))
    assert read_proof(path) is None, "nor does a digest fit that was of others"


def test_a_proof_is_of_one_tokenizer_and_one_version(tokenizer, proofs, monkeypatch):
    choose_encoder("auto", tokenizer)
    choose_encoder("auto", replace(tokenizer, pattern=patterns.GPT2_PATTERN))
    assert len(proofs) == 2
    monkeypatch.setattr("tokenmill.tokenize.proofs._code_digest", lambda: "of another release")
    choose_encoder("auto", tokenizer)
    assert len(proofs) == 3


def test_a_cache_that_cannot_be_written_costs_proofs_alone(tokenizer, proofs):
    user_cache().parent.mkdir(parents=True, exist_ok=True)
    user_cache().write_bytes(b"a file where the folder would be")
    for _ in range(2):
        encoder, why = choose_encoder("auto", tokenizer)
        assert (encoder.engine, why) == ("gigatoken", "")
    assert len(proofs) == 2
