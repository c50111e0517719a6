"""A run goes on exactly where the length of rows, the batch size, the ranks or the token set change in its middle."""

import json
import shutil
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from making import BOS, make_token_set, of_shards, read_manifest
from reference import changed, make_loader, of_source, reference_rows, rows_of

from tokenmill import RowLoader, TokenSet
from tokenmill.feed import window_plans
from tokenmill.look.show_config import Show
from tokenmill.look.show_query import ShowQuery
from tokenmill.rows.windows import WindowSize
from tokenmill.store.files import write_json

TRAIN = [[5, 3, 40, 7, 2, 9, 16, 17, 1, 12], [3] * 20, [100, 33, 50], [30, 2, 2]]


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    """A token set whose tokens are all different, but for BOS, so that a row tells what it holds."""
    folder = make_token_set(tmp_path_factory.mktemp("marked") / "set", train=TRAIN, val=[[9]], vocab=1000)
    mark(folder)
    return folder


def mark(folder):
    """Gives all tokens but BOS numbers of their own."""
    at = 1
    for entry in TokenSet(folder).entries:
        path = folder / "shards" / f"{entry.name}.bin"
        tokens = np.fromfile(path, "<u2")
        places = np.flatnonzero(tokens != BOS)
        tokens[places] = np.arange(at, at + len(places))
        at += len(places)
        tokens.tofile(path)


def rows_dealt(loaders, calls):
    """The rows of some calls of all ranks, in the global order."""
    return [row for _ in range(calls) for loader in loaders for row in rows_of(next(loader))]


# ---------------------------------------------------------------------------- the length of rows

# how a run goes on: seq_len, batch size, ranks, calls
stages = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 4), st.integers(1, 3), st.integers(0, 6)), min_size=1, max_size=5
)


@given(stages, st.booleans(), st.sampled_from([WindowSize(16, 64), WindowSize(16, 10_000)]), st.integers(0, 3))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_token_of_an_epoch_is_dealt_once_whatever_changes_on_the_way(marked, stages, shuffle, grain, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_plans, "DEFAULT_WINDOW_SIZE", grain)
        state, dealt, longest, done = None, [], 0, 0
        for seq_len, batch_size, world_size, calls in [*stages, (7, 1, 1, 10_000)]:
            settings = {"seq_len": seq_len, "batch_size": batch_size, "world_size": world_size, "seed": seed}
            settings |= {"shuffle": shuffle, "epochs": 1, "drop_last": False, "prefetch": 0}
            loaders = [RowLoader(marked, rank=rank, **settings) for rank in range(world_size)]
            if state is not None:
                for loader in loaders:
                    loader.load_state_dict(state)
            for batches in islice(zip(*loaders, strict=True), calls):
                rows = [row for batch in batches for row in rows_of(batch)]
                dealt += rows
                done += seq_len * len(rows)
                assert loaders[0].tokens_seen == done
            longest = max(longest, seq_len)
            if loaders[0].epoch:
                break  # a `for` over the loader would be the next epoch
            assert len({str(loader.state_dict()) for loader in loaders}) == 1
            state = json.loads(json.dumps(loaders[0].state_dict()))
    assert all(row[0] == BOS for row in dealt)
    found = Counter(token for row in dealt for token in row if token != BOS)
    everything = {int(t) for e in TokenSet(marked).split("train") for t in TokenSet(marked).open(e).tokens if t != BOS}
    assert set(found) == everything, "nothing is left out"
    # filler alone is there twice: beginnings of documents, that close rows
    twice = sum(count - 1 for count in found.values())
    assert twice <= sum(free_of(row) for row in dealt)


def free_of(row):
    """The tokens of a row after its first document: as much of it as could be filler."""
    return len(row) - 1


