"""TokenSet.documents: every document of a split, with its tokens, its text and where it is from."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from making import make_token_set, run_prepare, write_parquet

from tokenmill import Documents, TokenSet
from tokenmill.look.documents import SourceLocator


def test_the_documents_of_a_split_are_those_of_its_source_in_order(prepared):
    source, folder = prepared
    token_set = TokenSet(folder)
    for split in ("train", "val"):
        names = dict.fromkeys(entry.sources[0] for entry in token_set.split(split))
        texts = []
        for name in names:
            texts += filter(None, pq.read_table(source / name)["text"].to_pylist())
        documents = Documents(token_set, split)
        assert [document.text for document in documents] == texts
        assert (
            len(documents) == len(texts) == sum(entry.documents for entry in token_set.split(split))
        )
        assert [document.number for document in documents] == list(range(len(texts)))
        entry = token_set.split(split)[-1]
        assert documents[-1].source == SourceLocator(token_set).find(entry, entry.documents - 1)
        assert texts[7][:20] in repr(documents[7]) or split == "val"


def test_documents_are_indexed_as_a_list_is(tmp_path):
    lengths = [[5, 3, 40, 2], [7, 8], [1, 9, 6]]
    token_set = TokenSet(make_token_set(tmp_path / "set", train=lengths, val=[[9]]))
    documents = Documents(token_set)
    expected = sum(lengths, [])
    for part in (
        slice(None),
        slice(2, 7),
        slice(None, None, -1),
        slice(-4, None),
        slice(1, 8, 3),
        slice(20, 30),
    ):
        assert [len(document) for document in documents[part]] == expected[part]
        assert [document.number for document in documents[part][1:]] == list(range(9))[part][1:]
    assert [len(documents[i]) for i in (-9, -1, np.int64(4))] == [5, 6, 7]
    assert len(Documents(token_set)[3]) == 2
    assert len(Documents(token_set, "val")[0]) == 9
    for wrong in (9, -10):
        with pytest.raises(IndexError, match=f"expected a document from 0 to 8, found {wrong}"):
            documents[wrong]
    with pytest.raises(ValueError, match="split must be one of train, val"):
        Documents(token_set, "test")
    assert repr(documents).startswith("<9 documents of the train split of /")


def test_a_sample_is_of_different_documents_and_repeatable(tmp_path):
    documents = Documents(make_token_set(tmp_path / "set", train=[[2] * 50], val=[[9]]))
    numbers = [document.number for document in documents.sample(20, seed=3)]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 20
    assert [document.number for document in documents.sample(20, seed=3)] == numbers
    assert [document.number for document in documents.sample(20, seed=4)] != numbers
    assert len(documents.sample(1000)) == 50
    assert [document.number for document in documents[10:12].sample(5)] == [10, 11]


def test_where_documents_were_left_out_it_is_said_which_of_those_with_text_it_was(
    tmp_path, tokenizer_json
):
    for number in range(2):
        write_parquet(
            tmp_path / "in" / f"{number}.parquet",
            ["a b", None, "c d", "", "e f", "g h"],
            row_group_size=3,
        )
    done = run_prepare(
        "--source", "in", "--val-file", "last", "--tokenizer", tokenizer_json, cwd=tmp_path
    )
    documents = Documents(tmp_path / done.stdout.splitlines()[-1], "train")
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [document.source for document in documents] == [
        f"0.parquet row group {g}, document {nth} in train, not counting those left out"
        for g, nth in places
    ]


def test_a_line_of_a_file_of_many_shards_is_counted_from_one(tmp_path, tokenizer_json):
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        lines = "".join(f'{{"text": "{name} document {i}"}}\n' for i in range(300))
        (tmp_path / "in" / f"{name}.jsonl").write_text(lines)
    flags = ("--tokenizer", tokenizer_json, "--shard-text-bytes", 2000)
    token_set = TokenSet(
        tmp_path
        / run_prepare(
            "--source", "in", "--val-file", "last", *flags, cwd=tmp_path
        ).stdout.splitlines()[-1]
    )
    assert len(token_set.split("train")) > 3
    for document in Documents(token_set, "train"):
        line = int(document.text.split()[-1]) + 1
        assert document.source == f"a.jsonl line {line}"
