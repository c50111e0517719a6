"""Token sets become other people's files, as readers written from the formats' descriptions see them, and come back."""

import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import BOS, ROOT, full_after, give_tokenizer, make_token_set
from making_views import make_view

from tokenmill.exchange import convert, convert_in, convert_out, flat_files, indexed_files, layouts, split_files
from tokenmill.exchange.convert_out import write_meta
from tokenmill.look.verify import verify
from tokenmill.store.token_sets import TokenSet
from tokenmill.tokenize.tokenizer import Tokenizer

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


def by_raw(folder, split):
    return by_raw_of(folder, split, 2 if TokenSet(folder.parent / "set").dtype == "uint16" else 4), None


READERS = {
    "nanogpt": by_nanogpt,
    "raw": by_raw,
    "llm.c": by_llmc,
    "npy": by_npy,
    "megatron": by_megatron,
    "parquet": by_parquet,
}


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
    monkeypatch.setattr(split_files, "BLOCK_TOKENS", 50)
    train = [[5, 3, 40, 7, 2], [3] * 20, [], [100, 33, 50]]
    tokens = make_token_set(tmp_path / "set", train=train, val=[[4, 8, 30]], vocab=vocab)
    ranks = {number.to_bytes(3, "big"): number for number in range(1, vocab)}
    give_tokenizer(tokens, Tokenizer("synthetic", ".", ranks, {"<|bos|>": BOS}, "<|bos|>"))
    config = convert.Out(layout, tokens, tmp_path / "out", file_tokens=64 if layouts.LAYOUTS[layout].is_cut else None)
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
    if layouts.LAYOUTS[layout].is_cut:
        paths = sorted(folder.glob("*_train_*"))
        counts = [len(layouts.LAYOUTS[layout].read(path, TokenSet(tokens).numpy_dtype)[0]) for path in paths]
        assert sum(counts) == 300
        assert set(counts) == {60}, "at most 64, and as even as can be"
        assert sorted(path.name for path in folder.iterdir())[0].startswith("synthetic_train_000001")


