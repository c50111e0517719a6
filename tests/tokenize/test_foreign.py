"""Other people's tokenizers give their own library's ids, or are refused with the reason; a pickle runs nothing."""

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import tiktoken
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from making import make_text, run_prepare
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from tokenmill.tokenize.huggingface import HuggingFace
from tokenmill.tokenize.load import is_foreign, load_foreign
from tokenmill.tokenize.patterns import NANOCHAT_PATTERN
from tokenmill.tokenize.tokenizer import Tokenizer

SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>"]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train(pre_tokenizer, special=SPECIAL):
    """A byte-level BPE of 600 tokens, by Hugging Face's own library."""
    theirs = tokenizers.Tokenizer(models.BPE())
    theirs.pre_tokenizer, theirs.decoder = pre_tokenizer, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    theirs.train_from_iterator(make_text(300, seed=0), trainer)
    return theirs


def byte_level(**settings):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, **settings)


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(use_regex=False)])


KINDS = {"gpt2": byte_level(), "llama3": split(LLAMA3)}


@pytest.fixture(scope="module", params=KINDS)
def hugging_face(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param) / "tokenizer.json"
    train(KINDS[request.param]).save(str(path))
    theirs = tokenizers.Tokenizer.from_file(str(path))
    theirs.encode_special_tokens = True
    return path, theirs, load_foreign(path, None)


# below U+0800: Hugging Face's Unicode tables are of another year than tiktoken's
PARTS = st.characters(max_codepoint=0x7FF) | st.sampled_from([" ", "\n", "'s", "mil", "水", *SPECIAL])


@given(st.lists(PARTS, max_size=40).map("".join))
def test_a_tokenizer_json_gives_its_library_s_ids(hugging_face, text):
    _, theirs, ours = hugging_face
    assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False).ids


def test_its_name_bos_and_special_tokens_are_taken_over(hugging_face):
    path, theirs, ours = hugging_face
    assert ours.name == path.parent.name
    assert (ours.bos_token, ours.bos_id) == ("<|begin_of_text|>", theirs.token_to_id("<|begin_of_text|>"))
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
    with pytest.raises(ValueError, match=r"found 2 special tokens, as \[BOS\], \[EOS\]; name the one .* --bos-token"):
        load_foreign(tmp_path / "own.json", None)
    assert load_foreign(tmp_path / "own.json", "[EOS]").bos_token == "[EOS]"


def changed(tmp_path, change):
    path = tmp_path / "tokenizer.json"
    train(byte_level()).save(str(path))
    whole = json.loads(path.read_text())
    change(whole)
    path.write_text(json.dumps(whole))
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: whole.update(normalizer={"type": "NFC"}),
        lambda whole: whole["pre_tokenizer"].update(add_prefix_space=True),
        lambda whole: whole.update(pre_tokenizer={"type": "Whitespace"}),
        lambda whole: whole["added_tokens"][0].update(special=False),
        lambda whole: whole["model"]["merges"].reverse(),
    ],
)
def test_ids_are_the_library_s_whatever_the_file_says(tmp_path, change):
    path = changed(tmp_path, change)
    ours = load_foreign(path, "<|end_of_text|>")
    assert isinstance(ours, HuggingFace)
    theirs = tokenizers.Tokenizer.from_file(str(path))
    for text in [*make_text(30, seed=1), "millto milltomillto", "é e\u0301"]:
        assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", "expected a tokenizer.json, found one of another form"),
        (b"[1]", "expected a JSON object, found list"),
        (b'{"model": {"vocab": 3}}', "with a vocabulary, found none"),
        (
            b'{"model": {"type": "BPE", "vocab": {"a": 0}}}',
            "found no special tokens, and one has to begin every document",
        ),
    ],
)
def test_what_is_no_tokenizer_json_is_refused(tmp_path, content, message):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_foreign(tmp_path / "tokenizer.json", None)


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
    with pytest.raises(ValueError, match=r"tokenizer.pkl: expected a pickled tiktoken Encoding .* it was not loaded"):
        load_foreign(path, None)
    assert not witness.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        pickle.dumps({"a": 1}),
        pickle.dumps("gpt2"),
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
    ],
)
def test_what_is_no_such_pickle_is_refused(tmp_path, content):
    (tmp_path / "tokenizer.pkl").write_bytes(content)
    with pytest.raises(ValueError, match="expected a pickled tiktoken Encoding"):
        load_foreign(tmp_path / "tokenizer.pkl", None)


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

    Encoding.__module__, Encoding.__qualname__ = "tiktoken.core", "Encoding"
    real, tiktoken.core.Encoding = tiktoken.core.Encoding, Encoding
    try:
        return pickle.dumps(Encoding())
    finally:
        tiktoken.core.Encoding = real


# ---------------------------------------------------------------------------- the command


def test_preparing_with_both_kinds(source, tokenizer, hugging_face, tmp_path):
    (tmp_path / "nanochat.pkl").write_bytes(pickle.dumps(tokenizer.encoding))
    for path in (hugging_face[0], tmp_path / "nanochat.pkl"):
        done = run_prepare("--source", source, "--val-file", "last", "--tokenizer", path, cwd=tmp_path)
        assert f"tokenizer {path.stem if path.suffix == '.pkl' else path.parent.name} of" in done.stdout


def test_another_bos_token_is_another_token_set(source, tokenizer_json, tmp_path):
    flags = ("--source", source, "--val-file", "last", "--tokenizer", tokenizer_json)
    folders = [
        run_prepare(*flags, *more, cwd=tmp_path).stdout.splitlines()[-1]
        for more in ((), ("--bos-token", "<|user_end|>"))
    ]
    assert folders[0] != folders[1]
    done = run_prepare(*flags, "--bos-token", "<s>", cwd=tmp_path, check=False)
    assert (done.returncode, "the special tokens of bpe400 are <|bos|>" in done.stderr) == (1, True)
