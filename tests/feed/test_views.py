"""A view's documents come as often as they count, whatever ranks, lengths and views a run goes on with."""

import random
from collections import Counter

import numpy as np
import pytest
from making import make_chat_set, make_token_set, source_of
from making_views import make_view

from tokenmill import Mixture, forecast, proportional
from tokenmill.feed import window_plans
from tokenmill.numpy import RowLoader
from tokenmill.rows.windows import WindowSize
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import TEXT_COUNTS
from tokenmill.store.token_sets import TokenSet, write_manifest


@pytest.fixture
def tiny_windows(monkeypatch):
    monkeypatch.setattr(window_plans, "DEFAULT_WINDOW_SIZE", WindowSize(slice=16, window=64))


LENGTHS = {
    "train": [[5, 3, 40, 7, 2, 9, 16, 17, 1, 12], [3] * 20, [100, 33, 50], [12, 6, 25, 31, 8, 9] * 4],
    "val": [[4, 8, 30, 6]],
}


def numbered_set(folder, train, val):
    """A token set in which every token but BOS, 0, is another number."""
    make_token_set(folder, train, val, vocab=65_536)
    number = 1
    for entry in TokenSet(folder).entries:
        path = folder / "shards" / f"{entry.name}.bin"
        tokens = np.fromfile(path, np.uint16)
        numbered = tokens != 0
        tokens[numbered] = np.arange(number, number + numbered.sum())
        number += int(numbered.sum())
        path.write_bytes(tokens.tobytes())  # of the same size; nothing here asks for the checksum
    return folder


def tokens_of(folder, split="train"):
    """(shard, document) of each token's number."""
    found = {}
    token_set = TokenSet(folder)
    for entry in token_set.split(split):
        tokens = np.fromfile(folder / "shards" / f"{entry.name}.bin", np.uint16)
        offsets = np.fromfile(folder / "shards" / f"{entry.name}.idx", np.uint64).astype(int)
        for document in range(entry.documents):
            for token in tokens[offsets[document] + 1 : offsets[document + 1]].tolist():
                found[token] = (entry.name, document)
    return found


def make_loader(folder, view, seq_len=16, batch_size=1, **more):
    return RowLoader(folder, view=view, batch_size=batch_size, seq_len=seq_len, loss="once", **more)


def count_targets(batch, counts):
    targets = batch[1]
    counts.update(targets[targets >= 0].ravel().tolist())


def place(loader):
    """(epoch, window, row)"""
    sources = loader.state_dict()["sources"]
    return tuple(sources[key][0] for key in ("epoch", "window", "row"))


def rows_of(folder, **settings):
    with RowLoader(folder, batch_size=1, seq_len=16, epochs=1, **settings) as loader:
        return [np.concatenate([inputs[0], targets[0, -1:]]).tolist() for inputs, targets in loader]


# ---------------------------------------------------------------------------- one view


@pytest.mark.parametrize("long_documents", ["split", "crop"])
def test_a_view_in_which_all_count_once_has_the_rows_of_the_set(tmp_path, tiny_windows, long_documents):
    folder = make_token_set(tmp_path / "set", **LENGTHS)
    make_view(folder, "all", {})
    whole = rows_of(folder, long_documents=long_documents)
    assert rows_of(folder, view="all", long_documents=long_documents) == whole
    assert rows_of(folder, split="val", view="all") == rows_of(folder, split="val")


def test_every_document_comes_as_often_as_it_counts(tmp_path, windows):
    folder = numbered_set(tmp_path / "set", **LENGTHS)
    counts = {"train_0.000": [3, 0, 1, 2, 0, 1, 1, 0, 1, 5], "train_1.000": [2] * 20, "train_2.000": [0, 4, 1]}
    counts["train_3.000"] = [1, 2, 0] * 8
    make_view(folder, "some", counts)
    seen = Counter()
    with make_loader(folder, "some", epochs=1) as loader:
        for batch in loader:
            count_targets(batch, seen)
    for token, (shard, document) in tokens_of(folder).items():
        assert seen[token] == counts[shard][document]


