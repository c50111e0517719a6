"""Ids are tiktoken's own, document by document; nothing makes a document disappear."""

import json
from dataclasses import replace

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from making import make_text
from reading import counts_of, texts_of

from tokenmill.text.documents import MOST_SPACES
from tokenmill.tokenize.load import load_any
from tokenmill.tokenize.tokenizer import Tokenizer
from tokenmill.tokenize.train import train_tokenizer
from tokenmill.tokenize.vocabularies import load_tokenizer


def tiktoken_ids(tokenizer, text):
    """The reference: a tiktoken Encoding of its own, and its `encode_ordinary`."""
    encoding = tiktoken.Encoding(
        "reference", pat_str=tokenizer.pattern, mergeable_ranks=tokenizer.ranks, special_tokens={}
    )
    return encoding.encode_ordinary(text)


@given(st.text(st.characters(), max_size=100))
def test_a_text_has_tiktoken_s_ids(tokenizer, text):
    assert tokenizer.encode(text).tolist() == tiktoken_ids(tokenizer, text)


def test_lone_surrogates_become_replacement_characters(tokenizer):
    text = "a\ud800b\udfffc"
    assert tokenizer.decode(tokenizer.encode(text)) == "a\ufffdb\ufffdc"
    assert tokenizer.encode(text).tolist() == tiktoken_ids(tokenizer, text)


@pytest.mark.parametrize("space", [" ", "\t", "\u3000", "\n"])
def test_a_run_of_white_space_that_tiktoken_encodes_is_kept_and_a_longer_one_left_out(
    tokenizer, space, tmp_path
):
    kept = "word" + space * (MOST_SPACES - 1) + "word <|bos|>"
    assert tokenizer.decode(tokenizer.encode(kept)) == kept
    path = tmp_path / "a.jsonl"
    path.write_text(
        "".join(
            json.dumps({"text": text}) + "\n"
            for text in ("a", kept, "x" + space * MOST_SPACES + "y", "b")
        )
    )
    assert texts_of(path) == ["a", kept, "b"]
    assert counts_of(path) == {"oversized_documents": 1}


def test_a_tokenizer_is_saved_whole(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "t.json")
    loaded = Tokenizer.load(tmp_path / "t.json")
    assert (loaded, loaded.fingerprint) == (tokenizer, tokenizer.fingerprint)
    assert load_tokenizer(str(tmp_path / "t.json")) == tokenizer


def test_a_tokenizer_file_that_was_changed_is_refused(tokenizer, tmp_path):
    path = tmp_path / "t.json"
    tokenizer.save(path)
    path.write_text(path.read_text().replace('"<|user_end|>": 393', '"<|user_end|>": 999'))
    with pytest.raises(ValueError, match=r"t\.json: expected fingerprint \w+, found \w+"):
        Tokenizer.load(path)


def test_the_fingerprint_changes_with_whatever_can_change_an_id_and_not_with_the_name(tokenizer):
    def other(**changes):
        fields = ("name", "pattern", "ranks", "special_tokens", "bos_token")
        return Tokenizer(
            **{name: getattr(tokenizer, name) for name in fields} | changes
        ).fingerprint

    ranks = dict(zip(tokenizer.ranks, reversed(tokenizer.ranks.values()), strict=True))
    changed = [
        other(pattern="x"),
        other(ranks=ranks),
        other(special_tokens={"<|bos|>": 5}),
        other(bos_token="<|user_end|>"),
    ]
    assert other(name="another") == tokenizer.fingerprint
    assert len({tokenizer.fingerprint, *changed}) == 5


def test_token_bytes_are_the_bytes_of_text_of_each_id(tokenizer):
    table = tokenizer.token_bytes()
    assert table.shape == (tokenizer.vocab_size,)
    assert all(table[id] == 0 for id in tokenizer.special_tokens.values())
    text = make_text(documents=1, seed=3)[0]
    assert table[tokenizer.encode(text)].sum() == len(text.encode())


def test_training_gives_the_tokens_asked_for_special_ones_among_them_and_the_same_each_time():
    texts = make_text(documents=50, seed=1)
    first, second = (train_tokenizer(texts, 300, "t") for _ in range(2))
    assert first.vocab_size == 300
    assert first.bos_token == "<|bos|>"
    assert first.bos_id == 300 - 9
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize(
    ("size", "message"), [(264, "at least 265"), (5000, "the text gives only")]
)
def test_a_vocabulary_that_cannot_be_trained_is_refused(size, message):
    with pytest.raises(ValueError, match=message):
        train_tokenizer(["ab ab abc"], size, "t")


def test_a_file_below_the_home_folder_is_found(tokenizer, tmp_path, monkeypatch):
    tokenizer.save(tmp_path / "t.json")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_any("~/t.json") == tokenizer


def test_an_unknown_tokenizer_lists_the_known():
    with pytest.raises(
        ValueError, match=r"unknown tokenizer 'gpt7'.*train:N.*cl100k_base.*gpt2.*r50k_base"
    ):
        load_tokenizer("gpt7")


def test_without_network_and_cache_the_error_is_one_short_paragraph(monkeypatch, tmp_path):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    # nothing answers on this port, so it fails at once with or without a network
    for proxy in ("https_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(
        ConnectionError, match=r"not cached.*TIKTOKEN_CACHE_DIR.*--tokenizer train:"
    ) as caught:
        load_tokenizer("o200k_base")
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


def test_gpt2_and_r50k_base_are_one_tokenizer(gpt2):
    by_its_name = load_tokenizer("r50k_base")
    assert (gpt2.name, by_its_name.name) == ("gpt2", "gpt2")
    assert gpt2.fingerprint == by_its_name.fingerprint
    assert (gpt2.vocab_size, gpt2.bos_id, gpt2.bos_token) == (50257, 50256, "<|endoftext|>")
    assert gpt2.encode("hello world").tolist() == [31373, 995]


def test_an_id_that_stands_for_nothing_is_named(tokenizer):
    for ids in ([1, 60_000, 2], [60_000]):
        with pytest.raises(ValueError, match="id 60,000 stands for nothing in tokenizer bpe400"):
            tokenizer.decode(ids)
    assert tokenizer.token(tokenizer.bos_id) == b"<|bos|>"


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", "", "a\nb"])
def test_a_tokenizer_has_a_plain_name_however_it_is_made(tokenizer, name):
    """Folders and files are called after it."""
    with pytest.raises(ValueError, match="the name of a tokenizer"):
        replace(tokenizer, name=name)
