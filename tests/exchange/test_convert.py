"""Token sets become other people's files, as readers written from the formats' descriptions see
them, and come back.
"""

import io
import os
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from making import BOS, give_tokenizer, make_token_set
from making_views import make_view

from tokenmill.exchange import convert, convert_in, convert_out, flat_files, indexed_files, layouts
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
        of_file = numbers(data[1024:], size)
        assert len(of_file) == number(data, 8, 4)
        tokens += of_file
    return tokens, None


def by_npy(folder, split):
    arrays = [np.load(path) for path in sorted(folder.glob(f"*_{split}_*.npy"))]
    assert {array.ndim for array in arrays} == {1}
    return np.concatenate(arrays).tolist(), None


def by_megatron(folder, split):
    data = (folder / f"{split}.idx").read_bytes()
    assert data[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, documents = struct.unpack("<QBQQ", data[9:34])
    assert (version, documents) == (1, sequences + 1)
    size = {8: 2, 4: 4}[code]
    lengths = struct.unpack(f"<{sequences}i", data[34 : 34 + 4 * sequences])
    pointers = struct.unpack(f"<{sequences}q", data[34 + 4 * sequences : 34 + 12 * sequences])
    indices = struct.unpack(f"<{documents}q", data[34 + 12 * sequences :])
    assert list(indices) == list(range(documents))
    raw = (folder / f"{split}.bin").read_bytes()
    rows = [numbers(raw[p : p + n * size], size) for p, n in zip(pointers, lengths, strict=True)]
    return sum(rows, []), rows


def by_parquet(folder, split):
    rows = []
    for path in sorted(folder.glob(f"{split}-*.parquet")):
        rows += pq.read_table(path).column("input_ids").to_pylist()
    return sum(rows, []), rows


def by_raw(folder, split):
    size = 2 if TokenSet(folder.parent / "set").dtype == "uint16" else 4
    tokens = []
    for path in sorted(folder.glob(f"*_{split}_*.bin")):
        tokens += numbers(path.read_bytes(), size)
    return tokens, None


def by_datatrove(folder, split):
    documents = []
    for path in sorted((folder / split).glob("*.ds")):
        tokens = numbers(path.read_bytes(), 2)
        ends = numbers(Path(f"{path}.index").read_bytes(), 8)
        documents += [tokens[first:last] for first, last in zip([0, *ends], ends, strict=False)]
        assert ends[-1] == len(tokens)
    return documents


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
    documents = []
    for entry in token_set.split(split):
        shard = token_set.open(entry)
        for begin, end in pairwise(shard.offsets.tolist()):
            documents.append(shard.tokens[begin:end].tolist())
    return documents


@pytest.fixture
def small_set(tmp_path, tokenizer):
    """A token set of few documents, with a tokenizer."""
    lengths = [[5, 3, 9, 2], [4, 4]]
    folder = make_token_set(
        tmp_path / "set", lengths, [[6, 7]], vocab=tokenizer.vocab_size, bos=tokenizer.bos_id
    )
    give_tokenizer(folder, tokenizer)
    return folder


@pytest.fixture
def flat(tmp_path):
    """Writes ids to a file of uint16."""

    def write(name, *tokens):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.array(tokens, "<u2").tofile(tmp_path / name)
        return tmp_path / name

    return write


@pytest.fixture
def take(tmp_path, tokenizer_json):
    """Takes files in, and gives the folder of the token set."""

    def take(layout, *files, name="x", val=(), **more):
        more["tokens_root"] = tmp_path / "tokens"
        return convert.take_in(convert.In(layout, files, tokenizer_json, name, val, **more))

    return take


@pytest.fixture(scope="module")
def bos(tokenizer):
    return tokenizer.bos_id


# ---------------------------------------------------------------------------- out


@pytest.mark.parametrize("layout", READERS)
@pytest.mark.parametrize("vocab", [1000, 70_000])
def test_what_is_written_is_what_a_reader_of_the_format_finds(tmp_path, monkeypatch, layout, vocab):
    monkeypatch.setattr(flat_files, "BLOCK_TOKENS", 50)
    train = [[5, 3, 40, 7, 2], [3] * 20, [], [100, 33, 50]]
    tokens = make_token_set(tmp_path / "set", train=train, val=[[4, 8, 30]], vocab=vocab)
    ranks = {number.to_bytes(3, "big"): number for number in range(1, vocab)}
    give_tokenizer(tokens, Tokenizer("synthetic", ".", ranks, {"<|bos|>": BOS}, "<|bos|>"))
    config = convert.Out(
        layout, tokens, tmp_path / "out", file_tokens=64 if layouts.LAYOUTS[layout].is_cut else None
    )
    if layout == "nanogpt" and vocab > 65_536:
        with pytest.raises(ValueError, match=r"nanoGPT's files are uint16"):
            convert.export(config)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["set"], "nothing is left"
        return
    folder = convert.export(config)
    for split in ("train", "val"):
        expected = documents_of(tokens, split)
        read, rows = READERS[layout](folder, split)
        assert read == sum(expected, [])
        assert rows is None or rows == expected


def test_a_set_without_validation_has_no_file_of_it(tmp_path, capsys):
    tokens = make_token_set(tmp_path / "set", train=[[5, 3, 40, 7, 2]], val=[])
    give_tokenizer(tokens, Tokenizer("one", ".", {b"a": 99}, {"<|bos|>": BOS}, "<|bos|>"))
    for layout, read in READERS.items():
        folder = convert.export(convert.Out(layout, tokens, tmp_path / layout))
        assert "left out: split val, which has no tokens" in capsys.readouterr().err
        assert read(folder, "train")[0] == sum(documents_of(tokens, "train"), [])
        assert not list(folder.glob("*val*"))


def test_documents_end_with_eos_where_that_is_asked_for(small_set, tmp_path, bos, monkeypatch):
    for module in (flat_files, indexed_files):
        monkeypatch.setattr(module, "BLOCK_TOKENS", 7)
    for eos_token, eos in ((None, bos), ("<|user_start|>", bos + 1)):
        more = {"eos": True, "eos_token": eos_token}
        out = convert.export(
            convert.Out("raw", small_set, tmp_path / str(eos), file_tokens=9, **more)
        )
        dove = convert.export(
            convert.Out("datatrove", small_set, tmp_path / f"dove{eos}", eos_token=eos_token)
        )
        for split in ("train", "val"):
            expected = [[*document[1:], eos] for document in documents_of(small_set, split)]
            assert by_raw(out, split)[0] == sum(expected, [])
            assert by_datatrove(dove, split) == expected
        assert (dove / "val" / "00000_val.ds.metadata").read_text().startswith("bpe400|2\n")
    with pytest.raises(
        ValueError,
        match=r"--eos-token <eos>: expected a special token of bpe400, <.bos.>, <.user_st",
    ):
        convert.export(convert.Out("raw", small_set, tmp_path / "no", eos_token="<eos>"))


def test_a_tokenizer_s_own_end_of_text_is_taken_and_else_what_stands_between_documents():
    for special, eos in [
        (("<s>", "</s>"), "</s>"),
        (("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"), "<|end_of_text|>"),
        (("<|endoftext|>",), "<|endoftext|>"),
        (("<|bos|>", "<|user_start|>"), "<|bos|>"),
    ]:
        ids = {token: number for number, token in enumerate(special)}
        assert (
            special[convert_out._eos_id(Tokenizer("one", ".", {b"a": 99}, ids, special[0]), None)]
            == eos
        )


@settings(max_examples=80)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 500), st.booleans())
def test_files_are_even_and_end_where_documents_do_unless_that_is_uneven(lengths, most, trains):
    """There are two files at least to train on, and none is a remnant."""
    sizes = flat_files.file_sizes(np.array(lengths), most, trains)
    total = sum(lengths)
    count = max(-(-total // most), 2 if trains else 1)
    assert (sum(sizes), len(sizes)) == (total, count)
    mean = total / count
    assert all(int(mean / 2) <= size <= 1.5 * mean + 1 for size in sizes)
    if max(lengths) < mean / 2:
        assert set(np.cumsum(sizes).tolist()) <= set(np.cumsum(lengths).tolist())


@pytest.mark.parametrize(
    ("layout", "more", "message"),
    [
        ("llm.c", {"folder": "set"}, "set: is there already"),
        (
            "megatron",
            {"file_tokens": 5},
            "--file-tokens is for layouts of many files, raw, llm.c, npy; megatron has",
        ),
        ("raw", {"file_tokens": 0}, "--file-tokens must be a whole number of at least 1, not 0"),
        ("llm.c", {}, "llm.c's reader seeks by 32 bits, and a file would have"),
        (
            "megatron",
            {},
            r"a document has \d+ tokens, and Megatron's index counts those of one in 32 bits",
        ),
        ("raw", {"view": "none"}, "no token to write"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(
    small_set, tmp_path, monkeypatch, layout, more, message
):
    monkeypatch.setattr(flat_files, "LLMC_MOST", 5)
    monkeypatch.setattr(indexed_files, "LONGEST", 5)
    make_view(
        small_set, "none", {"train_0.000": [1] * 4, "train_1.000": [1, 1], "val_0.000": [0, 0]}
    )
    more = more | {"folder": tmp_path / more.get("folder", "out")}
    with pytest.raises((ValueError, FileExistsError), match=message):
        convert.export(convert.Out(layout, small_set, **more))
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.parametrize("layout", ["nanogpt", "megatron", "parquet", "datatrove", "llm.c"])
@pytest.mark.parametrize("eos", [False, True])
def test_a_view_is_written_copy_by_copy(small_set, tmp_path, layout, eos):
    counts = {"train_0.000": [2, 0, 1, 3], "train_1.000": [1, 2], "val_0.000": [0, 2]}
    make_view(small_set, "some", counts)
    out = convert.export(
        convert.Out(layout, str(small_set), tmp_path / "out", eos=eos, view="some")
    )
    documents = documents_of(small_set, "train")
    times = counts["train_0.000"] + counts["train_1.000"]
    expected = []
    for copy in range(3):
        expected += [document for document, n in zip(documents, times, strict=True) if n > copy]
    if layout == "datatrove":
        tokens = sum(by_datatrove(out, "train"), [])
    else:
        tokens, _ = READERS[layout](out, "train")
    if eos or layout == "datatrove":
        expected = [[*document[1:], tokens[-1]] for document in expected]
    assert tokens == sum(expected, [])


COME_BACK = [(name, False) for name, layout in layouts.LAYOUTS.items() if layout.read]


@pytest.mark.parametrize(("layout", "eos"), [*COME_BACK, ("raw", True), ("parquet", True)])
def test_what_was_written_comes_back_with_the_same_documents(
    prepared, take, tmp_path, capsys, layout, eos
):
    tokens = 10_000 if layouts.LAYOUTS[layout].is_cut else None  # documents go on in the next file
    folder = convert.export(convert.Out(layout, prepared[1], tmp_path / "out", tokens, eos=eos))
    files = tuple(path for path in folder.rglob("*") if path.suffix in (".bin", ".npy", ".parquet"))
    back = take(layout, *files)
    for split in ("train", "val"):
        assert documents_of(back, split) == documents_of(prepared[1], split)
    assert verify(back) == {}
    assert TokenSet(back).manifest["text_bytes"] == TokenSet(prepared[1]).manifest["text_bytes"]
    first = Tokenizer.load(back / "tokenizer.json").decode(documents_of(back, "train")[0][:20])
    assert f"the first document begins: {first!r}\n" in capsys.readouterr().err
    with pytest.raises(FileExistsError, match="x-bpe400-.*is there already"):
        take(layout, *files)


@settings(
    deadline=None, max_examples=35, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=5), st.integers(1, 7)
)
def test_documents_are_what_is_between_bos_tokens_wherever_the_files_are_cut(
    tokenizer_json, flat, bos, tmp_path_factory, files, block
):
    """A second BOS in a row is an empty document, which is counted, but for one at the end."""
    contents = [[bos, 7]]
    for file in files:
        contents.append([bos if token == 0 else token for token in file])
        contents[-1].append(7)  # no file is empty
    paths = [flat(f"{number}.bin", *tokens) for number, tokens in enumerate(contents)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convert_in, "BLOCK_TOKENS", block)
        root = tmp_path_factory.mktemp("in")
        config = convert.In(
            "nanogpt", (*paths, flat("val.bin", bos, 9)), tokenizer_json, "x", tokens_root=root
        )
        documents = documents_of(convert.take_in(config), "train")
    expected = []
    for token in sum(contents, []):
        if token == bos:
            expected.append([])
        expected[-1].append(token)
    assert documents == [document for document in expected if len(document) > 1]


@pytest.mark.parametrize(("fraction", "validating"), [(0, 0), (0.3, 3), (0.95, 9), (0.01, None)])
@pytest.mark.parametrize("files", [1, 2])
def test_a_single_file_s_last_documents_validate(take, flat, bos, fraction, validating, files):
    """Megatron's preprocess_data.py, datatrove and Hugging Face make one file."""
    documents = [[bos, *range(1, 10)] for _ in range(10)]
    stream = sum(documents, [])
    cut = 100 // files
    paths = [flat(f"{i}.bin", *stream[at : at + cut]) for i, at in enumerate(range(0, 100, cut))]
    if validating is None:
        with pytest.raises(
            ValueError, match="no document begins in the last 1.00% of the files: --val-fraction"
        ):
            take("nanogpt", *paths, val_fraction=fraction)
        return
    folder = take("nanogpt", *paths, val_fraction=fraction)
    assert documents_of(folder, "train") == documents[: 10 - validating]
    assert documents_of(folder, "val") == documents[10 - validating :]
    assert verify(folder) == {}


def test_the_rest_of_a_document_that_lies_across_the_splits_files_is_one(take, bos, tmp_path):
    """llm.c's and build-nanogpt's validation file is cut anywhere, and its last document goes on in
    the first other.
    """
    np.save(tmp_path / "x_val_000000.npy", np.array([bos, 5, 6, bos, 7], "<u2"))
    np.save(tmp_path / "x_train_000001.npy", np.array([8, 9, bos, 5], "<u2"))
    np.save(tmp_path / "x_train_000002.npy", np.array([4, bos, 3], "<u2"))
    folder = take("npy", *tmp_path.glob("*.npy"))
    assert documents_of(folder, "train") == [[bos, 8, 9], [bos, 5, 4], [bos, 3]]


def test_a_trailing_eot_is_no_empty_document_and_one_between_two_is(take, flat, bos):
    files = [flat("1.bin", 5, 6, bos, bos, 7, bos), flat("2.bin", 8, 9, bos)]
    folder = take("nanogpt", *files, flat("val.bin", 7, 8, bos))
    assert documents_of(folder, "train") == [[bos, 5, 6], [bos, 7], [bos, 8, 9]]
    assert TokenSet(folder).manifest["empty_documents"] == 1


def test_a_file_is_one_however_it_is_spelt_and_two_of_a_name_are_two(take, flat, bos, tmp_path):
    a, b, val = (
        flat(f"{folder}/0.bin", bos, id) for folder, id in (("a", 5), ("b", 6), ("val", 7))
    )
    (tmp_path / "link").symlink_to("a")
    for number, (files, train) in enumerate(
        [((a, b, val), [5, 6]), ((a, os.path.relpath(a), tmp_path / "link" / "0.bin", val), [5])]
    ):
        folder = take("nanogpt", *files, name=f"x{number}", val=(Path(os.path.relpath(val)),))
        assert documents_of(folder, "train") == [[bos, id] for id in train]
        assert documents_of(folder, "val") == [[bos, 7]]
        assert verify(folder) == {}


def test_files_come_in_the_order_of_their_numbers(take, flat, bos):
    files = [flat("x_1.bin", bos, 1, 2), flat("x_10.bin", 4, bos, 9), flat("x_2.bin", 3, bos, 8)]
    files += [flat("y/x_1.bin", bos, 5, 6), flat("y/x_2.bin", 7)]  # of another data set
    folder = take("nanogpt", *files, flat("val.bin", bos, 7))
    assert sorted(documents_of(folder, "train")) == [
        [bos, 1, 2, 3],
        [bos, 5, 6, 7],
        [bos, 8, 4],
        [bos, 9],
    ]


@pytest.mark.parametrize("name", ["retrieval", "constrained_train", "my_val_set"])
def test_a_data_set_s_name_is_not_taken_for_a_split_s(name):
    assert convert_in.VAL_NAME.search("x_val_000.bin")
    assert convert_in.VAL_NAME.search("validation-00000-of-2.parquet")
    assert not convert_in.VAL_NAME.search(f"{name.replace('val_', '')}_train.bin")


def llmc_header(magic=20240520, version=1, count=3):
    return struct.pack("<3i", magic, version, count) + bytes(1012)


def npy(array):
    np.save(file := io.BytesIO(), array)
    return file.getvalue()


def npz():
    np.savez(file := io.BytesIO(), np.array([1, 2, 3], np.uint16))
    return file.getvalue()


@pytest.mark.parametrize(
    ("layout", "data", "message"),
    [
        ("nanogpt", b"123", "a.bin: expected uint16 token ids, found 3 bytes"),
        ("nanogpt", b"", "a.bin: expected uint16 token ids, found 0 bytes"),
        (
            "nanogpt",
            struct.pack("<3H", 1, 2, 50_000),
            "a.bin: token 2 is 50000, and bpe400 has 400",
        ),
        (
            "nanogpt",
            struct.pack("<5I", 399, 5, 6, 399, 7),
            "every other one is 0: they look like uint32 ids",
        ),
        (
            "nanogpt",
            npy(np.array([1, 2, 3], np.uint16)),
            "found an array of NumPy's with a header; use npy",
        ),
        (
            "nanogpt",
            struct.pack("<1000H", *[5] * 1000),
            r"a.bin: expected <.bos.>, token \d+, between documents, fo",
        ),
        (
            "llm.c",
            llmc_header(magic=7),
            r"a.bin: expected a header .*magic 20240520.*found \(7, 1\)",
        ),
        ("llm.c", llmc_header(version=3), r"a.bin: expected a header .*found \(20240520, 3\)"),
        ("llm.c", b"short", r"a.bin: expected a header of 256 int32"),
        (
            "llm.c",
            llmc_header() + bytes(4),
            "a.bin: expected 1,030 bytes, as its header says, found 1,028",
        ),
        (
            "npy",
            b"no array",
            "a.bin: expected an array of NumPy's, found another or a damaged file",
        ),
        ("npy", npy(np.zeros((2, 2), np.uint16)), "a.bin: expected an array of ids, found"),
        ("npy", npy(np.array(["a"])), "a.bin: expected an array of ids, found"),
        ("npy", npz(), "a.bin: expected an array of NumPy's, found another or a damaged file"),
        ("megatron", b"x", "a.idx: expected Megatron's index"),
        ("parquet", b"no parquet", "a.bin: expected a parquet file, found damage"),
    ],
)
def test_a_file_that_is_not_of_its_layout_is_named(take, tmp_path, layout, data, message):
    for name in ("a.bin", "val.bin"):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "a.idx").write_bytes(b"")
    with pytest.raises(ValueError, match=message):
        take(layout, tmp_path / "a.bin", tmp_path / "val.bin")
    assert not list(tmp_path.glob("tokens/*"))


@pytest.mark.parametrize(
    ("layout", "files", "more", "message"),
    [
        ("nanogpt", ["nowhere.bin", "a.bin"], {}, "nowhere.bin: no such file"),
        ("nanogpt", ["a.bin"], {}, "one to validate on, with `val` in its name"),
        ("nanogpt", [], {}, "expected files to train on and one to validate on"),
        ("nanogpt", ["empty.bin", "val.bin"], {}, "expected documents, found none"),
        ("nanogpt", ["a.bin", "emptyval.bin"], {"val": "emptyval.bin"}, "in the files that val"),
        ("nanogpt", ["", "a.bin"], {}, "a folder; name its files"),
        ("nanogpt", ["a.bin", "a\nval.bin"], {}, r"a\\nval.bin': the name of its shard must be"),
        ("nanogpt", ["a.bin", f"val{'x' * 240}.bin"], {}, "the name of its shard must be a plain"),
        (
            "nanogpt",
            ["a.bin"],
            {"val_fraction": 0.1, "val": "a.bin"},
            "no --val-file beside it, found 0.1",
        ),
        (
            "nanogpt",
            ["a.bin"],
            {"val_fraction": 1.0},
            "expected --val-fraction from 0 to below 1, .* found 1.0",
        ),
        ("megatron", ["a.idx", "val.idx"], {}, "of megatron name the .bin files"),
        (
            "megatron",
            ["a.bin", "val.bin"],
            {},
            "a.bin: expected Megatron's a.idx beside it, found none",
        ),
    ],
)
def test_what_is_named_wrongly_is_told_what_to_name(
    take, flat, bos, tmp_path, layout, files, more, message
):
    for name, tokens in [
        ("a.bin", (bos, 5)),
        ("empty.bin", (bos, bos)),
        ("emptyval.bin", (bos, bos)),
        ("val.bin", (bos,)),
        ("a.idx", ()),
        ("a\nval.bin", (bos, 5)),
        (f"val{'x' * 240}.bin", (bos, 5)),
    ]:
        flat(name, *tokens)
    if "a.bin" in files and layout == "megatron":
        (tmp_path / "a.idx").unlink()
    if "val" in more:
        more = more | {"val": (tmp_path / more["val"],)}
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        take(layout, *(tmp_path / name for name in files), **more)
    assert not list(tmp_path.glob("tokens/*"))


def test_an_address_is_fetched_first(take):
    with pytest.raises(
        ValueError, match="files come in from this disk; fetch them first, from the hub by `hf down"
    ):
        take("raw", "hf://datasets/o/n/*.bin")


@pytest.mark.parametrize("damage", ["lengths", "pointers", "documents"])
def test_a_damaged_index_of_megatron_s_is_refused(small_set, take, tmp_path, damage):
    out = convert.export(convert.Out("megatron", small_set, tmp_path / "out"))
    data = bytearray((out / "train.idx").read_bytes())
    sequences = struct.unpack_from("<Q", data, 18)[0]
    at = {"lengths": 34, "pointers": 34 + 4 * sequences, "documents": 34 + 12 * sequences}[damage]
    middle, end = (at + 4, at + 8) if damage == "lengths" else (at + 8, at + 16)
    data[at:end] = data[middle:end] + data[at:middle]  # the first two in each other's place
    (out / "train.idx").write_bytes(data)
    with pytest.raises(ValueError, match="train.idx: expected sequences one after the other"):
        take("megatron", out / "train.bin", out / "val.bin")


def test_masks_and_padding_beside_the_ids_are_refused(take, bos, tmp_path):
    """TRL's completion_mask would be lost, and padding is no text."""
    files = (tmp_path / "a.parquet", tmp_path / "val.parquet")

    def take_columns(columns):
        for path in files:
            pq.write_table(pa.table({"input_ids": [[5, 6], [7]]} | columns), path)
        return take("parquet", *files)

    for name in ("completion_mask", "loss_weights", "labels", "assistant_masks", "position_ids"):
        with pytest.raises(
            ValueError, match=f"a.parquet: has {name} beside input_ids, which would be lost here"
        ):
            take_columns({name: [[0, 1], [1]]})
    for mask in (
        pa.array([[0, 1], [1, 1]], pa.list_(pa.int32(), 2)),
        [b"\0\1", b"\1"],
        [{"of": [0, 1]}, {"of": [1]}],
    ):
        with pytest.raises(ValueError, match="has mask beside input_ids|has zeros"):
            take_columns({"mask": mask})
    for mask in ([[0, 1], [1]], [[False, True], [True]]):
        with pytest.raises(
            ValueError, match=r"a.parquet: attention_mask has zeros, so input_ids has padding"
        ):
            take_columns({"attention_mask": mask})
    folder = take_columns({"attention_mask": [[1, 1], [1]], "url": ["a", "b"]})
    assert documents_of(folder, "train") == [[bos, 5, 6], [bos, 7]]


def test_the_first_document_that_is_shown_is_the_first_there_is(take, flat, bos, capsys):
    take(
        "nanogpt",
        *(flat(f"{name}.bin", bos, *ids) for name, ids in [("a", ()), ("b", (5, 6))]),
        val_fraction=0.0,
    )
    assert "the first document begins: ''" not in capsys.readouterr().err


@pytest.mark.parametrize("layout", ["raw", "datatrove"])
def test_documents_that_end_with_eos_get_no_second_one(take, flat, bos, tmp_path, layout):
    folder = take(
        "nanogpt", *(flat(name, bos, 5, bos, 6, bos + 1) for name in ("a.bin", "val.bin"))
    )
    how = {"eos": True, "eos_token": "<|user_start|>"}
    eos = bos + 1
    message = f"documents end with token {eos} already, and would end with two"
    with pytest.raises(ValueError, match=message):
        convert.export(convert.Out(layout, str(folder), tmp_path / "out", **how))
    assert convert.export(convert.Out("raw", str(folder), tmp_path / "out")).exists()
