"""What a loader tells of itself, how it is closed, and what its parameters are."""

import inspect
import json
import os
import re
import shutil
import signal
import threading
import time
from dataclasses import fields
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from making import make_token_set, wait_until
from reference import PACKINGS, SEQ_LEN, changed, make_loader, rows_of
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import tokenmill.numpy
from tokenmill import Mixture, PackedRows, RowLoader, TokenSet, find_token_set, get_batch
from tokenmill.batches import get_batch as module
from tokenmill.batches import loader_core
from tokenmill.batches.base_loader import FEW_DOCUMENTS
from tokenmill.feed.loader_config import LoaderConfig
from tokenmill.feed.weighted_rows import WeightedRows
from tokenmill.store.token_sets import ShardEntry


def parameters(function) -> dict:
    return {name: p for name, p in inspect.signature(function).parameters.items() if name != "self"}


# ---------------------------------------------------------------------------- parameters


def test_every_way_to_a_loader_spells_out_the_same_parameters_with_the_same_defaults():
    asked = {field.name for field in fields(LoaderConfig)} - {"pinned"}  # which PackedRows sets itself
    ways = {RowLoader.__init__: {"dtype"}, PackedRows.__init__: {"dtype"}, get_batch: {"dtype", "drop_last"}}
    ways |= {tokenmill.numpy.RowLoader.__init__: {"device", "mesh"}}
    for way, without in ways.items():
        spelled = {name: parameter for name, parameter in parameters(way).items() if name != "purpose"}
        assert spelled.keys() == asked - without
        for name, parameter in spelled.items():
            assert parameter.kind is not inspect.Parameter.VAR_KEYWORD
            assert parameter.annotation is not inspect.Parameter.empty
            if name not in ("batch_size", "seq_len", "split", "device", "dtype"):
                assert parameter.default == parameters(RowLoader.__init__)[name].default
    assert {
        f.name: f.default for f in fields(LoaderConfig) if f.name in asked - {"batch_size", "seq_len", "dtype"}
    } == {
        name: p.default for name, p in parameters(RowLoader.__init__).items() if name not in ("batch_size", "seq_len")
    }


def test_the_meaning_of_every_parameter_is_told():
    told = RowLoader.__doc__
    for name in parameters(RowLoader.__init__):
        assert f"| {name} |" in told or f"| {name}, " in told or f", {name} |" in told


