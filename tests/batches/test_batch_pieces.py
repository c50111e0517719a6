"""Which documents the tokens of a batch are of, against the documents themselves."""

from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from making import make_chat_set, make_text, make_token_set, run_prepare
from reference import make_loader

import tokenmill.numpy
from tokenmill import Documents, Mixture, RowLoader

LENGTHS = [[5, 30, 2, 2, 9, 17, 1, 12, 40, 3] * 4, [7, 7, 25, 1, 16] * 6]


def require_pieces(loader, batch, documents):
    """Each piece has the tokens of its document, and pieces cover the rows but for padding.

    `documents` are the sequences of the loader's sources.
    """
    inputs, targets = (torch.as_tensor(array).numpy() for array in batch)
    rows = np.concatenate([inputs, targets[:, -1:]], axis=1)  # the last tokens may be ignored
    pieces = loader.pieces
    covered = np.zeros(rows.shape, int)
    tokens_of = [
        {(document.shard, document.index): document.tokens for document in of_source}
        for of_source in documents
    ]
    for row, begin, end, source, shard, document, start, _ in zip(*pieces, strict=True):
        covered[row, begin:end] += 1
        actual = rows[row, begin:end]
        tokens = tokens_of[source][shard, document]
        expected = tokens[start : start + end - begin]
        if start and actual[0] == loader.bos_id:  # it is inserted
            expected = np.concatenate([[loader.bos_id], tokens[start : start + end - begin - 1]])
        is_ignored = actual == loader.config.ignore_index
        assert ((actual == expected) | is_ignored).all()
    assert (covered <= 1).all()
    padding = {loader.bos_id, 1, loader.config.ignore_index}
    assert set(rows[covered == 0].tolist()) <= padding
    assert (np.diff(pieces.row) >= 0).all()
    return pieces


@pytest.mark.parametrize("packing", ["best_fit", "concat", "random", "nanochat"])
def test_each_piece_has_the_tokens_of_its_document(packing, tmp_path):
    folder = make_token_set(tmp_path / "web", LENGTHS, [[20] * 4])
    loader = make_loader(folder, packing=packing)
    documents = Documents(folder)
    begin_inside = 0
    for batch in islice(loader, 8):
        pieces = require_pieces(loader, batch, [documents])
        begin_inside += (pieces.start > 0).sum()
    assert (begin_inside > 0) == (packing != "nanochat")
    again = make_loader(folder, packing=packing)
    assert [len(column) for column in again.pieces] == [0] * 8
    again.load_state_dict(loader.state_dict())
    require_pieces(again, next(again), [documents])


def test_pieces_of_chats_leave_out_padding_and_those_of_a_mixture_name_their_source(tmp_path):
    text = make_token_set(tmp_path / "web", LENGTHS, [[20] * 4])
    chats = make_chat_set(tmp_path / "chats", LENGTHS, [[20] * 4])
    mixture = Mixture({"web": 1, "chats": 1}, sources={"web": text, "chats": chats})
    ours = RowLoader(mixture, batch_size=4, seq_len=16, long_documents="crop")
    theirs = tokenmill.numpy.RowLoader(mixture, batch_size=4, seq_len=16, long_documents="crop")
    documents = [Documents(mixture[name]) for name in ours.sources]
    for batch, their_batch in islice(zip(ours, theirs, strict=False), 6):
        pieces = require_pieces(ours, batch, documents)
        assert (pieces.source == ours.row_sources[pieces.row]).all()
        their_pieces = require_pieces(theirs, their_batch, documents)
        for column, their_column in zip(pieces, their_pieces, strict=True):
            assert column.tolist() == their_column.tolist()


def test_a_column_is_what_is_kept_of_the_document_of_each_piece(tmp_path, tokenizer_json):
    source = tmp_path / "source"
    source.mkdir()
    for number in range(3):
        texts = make_text(60, seed=number)
        scores = pa.array(np.arange(60) + number if number else np.arange(60) / 2)
        pq.write_table(pa.table({"text": texts, "score": scores}), source / f"{number}.parquet")
    flags = ("--source", str(source), "--tokenizer", tokenizer_json)
    kept = run_prepare(*flags, "--keep-columns", "score", cwd=tmp_path).stdout.splitlines()[-1]
    documents = Documents(tmp_path / kept)
    score_of = {
        (document.shard, document.index): document.metadata["score"] for document in documents
    }
    plain = (
        tmp_path
        / run_prepare(
            *flags, "--name", "plain", "--val-fraction", "0.5", cwd=tmp_path
        ).stdout.splitlines()[-1]
    )
    mixture = Mixture({"kept": 2, "plain": 1}, sources={"kept": tmp_path / kept, "plain": plain})
    loader = RowLoader(mixture, batch_size=6, seq_len=64)
    for _ in islice(loader, 5):
        pieces = loader.pieces
        places = zip(pieces.source.tolist(), pieces.shard, pieces.document.tolist(), strict=True)
        expected = [
            None if source else score_of[shard, document] for source, shard, document in places
        ]
        values = loader.column("score")
        assert values == expected
        assert {type(value) for value in values} <= {float, type(None)}
    with pytest.raises(ValueError, match="no token set has a column 'scor'; .* kept: score"):
        loader.column("scor")