def test_without_filler_no_token_is_dealt_twice_in_whatever_lengths(tmp_path, small_windows):
    """Documents of 8 tokens fill rows of 8 and 16; what is dealt at 8 does not come again at 16, nor the other way."""
    folder = make_token_set(tmp_path / "set", train=[[8] * 40, [8] * 24], val=[[8]])
    mark(folder)
    state, dealt = None, []
    for seq_len, calls in [(7, 3), (15, 2), (7, 5), (15, 1), (15, 2), (7, 100)]:
        loader = RowLoader(folder, batch_size=1, seq_len=seq_len, epochs=1)
        if state is not None:
            loader.load_state_dict(state)
        dealt += [row for batch in islice(loader, calls) for row in rows_of(batch)]
        state = loader.state_dict()
    found = Counter(token for row in dealt for token in row if token != BOS)
    assert len(found) == 64 * 7
    assert set(found.values()) == {1}


@pytest.mark.parametrize(("before", "after"), [(16, 32), (16, 33), (16, 64), (32, 16), (7, 15)])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_longer_rows_are_full_though_documents_were_cut_for_shorter_ones(tmp_path, before, after, share):
    """Two pieces of 16 tokens and a BOS do not fit a row of 33: packed whole, a quarter to a half would be filler."""
    lengths = np.random.default_rng(0).integers(50, 400, 120).tolist()
    folder = make_token_set(tmp_path / "set", train=[lengths], val=[[9]])
    loader = RowLoader(folder, batch_size=1, seq_len=before, epochs=1)
    list(islice(loader, int(loader.rows * share)))
    longer = RowLoader(folder, batch_size=1, seq_len=after, epochs=1)
    longer.load_state_dict(loader.state_dict())
    rows = longer._feed.only.plans().rows(0, 0)
    pieces = [piece for row in range(rows.num_rows) for piece in rows.pieces(row)]
    filler = sum(piece.length for piece in pieces if piece.filler)
    assert filler < 0.04 * sum(piece.length for piece in pieces)


def test_with_the_next_window_a_past_is_forgotten(marked, small_windows):
    loader = RowLoader(marked, batch_size=1, seq_len=5)
    for _ in range(3):
        next(loader)
    longer = RowLoader(marked, batch_size=1, seq_len=11)
    longer.load_state_dict(loader.state_dict())
    assert of_source(longer.state_dict(), "pasts") == [[0, 0, [5, 3]]]
    while of_source(longer.state_dict(), "window") == 0:
        assert of_source(longer.state_dict(), "pasts")
        next(longer)
    assert of_source(longer.state_dict(), "pasts") == []
    plain = RowLoader(marked, batch_size=1, seq_len=11)
    while of_source(plain.state_dict(), "window") == 0:
        next(plain)
    assert [rows_of(next(longer)) for _ in range(30)] == [rows_of(next(plain)) for _ in range(30)]


def test_a_length_that_is_changed_back_before_a_row_was_dealt_changes_nothing(marked):
    loader = RowLoader(marked, batch_size=1, seq_len=5)
    begin = loader.state_dict()
    other = RowLoader(marked, batch_size=1, seq_len=11)
    other.load_state_dict(begin)
    loader.load_state_dict(other.state_dict())
    assert loader.state_dict() == begin


def test_rows_that_were_to_be_skipped_are_left_out_at_another_length_too(marked, small_windows):
    places = ["0:0:4-5", "0:2:1"]
    plain = RowLoader(marked, batch_size=1, seq_len=7, prefetch=0)
    left_out = set()
    for place in ("0:0:4", "0:0:5", "0:2:1"):
        epoch, window, row = map(int, place.split(":"))
        pieces = plain._feed.only.plans().rows(epoch, window).pieces(row)
        left_out |= {int(t) for piece in pieces if not piece.filler for t in piece.tokens(BOS) if t != BOS}
    loader = RowLoader(marked, batch_size=1, seq_len=7, skip_rows=places)
    dealt = rows_dealt([loader], 2)
    longer = RowLoader(marked, batch_size=1, seq_len=12, epochs=1)
    longer.load_state_dict(loader.state_dict())
    assert of_source(longer.state_dict(), "pasts") == [[0, 0, [7, 2, "4-5"]], [0, 2, [7, 0, "1"]]]
    dealt += rows_dealt([longer], 1)
    again = RowLoader(marked, batch_size=1, seq_len=12, epochs=1)
    again.load_state_dict(json.loads(json.dumps(longer.state_dict())))
    dealt += [row for batch in again for row in rows_of(batch)]
    found = {token for row in dealt for token in row if token != BOS}
    everything = {int(t) for e in TokenSet(marked).split("train") for t in TokenSet(marked).open(e).tokens if t != BOS}
    assert everything - found <= left_out
    filler = found & left_out  # the beginning of a document may close a row wherever it stands whole
    assert len(left_out - filler) > len(left_out) // 2


