"""Token sets become other people's files, as readers written from the formats' descriptions see them, and come back."""

import resource
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import BOS, ROOT, make_token_set

from tokenmill.exchange import convert, layouts
from tokenmill.look.verify import verify
from tokenmill.store.token_sets import TokenSet

# ---------------------------------------------------------------------------- independent readers


def number(data, at, size, signed=True):
    return int.from_bytes(data[at : at + size], "little", signed=signed)


def numbers(data, size):
    return [number(data, at, size, signed=False) for at in range(0, len(data), size)]


def by_nanogpt(folder, split):
    return numbers((folder / f"{split}.bin").read_bytes(), 2), None


def by_llmc(folder, split):
    tokens = []
    for path in sorted(folder.glob(f"*_{split}_*.bin")):
        data = path.read_bytes()
        size = {(20240520, 1): 2, (20240801, 7): 4}[number(data, 0, 4), number(data, 4, 4)]
        assert set(data[12:1024]) == {0}
        found = numbers(data[1024:], size)
        assert len(found) == number(data, 8, 4)
        tokens += found
    return tokens, None


def by_npy(folder, split):
    arrays = [np.load(path) for path in sorted(folder.glob(f"*_{split}_*.npy"))]
    assert {array.ndim for array in arrays} == {1}
    return np.concatenate(arrays).tolist(), None


def by_megatron(folder, split):
    data = (folder / f"{split}.idx").read_bytes()
    magic, version, code, sequences, documents = struct.unpack("<9sQBQQ", data[:34])
    assert (magic, version, documents) == (b"MMIDIDX\x00\x00", 1, sequences + 1)
    size = {8: 2, 4: 4}[code]
    lengths = struct.unpack(f"<{sequences}i", data[34 : 34 + 4 * sequences])
    pointers = struct.unpack(f"<{sequences}q", data[34 + 4 * sequences : 34 + 12 * sequences])
    indices = struct.unpack(f"<{documents}q", data[34 + 12 * sequences :])
    assert list(indices) == list(range(documents))
    raw = (folder / f"{split}.bin").read_bytes()
    rows = [numbers(raw[p : p + n * size], size) for p, n in zip(pointers, lengths, strict=True)]
    return [token for row in rows for token in row], rows


def by_parquet(folder, split):
    tables = [pq.read_table(path) for path in sorted(folder.glob(f"{split}-*.parquet"))]
    rows = [row for table in tables for row in table.column("input_ids").to_pylist()]
    return [token for row in rows for token in row], rows


READERS = {"nanogpt": by_nanogpt, "llm.c": by_llmc, "npy": by_npy, "megatron": by_megatron, "parquet": by_parquet}


def documents_of(token_set, split):
    token_set = TokenSet(token_set)
    shards = [token_set.open(entry) for entry in token_set.split(split)]
    return [
        shard.tokens[begin:end].tolist()
        for shard in shards
        for begin, end in zip(shard.offsets[:-1].astype(int), shard.offsets[1:].astype(int), strict=True)
    ]


# ---------------------------------------------------------------------------- out


@pytest.mark.parametrize("layout", READERS)
@pytest.mark.parametrize("vocab", [1000, 70_000])
def test_what_is_written_is_what_a_reader_of_the_format_finds(tmp_path, monkeypatch, layout, vocab):
    monkeypatch.setattr(layouts, "SHARD_TOKENS", 64)
    monkeypatch.setattr(layouts, "BLOCK_TOKENS", 50)
    train = [[5, 3, 40, 7, 2], [3] * 20, [], [100, 33, 50]]
    tokens = make_token_set(tmp_path / "set", train=train, val=[[4, 8, 30]], vocab=vocab)
    config = convert.Out(layout, tokens, tmp_path / "out")
    if layout == "nanogpt" and vocab > 65_536:
        with pytest.raises(ValueError, match=r"nanoGPT's files are uint16"):
            convert.export(config)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["set"], "nothing is left"
        return
    folder = convert.export(config)
    for split in ("train", "val"):
        expected = documents_of(tokens, split)
        found, rows = READERS[layout](folder, split)
        assert found == [token for document in expected for token in document]
        assert rows is None or rows == expected
    if layout in ("llm.c", "npy"):
        counts = [len(layouts.LAYOUTS[layout][1](path)[0]) for path in sorted(folder.glob("*_train_*"))]
        assert counts[:-1] == [64] * (len(counts) - 1), "full files"
        assert sorted(path.name for path in folder.iterdir())[0].startswith("synthetic_train_000001")