def test_copies_are_in_different_windows_where_there_are_many(tmp_path, monkeypatch):
    """Of 3,000 documents that count 2, in 47 windows, fewer than 1 in 20 comes twice in one window."""
    monkeypatch.setattr(window_plans, "DEFAULT_WINDOW_SIZE", WindowSize(slice=64, window=1024))
    folder = numbered_set(tmp_path / "set", [[8] * 1000] * 3, [[8] * 4])
    make_view(folder, "twice", {f"train_{n}.000": [2] * 1000 for n in range(3)})
    plans = window_plans.WindowPlans(
        TokenSet(folder).viewed("twice"), "train", 65, packing="best_fit", long_documents="split", shuffle=True, seed=1
    )
    together = 0
    for window in range(plans.count_windows(0)):
        slices = plans.epoch(0).window(window)
        documents = plans._documents(0, window, slices, plans._open(0, slices))
        shard, begin = documents.places()
        together += len(begin) - len(set(zip(shard.tolist(), begin.tolist(), strict=True)))
    assert plans.count_windows(0) == 47
    assert together < 150


def test_conversations_of_a_view_stay_whole(tmp_path, tiny_windows):
    folder = make_chat_set(tmp_path / "chat", [[5, 9, 12, 30, 7, 3], [4] * 10], [[8, 8]])
    make_view(folder, "some", {"train_0.000": [2, 0, 3, 1, 1, 0]})
    lengths = [
        length for length, times in zip([5, 9, 12, 30, 7, 3], [2, 0, 3, 1, 1, 0], strict=True) for _ in range(times)
    ]
    whole = sorted(length for length in [*lengths, *[4] * 10])
    plans = window_plans.WindowPlans(
        TokenSet(folder).viewed("some"), "train", 40, packing="best_fit", long_documents="split", shuffle=True, seed=1
    )
    found = []
    for window in range(plans.count_windows(0)):
        rows = plans.rows(0, window)
        for number in range(rows.num_rows):
            pieces = [piece for piece in rows.pieces(number) if not piece.is_padding]
            assert len({(p.shard.entry.name, p.document) for p in pieces}) == len(pieces)
            found += [piece.length for piece in pieces]
    assert sorted(found) == whole


# ---------------------------------------------------------------------------- histories


def dealt_until(folder, state, view, seq_len, begin):
    """The tokens from a state up to the window `begin` of its epoch, one row at a time, with the view of the state."""
    seen = Counter()
    with make_loader(folder, view, seq_len) as loader:
        loader.load_state_dict(state)
        while place(loader)[:2] < begin:
            batch = next(loader)
            if place(loader) not in ((*begin, 0), (begin[0] + 1, 0, 0)) and place(loader) > (*begin, 0):
                break  # what was left before `begin` has no rows: this row is behind it
            count_targets(batch, seen)
    return seen


def random_counts(rng):
    times = rng.choice([[0, 1], [0, 0, 0, 1, 3], [1, 2], [0, 1, 2, 3, 4]])
    return {f"train_{n}.000": [rng.choice(times) for _ in lengths] for n, lengths in enumerate(LENGTHS["train"])}