def test_a_skip_that_is_dropped_again_leaves_nothing_out(marked, small_windows):
    loader = RowLoader(marked, batch_size=1, seq_len=7, skip_rows=["0:2:0-3"])
    longer = RowLoader(marked, batch_size=1, seq_len=12)
    longer.load_state_dict(loader.state_dict())
    assert of_source(longer.state_dict(), "pasts") == [[0, 2, [7, 0, "0-3"]]]
    dropping = RowLoader(marked, batch_size=1, seq_len=12, skip_rows=())
    dropping.load_state_dict(longer.state_dict())
    plain = RowLoader(marked, batch_size=1, seq_len=12)
    assert rows_dealt([dropping], 40) == rows_dealt([plain], 40)


def test_rows_to_skip_are_named_at_the_length_that_a_loader_has(marked, small_windows, tmp_path):
    loader = RowLoader(marked, batch_size=1, seq_len=7)
    rows_dealt([loader], 3)
    longer = RowLoader(marked, batch_size=1, seq_len=12)
    longer.load_state_dict(loader.state_dict())
    state = tmp_path / "state.json"
    state.write_text(json.dumps(longer.state_dict()))
    expected = rows_dealt([longer], 30)
    places = []
    for step in (2, 15):  # in the window that was packed anew, and in a later one
        config = Show(marked, step=step, since=(0, str(state)), batch_size=1, world_size=1)
        ((_, row),) = ShowQuery(config).rows()
        places.append(row.place)
        assert [t for p in row.pieces for t in p.tokens(BOS).tolist()] == expected[step]
    skipping = RowLoader(marked, batch_size=1, seq_len=12, skip_rows=places)
    skipping.load_state_dict(loader.state_dict())
    left = expected[:2] + expected[3:15] + expected[16:]
    assert rows_dealt([skipping], 8) == left[:8]
    again = RowLoader(marked, batch_size=1, seq_len=12, skip_rows=places)  # the same script, resumed
    again.load_state_dict(skipping.state_dict())
    assert rows_dealt([again], 20) == left[8:28]
    none = RowLoader(marked, batch_size=1, seq_len=12, skip_rows=[])
    none.load_state_dict(loader.state_dict())
    assert rows_dealt([none], 30) == expected


@pytest.mark.parametrize("place", ["0:2:0", "1:0:0", "1:2:0"])
def test_rows_to_skip_stay_so_over_the_epochs_that_follow_a_change(marked, small_windows, place):
    epoch = int(place[0])
    loader = RowLoader(marked, batch_size=1, seq_len=7, epochs=1, skip_rows=[place])
    next(loader)
    longer = RowLoader(marked, batch_size=1, seq_len=12, epochs=1)
    longer.load_state_dict(loader.state_dict())
    window = [epoch, int(place[2])]
    kept = [past for past in of_source(longer.state_dict(), "pasts") if past[:2] == window]
    list(longer) if epoch else next(longer)
    longer.set_epoch(epoch)
    assert of_source(longer.state_dict(), "pasts") == kept == [[*window, [7, 0, "0"]]]
    again = RowLoader(marked, batch_size=1, seq_len=12, epochs=1)
    again.load_state_dict(longer.state_dict())
    assert [rows_of(batch) for batch in again] == [rows_of(batch) for batch in longer]