def test_a_folder_that_is_there_and_a_disk_that_is_full_leave_nothing_that_counts(token_set, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError, match="there: is there already"):
        convert.export(convert.Out("llm.c", token_set, tmp_path / "there"))
    done = subprocess.run(
        [sys.executable, "-m", "tokenmill", "convert", "out", "megatron", token_set, tmp_path / "new"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]


# ---------------------------------------------------------------------------- in


@pytest.mark.parametrize("layout", READERS)
def test_what_was_written_comes_back_with_the_same_documents(prepared, tokenizer_json, tmp_path, monkeypatch, layout):
    monkeypatch.setattr(layouts, "SHARD_TOKENS", 10_000)  # documents go on in the next file
    folder = convert.export(convert.Out(layout, prepared[1], tmp_path / "out"))
    files = tuple(path for path in folder.iterdir() if path.suffix != ".idx")
    back = convert.take_in(convert.In(layout, files, tokenizer_json, "back", tokens_root=tmp_path / "tokens"))
    for split in ("train", "val"):
        assert documents_of(back, split) == documents_of(prepared[1], split)
    assert verify(back) == {}
    assert TokenSet(back).manifest["text_bytes"] == TokenSet(prepared[1]).manifest["text_bytes"]
    with pytest.raises(FileExistsError, match="back-bpe400-.*is there already"):
        convert.take_in(convert.In(layout, files, tokenizer_json, "back", tokens_root=tmp_path / "tokens"))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(BOS, 3), max_size=12), min_size=1, max_size=5),
    st.integers(1, 7),
)
def test_documents_are_what_is_between_bos_tokens_wherever_the_files_are_cut(
    tokenizer_json, tmp_path_factory, files, block
):
    tmp_path, bos = tmp_path_factory.mktemp("in"), tokenizer_bos(tokenizer_json)
    files = [[bos if token == BOS else token for token in file] for file in files]
    paths = [flat(tmp_path / f"{i}.bin", [*file, 7]) for i, file in enumerate(files)]  # no file is empty
    val = flat(tmp_path / "val.bin", [bos, 9])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convert, "BLOCK_TOKENS", block)
        config = convert.In("nanogpt", (*paths, val), tokenizer_json, "x", tokens_root=tmp_path / "tokens")
        found = documents_of(convert.take_in(config), "train")
    stream = [token for file in files for token in [*file, 7]]
    pieces, piece = [], []
    for token in stream:
        if token == bos:
            pieces.append(piece)
            piece = []
        else:
            piece.append(token)
    assert found == [[bos, *piece] for piece in [*pieces, piece] if piece]


def flat(path: Path, tokens) -> Path:
    np.array(tokens, "<u2").tofile(path)
    return path


def tokenizer_bos(tokenizer_json) -> int:
    from tokenmill.tokenize.tokenizer import Tokenizer

    return Tokenizer.load(Path(tokenizer_json)).bos_id


def llmc_header(magic=20240520, version=1, count=3):
    return struct.pack("<3i", magic, version, count) + bytes(1012)


@pytest.mark.parametrize(
    ("layout", "data", "message"),
    [
        ("nanogpt", b"123", "a.bin: expected uint16 token ids, found 3 bytes"),
        ("nanogpt", b"", "a.bin: expected uint16 token ids, found 0 bytes"),
        ("nanogpt", struct.pack("<3H", 1, 2, 50_000), "a.bin: token 2 is 50000, and tokenizer bpe400 has 400"),
        ("llm.c", llmc_header(magic=7), r"a.bin: expected a header .*magic 20240520.*found \(7, 1\)"),
        ("llm.c", llmc_header(version=3), r"a.bin: expected a header .*found \(20240520, 3\)"),
        ("llm.c", b"short", r"a.bin: expected a header of 256 int32"),
        ("llm.c", llmc_header() + bytes(4), "a.bin: expected 1,030 bytes, as its header says, found 1,028"),
        ("npy", b"no array", "a.bin: expected an array of NumPy's, found damage"),
        ("megatron", b"x", "a.idx: expected Megatron's index"),
    ],
)
def test_a_file_that_is_not_of_its_layout_is_named(tokenizer_json, tmp_path, layout, data, message):
    (tmp_path / "a.bin").write_bytes(data)
    (tmp_path / "a.idx").write_bytes(b"")
    (tmp_path / "val.bin").write_bytes(data)
    files = (tmp_path / "a.bin", tmp_path / "val.bin")
    with pytest.raises(ValueError, match=message):
        convert.take_in(convert.In(layout, files, tokenizer_json, "x", tokens_root=tmp_path / "tokens"))
    assert not list(tmp_path.rglob("manifest.json"))


def test_files_that_are_missing_or_none_to_validate_on_or_without_documents(tokenizer_json, tmp_path):
    bos = tokenizer_bos(tokenizer_json)
    train, lone = flat(tmp_path / "a.bin", [bos, 5]), flat(tmp_path / "lone_val.bin", [bos])

    def take(*files):
        return convert.take_in(convert.In("nanogpt", files, tokenizer_json, "x", tokens_root=tmp_path / "tokens"))

    with pytest.raises(FileNotFoundError, match="nowhere.bin: no such file"):
        take(train, tmp_path / "nowhere.bin")
    with pytest.raises(ValueError, match="one to validate on, with `val` in its name"):
        take(train)
    with pytest.raises(ValueError, match="expected documents, found none"):
        take(flat(tmp_path / "empty.bin", [bos, bos]), lone)
