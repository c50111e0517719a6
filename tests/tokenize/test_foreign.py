"""Others' tokenizers give their own library's ids, or are refused; a pickle runs nothing."""

import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import tiktoken
import tokenizers
from making import make_text
from tokenizers import decoders, models, pre_tokenizers, trainers

from tokenmill.tokenize.load import is_foreign, load_foreign
from tokenmill.tokenize.patterns import NANOCHAT_PATTERN
from tokenmill.tokenize.tokenizer import Tokenizer

SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>"]


def train(pre_tokenizer, special=SPECIAL):
    """A byte-level BPE of 600 tokens, by Hugging Face's own library."""
    theirs = tokenizers.Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizer
    theirs.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    theirs.train_from_iterator(make_text(300, seed=0), trainer)
    return theirs


def byte_level(**settings):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, **settings)


def test_its_name_bos_and_special_tokens_are_taken_over(tmp_path):
    path = tmp_path / "tokenizer.json"
    theirs = train(byte_level())
    theirs.save(str(path))
    ours = load_foreign(path, None)
    assert ours.name == path.parent.name
    assert (ours.bos_token, ours.bos_id) == (
        "<|begin_of_text|>",
        theirs.token_to_id("<|begin_of_text|>"),
    )
    assert ours.vocab_size == theirs.get_vocab_size()
    assert Tokenizer.load(saved(ours, path.with_name("ours.json"))).fingerprint == ours.fingerprint
    assert is_foreign(path)
    assert not is_foreign(path.with_name("ours.json"))
    assert not is_foreign(Path("gpt2"))


def saved(tokenizer, path):
    tokenizer.save(path)
    return path


def test_the_bos_token_is_named_where_it_cannot_be_told(tmp_path):
    train(byte_level(), ["[BOS]", "[EOS]"]).save(str(tmp_path / "own.json"))
    with pytest.raises(
        ValueError,
        match=r"found 2 special tokens, as \[BOS\], \[EOS\]; name the one .* --bos-token",
    ):
        load_foreign(tmp_path / "own.json", None)
    assert load_foreign(tmp_path / "own.json", "[EOS]").bos_token == "[EOS]"


# ---------------------------------------------------------------------------- nanochat's pickle


def test_nanochat_s_pickle_is_its_encoding(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.pkl"
    path.write_bytes(pickle.dumps(tokenizer.encoding))
    loaded = load_foreign(path, None)
    assert loaded == replace(tokenizer, name=tmp_path.name)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.pattern == NANOCHAT_PATTERN


class Malicious:
    def __init__(self, function, *arguments):
        self.what = (function, arguments)

    def __reduce__(self):
        return self.what


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("function", [os.system, eval, Path.touch, __import__])
def test_a_malicious_pickle_is_refused_and_runs_nothing(tokenizer, tmp_path, function, nested):
    witness = tmp_path / "it ran"
    arguments = {
        os.system: (f"touch '{witness}'",),
        eval: (f"open({str(witness)!r}, 'w')",),
        Path.touch: (witness,),
        __import__: ("antigravity",),
    }[function]
    bad = Malicious(function, *arguments)
    path = tmp_path / "tokenizer.pkl"
    path.write_bytes(pickle.dumps([tokenizer.encoding, bad] if nested else bad))
    with pytest.raises(
        ValueError,
        match=r"tokenizer.pkl: expected a pickled tiktoken Encoding .* it was not loaded",
    ):
        load_foreign(path, None)
    assert not witness.exists()


def test_a_pickle_whose_bos_is_an_ordinary_id_is_refused(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.pkl"
    state = tokenizer.encoding.__getstate__() | {"special_tokens": {"<|bos|>": 97}}
    for change, message in (
        (state, "ids that stand for two tokens"),
        (state | {"mergeable_ranks": {b"a": 0}}, "no token for 255 of the 256 bytes"),
        (state | {"mergeable_ranks": {3: 4}}, "its parts are of other types"),
    ):
        path.write_bytes(encoding_pickle(change))
        with pytest.raises(ValueError, match=message):
            load_foreign(path, None)


def encoding_pickle(state) -> bytes:
    """What a tiktoken Encoding of this state is pickled as."""

    class Encoding:
        def __getstate__(self):
            return state

    Encoding.__module__ = "tiktoken.core"
    Encoding.__qualname__ = "Encoding"
    real = tiktoken.core.Encoding
    tiktoken.core.Encoding = Encoding
    try:
        return pickle.dumps(Encoding())
    finally:
        tiktoken.core.Encoding = real


# ---------------------------------------------------------------------------- the command