def test_no_rows_are_skipped_where_none_are_to_be_also_after_a_change(marked, small_windows):
    loader = RowLoader(marked, batch_size=1, seq_len=7, skip_rows=["0:0:0-1"])
    longer = RowLoader(marked, batch_size=1, seq_len=12)
    longer.load_state_dict(loader.state_dict())
    none = RowLoader(marked, batch_size=1, seq_len=12, skip_rows=[])
    none.load_state_dict(longer.state_dict())
    assert rows_dealt([none], 40) == rows_dealt([RowLoader(marked, batch_size=1, seq_len=12)], 40)


@pytest.mark.parametrize(("place", "before", "after"), [("0:2:0", 30, 9), ("1:2:0", 30, 9), ("1:2:0", 7, 12)])
def test_concat_with_rows_to_skip_is_cut_one_way_in_an_epoch(tmp_path, small_windows, place, before, after):
    folder = make_token_set(tmp_path / "set", train=[[200, 150, 90, 70], [300, 40]], val=[[9]])
    mark(folder)
    how = {"batch_size": 1, "packing": "concat", "epochs": 1, "drop_last": False}

    def inputs(loader):
        return {token for batch in loader for row in rows_of(batch) for token in row[:-1] if token != BOS}

    epoch = int(place[0])
    plain = RowLoader(folder, seq_len=before, **how)
    plain.set_epoch(epoch)
    left_out = {t for p in plain._feed.only.plans().rows(epoch, 2).pieces(0) for t in p.tokens(BOS)[:].tolist()}
    expected = inputs(plain)
    loader = RowLoader(folder, seq_len=after, **how)
    loader.load_state_dict(RowLoader(folder, seq_len=before, skip_rows=[place], **how).state_dict())
    found = inputs(loader)
    found = inputs(loader) if epoch else found
    assert expected - found <= left_out


