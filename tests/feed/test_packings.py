"""A packing from outside the package works everywhere: loaders, positions, mixtures, addresses, show, the report."""

from collections.abc import Sequence
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from making import make_token_set
from reference import SEQ_LEN, rows_of

from tokenmill import Mixture, RowLoader, TokenSet, cli, forecast, get_batch
from tokenmill.look import packing_stats
from tokenmill.look.report import Report, find
from tokenmill.look.show_config import Show
from tokenmill.look.show_query import ShowQuery
from tokenmill.rows.packers import WindowContent
from tokenmill.rows.packing import RowPlan
from tokenmill.rows.packings import PACKINGS, Packing, register_packing


class InOrder:
    """Each document alone in its rows, in order; the first document's beginning fills the rest of a row."""

    def __init__(self, content: WindowContent):
        self.lengths = content.lengths

    def plan(self, row_len: int, seed: tuple[int, ...], left: Sequence[int] | None) -> RowPlan:
        pieces, offsets = [], [0]
        for document in range(len(self.lengths)) if left is None else left:
            length, start = int(self.lengths[document]), 0
            while start < length:
                taken = min(length - start, row_len - (start > 0))
                room = row_len - taken - (start > 0)
                pieces.append((document, start, taken, start > 0, False))
                while room:
                    copied = min(room, int(self.lengths[0]))
                    pieces.append((0, 0, copied, False, True))
                    room -= copied
                offsets.append(len(pieces))
                start += taken
        columns = np.array(pieces, dtype=np.int64).reshape(-1, 5).T
        return RowPlan(row_len, np.array(offsets), *columns[:3], columns[3] > 0, columns[4] > 0)

    def count(self, row_len: int, seed: tuple[int, ...], left: Sequence[int] | None) -> int:
        return self.plan(row_len, seed, left).num_rows

    def left(self, plan: RowPlan, rows: np.ndarray, before: Sequence[int] | None) -> Sequence[int]:
        return sorted(set(plan.document[plan.kept_in(rows)].tolist()))


@pytest.fixture
def in_order(monkeypatch):
    monkeypatch.setattr("tokenmill.rows.packings.PACKINGS", PACKINGS)
    packing = Packing(
        name="in_order",
        packer=InOrder,
        packs_documents=True,
        begins_with_bos=True,
        joins_shards=True,
        fewest_rows=lambda tokens, documents, row_len, long: documents,
    )
    register_packing(packing)
    yield packing
    del PACKINGS["in_order"]


@pytest.fixture
def plain_set(tmp_path):
    return make_token_set(tmp_path / "set", train=[[5, 40, 9], [20, 3, 33]], val=[[20] * 5])


def rows_in_order(path):
    """The slow, obvious rows of one epoch of an unshuffled set."""
    token_set = TokenSet(path)
    shards = [token_set.open(entry) for entry in token_set.split("train")]
    documents = [shard.read(a, b).tolist() for shard in shards for a, b in pairwise(shard.offsets.tolist())]
    for document in documents:
        while document:
            row, document = document[: SEQ_LEN + 1], document[SEQ_LEN + 1 :]
            document = [token_set.bos_id, *document] if document else []
            while len(row) < SEQ_LEN + 1:
                row += documents[0][: SEQ_LEN + 1 - len(row)]
            yield row


def test_its_rows_come_in_a_loader_on_any_ranks_and_from_any_position(in_order, plain_set):
    expected = list(rows_in_order(plain_set))
    settings = {"packing": "in_order", "shuffle": False, "seq_len": SEQ_LEN}
    loaders = [RowLoader(plain_set, batch_size=1, rank=rank, world_size=2, **settings) for rank in range(2)]
    found = [rows_of(next(loader)) for _ in range(3) for loader in loaders]
    assert sum(found, []) == expected[:6]
    resumed = RowLoader(plain_set, batch_size=2, epochs=1, **settings)
    assert resumed.rows == len(expected)
    resumed.load_state_dict(loaders[0].state_dict())
    assert rows_of(next(resumed)) == expected[6:8]
    with pytest.raises(ValueError, match="packing is 'in_order' in the position, 'best_fit' here"):
        RowLoader(plain_set, batch_size=2, seq_len=SEQ_LEN, shuffle=False).load_state_dict(resumed.state_dict())
    assert rows_of(get_batch("train", 2, SEQ_LEN, tokens=plain_set, packing="in_order", shuffle=False)) == expected[:2]


def test_it_may_change_its_row_length_and_be_mixed(in_order, plain_set, tmp_path):
    loader = RowLoader(plain_set, batch_size=1, seq_len=SEQ_LEN, packing="in_order")
    next(loader)
    longer = RowLoader(plain_set, batch_size=1, seq_len=2 * SEQ_LEN, packing="in_order")
    longer.load_state_dict(loader.state_dict())
    assert next(longer)[0].shape == (1, 2 * SEQ_LEN)
    other = make_token_set(tmp_path / "other", train=[[30, 30]], val=[[5]], seed=1)
    mixture = Mixture({plain_set: 1, other: 1})
    assert len(list(islice(RowLoader(mixture, batch_size=2, seq_len=SEQ_LEN, packing="in_order"), 5))) == 5
    assert forecast(mixture, seq_len=SEQ_LEN, tokens="1K", packing="in_order").lines


def test_show_and_the_report_know_it(in_order, prepared, monkeypatch, capsys):
    monkeypatch.setattr(packing_stats, "NANOCHAT_SETTLED", 3000)
    monkeypatch.setattr(packing_stats, "NANOCHAT_MEASURED", 1000)
    config = Show(prepared[1], step=1, batch_size=2, world_size=1, seq_len=SEQ_LEN, packing="in_order", shuffle=False)
    rows = list(islice(rows_in_order(prepared[1]), 4))
    shown = [
        [i for piece in row.pieces for i in piece.tokens(TokenSet(prepared[1]).bos_id).tolist()]
        for _, row in ShowQuery(config).rows()
    ]
    assert shown == rows[2:4]
    assert cli.main(["show", str(prepared[1]), "--row", "0", "--packing", "in_order", "--seq-len", "16"]) == 0
    assert "in_order" in capsys.readouterr().out
    found = find(Report(prepared[1], seq_len=SEQ_LEN))
    tally = found.tallies[SEQ_LEN]["in_order"]
    assert (tally.dropped, tally.on_bos) == (0, 1)
    assert len(found.specimen.rows["in_order"]) > 0


def test_from_an_address_the_rows_are_the_same(in_order, plain_set, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").put(str(plain_set), "/toy/set", recursive=True)
    settings = {"batch_size": 3, "seq_len": SEQ_LEN, "packing": "in_order"}
    here, there = RowLoader(plain_set, **settings), RowLoader("memory://toy/set", cache_dir=tmp_path / "c", **settings)
    assert all(torch.equal(next(here)[0], next(there)[0]) for _ in range(4))


def test_a_name_that_is_taken_or_unknown_is_refused(in_order, plain_set):
    register_packing(in_order)
    with pytest.raises(ValueError, match="packing 'best_fit' is registered already"):
        register_packing(Packing(**{**vars(in_order), "name": "best_fit"}))
    with pytest.raises(
        ValueError, match="packing must be one of best_fit, nanochat, concat, random, in_order, not 'x'"
    ):
        RowLoader(plain_set, batch_size=1, seq_len=SEQ_LEN, packing="x")