def random_history(folder, rng):
    """A run over an epoch and more, with resumes on other ranks, lengths and views. Compares each epoch's counts."""
    documents = tokens_of(folder)
    views = {None: {f"train_{n}.000": [1] * len(some) for n, some in enumerate(LENGTHS["train"])}}
    for number in range(3):
        views[f"v{number}"] = random_counts(rng)
        if not any(map(any, views[f"v{number}"].values())):
            views[f"v{number}"]["train_0.000"][0] = 1
        make_view(folder, f"v{number}", views[f"v{number}"])
    view, seq_len, ranks, batch = rng.choice([*views]), rng.choice([8, 16, 30]), 1, 1
    state, seen, changes, epoch = None, Counter(), 0, 0
    due = {token: views[view][shard][number] for token, (shard, number) in documents.items()}
    for _ in range(rng.randint(2, 6)):
        loaders = [make_loader(folder, view, seq_len, batch, rank=rank, world_size=ranks) for rank in range(ranks)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        for _ in range(rng.randint(1, 12 // ranks // batch + 1)):
            for loader in loaders:
                count_targets(next(loader), seen)
            state = loaders[0].state_dict()
            assert all(loader.state_dict() == state for loader in loaders)
            if place(loaders[0])[0] > epoch:  # the epoch ended within this batch: compare what was before its end
                return 0
        for loader in loaders:
            loader.close()
        new = rng.choice([*views])
        if new != view:
            changes += 1
            at = place(loaders[0])
            if at == (epoch, 0, 0):
                due = {token: views[new][shard][number] for token, (shard, number) in documents.items()}
            else:
                begin = (at[0], at[1] + is_begun(state))
                dealt = seen + dealt_until(folder, state, view, seq_len, begin)
                due = {
                    token: max(dealt[token], views[new][shard][number]) for token, (shard, number) in documents.items()
                }
        view, seq_len = new, rng.choice([8, 16, 30])
        ranks, batch = rng.choice([(1, 1), (1, 3), (2, 1), (3, 2)])
    rest = seen + dealt_until(folder, state, view, seq_len, (epoch + 1, 0))
    assert {token: rest[token] for token in documents} == due
    return changes


def is_begun(state):
    sources = state["sources"]
    here = [past for past in sources["pasts"][0] if past[:2] == [sources["epoch"][0], sources["window"][0]]]
    return bool(sources["row"][0]) or any(used for past in here for _, used, *_ in past[2:])


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_deal_every_document_as_often_as_it_counts(tmp_path, tiny_windows, seed):
    folder = numbered_set(tmp_path / "set", **LENGTHS)
    random_history(folder, random.Random(seed))


# ---------------------------------------------------------------------------- mixtures


def drawn(loader, count, folder):
    """How often each (source, shard, document) had a target in the next `count` batches."""
    documents, found = tokens_of(folder), {name: Counter() for name in loader.sources}
    for _ in range(count):
        _, targets, sources = next(loader)
        for row, number in zip(targets, sources.tolist(), strict=True):
            found[loader.sources[number]].update(documents[token] for token in row[row >= 0].tolist())
    return found


@pytest.fixture
def two_views(tmp_path, tiny_windows):
    folder = numbered_set(tmp_path / "set", **LENGTHS)
    is_long = {f"train_{n}.000": [int(length >= 16) for length in some] for n, some in enumerate(LENGTHS["train"])}
    make_view(folder, "long", is_long)
    make_view(folder, "short", {shard: [1 - one for one in some] for shard, some in is_long.items()})
    make_view(folder, "most", {shard: [2 - one for one in some] for shard, some in is_long.items()})
    return folder, is_long


def mixture_of(folder, **views):
    return Mixture(dict.fromkeys(views, 1), sources=dict.fromkeys(views, folder), views=views)


def test_views_of_one_set_are_sources_of_one_mixture(two_views):
    folder, is_long = two_views
    with make_loader(mixture_of(folder, a="short", b="long"), None, sources=True) as loader:
        found = drawn(loader, 60, folder)
    assert found["a"]
    assert found["b"]
    assert all(not is_long[shard][document] for shard, document in found["a"])
    assert all(is_long[shard][document] for shard, document in found["b"])


def test_a_mixture_goes_on_with_other_views_of_its_sources(two_views):
    folder, _ = two_views
    with make_loader(mixture_of(folder, a="short", b="long"), None) as loader:
        for _ in range(5):
            next(loader)
        state = loader.state_dict()
    with make_loader(mixture_of(folder, a="most", b="long"), None, seq_len=30) as loader:
        loader.load_state_dict(state)
        for _ in range(40):
            next(loader)
        state = loader.state_dict()
        parts = state["sources"]["manifest"][state["sources"]["name"].index("a")]
        assert parts[-1][2] == TokenSet(folder).viewed("most").view_digest
    with pytest.raises(ValueError, match="the order of its rows depends on its name; keep the name"):
        make_loader(mixture_of(folder, other="most", b="long"), None).load_state_dict(state)


def test_a_position_of_one_view_goes_on_as_that_view_in_a_mixture(two_views):
    folder, _ = two_views
    with make_loader(folder, "long") as loader:
        next(loader)
        state = loader.state_dict()
    with make_loader(mixture_of(folder, a="short", b="long"), None) as loader:
        loader.load_state_dict(state)
        assert loader.seen()["b"].rows == 1
        assert loader.seen()["a"].rows == 0
    with pytest.raises(ValueError, match="the sources a, b are other views of that set"):
        make_loader(mixture_of(folder, a="short", b="most"), None).load_state_dict(state)


def test_what_views_of_a_mixture_cannot_be(two_views):
    folder, _ = two_views
    make_view(
        folder,
        "again",
        {f"train_{n}.000": [int(length >= 16) for length in some] for n, some in enumerate(LENGTHS["train"])},
    )
    with pytest.raises(ValueError, match="are the same folder, .*; name it once, or give them different views"):
        mixture_of(folder, a="long", b="long")
    with pytest.raises(ValueError, match="hold the same documents, each as often"):
        make_loader(mixture_of(folder, a="long", b="again"), None)
    with pytest.raises(ValueError, match="views names 'c', which is not a source"):
        Mixture({"a": 1}, sources={"a": folder}, views={"c": "long"})
    with pytest.raises(ValueError, match=r"a mixture names the views of its sources: Mixture\(..., views="):
        make_loader(mixture_of(folder, a="long"), "long")
    with pytest.raises(FileNotFoundError, match="expected a view 'nope', found again, long, most, short"):
        make_loader(mixture_of(folder, a="nope"), None)


def test_the_forecast_tells_what_is_in_two_views_and_how_often_a_document_is_seen(two_views):
    folder, is_long = two_views
    found = forecast(mixture_of(folder, a="most", b="long"), seq_len=16, tokens=20_000)
    both = [
        length
        for n, some in enumerate(LENGTHS["train"])
        for length in some
        if is_long[f"train_{n}.000"] and length >= 16
    ]
    assert (
        f"{len(both)} documents of {sum(both):,} tokens are in both a and b, and come from each of them" in found.notes
    )
    assert any(note.startswith("a: a document counts up to 2 times in an epoch of its view") for note in found.notes)
    assert not forecast(mixture_of(folder, a="short", b="long"), seq_len=16, tokens=20_000).notes


# ---------------------------------------------------------------------------- refused


@pytest.mark.parametrize("packing", ["concat", "random", "nanochat"])
def test_packings_that_cut_the_stream_refuse_views(two_views, packing):
    with pytest.raises(ValueError, match="is not supported with"):
        RowLoader(two_views[0], view="long", packing=packing, batch_size=1, seq_len=2)


def test_a_view_without_training_documents_says_so(tmp_path, tiny_windows):
    folder = numbered_set(tmp_path / "set", **LENGTHS)
    make_view(folder, "none", {f"train_{n}.000": [0] * len(some) for n, some in enumerate(LENGTHS["train"])})
    with pytest.raises(ValueError, match=r"view 'none': split 'train' has 0 rows of 16 \+ 1 tokens"):
        make_loader(folder, "none")


def test_a_former_view_that_was_deleted_is_named_and_not_needed_at_an_epochs_begin(two_views):
    folder, _ = two_views
    states = []
    with make_loader(folder, "long", epochs=1) as loader:
        states.append(loader.state_dict())
        next(loader)
        states.append(loader.state_dict())
        digest = TokenSet(folder).viewed("long").view_digest
    for path in (folder / "views").glob(f"{digest}.*"):
        path.unlink()
    with make_loader(folder, "short") as loader:
        loader.load_state_dict(states[0])
        with pytest.raises(FileNotFoundError, match=f"expected the former view {digest}, found no such file"):
            loader.load_state_dict(states[1])


def test_weights_by_size_are_by_the_views(two_views):
    folder, is_long = two_views
    found = proportional({"a": folder, "b": folder}, views={"a": "long"})
    tokens = {name: TokenSet(folder).viewed(name).view.tokens("train") for name in ("long",)}
    whole = sum(entry.tokens for entry in TokenSet(folder).split("train"))
    assert found["a"] / found["b"] == pytest.approx(tokens["long"] / whole)
    with pytest.raises(ValueError, match="views names 'c', which is not one of the sources a"):
        proportional({"a": folder}, views={"c": "long"})


# ---------------------------------------------------------------------------- growth


def test_a_set_that_grows_is_gone_over_with_its_new_documents_from_the_next_window_on(tmp_path, tiny_windows):
    folder = numbered_set(tmp_path / "set", **LENGTHS)
    make_view(folder, "v", {"train_1.000": [2] * 20})
    seen = Counter()
    with make_loader(folder, "v") as loader:
        for _ in range(9):
            count_targets(next(loader), seen)
        state = loader.state_dict()
    grow(folder, [[7, 9, 11, 30]])
    with pytest.raises(ValueError, match="it lacks 1 shard, as train_9.000"):
        make_loader(folder, "v")
    make_view(folder, "v", {"train_1.000": [2] * 20, "train_9.000": [1, 3, 0, 1]})
    with make_loader(folder, "v") as loader:
        loader.load_state_dict(state)
        begins = place(loader)[0]
        while place(loader)[0] == begins:
            count_targets(next(loader), seen)
    expected = {"train_1.000": [2] * 20, "train_9.000": [1, 3, 0, 1]}
    for token, (shard, document) in tokens_of(folder).items():
        assert seen[token] == expected.get(shard, [1] * 30)[document]


def grow(folder, lengths):
    """Adds training shards of these lengths to a numbered set."""
    token_set = TokenSet(folder)
    records = [(token_set.record(entry), entry.split) for entry in token_set.entries]
    for number, some in enumerate(lengths, 9):
        name = f"train_{number}.000"
        with ShardWriter(folder, name, "uint16") as writer:
            tokens = np.arange(40_000, 40_000 + sum(some))
            tokens[np.cumsum([0, *some[:-1]])] = 0
            writer.write(tokens, some)
            facts = dict.fromkeys(TEXT_COUNTS, 0) | {
                "fingerprint": "f" * 64,
                "source": source_of(f"{name}.parquet", len(some)),
            }
            records.append((writer.finish(facts), "train"))
    write_manifest(folder, "synthetic", token_set.tokenizer, records)


# ---------------------------------------------------------------------------- the other ways to a loader


def test_get_batch_keeps_views_apart_and_goes_on_with_another(two_views, own_loaders):
    from tokenmill import get_batch, load_state_dict, state_dict

    folder, _ = two_views
    settings = {"batch_size": 1, "seq_len": 16, "tokens": folder, "loss": "once"}
    for _ in range(3):
        get_batch("train", view="long", **settings)
    get_batch("train", view="short", **settings)
    state = state_dict()
    expected = {view: get_batch("train", view=view, **settings)[0].tolist() for view in ("long", "short")}
    load_state_dict(state)
    assert {view: get_batch("train", view=view, **settings)[0].tolist() for view in ("short", "long")} == expected
    load_state_dict(state)
    with pytest.raises(ValueError, match="2 positions that .* could continue from"):
        get_batch("train", view="most", **settings)


def test_packed_rows_pin_the_view_that_they_were_made_with(two_views):
    from torch.utils.data import DataLoader

    from tokenmill import PackedRows

    folder, is_long = two_views
    dataset = PackedRows(folder, view="long", batch_size=2, seq_len=16, epochs=1)
    make_view(folder, "long", {shard: [1 - one for one in some] for shard, some in is_long.items()})
    documents = tokens_of(folder)
    for inputs, _ in DataLoader(dataset, batch_size=None, num_workers=2):
        for token in inputs[inputs > 0].tolist():
            shard, document = documents[token]
            assert is_long[shard][document]