@given(stages, st.booleans(), st.sampled_from([WindowSize(16, 64), WindowSize(32, 10_000)]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_concat_deals_every_token_as_an_input_once_whatever_changes_on_the_way(marked, stages, shuffle, grain):
    stages = [(min(seq_len, 30), *others) for seq_len, *others in stages]  # no shard is less than a row
    how = {"packing": "concat", "epochs": 1, "drop_last": False, "prefetch": 0, "shuffle": shuffle}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_plans, "DEFAULT_WINDOW_SIZE", grain)
        first = RowLoader(marked, batch_size=1, seq_len=stages[0][0], **how)
        expected = Counter(token for batch in first for row in rows_of(batch) for token in row[:-1])
        state, dealt = None, Counter()
        for seq_len, batch_size, world_size, calls in [*stages, (7, 1, 1, 10_000)]:
            loaders = [
                RowLoader(marked, batch_size=batch_size, seq_len=seq_len, rank=r, world_size=world_size, **how)
                for r in range(world_size)
            ]
            if state is not None:
                for loader in loaders:
                    loader.load_state_dict(state)
            for batches in islice(zip(*loaders, strict=True), calls):
                dealt.update(token for batch in batches for row in rows_of(batch) for token in row[:-1])
            state = json.loads(json.dumps(loaders[0].state_dict()))
            if loaders[0].epoch:
                break
            if not dealt:  # nothing was dealt at this length: the next one cuts the epoch
                return
        missing, twice = expected - dealt, dealt - expected
        assert not {token for token in missing if token != BOS}
        windows = max(1, round(sum(map(sum, TRAIN)) / grain.window))
        closed = 41 * windows * (1 + len(stages))  # the last row of what is left of a window, each time it is laid
        assert sum(count for token, count in twice.items() if token != BOS) <= closed


@pytest.mark.parametrize("packing", ["concat", "random"])
def test_packings_that_ignore_documents_change_their_length_too(marked, small_windows, packing):
    settings = {"packing": packing, "batch_size": 1, "epochs": 1}
    loader = RowLoader(marked, seq_len=5, **settings)
    dealt = rows_dealt([loader], 4)
    longer = RowLoader(marked, seq_len=9, **settings)
    longer.load_state_dict(loader.state_dict())
    dealt += [row for batch in longer for row in rows_of(batch)]
    if packing == "concat":  # fewer tokens than a row at a shard's end are in none
        inputs = Counter(token for row in dealt for token in row[:-1] if token != BOS)
        assert len(inputs) > sum(map(sum, TRAIN)) - sum(map(len, TRAIN)) - 9 * len(TRAIN)
    plain = RowLoader(marked, seq_len=9, **settings)
    assert abs(len(dealt) - plain.rows) < 10


def test_set_epoch_begins_anew_also_where_a_window_was_begun_at_another_length(marked, small_windows):
    loader = RowLoader(marked, batch_size=1, seq_len=16)
    rows_dealt([loader], 5)
    shorter, plain = (RowLoader(marked, batch_size=1, seq_len=8, epochs=1) for _ in range(2))
    shorter.load_state_dict(loader.state_dict())
    next(shorter)
    shorter.set_epoch(0)
    assert [rows_of(batch) for batch in shorter] == [rows_of(batch) for batch in plain]


@pytest.mark.parametrize(
    "wrong",
    [{"pasts": [[0, 0, [16, 9_999]]]}, {"pasts": [[0, 1, [16, 0, "5000"]]]}, {"seq_len": 0}, {"tokens_seen": None}],
)
def test_a_position_that_cannot_be_is_refused_when_it_is_loaded(marked, wrong):
    loader = RowLoader(marked, batch_size=1, seq_len=16)
    before = loader.state_dict()
    with pytest.raises(ValueError, match=r"no such|must be a whole number"):
        loader.load_state_dict(changed(before, **wrong))
    assert loader.state_dict() == before


def test_nanochat_s_rows_keep_their_length(marked):
    state = RowLoader(marked, batch_size=1, seq_len=5, packing="nanochat").state_dict()
    with pytest.raises(ValueError, match="seq_len is 5 in the position, 6 here"):
        RowLoader(marked, batch_size=1, seq_len=6, packing="nanochat").load_state_dict(state)


# ---------------------------------------------------------------------------- a token set that grows


@pytest.fixture
def growing(tmp_path):
    """A token set, and what makes it grow by two shards."""
    small = make_token_set(tmp_path / "set", train=TRAIN[:3], val=[[9]])
    large = make_token_set(tmp_path / "large", train=[*TRAIN, [17] * 9], val=[[9]])
    mark(large)
    for name in ("train_0.000", "train_1.000", "train_2.000"):
        shutil.copy(large / "shards" / f"{name}.bin", small / "shards")
    was = read_manifest(small)

    def grow():
        for path in (large / "shards").glob("train_[34]*"):
            shutil.copy(path, small / "shards")
        write_json(small / "manifest.json", of_shards(was, [*was["shards"], *read_manifest(large)["shards"][3:5]]))

    return small, grow


def tokens_of(folder, names):
    found = (TokenSet(folder).open(e).tokens for e in TokenSet(folder).entries if e.name.startswith(names))
    return {int(token) for tokens in found for token in tokens if token != BOS}


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_position_goes_on_over_the_shards_it_knows_and_takes_new_ones_in_with_the_next_epoch(
    growing, windows, prefetch
):
    folder, grow = growing
    loader = make_loader(folder, batch_size=1, prefetch=prefetch)
    first = rows_dealt([loader], 5)
    state, before = loader.state_dict(), loader.rows
    expected = list(islice(reference_rows(folder), before))
    grow()
    again = make_loader(folder, batch_size=1, prefetch=prefetch)
    assert again.rows > before
    again.load_state_dict(state)
    assert (again.rows, again.state_dict()) == (before, state)
    while again.epoch == 0:
        first += rows_of(next(again))
    assert first == expected, "exactly the epoch that it began"
    assert of_source(again.state_dict(), "manifest") == TokenSet(folder).digest != of_source(state, "manifest")
    second = []
    while again.epoch == 1:
        second += rows_of(next(again))
    assert {token for row in second for token in row} - {BOS} == tokens_of(folder, "train")
    fresh = make_loader(folder, batch_size=1)
    while fresh.epoch == 0:
        next(fresh)
    assert rows_dealt([fresh], len(second)) == second, "the same as if it had always been there"


def test_a_position_at_the_end_of_an_epoch_takes_new_shards_in_at_once(growing):
    folder, grow = growing
    loader = make_loader(folder, batch_size=1, epochs=1)
    assert len(list(loader)) == loader.rows or loader.epoch == 1
    grow()
    again = make_loader(folder, batch_size=1)
    again.load_state_dict(loader.state_dict())
    assert of_source(again.state_dict(), "manifest") == TokenSet(folder).digest


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_set_that_grew_twice_and_a_position_that_is_saved_and_loaded_in_between(growing, small_windows, world_size):
    folder, grow = growing
    loader = make_loader(folder, batch_size=1)
    dealt, state = rows_dealt([loader], 3), loader.state_dict()
    expected = list(islice(reference_rows(folder), loader.rows))
    grow()
    for _ in range(2):
        loaders = [make_loader(folder, batch_size=1, rank=r, world_size=world_size) for r in range(world_size)]
        for loader in loaders:
            loader.load_state_dict(state)
        dealt += rows_dealt(loaders, 2)
        state = json.loads(json.dumps(loaders[0].state_dict()))
    assert dealt == expected[: len(dealt)]


def test_what_a_position_needs_and_is_gone_is_named(growing):
    folder, grow = growing
    loader = make_loader(folder, batch_size=1)
    next(loader)
    state = loader.state_dict()
    grow()
    (folder / "shards" / "train_1.000.json").unlink()
    now = read_manifest(folder)
    left = [shard for shard in now["shards"] if shard["name"] != "train_1.000"]
    write_json(folder / "manifest.json", of_shards(now, left))
    again = make_loader(folder, batch_size=1)
    before = again.state_dict()
    with pytest.raises(
        ValueError, match=r"train_1.000.bin: expected the shard of train_1.parquet with 60 tokens, found no"
    ):
        again.load_state_dict(state)
    assert again.state_dict() == before


def test_rows_to_skip_that_a_grown_set_has_elsewhere_are_not_taken_for_others(growing, small_windows):
    folder, grow = growing
    here, later = (make_loader(folder, batch_size=1, skip_rows=[place]) for place in ("0:1:1", "1:1:1"))
    for loader in (here, later):
        next(loader)
    grow()
    make_loader(folder, batch_size=1).load_state_dict(here.state_dict())
    with pytest.raises(ValueError, match=r"has grown since this position, whose skip_rows name rows of epoch 1"):
        make_loader(folder, batch_size=1).load_state_dict(later.state_dict())
    again = make_loader(folder, batch_size=1, skip_rows=[])
    again.load_state_dict(later.state_dict())
    assert rows_of(next(again)) == rows_of(next(here))


def test_length_and_set_change_together(growing, small_windows):
    folder, grow = growing
    loader = RowLoader(folder, batch_size=2, seq_len=6)
    dealt = rows_dealt([loader], 3)
    grow()
    longer = RowLoader(folder, batch_size=1, seq_len=13, epochs=1, drop_last=False)
    longer.load_state_dict(loader.state_dict())
    dealt += [row for batch in longer for row in rows_of(batch)]
    assert {token for row in dealt for token in row} - {BOS} == tokens_of(folder, ("train_0", "train_1", "train_2"))