def test_the_split_where_a_folder_belongs_is_told_what_to_write_instead(token_set, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for make in (RowLoader, PackedRows):
        with pytest.raises(ValueError, match=r"found 'val', which is a split: write split='val'"):
            make("val", batch_size=2, seq_len=SEQ_LEN)
    os.symlink(token_set, tmp_path / "train")
    assert next(RowLoader("train", batch_size=2, seq_len=SEQ_LEN))[0].shape == (2, SEQ_LEN), "a folder of that name"


def test_numbers_of_other_libraries_mean_the_same_rows_and_the_same_position(token_set):
    settings = {"batch_size": 2, "seq_len": SEQ_LEN, "seed": 7, "prefetch": 0, "rank": 0, "world_size": 1}
    loader = RowLoader(token_set, shuffle=True, **settings)
    other = {name: np.int64(value) for name, value in settings.items()}
    again = RowLoader(str(token_set), np.str_("train"), shuffle=np.bool_(True), **other)
    for _ in range(6):
        assert rows_of(next(again)) == rows_of(next(loader))
        assert repr(again.state_dict()) == repr(loader.state_dict()), "plain numbers"


@pytest.mark.parametrize("make", [RowLoader, PackedRows])
def test_a_seed_that_is_no_whole_number_is_refused(token_set, make):
    for wrong in (1337.0, np.float64(1337), "1337"):
        with pytest.raises(ValueError, match="seed must be a whole number, not"):
            make(token_set, batch_size=2, seq_len=SEQ_LEN, seed=wrong)


def test_a_relative_path_stays_the_same_folder_wherever_the_process_goes(token_set, monkeypatch):
    monkeypatch.chdir(token_set.parent)
    loader = RowLoader(token_set.name, batch_size=2, seq_len=SEQ_LEN)
    rows = PackedRows(token_set.name, batch_size=2, seq_len=SEQ_LEN)
    monkeypatch.chdir("/")
    assert rows_of(next(loader)) == rows_of(next(iter(rows)))


@pytest.mark.parametrize("name", ["shuffle", "drop_last", "documents"])
def test_a_text_is_no_truth(token_set, name):
    with pytest.raises(ValueError, match=f"{name} must be True or False, not 'False'"):
        make_loader(token_set, **{name: "False"})


def test_no_folder_is_not_this_folder(token_set, monkeypatch):
    monkeypatch.chdir(token_set)
    with pytest.raises(ValueError, match="tokens must be a token set's folder, not ''"):
        RowLoader("", batch_size=2, seq_len=SEQ_LEN)


@pytest.mark.parametrize("wrong", [2.0, "2", True, None])
def test_what_is_no_whole_number_is_refused(token_set, wrong):
    with pytest.raises((ValueError, TypeError), match="batch_size"):
        RowLoader(token_set, batch_size=wrong, seq_len=SEQ_LEN)


def test_texts_are_taken_wherever_paths_are(token_set):
    assert TokenSet(str(token_set)).entries == TokenSet(token_set).entries
    assert find_token_set(str(token_set.parent)) == token_set


# ---------------------------------------------------------------------------- what it tells


@pytest.mark.parametrize("settings", [*PACKINGS, {"packing": "nanochat"}])
def test_repr_says_set_split_rows_and_position_and_disturbs_nothing(token_set, settings):
    loader, silent = make_loader(token_set, **settings), make_loader(token_set, **settings)
    for _ in range(3):
        said = repr(loader)
        drawn = loader._repr_html_()
        assert rows_of(next(loader)) == rows_of(next(silent))
    assert str(token_set) in said
    assert "'train'" in said
    assert f"{loader.rows:,} rows" in said if loader.rows else "endless rows" in said
    assert "16 + 1 tokens" in said
    position = {"rows": 4} if settings["packing"] == "nanochat" else {"epoch": 0, "row": None}
    assert all(f"{name} " in said if value is None else f"{name} {value}" in said for name, value in position.items())
    assert drawn.count("display:flex") == 2, "a bar for each row of the next batch"


def test_a_document_has_one_color_in_all_rows_that_are_drawn(token_set):
    loader = make_loader(token_set, batch_size=40, shuffle=False)
    parts = re.findall(r'title="document (\S+) of shard (\S+): .*?background:(#\w+)', loader._repr_html_())
    colors = {}
    for document, shard, color in parts:
        assert colors.setdefault((document, shard), color) == color
    assert len(parts) > len(colors) > 8, "some continue in another row"
    assert len(set(colors.values())) == 8


def test_the_next_rows_are_drawn_with_their_documents(token_set):
    loader = make_loader(token_set, shuffle=False)
    drawn = loader._repr_html_()
    rows = loader._make_rows()
    rows.seek(loader._state.place)
    pieces = rows.pieces(2)
    assert drawn.count(" tokens from ") == sum(map(len, pieces))
    for piece in pieces[0]:
        assert f"document {piece.document:,} of shard {piece.shard.entry.name}: {piece.length:,} tokens" in drawn


def test_repr_of_a_large_set_does_not_count_its_rows(token_set):
    loader = make_loader(token_set)
    entry = ShardEntry("huge.000", "train", "huge", FEW_DOCUMENTS + 1, 32_000_000, 0, "", "")
    loader.token_set.entries = [entry]  # whose files are not there to be read
    assert "about 2,000,000 rows" in repr(loader)


def test_vocab_size_is_the_tokenizer_s(token_set):
    loader = make_loader(token_set)
    assert loader.vocab_size == 1000
    assert max(int(batch.max()) for batch in next(loader)) < loader.vocab_size


def test_waited_grows_by_what_next_takes(token_set):
    loader = make_loader(token_set, prefetch=0)
    assert loader.waited == 0
    started = time.perf_counter()
    for _ in range(20):
        next(loader)
    assert 0 < loader.waited <= time.perf_counter() - started


# ---------------------------------------------------------------------------- tokens seen


@pytest.mark.parametrize("settings", [*PACKINGS, {"packing": "nanochat"}])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_tokens_seen_are_those_of_all_ranks_and_go_on_after_resuming(token_set, settings, prefetch):
    ranks = [make_loader(token_set, rank=r, world_size=2, prefetch=prefetch, **settings) for r in range(2)]
    for step in range(25):
        assert [loader.tokens_seen for loader in ranks] == [step * 2 * 2 * SEQ_LEN] * 2
        if step == 12:
            positions = [loader.state_dict() for loader in ranks]
            assert positions[0] == positions[1]
            ranks = [make_loader(token_set, rank=r, world_size=2, prefetch=prefetch, **settings) for r in range(2)]
            for loader in ranks:
                loader.load_state_dict(positions[0])
        for loader in ranks:
            next(loader)


def test_a_worker_s_position_counts_the_other_workers_batches(token_set):
    rows = PackedRows(token_set, batch_size=2, seq_len=SEQ_LEN)
    loader = StatefulDataLoader(rows, batch_size=None, num_workers=0)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    straight = make_loader(token_set)
    for _ in range(5):
        next(straight)
    assert straight.tokens_seen == 5 * 2 * SEQ_LEN
    assert f"'tokens_seen': {5 * 2 * SEQ_LEN}" in repr(loader.state_dict())


# ---------------------------------------------------------------------------- stats, and batches with their position


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("settings", [*PACKINGS, {"packing": "nanochat"}])
def test_stats_are_what_the_batches_held(token_set, settings, prefetch):
    loader, traced = make_loader(token_set, prefetch=prefetch, **settings), make_loader(token_set, **settings)
    rows = traced._make_rows(ahead=False)
    rows.seek(traced._state.place)
    pieces = filler = 0
    assert loader.stats() == (0.0, 0, 0, 0, 0, 0, {"": (0, 0, 0, 0)})
    for batches in range(1, 31):
        next(loader)
        found = [piece for row in rows.pieces(2) for piece in row]
        filler += sum(piece.length for piece in found if piece.filler)
        of_documents = settings["packing"] in ("best_fit", "nanochat")
        pieces += sum(not piece.filler for piece in found) if of_documents else 2
        counted = (2 * batches, 2 * batches * SEQ_LEN, filler, pieces)
        assert loader.stats() == (loader.waited, batches, *counted, {"": counted})
    assert filler or settings.get("packing") != "best_fit"


def test_stats_go_on_when_a_position_is_loaded_and_tell_sources_apart(token_set, tmp_path):
    other = make_token_set(tmp_path / "other", train=[[9, 30, 4] * 9], val=[[4]], seed=3)
    mixture = Mixture({"web": 3, "code": 1}, sources={"web": token_set, "code": other})
    loader = RowLoader(mixture, batch_size=4, seq_len=SEQ_LEN, sources=True)
    seen = [0, 0]
    for number in range(12):
        for source in next(loader)[2].tolist():
            seen[source] += 1
        stats = loader.stats()
        assert [stats.sources[name].rows for name in loader.sources] == seen
        assert stats.rows == sum(seen) == 4 * stats.batches
        assert stats.pieces == sum(one.pieces for one in stats.sources.values()) >= stats.rows
        if number == 6:
            loader.load_state_dict(loader.state_dict())
    assert loader.stats().batches == 12


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
def test_a_batch_that_brings_its_position_is_gone_on_from_however_many_were_fetched(token_set, prefetch, ahead):
    """As Keras and tf.data fetch batches that are not trained on before the program is stopped."""
    expected = [rows_of(batch) for batch in islice(make_loader(token_set), 20)]
    loader = make_loader(token_set, prefetch=prefetch)
    fetched = list(islice(loader.with_state(), 9 + ahead))
    assert [rows_of(batch) for batch, _ in fetched] == expected[: 9 + ahead]
    position = json.loads(json.dumps(fetched[8][1]))
    again = make_loader(token_set, prefetch=prefetch)
    again.load_state_dict(position)
    assert [rows_of(batch) for batch, _ in islice(again.with_state(), 11)] == expected[9:20]


def test_with_epochs_each_for_is_an_iteration(token_set):
    loader, plain = make_loader(token_set, epochs=1), make_loader(token_set, epochs=1)
    for _ in range(3):
        assert [rows_of(batch) for batch, _ in loader.with_state()] == [rows_of(batch) for batch in plain]


# ---------------------------------------------------------------------------- len


@pytest.mark.parametrize("settings", PACKINGS)
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize(("epochs", "world_size", "batch_size"), [(1, 1, 2), (2, 2, 3), (3, 1, 5)])
def test_len_is_how_many_batches_there_are(token_set, settings, drop_last, epochs, world_size, batch_size):
    counted = {"epochs": epochs, "drop_last": drop_last, "batch_size": batch_size, "world_size": world_size}
    for rank in range(world_size):
        loader = make_loader(token_set, **counted, **settings, rank=rank)
        assert len(loader) == sum(1 for _ in loader)


def test_len_leaves_out_what_is_skipped(token_set):
    skip_rows = ["0:0:0-3", "0:0:6", "1:0:0-1"]
    loader = make_loader(token_set, epochs=1, skip_rows=skip_rows, drop_last=False, batch_size=1)
    assert len(loader) == len(list(loader)) == make_loader(token_set).rows - 5
    told, rows = len(loader), loader.rows
    assert told == len(list(loader)) == rows - 2, "the next epoch"


def test_len_before_a_for_is_that_of_the_iteration_to_come(tmp_path):
    token_set = make_token_set(
        tmp_path / "uneven", train=[np.random.default_rng(0).integers(4, 40, 200).tolist()], val=[[9]]
    )
    loader, lengths = make_loader(token_set, epochs=1, batch_size=1), set()
    for _ in range(8):
        told = len(loader)
        batches = 0
        for _ in loader:
            batches += 1
            assert len(loader) == told, "the same in the iteration"
        assert told == batches
        lengths.add(told)
    assert len(lengths) > 1, "epochs differ, or this test shows nothing"


def test_an_endless_loader_has_no_len_and_is_true_all_the_same(token_set):
    loader = make_loader(token_set)
    with pytest.raises(TypeError, match=r"endless and has no len\(\); pass epochs="):
        len(loader)
    assert loader
    assert make_loader(token_set, epochs=1)


# ---------------------------------------------------------------------------- close


@pytest.mark.parametrize("settings", [{}, {"packing": "nanochat"}, {"prefetch": 0}])
def test_a_closed_loader_has_no_thread_and_no_file_and_still_tells_its_position(tmp_path, settings):
    def open_files():
        return [os.readlink(f"/proc/self/map_files/{name}") for name in os.listdir("/proc/self/map_files")]

    tokens = make_token_set(tmp_path / "own", train=[[9] * 30], val=[[9]])
    before = len(os.listdir("/proc/self/task"))
    with make_loader(tokens, **settings) as loader:
        next(loader)
        assert any(str(tokens) in path for path in open_files())
        position = loader.state_dict()
    wait_until(lambda: len(os.listdir("/proc/self/task")) <= before)
    assert not any(str(tokens) in path for path in open_files())
    assert loader.state_dict() == position
    assert repr(loader).endswith("; closed)")
    with pytest.raises(ValueError, match=r"own, 'train', is closed; create another"):
        next(loader)
    with pytest.raises(ValueError, match="is closed"):
        loader.load_state_dict(position)
    loader.close()
    expected = make_loader(tokens, **settings)
    expected.load_state_dict(position)
    next(expected)


def test_closing_in_another_thread_ends_a_next_that_waits(token_set, monkeypatch):
    """Which would wait for ever for a thread that has left."""
    asked, go_on = threading.Event(), threading.Event()

    def slow(rows, dealt):
        asked.set()
        go_on.wait(20)

    monkeypatch.setattr(WeightedRows, "read", slow)
    loader, said = make_loader(token_set), []

    def take():
        try:
            next(loader)
        except ValueError as error:
            said.append(str(error))

    taker = threading.Thread(target=take, daemon=True)
    taker.start()
    assert asked.wait(20)
    closer = threading.Thread(target=loader.close, daemon=True)
    closer.start()
    wait_until(lambda: loader._closed)
    go_on.set()
    closer.join(20)
    taker.join(20)
    assert not taker.is_alive()
    assert "is closed" in said[0]


def test_a_closed_loader_tells_that_it_is_though_its_files_are_gone(tmp_path):
    tokens = make_token_set(tmp_path / "own", train=[[9] * 30], val=[[9]])
    loader = make_loader(tokens)
    next(loader)
    loader.close()
    shutil.rmtree(tokens)
    with pytest.raises(ValueError, match="is closed"):
        next(loader)
    assert "about 16 rows" in repr(loader)


def test_a_position_that_is_refused_changes_nothing(token_set):
    other = make_loader(token_set, skip_rows=["0:0:4-5"])
    next(other)
    position = changed(other.state_dict(), row=99_999)
    loader = make_loader(token_set)
    next(loader)
    before, expected = loader.state_dict(), make_loader(token_set)
    with pytest.raises(ValueError, match="no such row"):
        loader.load_state_dict(position)
    assert loader.state_dict() == before
    next(expected)
    for _ in range(20):
        assert rows_of(next(loader)) == rows_of(next(expected))


def test_a_fork_between_a_position_and_its_first_batch_goes_on(token_set):
    """The planner's thread, which seeking began, is the parent's alone."""
    position = make_loader(token_set, batch_size=1)
    next(position)
    loader = make_loader(token_set, batch_size=1)
    loader.load_state_dict(position.state_dict())
    expected = [rows_of(next(position)) for _ in range(40)]  # over all shards, each planned when its turn comes
    readable, writable = os.pipe()
    if not (child := os.fork()):
        signal.alarm(20)
        with open(writable, "w") as told:
            told.write(repr([rows_of(next(loader)) for _ in range(40)]))
        os._exit(0)
    os.close(writable)
    with open(readable) as told:
        assert told.read() == repr(expected)
    assert os.waitpid(child, 0)[1] == 0
    assert [rows_of(next(loader)) for _ in range(40)] == expected, "and the parent too"


# ---------------------------------------------------------------------------- DataLoader


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataloader_that_would_batch_batches_is_refused(soon_given_up, token_set, kind, workers):
    rows = PackedRows(token_set, batch_size=2, seq_len=SEQ_LEN)
    with pytest.raises(
        ValueError, match=r"PackedRows\(batch_size=2\) makes batches itself.*DataLoader\(..., batch_size=None\)"
    ):
        next(iter(kind(rows, batch_size=8, num_workers=workers)))
    with pytest.raises(ValueError, match="this DataLoader would make batches of batches"):
        next(iter(kind(rows, num_workers=workers)))  # a DataLoader's own batch_size is 1
    inputs, _ = next(iter(kind(rows, batch_size=None, num_workers=workers)))
    assert inputs.shape == (2, SEQ_LEN)
    singles = PackedRows(token_set, seq_len=SEQ_LEN)
    assert next(iter(kind(singles, batch_size=8, num_workers=workers)))[0].shape == (8, SEQ_LEN)


# ---------------------------------------------------------------------------- get_batch


def test_settings_that_mean_the_same_are_one_loader(token_set, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_loaders", module.LoaderCache())
    monkeypatch.chdir(token_set.parent)
    os.symlink(token_set, tmp_path / "link")
    expected = make_loader(token_set, batch_size=1)
    tokens = [token_set, str(token_set), token_set.name, Path(token_set.name) / ".", f"{token_set}/", tmp_path / "link"]
    for path in tokens:
        assert rows_of(get_batch("train", 1, SEQ_LEN, tokens=path)) == rows_of(next(expected))
    spelled = [{"seed": 1337}, {"packing": "best_fit"}, {"device": torch.device("cpu")}, {"skip_rows": []}]
    for more in spelled:
        assert rows_of(get_batch("train", np.int64(1), SEQ_LEN, tokens=token_set, **more)) == rows_of(next(expected))
    assert len(module.state_dict()["loaders"]) == 1
    get_batch("train", 1, SEQ_LEN, tokens=token_set, seed=1)
    assert len(module.state_dict()["loaders"]) == 2


def test_a_name_means_another_folder_elsewhere(token_set, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_loaders", module.LoaderCache())
    other = make_token_set(tmp_path / "b" / "tokens", train=[[17] * 9], val=[[17]], seed=5)
    (tmp_path / "a").mkdir()
    os.symlink(token_set, tmp_path / "a" / "tokens")
    expected = {"a": make_loader(token_set, batch_size=1), "b": make_loader(other, batch_size=1)}
    for folder in ("a", "b", "a"):
        monkeypatch.chdir(tmp_path / folder)
        assert rows_of(get_batch("train", 1, SEQ_LEN, tokens="tokens")) == rows_of(next(expected[folder]))


def test_settings_that_change_no_row_are_one_loader(token_set, monkeypatch):
    monkeypatch.setattr(module, "_loaders", module.LoaderCache())
    expected = make_loader(token_set, batch_size=1)
    for more in ({}, {"rank": 0, "world_size": 1}, {"device": "cpu:0"}, {"shuffle": np.bool_(True)}):
        assert rows_of(get_batch("train", 1, SEQ_LEN, tokens=token_set, **more)) == rows_of(next(expected))
    expected = RowLoader(token_set, "val", batch_size=1, seq_len=SEQ_LEN)
    for more in ({}, {"seed": 5}):
        assert rows_of(get_batch("val", 1, SEQ_LEN, tokens=token_set, **more)) == rows_of(next(expected))


def test_a_rank_that_is_told_later_is_not_taken_for_another(token_set, monkeypatch):
    monkeypatch.setattr(module, "_loaders", module.LoaderCache())
    loader = make_loader(token_set)
    get_batch("train", 1, SEQ_LEN, tokens=token_set)
    monkeypatch.setattr(loader_core, "rank_and_world_size", lambda: (1, 2))
    for ask in (lambda: get_batch("train", 1, SEQ_LEN, tokens=token_set), lambda: next(loader)):
        with pytest.raises(
            ValueError, match=r"created by rank 0 of 1, but this process is now rank 1 of 2; create load"
        ):
            ask()


def test_positions_of_the_same_rows_find_their_own_loader_whichever_is_asked_for_first(token_set, monkeypatch):
    monkeypatch.setattr(module, "_loaders", module.LoaderCache())

    def step(size):
        return rows_of(get_batch("train", size, SEQ_LEN, tokens=token_set))

    for _ in range(7):
        step(2)
    step(1)
    state = module.state_dict()
    expected = {2: step(2), 1: step(1)}
    for order in ((1, 2), (2, 1)):
        module.load_state_dict(state)
        assert {size: step(size) for size in order} == expected
    module.load_state_dict(state)
    anew = make_loader(token_set, batch_size=3)
    with pytest.warns(UserWarning, match=r"get_batch starts over with .*'batch_size': 3.* only for .*'batch_size': 2"):
        assert step(3) == rows_of(next(anew))
    assert {size: step(size) for size in (1, 2)} == expected
