"""Text that a tokenizer has no token for: said at the start, counted, and over 0.1% an error."""

import json

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from tokenmill import PreparationError, PrepareConfig, prepare
from tokenmill.tokenize.load import load_any
from tokenmill.tokenize.lost import LostCharacters

ASCII = [chr(code) for code in range(32, 127)]
BYTE_LEVEL = sorted(pre_tokenizers.ByteLevel.alphabet())
FALLBACK = [f"<0x{byte:02X}>" for byte in range(256)]


def made(model, pre_tokenizer=None, normalizer=None):
    tokenizer = Tokenizer(model)
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer


def bpe(tokens, pre_tokenizer=None, normalizer=None, **more):
    vocab = {token: id for id, token in enumerate(tokens)}
    return made(models.BPE(vocab=vocab, merges=[], **more), pre_tokenizer, normalizer)


def without(*letters):
    return [letter for letter in BYTE_LEVEL if letter not in letters]


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
SPLIT = pre_tokenizers.Split(Regex("[^ -~\\s]+"), "removed")
REMOVED = pre_tokenizers.Sequence([SPLIT, BYTES])
WORDS = {"[UNK]": 0, "caf": 1, "na": 2, "ve": 3}
SCORED = [("?", 0.0), *((letter, -1.0) for letter in ASCII if letter != "?")]
LOSING = {  # and what each loses of TEXT
    "BPE": (bpe(ASCII), "éï水車"),
    "BPE with unk": (bpe(ASCII, unk_token="?"), "éï水車"),
    "BPE after a prefix": (bpe([*ASCII, "▁"], None, normalizers.Prepend("▁")), "éï水車"),
    "bytes, one missing": (bpe(without("æ"), BYTES), "水"),  # E6, of three bytes
    "Unigram": (made(models.Unigram(SCORED, unk_id=0)), "éï水車"),
    "words": (
        made(models.WordLevel(WORDS, unk_token="[UNK]"), pre_tokenizers.Whitespace()),
        "caféna ïve水車".replace(" ", ""),
    ),
    "removed": (bpe(BYTE_LEVEL, REMOVED), "éï水車"),
}
TEXT = "café naïve 水車 \n"
WHOLE = {
    "bytes": bpe(BYTE_LEVEL, BYTES),
    "bytes after NFC": bpe(BYTE_LEVEL, BYTES, normalizers.NFC()),
    "fallback": bpe(FALLBACK, byte_fallback=True),
}


@pytest.mark.parametrize("kind", LOSING)
def test_what_a_tokenizer_has_no_token_for_is_found(kind, tmp_path):
    theirs, lost = LOSING[kind]
    theirs.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_any(str(tmp_path / "tokenizer.json"), "<s>")
    characters = LostCharacters(tokenizer)
    assert characters.unknown
    assert characters.among([TEXT, ""]) == (lost, len(TEXT))
    if kind in ("words", "BPE"):
        assert not characters.keeps_white_space


@pytest.mark.parametrize("kind", WHOLE)
def test_a_tokenizer_of_all_bytes_loses_nothing(kind, tmp_path):
    WHOLE[kind].save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_any(str(tmp_path / "tokenizer.json"), "<s>")
    characters = LostCharacters(tokenizer)
    assert characters.unknown == ""
    assert characters.keeps_white_space
    assert characters.among([TEXT]) == ("", 0)


def config_of(tmp_path, rows, **more):
    LOSING["BPE"][0].save(str(tmp_path / "tokenizer.json"))
    for name, some in (("a", rows), ("val", rows[:1])):
        lines = [json.dumps(row, ensure_ascii=False) for row in some]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    flags = {"tokenizer": tmp_path / "tokenizer.json", "bos_token": "<s>", "workers": 1}
    flags |= {"val_file": str(tmp_path / "val.jsonl"), "tokens_root": str(tmp_path / "tokens")}
    return PrepareConfig(source=str(tmp_path / "a.jsonl"), **flags, **more)


def test_more_than_a_thousandth_of_lost_characters_stops(tmp_path, capfd):
    config = config_of(tmp_path, [{"text": "plain"}, {"text": TEXT}])
    with pytest.raises(PreparationError, match="no token for 4 of 20 characters, as 'éï水車'"):
        prepare(config)
    assert "warning: tokenizer" in capfd.readouterr().err
    answer = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "水車"}]
    chat = config_of(tmp_path, [{"messages": answer}], chat="chatml")
    with pytest.raises(PreparationError, match="no token for 2 of"):
        prepare(chat)


def test_fewer_are_counted_and_said(tmp_path):
    config = config_of(tmp_path, [{"text": "plain" * 200}, {"text": "naïve"}])
    sentences = " ".join(prepare(config).sentences)
    assert "1 character lost, 0.0995%: the tokenizer has no token for them" in sentences
