"""Ids are the library's, whatever a normalizer does to marks, Hangul, Indic syllables and emoji."""

import json
import re
from functools import partial

import pyarrow as pa
import pytest
import tokenizers
from json_kinds import BYTES, NEWER_MARKS, SPECIAL, bpe, letters, llama2, require_same
from making import some_slow
from tables import join_showing_ranks
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from tokenmill.tokenize import gigatoken
from tokenmill.tokenize.choose_encoder import choose_encoder
from tokenmill.tokenize.load import load_foreign
from tokenmill.tokenize.patterns import LLAMA3_PATTERN, QWEN2_PATTERN
from tokenmill.tokenize.proof_texts import random_texts
from tokenmill.tokenize.spelling import BYTE_OF

PATTERN_OF = {"llama3": LLAMA3_PATTERN, "qwen2": QWEN2_PATTERN}
CHARACTER_OF = {byte: character for character, byte in BYTE_OF.items()}


def split(name):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PATTERN_OF[name]), "isolated"), BYTES]
    )


def showing_joins(pre_tokenizer, normalizer):
    """A vocabulary in which every piece shows where it ends (tables.py)."""
    spelled = {
        "".join(CHARACTER_OF[byte] for byte in token): rank
        for token, rank in join_showing_ranks().items()
    }
    theirs = tokenizers.Tokenizer(
        models.BPE(spelled, [(token[0], token[1]) for token in spelled if len(token) == 2])
    )
    theirs.pre_tokenizer = pre_tokenizer
    theirs.decoder = decoders.ByteLevel()
    if normalizer is not None:
        theirs.normalizer = normalizer
    theirs.add_special_tokens(SPECIAL)
    return theirs


def gemma():
    parts = json.loads(llama2().to_str())
    by_spaces = {
        "type": "Split",
        "pattern": {"String": " "},
        "behavior": "MergedWithPrevious",
        "invert": False,
    }
    parts["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    return tokenizers.Tokenizer.from_str(json.dumps(parts | {"pre_tokenizer": by_spaces}))


def metaspace():
    parts = json.loads(llama2().to_str()) | {"normalizer": None}
    theirs = tokenizers.Tokenizer.from_str(json.dumps(parts))
    theirs.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return theirs


BY_AN_ENGINE = {
    "neox, joins": lambda: showing_joins(
        pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC()
    ),
    "qwen2, joins": lambda: showing_joins(
        split("qwen2"), normalizers.Sequence([normalizers.NFC()])
    ),
    "llama3 with NFC, joins": lambda: showing_joins(split("llama3"), normalizers.NFC()),
    "prefix space, joins": lambda: showing_joins(
        pre_tokenizers.ByteLevel(add_prefix_space=True), None
    ),
    "gemma": gemma,
    "metaspace": metaspace,
}
FORMS = {
    form: lambda form=form: bpe(BYTES, getattr(normalizers, form)())
    for form in ("NFD", "NFKC", "NFKD")
}
FORMS |= {
    "lowercase": lambda: bpe(
        BYTES, normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    ),
    "accents": lambda: bpe(
        BYTES, normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    ),
    "bert": lambda: bpe(BYTES, normalizers.BertNormalizer()),
}


def encoder_of(make, folder):
    """The library's tokenizer, and our encoder with the fastest engine that is proven."""
    path = folder / "tokenizer.json"
    make().save(str(path))
    encoder, why = choose_encoder("auto", load_foreign(path, "<s>"))
    return tokenizers.Tokenizer.from_file(str(path)), encoder, why


@pytest.mark.slow
@pytest.mark.parametrize("kind", BY_AN_ENGINE)
def test_an_engine_gives_the_library_s_ids_of_random_sequences(kind, tmp_path):
    theirs, encoder, why = encoder_of(BY_AN_ENGINE[kind], tmp_path)
    assert (encoder.engine, why) == ("gigatoken", "")
    require_same(theirs, encoder, NEWER_MARKS)
    require_same(theirs, encoder, random_texts(1500, seed=len(kind)))


@pytest.mark.parametrize("kind", some_slow(FORMS, quick=["NFKC", "bert"]))
def test_the_library_s_ids_of_random_sequences_in_every_normalizer_form(kind, tmp_path):
    theirs, encoder, why = encoder_of(FORMS[kind], tmp_path)
    assert bool(why) == (encoder.engine != "gigatoken")
    require_same(theirs, encoder, random_texts(900, seed=len(kind)))


def test_a_kind_that_an_engine_gets_wrong_is_left_to_the_library(tmp_path, monkeypatch):
    """The fault is in texts that only the random ones have."""
    wrong = partial(re.sub, "[\u1101-\u1112][\u1161-\u1175]", "a")
    monkeypatch.setattr(gigatoken, "make", faulty(gigatoken.make, wrong))
    theirs, encoder, why = encoder_of(letters, tmp_path)
    assert encoder.engine == "tokenizers"
    assert "gigatoken and tokenizers encode a text differently near" in why
    require_same(theirs, encoder, random_texts(100, seed=1))


def faulty(real, change):
    """An engine that encodes changed texts."""

    def made(tokenizer):
        encode = real(tokenizer)
        return lambda documents: encode(
            pa.array([change(text) for text in documents.to_pylist()], pa.large_string())
        )

    return made


def test_documents_with_a_character_that_an_engine_gets_wrong_go_to_the_library(
    tmp_path, monkeypatch
):
    """One that hard and random texts lack, and an unassigned one."""
    wrong = partial(re.sub, "[\u2ff0\u0378]", "a")
    monkeypatch.setattr(gigatoken, "make", faulty(gigatoken.make, wrong))
    theirs, encoder, _ = encoder_of(letters, tmp_path)
    assert encoder.engine == "gigatoken"
    require_same(theirs, encoder, ["x\u2ff0y", "x\u0378y", "plain", "\u2ff0", "\u0378"])