def test_documents_end_with_eos_where_that_is_asked_for(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(split_files, "BLOCK_TOKENS", 1000)
    bos = TokenSet(prepared[1]).bos_id
    for eos_token, eos in ((None, bos), ("<|user_start|>", bos + 1)):
        out = convert.export(
            convert.Out("raw", prepared[1], tmp_path / str(eos), file_tokens=7_000, eos=True, eos_token=eos_token)
        )
        dove = convert.export(convert.Out("datatrove", prepared[1], tmp_path / f"dove{eos}", eos_token=eos_token))
        for split in ("train", "val"):
            expected = [[*document[1:], eos] for document in documents_of(prepared[1], split)]
            assert by_raw_of(out, split, 2) == [token for document in expected for token in document]
            assert by_datatrove(dove, split) == expected
        assert (dove / "val" / "00000_val.ds.metadata").read_text().startswith("bpe400|2\n")
    with pytest.raises(
        ValueError, match=r"--eos-token <eos>: expected a special token of bpe400, <.bos.>, <.user_start"
    ):
        convert.export(convert.Out("raw", prepared[1], tmp_path / "no", eos_token="<eos>"))


def test_a_tokenizer_s_own_end_of_text_is_taken_and_else_what_stands_between_documents():
    def eos_of(*special):
        ids = {token: number for number, token in enumerate(special)}
        tokenizer = Tokenizer("one", ".", {b"a": 99}, ids, special[0])
        return special[convert_out._eos_id(tokenizer, None)]

    assert eos_of("<s>", "</s>") == "</s>"
    assert eos_of("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>") == "<|end_of_text|>"
    assert eos_of("<|endoftext|>") == "<|endoftext|>"
    assert eos_of("<|bos|>", "<|user_start|>") == "<|bos|>"


def by_raw_of(folder, split, size):
    paths = sorted(folder.glob(f"*_{split}_*.bin"))
    return [number for path in paths for number in numbers(path.read_bytes(), size)]


def by_datatrove(folder, split):
    documents = []
    for path in sorted((folder / split).glob("*.ds")):
        tokens = numbers(path.read_bytes(), 2)
        ends = numbers(Path(f"{path}.index").read_bytes(), 8)
        documents += [tokens[first:last] for first, last in zip([0, *ends], ends, strict=False)]
        assert ends[-1] == len(tokens)
    return documents


@pytest.mark.parametrize("file_tokens", [None, 3, 1_000_000])
def test_to_train_on_there_are_two_files_at_least_and_none_is_a_remnant(token_set, tmp_path, tokenizer, file_tokens):
    folder = tmp_path / "set"
    shutil.copytree(token_set, folder)
    give_tokenizer(folder, tokenizer)
    out = convert.export(convert.Out("npy", folder, tmp_path / "out", file_tokens=file_tokens))
    for split, least in (("train", 2), ("val", 1)):
        sizes = [len(np.load(path)) for path in sorted(out.glob(f"*_{split}_*"))]
        total = sum(len(document) for document in documents_of(folder, split))
        assert len(sizes) == max(least, -(-total // (file_tokens or 10**8)))
        assert sum(sizes) == total
        assert max(sizes) - min(sizes) <= 1


def test_a_size_of_files_is_refused_where_the_layout_has_its_own(token_set, tmp_path, tokenizer):
    folder = tmp_path / "set"
    shutil.copytree(token_set, folder)
    give_tokenizer(folder, tokenizer)
    with pytest.raises(ValueError, match=r"--file-tokens is for layouts of many files, raw, llm.c, npy; megatron has"):
        convert.export(convert.Out("megatron", folder, tmp_path / "out", file_tokens=5))
    with pytest.raises(ValueError, match="--file-tokens must be a whole number of at least 1, not 0"):
        convert.export(convert.Out("raw", folder, tmp_path / "out", file_tokens=0))


def test_nanogpt_s_meta_has_what_its_two_scripts_read(prepared, tmp_path, gpt2):
    tokenizer = Tokenizer.load(prepared[1] / "tokenizer.json")
    folder = convert.export(convert.Out("nanogpt", prepared[1], tmp_path / "out"))
    meta = pickle.loads((folder / "meta.pkl").read_bytes())
    assert meta["vocab_size"] == tokenizer.vocab_size  # train.py's
    stoi, itos = meta["stoi"], meta["itos"]  # sample.py's encode and decode
    assert "".join(itos[id] for id in [stoi[character] for character in "\n Hi there"]) == "\n Hi there"
    text = "Ordinary words, twice over; ordinary words"
    assert "".join(itos[id] for id in tokenizer.encode(text).tolist()) == text
    assert itos[tokenizer.bos_id] == tokenizer.bos_token
    with_gpt2 = tmp_path / "gpt2"
    with_gpt2.mkdir()
    write_meta(with_gpt2, gpt2)
    assert not list(with_gpt2.iterdir()), "its scripts know GPT-2's vocabulary themselves"


def test_a_folder_that_is_there_and_a_disk_that_is_full_leave_nothing_that_counts(prepared, tmp_path):
    token_set = prepared[1]
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError, match="there: is there already"):
        convert.export(convert.Out("llm.c", token_set, tmp_path / "there"))
    done = subprocess.run(
        [sys.executable, "-m", "tokenmill", "convert", "out", "megatron", token_set, tmp_path / "new"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        **full_after(100),
    )
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]


# ---------------------------------------------------------------------------- in

COME_IN = [name for name, layout in layouts.LAYOUTS.items() if layout.read]


@pytest.mark.parametrize("layout", COME_IN)
@pytest.mark.parametrize("eos", [False, True])
def test_what_was_written_comes_back_with_the_same_documents(prepared, tokenizer_json, tmp_path, layout, eos):
    tokens = 10_000 if layouts.LAYOUTS[layout].is_cut else None  # documents go on in the next file
    folder = convert.export(convert.Out(layout, prepared[1], tmp_path / "out", tokens, eos=eos))
    files = tuple(path for path in folder.rglob("*") if path.suffix in (".bin", ".npy", ".parquet", ".ds"))
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
    files = [[bos if token == BOS else token for token in file] for file in [[BOS], *files]]
    paths = [flat(tmp_path / f"{i}.bin", [*file, 7]) for i, file in enumerate(files)]  # no file is empty
    val = flat(tmp_path / "val.bin", [bos, 9])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convert_in, "BLOCK_TOKENS", block)
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
        ("nanogpt", struct.pack("<3H", 1, 2, 50_000), "a.bin: token 2 is 50000, and bpe400 has 400"),
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
    with pytest.raises(ValueError, match=rf"b.bin: expected <.bos.>, token {bos}, between documents, found none"):
        take(flat(tmp_path / "b.bin", [5, 6] * 1000), flat(tmp_path / "val.bin", [bos, 9]))
    with pytest.raises(ValueError, match=rf"val.bin: expected <.bos.>, token {bos}, between documents"):
        take(train, flat(tmp_path / "val.bin", [9, 9]))
    assert not list(tmp_path.rglob("manifest.json"))


@pytest.mark.parametrize(("fraction", "validating"), [(0, 0), (0.3, 3), (0.95, 9), (0.01, None)])
@pytest.mark.parametrize("files", [1, 2])
def test_a_single_file_s_last_documents_validate(tokenizer_json, tmp_path, fraction, validating, files):
    """Megatron's preprocess_data.py, datatrove and Hugging Face make one file."""
    bos = tokenizer_bos(tokenizer_json)
    documents = [[bos, *range(1, 10)] for _ in range(10)]
    stream, cut = sum(documents, []), 100 // files
    paths = [flat(tmp_path / f"{i}.bin", stream[at : at + cut]) for i, at in enumerate(range(0, 100, cut))]
    more = {"tokens_root": tmp_path / "tokens", "val_fraction": fraction}
    config = convert.In("nanogpt", tuple(paths), tokenizer_json, "x", **more)
    if validating is None:
        with pytest.raises(ValueError, match="no document begins in the last 1.00% of the files: --val-fraction"):
            convert.take_in(config)
        return
    folder = convert.take_in(config)
    assert documents_of(folder, "train") == documents[: 10 - validating]
    assert documents_of(folder, "val") == documents[10 - validating :]
    assert verify(folder) == {}


def test_a_fraction_and_files_that_validate_are_not_named_together(tokenizer_json, tmp_path):
    path = flat(tmp_path / "a.bin", [tokenizer_bos(tokenizer_json), 5])
    for more, message in [
        ({"val_fraction": 0.1, "val_file": (str(path),)}, "no --val-file beside it, found 0.1"),
        ({"val_fraction": 1.0}, "expected --val-fraction from 0 to below 1, .* found 1.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            convert.take_in(convert.In("nanogpt", (path,), tokenizer_json, "x", tokens_root=tmp_path / "t", **more))


def test_the_rest_of_a_document_that_lies_across_the_splits_files_is_one(tokenizer_json, tmp_path):
    """llm.c's and build-nanogpt's validation file is cut anywhere, and its last document goes on in the first other."""
    bos = tokenizer_bos(tokenizer_json)
    np.save(tmp_path / "x_val_000000.npy", np.array([bos, 5, 6, bos, 7], "<u2"))
    np.save(tmp_path / "x_train_000001.npy", np.array([8, 9, bos, 5], "<u2"))
    np.save(tmp_path / "x_train_000002.npy", np.array([4, bos, 3], "<u2"))
    files = tuple(tmp_path.glob("*.npy"))
    folder = convert.take_in(convert.In("npy", files, tokenizer_json, "x", tokens_root=tmp_path / "tokens"))
    assert documents_of(folder, "train") == [[bos, 8, 9], [bos, 5, 4], [bos, 3]]


def test_a_trailing_eot_is_no_empty_document_and_one_between_two_is(tokenizer_json, tmp_path):
    bos = tokenizer_bos(tokenizer_json)

    def taken(layout, *files):
        config = convert.In(layout, files, tokenizer_json, layout, tokens_root=tmp_path / "tokens")
        token_set = convert.take_in(config)
        return documents_of(token_set, "train"), TokenSet(token_set).manifest["empty_documents"]

    val = flat(tmp_path / "val.bin", [7, 8, bos])
    one = flat(tmp_path / "1.bin", [5, 6, bos, bos, 7, bos])
    two = flat(tmp_path / "2.bin", [8, 9, bos])
    assert taken("nanogpt", one, two, val) == ([[bos, 5, 6], [bos, 7], [bos, 8, 9]], 1)


def test_an_array_of_numpy_s_is_not_taken_for_bare_ids(tokenizer_json, tmp_path):
    for name in ("a.bin", "val.bin"):
        with open(tmp_path / name, "wb") as file:
            np.save(file, np.array([1, 2, 3], np.uint16))
    files = (tmp_path / "a.bin", tmp_path / "val.bin")
    with pytest.raises(ValueError, match="found an array of NumPy's with a header; use npy"):
        convert.take_in(convert.In("nanogpt", files, tokenizer_json, "x", tokens_root=tmp_path / "tokens"))


def test_files_of_one_name_in_several_folders_are_shards_of_their_own(tokenizer_json, tmp_path):
    bos, files = tokenizer_bos(tokenizer_json), []
    for number, folder in enumerate(("a", "b", "val")):
        (tmp_path / folder).mkdir()
        files.append(flat(tmp_path / folder / "00000.bin", [bos, 5 + number]))

    def take(*files, name="x"):
        config = convert.In("nanogpt", files, tokenizer_json, name, (files[-1],), tokens_root=tmp_path / "tokens")
        return convert.take_in(config)

    token_set = take(*files)
    assert (documents_of(token_set, "train"), documents_of(token_set, "val")) == ([[bos, 5], [bos, 6]], [[bos, 7]])
    assert verify(token_set) == {}
    twice = take(files[0], os.path.relpath(files[0]), files[2], name="y")
    assert documents_of(twice, "train") == [[bos, 5]], "a file that is named twice comes in once"


def test_a_file_that_validates_does_not_train_however_it_is_spelt(tokenizer_json, tmp_path):
    bos = tokenizer_bos(tokenizer_json)
    files = [flat(tmp_path / f"{number}.bin", [bos, 5 + number]) for number in range(2)]
    val = (Path(os.path.relpath(files[1])),)
    config = convert.In("nanogpt", tuple(files), tokenizer_json, "x", val, tokens_root=tmp_path / "tokens")
    assert documents_of(convert.take_in(config), "train") == [[bos, 5]]


@pytest.mark.parametrize("name", ["retrieval", "constrained_train", "my_val_set"])
def test_a_data_set_s_name_is_not_taken_for_a_split_s(tmp_path, tokenizer, tokenizer_json, name):
    token_set = make_token_set(tmp_path / name, train=[[5, 3], [4]], val=[[6]], vocab=400)
    manifest = json.loads((token_set / "manifest.json").read_text())
    (token_set / "manifest.json").write_text(json.dumps(manifest | {"dataset": name}))
    give_tokenizer(token_set, tokenizer)
    out = convert.export(convert.Out("npy", token_set, tmp_path / "out"))
    assert [path.name for path in sorted(out.iterdir())] == [
        "tokens_train_000001.npy",
        "tokens_train_000002.npy",
        "tokens_val_000000.npy",
    ]
    assert convert_in.VAL_NAME.search("x_val_000.bin")
    assert convert_in.VAL_NAME.search("validation-00000-of-2.parquet")
    assert not convert_in.VAL_NAME.search(f"{name.replace('val_', '')}_train.bin")


def test_uint32_ids_are_not_taken_for_twice_as_many_of_uint16(tokenizer_json, tmp_path):
    bos = tokenizer_bos(tokenizer_json)
    files = tuple(tmp_path / name for name in ("a.bin", "val.bin"))
    for path in files:
        np.array([bos, 5, 6, bos, 7], "<u4").tofile(path)
    for layout in ("raw", "nanogpt"):
        with pytest.raises(ValueError, match="every other one is 0: they look like uint32 ids"):
            convert.take_in(convert.In(layout, files, tokenizer_json, "x", tokens_root=tmp_path / "tokens"))


def test_a_link_to_a_file_is_that_file(tokenizer_json, tmp_path):
    bos = tokenizer_bos(tokenizer_json)
    (tmp_path / "raw").mkdir()
    files = [flat(tmp_path / "raw" / f"{number}.bin", [bos, 5 + number]) for number in range(3)]
    (tmp_path / "link").symlink_to("raw")

    def take(*files, val=(), name="x"):
        return convert.take_in(convert.In("nanogpt", files, tokenizer_json, name, val, tokens_root=tmp_path / "tokens"))

    token_set = take(*files, val=(tmp_path / "link" / "1.bin",))
    assert (documents_of(token_set, "train"), documents_of(token_set, "val")) == ([[bos, 5], [bos, 7]], [[bos, 6]])
    assert documents_of(take(*files, tmp_path / "link" / "0.bin", val=(files[1],), name="y"), "train") == documents_of(
        token_set, "train"
    )


def test_files_come_in_the_order_of_their_numbers(tokenizer_json, tmp_path):
    bos = tokenizer_bos(tokenizer_json)
    files = [flat(tmp_path / f"x_{number}.bin", [5, bos, 6]) for number in (1, 10, 2)]
    flat(files[0], [bos, 1, 2])
    flat(files[1], [4, bos, 9])
    flat(files[2], [3, bos, 8])
    val = flat(tmp_path / "val.bin", [bos, 7])
    config = convert.In("nanogpt", (*files, val), tokenizer_json, "x", tokens_root=tmp_path / "tokens")
    assert documents_of(convert.take_in(config), "train") == [[bos, 1, 2, 3], [bos, 8, 4], [bos, 9]]


def test_what_was_refused_leaves_no_shard_behind(tokenizer_json, tmp_path):
    bos = tokenizer_bos(tokenizer_json)
    files = [
        flat(tmp_path / "a.bin", [bos, 5]),
        flat(tmp_path / "b.bin", [bos, 60_000]),
        flat(tmp_path / "val.bin", [bos]),
    ]
    with pytest.raises(ValueError, match="token 1 is 60000"):
        convert.take_in(convert.In("nanogpt", tuple(files), tokenizer_json, "x", tokens_root=tmp_path / "tokens"))
    assert not list(tmp_path.glob("tokens/*"))


@pytest.mark.parametrize(
    ("layout", "name", "message"),
    [
        ("datatrove", "a.ds", "datatrove: is written only"),
        ("megatron", "a.idx", "of megatron name the .bin files"),
        ("megatron", "a.bin", "a.bin: expected Megatron's a.idx beside it, found none"),
        ("nanogpt", "", "a folder; name its files"),
        ("nanogpt", None, "expected files to train on and one to validate on"),
        ("raw", "hf://datasets/o/n/*.bin", "files come in from this disk; fetch them first, from the hub by `hf down"),
    ],
)
def test_what_is_named_wrongly_is_told_what_to_name(tokenizer_json, tmp_path, layout, name, message):
    files = () if name is None else (tmp_path / name,)
    if name and "://" in name:
        files = (name,)
    elif name:
        flat(tmp_path / name, [1, 2])
        files = (*files, flat(tmp_path / f"val{files[0].suffix}", [1, 2]))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        convert.take_in(convert.In(layout, files, tokenizer_json, "x", tokens_root=tmp_path / "tokens"))


@pytest.mark.parametrize("wrong", [np.zeros((2, 2), np.uint16), np.zeros(3), np.array(3), np.array(["a"])])
def test_an_array_that_is_no_row_of_ids_is_refused(tokenizer_json, tmp_path, wrong):
    for name in ("a.npy", "val.npy"):
        np.save(tmp_path / name, wrong)
    files = (tmp_path / "a.npy", tmp_path / "val.npy")
    with pytest.raises(ValueError, match="a.npy: expected an array of ids, found"):
        convert.take_in(convert.In("npy", files, tokenizer_json, "x", tokens_root=tmp_path / "tokens"))


@pytest.mark.parametrize("damage", ["lengths", "pointers", "documents"])
def test_a_damaged_index_of_megatron_s_is_refused(prepared, tokenizer_json, tmp_path, damage):
    out = convert.export(convert.Out("megatron", prepared[1], tmp_path / "out"))
    data = bytearray((out / "train.idx").read_bytes())
    sequences = struct.unpack_from("<Q", data, 18)[0]
    at = {"lengths": 34, "pointers": 34 + 4 * sequences, "documents": 34 + 12 * sequences}[damage]
    size = 4 if damage == "lengths" else 8
    data[at : at + 2 * size] = (
        data[at + size : at + 2 * size] + data[at : at + size]
    )  # the first two in each other's place
    (out / "train.idx").write_bytes(data)
    files = (out / "train.bin", out / "val.bin")
    with pytest.raises(ValueError, match="train.idx: expected sequences one after the other"):
        convert.take_in(convert.In("megatron", files, tokenizer_json, "x", tokens_root=tmp_path / "tokens"))


def test_a_split_without_tokens_is_told(tmp_path, tokenizer):
    token_set = make_token_set(tmp_path / "set", train=[[5]], val=[], vocab=400)
    give_tokenizer(token_set, tokenizer)
    for layout in layouts.LAYOUTS:
        with pytest.raises(ValueError, match="split 'val' has no token to write"):
            convert.export(convert.Out(layout, token_set, tmp_path / "out"))


@settings(max_examples=200)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 500), st.booleans())
def test_files_are_even_and_end_where_documents_do_unless_that_is_uneven(lengths, most, trains):
    sizes = split_files.file_sizes(np.array(lengths), most, trains)
    total = sum(lengths)
    even = total / max(-(-total // most), 2 if trains else 1)
    assert sum(sizes) == total
    assert len(sizes) == max(-(-total // most), 2 if trains else 1)
    assert all(int(even / 2) <= size <= 1.5 * even + 1 for size in sizes)
    ends = set(np.cumsum(lengths).tolist())
    if max(lengths) < even / 2:
        assert set(np.cumsum(sizes).tolist()) <= ends


def test_a_file_beyond_what_llm_c_s_header_counts_is_refused(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(flat_files, "LLMC_MOST", 50)
    with pytest.raises(ValueError, match="a file of llm.c counts its tokens in 32 bits, and one would have"):
        convert.export(convert.Out("llm.c", str(prepared[1]), tmp_path / "a"))
    assert list(tmp_path.iterdir()) == []


def test_a_document_beyond_what_megatron_s_index_counts_is_refused(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(indexed_files, "LONGEST", 5)
    with pytest.raises(
        ValueError, match=r"a document has \d+ tokens, and Megatron's index counts those of one in 32 bi"
    ):
        convert.export(convert.Out("megatron", str(prepared[1]), tmp_path / "a"))
    assert list(tmp_path.iterdir()) == []


def test_masks_and_padding_beside_the_ids_are_refused(tokenizer_json, tmp_path):
    """TRL's completion_mask would be lost, and padding is no text."""
    files = (tmp_path / "a.parquet", tmp_path / "val.parquet")

    def take(columns, name="x"):
        for path in files:
            pq.write_table(pa.table({"input_ids": [[5, 6], [7]]} | columns), path)
        return convert.take_in(convert.In("parquet", files, tokenizer_json, name, tokens_root=tmp_path / "tokens"))

    for name in ("completion_mask", "loss_weights", "labels", "assistant_masks", "position_ids"):
        with pytest.raises(ValueError, match=f"a.parquet: has {name} beside input_ids, which would be lost here"):
            take({name: [[0, 1], [1]]})
    with pytest.raises(ValueError, match=r"a.parquet: attention_mask has zeros, so input_ids has padding"):
        take({"attention_mask": [[0, 1], [1]]})
    bos = tokenizer_bos(tokenizer_json)
    folder = take({"attention_mask": [[1, 1], [1]], "url": ["a", "b"]})
    assert documents_of(folder, "train") == [[bos, 5, 6], [bos, 7]]


def test_what_comes_in_is_shown_decoded(prepared, tokenizer_json, tmp_path, capsys):
    out = convert.export(convert.Out("megatron", prepared[1], tmp_path / "out"))
    files = (out / "train.bin", out / "val.bin")
    convert.take_in(convert.In("megatron", files, tokenizer_json, "x", tokens_root=tmp_path / "tokens"))
    first = Tokenizer.load(tokenizer_json).decode(documents_of(prepared[1], "train")[0][:20])
    assert f"the first document begins: {first!r}\n" in capsys.readouterr().err


@pytest.mark.parametrize("layout", ["raw", "datatrove"])
def test_documents_that_end_with_eos_get_no_second_one(tokenizer, tokenizer_json, tmp_path, layout):
    eot = tokenizer.bos_id + 1
    files = [flat(tmp_path / name, [tokenizer.bos_id, 5, eot] * 2) for name in ("a.bin", "val.bin")]
    config = convert.In("nanogpt", tuple(files), tokenizer_json, "set", tokens_root=tmp_path / "tokens")
    folder = convert.take_in(config)
    how = {"eos": True, "eos_token": "<|user_start|>"}
    with pytest.raises(ValueError, match=f"its documents end with token {eot} already, and would end with two"):
        convert.export(convert.Out(layout, str(folder), tmp_path / "out", **how))
    assert convert.export(convert.Out("raw", str(folder), tmp_path / "out")).exists()


# ---------------------------------------------------------------------------- views


@pytest.mark.parametrize("layout", ["nanogpt", "megatron", "parquet", "datatrove", "llm.c"])
@pytest.mark.parametrize("eos", [False, True])
def test_a_view_is_written_copy_by_copy(tmp_path, tokenizer, layout, eos):
    lengths = [[5, 3, 9, 2], [4, 4]]
    folder = make_token_set(tmp_path / "set", lengths, [[6, 7]], vocab=tokenizer.vocab_size, bos=tokenizer.bos_id)
    give_tokenizer(folder, tokenizer)
    counts = {"train_0.000": [2, 0, 1, 3], "train_1.000": [1, 2], "val_0.000": [0, 2]}
    make_view(folder, "some", counts)
    out = convert.export(convert.Out(layout, str(folder), tmp_path / "out", eos=eos, view="some"))
    token_set = TokenSet(folder)
    expected = []
    for copy in range(3):
        for entry in token_set.split("train"):
            shard = token_set.open(entry)
            for document, times in enumerate(counts[entry.name]):
                if times > copy:
                    expected.append(shard.read(*shard.offsets[document : document + 2].astype(int).tolist()).tolist())
    patterns = {"datatrove": "train/*.ds", "parquet": "train-*.parquet", "llm.c": "*_train_*"}
    read = layouts.LAYOUTS[layout].read or layouts.LAYOUTS["raw"].read
    paths = sorted(out.glob(patterns.get(layout, "train.bin")))
    written = [read(path, token_set.numpy_dtype)[0].tolist() for path in paths]
    found = [token for tokens in written for token in tokens]
    flat = [token for document in expected for token in document]
    if eos or layout == "datatrove":
        eos_id = found[-1]
        flat = [token for document in expected for token in [*document[1:], eos_id]]
    assert found == flat
