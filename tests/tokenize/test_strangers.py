"""Tokenizers from strangers: endless patterns, vocabularies that panic, pickles that are traps."""

import json
import shutil
import time

import pytest
from making import run_prepare, write_parquet
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Theirs

from tokenmill import cli
from tokenmill.tokenize.load import load_any, load_foreign
from tokenmill.tokenize.tokenizer import Tokenizer

ENDLESS = r"(?:a|a)*(?!\S)[bc]|\S|\s"
BYTES = {bytes([byte]): byte for byte in range(256)}


def test_a_split_pattern_that_never_ends_is_an_error_in_bounded_time():
    endless = Tokenizer("endless", ENDLESS, BYTES, {"<s>": 256}, "<s>")
    assert endless.encode("abc").tolist() == [97, 98, 99]
    began = time.monotonic()
    with pytest.raises(ValueError, match="tokenizer endless: .*backtracking"):
        endless.encode("a" * 60)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "pattern",
    [
        r"\s+(?!\S)|'([sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+",  # with a group
        r"\p{L}+(?=\s{3})|\p{L}|\p{N}+|[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # looks ahead from a letter
        r" ?[a-z&&[^l]]+|l+|\s+(?!\S)|\s+",  # Rust's, and something else to others
    ],
)
def test_a_text_that_tiktoken_gives_up_on_is_an_error_by_any_pattern(pattern):
    tokenizer = Tokenizer("theirs", pattern, BYTES, {"<s>": 256}, "<s>")
    assert (
        tokenizer.decode(tokenizer.encode("it's hello   x")) == "it's hello   x" or "&&" in pattern
    )
    with pytest.raises(ValueError, match="tokenizer theirs: .*backtracking"):
        tokenizer.encode("it's hello" + " " * 1_200_000 + "x")


def test_the_same_pattern_in_a_hugging_face_file_is_an_error_of_the_shard(tmp_path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Theirs(models.BPE({letter: id for id, letter in enumerate(alphabet)}, []))
    split = pre_tokenizers.Split(Regex(ENDLESS), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>"])
    theirs = json.loads(made.to_str())
    (tmp_path / "endless.json").write_text(json.dumps(theirs | {"normalizer": {"type": "NFC"}}))
    for name, text in (("a", "abc"), ("b", "a" * 2000), ("z", "abc")):
        write_parquet(tmp_path / "corpus" / f"{name}.parquet", [text])
    flags = (
        "--source",
        tmp_path / "corpus",
        "--tokenizer",
        tmp_path / "endless.json",
        "--shard-text-bytes",
        "1000",
    )
    done = run_prepare(*flags, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "b.parquet: the tokenizers library cannot run tokenizer endless" in done.stderr
    assert "fix the cause" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("ranks", "special", "pattern", "said"),
    [
        ({**BYTES, b"ab": 97}, {"<s>": 256}, ".", "cannot run tokenizer odd"),
        ({b"a": 0}, {"<s>": 1}, ".", "cannot run tokenizer odd"),
        (BYTES, {"<s>": 256}, "(", "cannot run tokenizer odd"),
        (BYTES, {"<s>": 1 << 40}, ".", "ids must be from 0"),
    ],
)
def test_a_vocabulary_that_no_library_runs_is_an_error(ranks, special, pattern, said):
    with pytest.raises(ValueError, match=said):
        Tokenizer("odd", pattern, ranks, special, "<s>").encode("b ab")


TRAPS = {
    "lists in lists": b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "more bytes than there are": b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b".",
    "a number of a million digits": b"\x80\x04\x8b"
    + (1 << 20).to_bytes(4, "little")
    + b"\x01" * (1 << 20)
    + b".",
    "an object of another": b"\x80\x04cos\nsystem\n)\x81.",
    "what it persisted": b"\x80\x04Pabc\n.",
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_pickle_that_is_a_trap_is_refused(trap, tmp_path):
    path = tmp_path / "tokenizer.pkl"
    path.write_bytes(TRAPS[trap])
    with pytest.raises(
        ValueError,
        match=r"tokenizer.pkl: expected a pickled tiktoken Encoding .* it was not loaded",
    ):
        load_foreign(path, None)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"model": {"vocab": {"a": 0}}, '
        b'"added_tokens": [{"content": "<s>", "id": "1", "special": true}]}',
        b'{"model": {"vocab": {"a": 0}, "merges": [[1]]}, '
        b'"added_tokens": [{"content": "<s>", "id": 1, "special": 1}]}',
        json.dumps(
            {
                "model": {
                    "type": "BPE",
                    "vocab": {f"t{k}": k * ((1 << 61) - 1) for k in range(50_000)},
                    "merges": [],
                },
                "added_tokens": [{"content": "<s>", "id": 1, "special": True}],
            }
        ).encode(),
    ],
)
def test_a_tokenizer_json_that_is_built_otherwise_is_an_error(tmp_path, content):
    path = tmp_path / "theirs.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"theirs\.json"):
        load_any(str(path))


def test_two_tokens_of_one_id_are_refused_as_text_would_be_lost(tmp_path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Theirs(models.BPE({letter: id for id, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>"])
    theirs = json.loads(made.to_str())
    theirs["model"]["vocab"]["b"] = theirs["model"]["vocab"]["a"]
    (tmp_path / "theirs.json").write_text(json.dumps(theirs))
    with pytest.raises(
        ValueError,
        match=r"theirs.json: its id \d+ stands for '[ab]', '[ab]': what is encoded is lost",
    ):
        load_any(str(tmp_path / "theirs.json"))


def test_the_tokenizer_of_another_set_is_told(tmp_path, prepared, capsys):
    folder = tmp_path / "set"
    shutil.copytree(prepared[1], folder)
    Tokenizer("other", ".", BYTES, {"<s>": 256}, "<s>").save(folder / "tokenizer.json")
    out = ["convert", "out", "raw", str(folder), str(tmp_path / "out")]
    for command in (
        ["show", str(folder), "--row", "0", "--seq-len", "64"],
        ["report", str(folder)],
        out,
    ):
        assert cli.main(command) == 1
        assert "tokenizer.json: expected the tokenizer of this token set" in capsys.readouterr().err
