"""A token set is a mixture with one source: what needs epochs works with either, and says so with several."""

import json

import pytest
from making import make_token_set
from reference import SEQ_LEN, rows_of

from tokenmill import Mixture, RowLoader
from tokenmill.rows.position import OF_SOURCE

LENGTHS = [[5, 40, 9, 30], [20, 3, 33, 12, 7]]


@pytest.fixture
def web(tmp_path):
    return make_token_set(tmp_path / "web", train=LENGTHS, val=[[20] * 5])


@pytest.fixture
def several(web, tmp_path):
    return Mixture({web: 1, make_token_set(tmp_path / "code", train=[[30] * 9], val=[[9]], seed=1): 1})


def test_a_mixture_of_one_source_has_epochs(web, small_windows):
    of_set = RowLoader(web, batch_size=1, seq_len=SEQ_LEN, epochs=1)
    loader = RowLoader(Mixture({web: 3}), batch_size=1, seq_len=SEQ_LEN, epochs=1)
    assert (len(loader), loader.rows, loader.batches_per_epoch(2)) == (loader.rows, loader.rows, loader.rows // 2)
    assert abs(loader.rows - of_set.rows) <= 2, "the same documents, in windows drawn from another name"
    tokens = [sorted(token for batch in one for row in rows_of(batch) for token in row) for one in (loader, of_set)]
    first, second = ([rows_of(batch) for batch in loader] for _ in range(2))
    assert first != second, "shuffled anew"
    loader.set_epoch(1)
    assert [rows_of(batch) for batch in loader] == first
    assert loader.seen()["web"].epochs == pytest.approx(2, abs=0.2)
    assert len(tokens[0]) >= sum(map(sum, LENGTHS))


@pytest.mark.parametrize("drop_last", [True, False])
def test_its_iterations_resume_anywhere(web, small_windows, drop_last):
    settings = {"batch_size": 4, "seq_len": SEQ_LEN, "epochs": 1, "drop_last": drop_last, "prefetch": 0}
    unbroken = RowLoader(Mixture({web: 1}), **settings)
    batches, states = [], [unbroken.state_dict()]
    for _ in range(3):
        for batch in unbroken:
            batches.append(rows_of(batch))
            states.append(unbroken.state_dict())
    for taken in range(0, len(batches), 2):
        loader = RowLoader(Mixture({web: 1}), **settings)
        loader.load_state_dict(json.loads(json.dumps(states[taken])))
        found = []
        while taken + len(found) < len(batches):
            found += [rows_of(batch) for batch in loader]
        assert found[: len(batches) - taken] == batches[taken:]


def test_several_sources_have_none_and_say_so(several):
    loader = RowLoader(several, batch_size=1, seq_len=SEQ_LEN)
    assert loader.rows is None
    assert loader.batches_per_epoch() is None
    for ask, message in (
        (lambda: RowLoader(several, batch_size=1, seq_len=SEQ_LEN, epochs=1), "epochs needs exactly one source"),
        (lambda: loader.set_epoch(1), "set_epoch: a mixture of several sources has no epochs"),
    ):
        with pytest.raises(ValueError, match=message):
            ask()
    with pytest.raises(TypeError, match="endless"):
        len(loader)


def test_epochs_and_caps_are_one_or_the_other(web):
    capped = Mixture({web: 1}, max_epochs=2, on_cap="retire")
    with pytest.raises(ValueError, match="epochs and the mixture.s max_epochs both limit the rows"):
        RowLoader(capped, batch_size=1, seq_len=SEQ_LEN, epochs=1)


def test_positions_of_a_set_a_mixture_and_nanochat_have_the_same_keys(web, several):
    settings = {"batch_size": 1, "seq_len": SEQ_LEN}
    loaders = [
        RowLoader(web, **settings),
        RowLoader(several, **settings),
        RowLoader(web, packing="nanochat", **settings),
    ]
    for loader in loaders:
        next(loader)
    states = [loader.state_dict() for loader in loaders]
    own = {"long_documents", "shuffle", "seed", "world_size", "mixture"}  # what must match differs
    assert {frozenset(state.keys() - own) for state in states} == {frozenset(states[0].keys() - own)}
    assert all(set(state["sources"]) == set(OF_SOURCE) for state in states)
    assert [state["sources"]["name"] for state in states] == [[""], ["web", "code"], [""]]


def test_a_position_of_a_mixture_is_not_one_of_a_set(web, several):
    state = RowLoader(several, batch_size=1, seq_len=SEQ_LEN).state_dict()
    for packing in ("best_fit", "concat"):
        loader = RowLoader(web, batch_size=1, seq_len=SEQ_LEN, packing=packing)
        with pytest.raises(ValueError, match="of a mixture of web, code|packing is 'best_fit' in the position"):
            loader.load_state_dict(state)


def test_a_position_stays_small_however_many_iterations_there_were(web):
    loader = RowLoader(web, batch_size=1, seq_len=SEQ_LEN, prefetch=0)
    for _ in range(300):
        next(loader)
        loader.set_epoch(0)
    state = loader.state_dict()
    assert len(json.dumps(state)) < 6_000
    assert loader.tokens_seen == 300 * SEQ_LEN
    again = RowLoader(web, batch_size=1, seq_len=SEQ_LEN)
    again.load_state_dict(state)
    assert rows_of(next(again)) == rows_of(next(loader))


def test_the_position_after_the_last_batch_is_that_after_the_iteration(web):
    loader = RowLoader(web, batch_size=1, seq_len=SEQ_LEN, epochs=1, drop_last=False)
    for _ in loader:
        last = loader.state_dict()
    assert loader.state_dict() == last
