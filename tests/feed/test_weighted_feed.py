"""Batches of a mixture: a slow reference, any ranks and workers, changes in mid-run that lose and repeat nothing."""

import copy
import json
import random
from collections import Counter
from fractions import Fraction
from itertools import islice

import pytest
import torch
from making import BOS, make_token_set, read_manifest
from reference import SEED, SEQ_LEN, packed, reference_windows
from reference import rows_of as plain_rows
from slow_turns import slow_turns
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import tokenmill
from tokenmill import Mixture, PackedRows, RowLoader, get_batch
from tokenmill.feed import window_plans
from tokenmill.feed.mixture_state import lines_of
from tokenmill.rows.order import number_of, permutation
from tokenmill.rows.weights import whole_weights
from tokenmill.rows.windows import WindowSize
from tokenmill.store.token_sets import TokenSet

NAMES = "web", "code", "math"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(window_plans, "DEFAULT_WINDOW_SIZE", WindowSize(slice=16, window=128))


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Three token sets of some rows each, in several windows."""
    folder = tmp_path_factory.mktemp("mixed")
    for number, name in enumerate(NAMES):
        rng = random.Random(number)
        lengths = [[rng.randint(1, 40) for _ in range(rng.randint(8, 20))] for _ in range(2)]
        make_token_set(folder / name, train=lengths, val=[[rng.randint(1, 40) for _ in range(20)]], seed=number)
    return folder


def mix(sets, weights=None, **more):
    """A mixture of the sets by name, of these weights or stages."""
    weights = weights or {"web": 12, "code": 5, "math": 3}
    stages = [(0, weights)] if isinstance(weights, dict) else weights
    names = {name for _, some in stages for name in some}
    return Mixture(weights, sources={name: sets / name for name in NAMES if name in names}, **more)


def make(mixture, batch_size=2, **settings):
    settings = {"seq_len": SEQ_LEN, "seed": SEED, "sources": True} | settings
    return RowLoader(mixture, batch_size=batch_size, **settings)


def rows_of(batch, names=NAMES):
    """Each row of a batch with its source's name."""
    inputs, targets, *_, sources = batch
    rows = torch.cat([inputs, targets[:, -1:]], dim=1).tolist()
    return list(zip([names[i] for i in sources.tolist()], rows, strict=True))


def take(loader, calls):
    return [row for _ in range(calls) for row in rows_of(next(loader), loader.sources)]


def reference_of(path, name, split="train"):
    """All rows of a source: windows of slices drawn from (seed, name, epoch), packed."""
    token_set = TokenSet(path)
    shards = [token_set.open(entry) for entry in token_set.split(split)]
    shards = [(shard.tokens.tolist(), shard.offsets.tolist()) for shard in shards]
    for epoch in range(100):
        for window, slices in enumerate(windows_of(name, [len(tokens) for tokens, _ in shards], epoch)):
            documents = [
                shards[i][0][a:b]
                for i, x, y in slices
                for a, b in zip(shards[i][1], shards[i][1][1:], strict=False)
                if x <= a < y
            ]
            yield from packed(documents, "split", (SEED, epoch, window, number_of(name)), BOS)


def windows_of(name, shard_tokens, epoch):
    plain = permutation
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "reference.permutation", lambda count, kind, seed, _, drawn: plain(count, kind, seed, name, drawn)
        )
        return reference_windows(shard_tokens, SEED, epoch)


def reference(sets, weights):
    rows = {name: reference_of(sets / name, name) for name in weights}
    for name, _ in slow_turns(whole_weights(weights), 10**9):
        yield name, next(rows[name])


@pytest.fixture(scope="module")
def expected(sets):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_plans, "DEFAULT_WINDOW_SIZE", WindowSize(slice=16, window=128))
        return list(islice(reference(sets, {"web": 12, "code": 5, "math": 3}), 400))


# ---------------------------------------------------------------------------- the order


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize(("batch_size", "world_size"), [(1, 1), (2, 1), (5, 3), (2, 4), (64, 1)])
def test_the_rows_are_the_rule_s_on_any_ranks_at_any_batch_size(sets, expected, batch_size, world_size, prefetch):
    loaders = [
        make(mix(sets), batch_size, rank=rank, world_size=world_size, prefetch=prefetch) for rank in range(world_size)
    ]
    found = []
    while len(found) < 300:
        found += [row for loader in loaders for row in take(loader, 1)]
    assert found == expected[: len(found)]


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_dataloader_workers_make_the_same_batches(sets, expected, workers):
    rows = PackedRows(mix(sets), batch_size=3, seq_len=SEQ_LEN, seed=SEED, sources=True)
    batches = islice(DataLoader(rows, batch_size=None, num_workers=workers), 20)
    assert [row for batch in batches for row in rows_of(batch)] == expected[:60]


def test_single_rows_for_a_dataloader_that_makes_the_batches(sets, expected):
    rows = PackedRows(mix(sets), seq_len=SEQ_LEN, seed=SEED, sources=True)
    batches = islice(DataLoader(rows, batch_size=4), 9)
    assert [row for batch in batches for row in rows_of(batch)] == expected[:36]


def test_a_stateful_dataloader_goes_on_and_refuses_another_mixture(soon_given_up, sets, expected):
    def make_it(mixture):
        rows = PackedRows(mixture, batch_size=3, seq_len=SEQ_LEN, seed=SEED, sources=True)
        return StatefulDataLoader(rows, batch_size=None, num_workers=2)

    loader = make_it(mix(sets))
    list(islice(loader, 7))
    state = loader.state_dict()
    again = make_it(mix(sets))
    again.load_state_dict(state)
    assert [row for batch in islice(again, 10) for row in rows_of(batch)] == expected[21:51]
    other = make_it(mix(sets, {"web": 1, "code": 1, "math": 1}))
    other.load_state_dict(state)
    with pytest.raises(ValueError, match="this position does not fit the loader: mixture is"):
        next(iter(other))


def test_get_batch_takes_a_mixture_and_its_file(sets, expected, tmp_path):
    names = "".join(f"{name} = {weight}\n" for name, weight in (("web", 12), ("code", 5), ("math", 3)))
    paths = "".join(f"[sources.{name}]\npath = '{sets / name}'\n" for name in NAMES)
    (tmp_path / "mixture.toml").write_text(f"{paths}[weights]\n{names}")
    settings = {"batch_size": 4, "seq_len": SEQ_LEN, "seed": SEED, "sources": True}
    found = rows_of(get_batch("train", tokens=mix(sets), **settings))
    found += rows_of(get_batch("train", tokens=tmp_path / "mixture.toml", **settings))
    state = json.loads(json.dumps(tokenmill.state_dict()))
    tokenmill.load_state_dict(state)
    found += rows_of(get_batch("train", tokens=str(tmp_path / "mixture.toml"), **settings))
    assert found == expected[:12], "one loader, however it is named"


def test_batches_tell_documents_and_sources(sets):
    inputs, targets, ids, sources = next(make(mix(sets), documents=True))
    assert ids.shape == inputs.shape == targets.shape
    assert sources.tolist() == [0, 1]
    assert sources.dtype == torch.int64
    assert make(mix(sets)).sources == NAMES


@pytest.mark.parametrize(
    "settings", [{"packing": "concat"}, {"packing": "random"}, {"long_documents": "crop"}, {"shuffle": False}]
)
def test_other_packings_are_the_sources_own_rows(sets, settings):
    weights = {"web": 1, "math": 1}
    found = {"web": [], "math": []}
    for name, row in take(make(mix(sets, weights), **settings), 60):
        found[name].append(row)
    for name, rows in found.items():
        alone = [row for _, row in take(make(mix(sets, {name: 1}), **settings), 60)]
        assert rows == alone[: len(rows)]
        assert len(rows) == 60


def test_validation_is_each_source_s_own_or_all_by_weight(sets):
    first = take(make(mix(sets), split="val", seed=1), 20)
    assert first == take(make(mix(sets), split="val", seed=2), 20)
    assert Counter(name for name, _ in first) == {"web": 24, "code": 10, "math": 6}
    own = [
        row
        for inputs, targets in RowLoader(mix(sets)["math"], "val", batch_size=1, seq_len=SEQ_LEN, epochs=1)
        for row in torch.cat([inputs, targets[:, -1:]], 1).tolist()
    ]
    assert len(own) > 5


# ---------------------------------------------------------------------------- the position


@pytest.mark.parametrize("prefetch", [0, 2])
def test_resuming_from_every_step_is_the_unbroken_run(sets, expected, prefetch):
    loader = make(mix(sets), prefetch=prefetch)
    for step in range(40):
        state = json.loads(json.dumps(loader.state_dict()))
        assert state["tokens_seen"] == 2 * step * SEQ_LEN == loader.tokens_seen
        again = make(mix(sets), batch_size=3, prefetch=prefetch)
        again.load_state_dict(state)
        assert again.state_dict() == state
        assert take(again, 4) == expected[2 * step : 2 * step + 12]
        next(loader)


STAGES = [(0, {"web": 2, "code": 1}), (1_000, {"code": 1, "math": 1}), (2_001, {"web": 1, "math": 1})]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_stages_change_by_themselves_at_their_token(sets, prefetch):
    loader = make(mix(sets, STAGES), prefetch=prefetch)
    found, states = [], []
    for _ in range(90):
        found += take(loader, 1)
        states.append(loader.state_dict())
    names = [name for name, _ in found]
    assert set(names[:63]) == {"web", "code"}, "1,000 tokens are passed with the 63rd row of 16"
    assert set(names[63:126]) == {"code", "math"}
    assert set(names[126:]) == {"web", "math"}
    for name in NAMES:
        rows = [row for source, row in found if source == name]
        assert rows == list(islice(reference_of(sets / name, name), len(rows))), "each goes on where it was"
    for step in range(0, 90, 4):
        again = make(mix(sets, STAGES), batch_size=1, prefetch=prefetch)
        again.load_state_dict(states[step])
        assert take(again, 40) == found[2 * step + 2 : 2 * step + 42] or len(found) < 2 * step + 42
    assert states[-1]["segments"]["tokens"] == [0, 1008, 2016]


def test_what_was_seen_of_each_source(sets):
    loader = make(mix(sets, STAGES))
    counts = Counter(name for name, _ in take(loader, 80))
    seen = loader.seen()
    assert {name: one.rows for name, one in seen.items()} == counts
    assert all(one.tokens == one.rows * SEQ_LEN for one in seen.values())
    assert sum(one.tokens for one in seen.values()) == loader.tokens_seen
    assert loader.epoch == min(int(one.epochs) for one in seen.values())
    parts = parts_of(loader.state_dict())
    for name, one in seen.items():
        assert parts[name]["tokens_seen"] == one.tokens
        assert parts[name]["epoch"] == int(one.epochs)


# ---------------------------------------------------------------------------- changes


def pieces(loader, calls):
    """Of what the next rows are made, fillers apart: (source's folder, shard, document, first token, one after)."""
    rows = loader._make_rows(ahead=False)
    rows.seek(loader._state.place)
    for row in rows.pieces(loader.config.batch_size * calls):
        for piece in row:
            if not piece.filler:
                place = piece.shard.entry.name, piece.document, piece.start, piece.start + piece.length
                yield piece.shard.path.parents[1].name, *place


@pytest.mark.parametrize("settings", [{"packing": "best_fit"}, {"packing": "best_fit", "shuffle": False}])
@pytest.mark.parametrize("seed", range(30))
def test_random_histories_repeat_nothing_and_leave_nothing_out(sets, settings, seed):
    """Weights, sources, lengths and batch sizes change again and again: each epoch has each token once."""
    rng, state, dealt = random.Random(seed), None, {name: Counter() for name in NAMES}
    for _ in range(rng.randint(2, 8)):
        some = rng.sample(NAMES, rng.randint(1, 3))
        gone = [name for name in NAMES if name not in some]
        mixture = mix(sets, {name: rng.randint(1, 20) for name in some}, removed=gone)
        loader = make(mixture, rng.randint(1, 5), seq_len=rng.choice([7, 16, 16, 33]), prefetch=0, **settings)
        if state is not None:
            loader.load_state_dict(state)
        calls = rng.randint(0, 25)
        for name, shard, document, first, last in pieces(loader, calls):
            dealt[name].update((shard, document, token) for token in range(first, last))
        for _ in range(calls):
            next(loader)
        state = loader.state_dict()
    parts = parts_of(state)
    for name in NAMES:
        if name not in parts:
            assert not dealt[name]
            continue
        token_set, epoch = TokenSet(sets / name), parts[name]["epoch"]
        for entry in token_set.split("train"):
            offsets = token_set.open(entry).offsets.tolist()
            for document, (first, last) in enumerate(zip(offsets, offsets[1:], strict=False)):
                for token in range(last - first):
                    assert dealt[name][entry.name, document, token] in (epoch, epoch + 1)


def test_a_source_taken_out_on_purpose_is_kept_and_goes_on_when_it_comes_back(sets):
    loader = make(mix(sets))
    before = [row for name, row in take(loader, 15) if name == "math"]
    without = make(mix(sets, {"web": 1, "code": 1}, removed=["math"]))
    without.load_state_dict(loader.state_dict())
    take(without, 9)
    state, again = without.state_dict(), without.state_dict()
    assert parts_of(state)["math"]["rows"] == len(before)
    for number in range(len(state["sources"]["name"])):  # a caller's edits are not the loader's
        state["sources"]["pasts"][number].append("edited")
        state["sources"]["skip_rows"][number].append("edited")
    assert without.state_dict() == again
    state = again
    back = make(mix(sets, {"math": 1, "code": 3}, removed=["web"]))
    back.load_state_dict(state)
    after = [row for name, row in take(back, 20) if name == "math"]
    assert [*before, *after] == list(islice(reference_of(sets / "math", "math"), len(before) + len(after)))


def test_a_source_that_is_lacking_by_mistake_is_refused(sets):
    state = make(mix(sets)).state_dict()
    with pytest.raises(
        ValueError, match=r"has a source 'math', but the mixture has only web, code; .*removed=\['math'\]"
    ):
        make(mix(sets, {"web": 1, "code": 1})).load_state_dict(state)


def test_a_source_by_another_name_is_refused_and_not_begun_anew(sets):
    loader = make(mix(sets, {"web": 1, "code": 1}))
    take(loader, 3)
    sources = {"internet": sets / "web", "code": sets / "code"}
    renamed = Mixture({"internet": 1, "code": 1}, sources=sources, removed=["web"])
    with pytest.raises(
        ValueError, match="source 'web' of this position is the token set that the mixture calls 'inter"
    ):
        make(renamed).load_state_dict(loader.state_dict())


def test_going_on_past_the_tokens_of_a_spread_is_told(sets):
    weights = {"web": 1, "math": 1}
    settings = {"max_epochs": {"math": 4}, "on_cap": "spread"}
    loader = make(mix(sets, weights, tokens=500, **settings))
    take(loader, 20)
    with pytest.warns(UserWarning, match="is at 640 tokens, but the mixture is spread over the first 500"):
        make(mix(sets, weights, tokens=500, **settings)).load_state_dict(loader.state_dict())


def test_a_run_of_one_token_set_goes_on_in_a_mixture(sets):
    alone = RowLoader(sets / "web", batch_size=2, seq_len=SEQ_LEN, seed=SEED)
    for _ in range(5):
        next(alone)
    mixed = make(mix(sets))
    mixed.load_state_dict(alone.state_dict())
    assert mixed.tokens_seen == alone.tokens_seen == mixed.seen()["web"].tokens
    found = take(mixed, 30)
    again = make(mix(sets))
    again.load_state_dict(mixed.state_dict())
    found += take(again, 10)
    expected = [row for _ in range(40) for row in plain_rows(next(alone))]
    web = [row for name, row in found if name == "web"]
    assert web == expected[: len(web)]
    with pytest.raises(ValueError, match="no source of the mixture has or had that manifest: code"):
        make(mix(sets, {"code": 1})).load_state_dict(alone.state_dict())
    with pytest.raises(ValueError, match="this position is of a mixture of web, code, math, but this is one token set"):
        alone.load_state_dict(mixed.state_dict())


def test_rows_to_skip_are_named_with_their_source(sets, expected):
    loader = make(mix(sets), skip_rows=["web/0:0:2-3", "math/0:0:2", "math/0:0:3"])
    found = take(loader, 60)
    for name in NAMES:
        left = [row for source, row in expected if source == name]
        del left[2 : 4 if name != "code" else 2]
        rows = [row for source, row in found if source == name]
        assert rows == left[: len(rows)]
    again = make(mix(sets))
    again.load_state_dict(loader.state_dict())
    assert again.state_dict() == loader.state_dict()
    for place, told in [
        ("0:0:2", "must name rows as 'source/"),
        ("news/0:0:2", "with a source of web, code, math"),
        ("web/0:0:9000", "skip_rows web/0:0:9000: window 0 of epoch 0 has"),
    ]:
        with pytest.raises(ValueError, match=told):
            make(mix(sets), skip_rows=[place])
    with pytest.raises(ValueError, match="skip_rows must be a list of places"):
        make(mix(sets), skip_rows="web/0:0:1")


def test_a_source_that_grew_takes_the_new_in_with_its_next_epoch(sets, tmp_path):
    small = make_token_set(tmp_path / "grows", train=[[20] * 10], val=[[5]], seed=7)
    large = make_token_set(tmp_path / "large", train=[[20] * 10, [30] * 8], val=[[5]], seed=7)
    mixture = Mixture({small: 1, sets / "web": 1})
    loader = make(mixture)
    take(loader, 3)
    state, old = loader.state_dict(), TokenSet(small).digest
    for path in large.rglob("*"):
        if path.is_file():
            target = small / path.relative_to(large)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    assert len(read_manifest(small)["shards"]) == 3
    assert TokenSet(small).digest != old
    again = make(mixture)
    again.load_state_dict(state)
    manifests = []
    while (part := parts_of(again.state_dict())["grows"])["epoch"] < 2:
        manifests.append((part["epoch"], part["manifest"]))
        next(again)
    assert set(manifests) == {(0, old), (1, TokenSet(small).digest)}, "the epoch that had begun knows what it knew"


# ---------------------------------------------------------------------------- caps


def test_a_cap_is_an_error_or_retires_its_source(sets):
    weights = {"web": 1, "math": 1}
    loader = make(mix(sets, weights, max_epochs={"math": 1}), prefetch=0)
    with pytest.raises(ValueError, match="source 'math' is used up: it reaches its max_epochs after"):
        take(loader, 1000)
    assert loader.seen()["math"].epochs <= 1
    with pytest.raises(ValueError, match="source 'math' is used up"):
        next(loader)
    retiring = make(mix(sets, weights, max_epochs={"math": 1}, on_cap="retire"))
    retiring.load_state_dict(loader.state_dict())
    names = [name for name, _ in take(retiring, 40)]
    assert retiring.seen()["math"].epochs == 1
    assert set(names[-20:]) == {"web"}


@pytest.mark.parametrize("drop_last", [True, False])
def test_when_all_sources_are_used_up_the_iteration_ends(sets, drop_last):
    mixture = mix(sets, {"web": 1, "math": 2}, max_epochs=1, on_cap="retire")
    found = [row for batch in make(mixture, 4, drop_last=drop_last) for row in rows_of(batch, ("web", "math"))]
    whole = sum(make(mix(sets, {name: 1}))._feed.sources[name].plans().count(0) for name in ("web", "math"))
    assert len(found) == (whole // 4 * 4 if drop_last else whole)
    ranks = [[len(b[0]) for b in make(mixture, 4, drop_last=False, rank=r, world_size=3)] for r in range(3)]
    assert sum(map(sum, ranks)) == whole
    assert len({len(one) for one in ranks}) == 1


def test_a_cap_below_what_was_served_is_refused(sets):
    loader = make(mix(sets, {"web": 1, "math": 1}))
    take(loader, 30)
    with pytest.raises(
        ValueError, match=r"source 'math' has given \d\.\d+ epochs in this position, more than its max_e"
    ):
        make(mix(sets, {"web": 1, "math": 1}, max_epochs={"math": 0.1})).load_state_dict(loader.state_dict())


def test_a_fraction_of_an_epoch_is_so_many_windows_and_rows(sets):
    plan = make(mix(sets, {"web": 1}))._feed.sources["web"].plans()
    end = plan.end(Fraction(3, 2))
    before = sum(plan.count_rows(1, window) for window in range(end.window))
    most = plan.count(0) + before + int(plan.count_rows(1, end.window) * end.share)
    loader = make(mix(sets, {"web": 1, "code": 1}, max_epochs={"web": 1.5}, on_cap="retire"))
    names = Counter(name for name, _ in take(loader, 150))
    assert names["web"] == most


# ---------------------------------------------------------------------------- what is refused


def test_what_does_not_go_together_is_refused(sets, tmp_path):
    other = make_token_set(tmp_path / "other", train=[[20] * 5], val=[])
    manifest = read_manifest(other)
    manifest["tokenizer"]["fingerprint"] = "e" * 64
    (other / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        ValueError, match=f"must have the same tokenizer, found 'web' with random, {'f' * 64} .*'other' with random, e"
    ):
        make(Mixture({sets / "web": 1, other: 1}))
    same = make_token_set(tmp_path / "same", train=[[20] * 5], val=[], seed=3)
    twin = make_token_set(tmp_path / "twin", train=[[20] * 5], val=[], seed=3)
    with pytest.raises(ValueError, match="sources 'same' and 'twin' hold the same shards"):
        make(Mixture({same: 1, twin: 1}))
    with pytest.raises(
        ValueError, match="source 'same', .*same: split 'val' has 0 rows of 16 .* leave it out of this mixture"
    ):
        make(Mixture({sets / "web": 1, same: 1}), split="val")
    with pytest.raises(ValueError, match="this mixture has 3 stages, but validation uses the same weights"):
        make(mix(sets, STAGES), split="val")
    with pytest.raises(FileNotFoundError, match="nowhere: expected a finished token set"):
        make(Mixture({tmp_path / "nowhere": 1}))
    with pytest.raises(ValueError, match="epochs needs exactly one source"):
        make(mix(sets), epochs=1)
    with pytest.raises(ValueError, match="a mixture is not supported with packing='nanochat'"):
        make(mix(sets), packing="nanochat")
    with pytest.raises(ValueError, match="sources=True returns which source of a mixture"):
        make(sets / "web")
    with pytest.raises(ValueError, match=r"pass Mixture\(\{...\}\) of these weights"):
        make({sets / "web": 1})
    with pytest.raises(ValueError, match="set_epoch: a mixture of several sources has no epochs"):
        make(mix(sets)).set_epoch(1)
    with pytest.raises(TypeError, match="endless"):
        len(make(mix(sets)))
    with pytest.raises(ValueError, match="seen\\(\\) is for a mixture"):
        RowLoader(sets / "web", batch_size=1, seq_len=SEQ_LEN).seen()


def parts_of(state):
    return {part["name"]: part for part in lines_of(state["sources"])}


def damage(state, *path, value):
    """A position with another value; of a source's, ("sources", its name, key)."""
    state = copy.deepcopy(state)
    if len(path) == 1:
        return state | {path[0]: value}
    _, name, key = path
    state["sources"][key][state["sources"]["name"].index(name)] = value
    return state


def test_a_position_that_does_not_add_up_is_refused_and_changes_nothing(sets, expected):
    loader = make(mix(sets))
    take(loader, 4)
    state = loader.state_dict()
    for path, value, told in [
        (("turns",), 7, "does not add up"),
        (
            ("sources", "web", "tokens_seen"),
            7,
            "does not add up: 128 tokens in all, but another number for its sources",
        ),
        (("sources",), ["web"], "expected a position, as state_dict made it, found .'web'. as its sources"),
        (("sources",), {"web": [3]}, "expected a position, as state_dict made it, found .'web': .3"),
        (("tokens_seen",), 7, "does not add up"),
        (("sources", "web", "segment_tokens"), 0, "does not add up"),
        (("sources", "web", "manifest"), "0" * 16, "source 'web' of the position: .*never the token set with manifest"),
        (("sources", "web", "epoch"), -1, "source 'web' of the position: epoch of the position must be a whole number"),
        (("sources", "web", "window"), 99, "no such row: epoch 0, window 99, row .; the epoch has"),
        (("segments",), [3], "expected a position"),
        (
            ("segments",),
            state["segments"] | {"weights": [[[5, 12], ["code", 5], ["math", 3]]]},
            "must be a name, found 5",
        ),
        (("segments",), state["segments"] | {"places": [[[5, "0:0:0"]]]}, "must be a name, found 5"),
        (("seed",), 5, "this position does not fit the loader: seed is 5"),
    ]:
        with pytest.raises(ValueError, match=told):
            loader.load_state_dict(damage(state, *path, value=value))
    assert take(loader, 4) == expected[8:16]
    loader.load_state_dict(damage(state, "sources", "web", "row", value=10**6))
    for _ in range(2):
        with pytest.raises(ValueError, match="no such row: epoch 0, window 0, row 1000000; the window has"):
            next(loader)
    loader.load_state_dict(state)
    assert take(loader, 4) == expected[8:16]


def test_going_back_to_before_a_source_was_added_forgets_it(sets):
    first = make(mix(sets, {"web": 1}))
    take(first, 3)
    before = first.state_dict()
    later = make(mix(sets), skip_rows=["code/0:0:0-1"], seq_len=24)
    take(later, 6)
    loader = make(mix(sets))
    loader.load_state_dict(later.state_dict())
    take(loader, 2)
    loader.load_state_dict(before)
    again = make(mix(sets))
    again.load_state_dict(before)
    assert loader.state_dict() == again.state_dict()
    assert take(loader, 30) == take(again, 30)


def test_spread_counts_a_whole_epoch_also_where_a_window_was_begun_at_another_length(sets, monkeypatch):
    monkeypatch.setattr(window_plans, "DEFAULT_WINDOW_SIZE", WindowSize())
    settings = {"max_epochs": {"math": 4}, "on_cap": "spread", "tokens": 20_000}
    loader = make(mix(sets, {"web": 1, "math": 1}, **settings), 1)
    weights, state = [], None
    for seq_len in (SEQ_LEN, SEQ_LEN + 1):
        loader = make(mix(sets, {"web": 1, "math": 1}, **settings), 1, seq_len=seq_len)
        if state is not None:
            loader.load_state_dict(state)
        take(loader, 200)
        state = loader.state_dict()
        weights.append(dict(state["segments"]["weights"][-1]))
    shares = [one["math"] / (one["math"] + one["web"]) for one in weights]
    assert shares[1] == pytest.approx(shares[0], rel=0.1)
    take(loader, (20_000 - loader.tokens_seen) // (SEQ_LEN + 1))
    assert 3.7 < loader.seen()["math"].epochs < 4.3


def test_a_cap_below_what_was_served_is_refused_at_another_length_too(sets, monkeypatch):
    monkeypatch.setattr(window_plans, "DEFAULT_WINDOW_SIZE", WindowSize())
    loader = make(mix(sets, {"web": 1, "math": 1}))
    while loader.seen()["math"].epochs < 0.8:
        next(loader)
    capped = make(mix(sets, {"web": 1, "math": 1}, max_epochs={"math": 0.5}, on_cap="retire"), seq_len=24)
    with pytest.raises(ValueError, match="source 'math' has given"):
        capped.load_state_dict(loader.state_dict())


def test_get_batch_gives_each_mixture_its_own_position_in_whatever_order_they_are_asked(sets):
    one, other = mix(sets, {"web": 1, "code": 1}), mix(sets, {"web": 1, "code": 3})
    settings = {"batch_size": 1, "seq_len": SEQ_LEN, "seed": 99}
    for mixture, calls in ((one, 3), (other, 7)):
        for _ in range(calls):
            get_batch("train", tokens=mixture, **settings)
    state = tokenmill.state_dict()
    expected = {}
    for mixture in (one, other):
        expected[mixture] = get_batch("train", tokens=mixture, **settings)[0]
    tokenmill.load_state_dict(state)
    for mixture in (other, one):
        assert get_batch("train", tokens=mixture, **settings)[0].equal(expected[mixture])
    tokenmill.load_state_dict(state)
    with pytest.raises(ValueError, match="the loaded state has 2 positions that Mixture.* could continue from"):
        get_batch("train", tokens=mix(sets, {"web": 9, "code": 1}), **settings)
    alone = {"version": state["version"], "loaders": state["loaders"][-1:]}
    tokenmill.load_state_dict(alone)
    get_batch("train", tokens=mix(sets, {"web": 9, "code": 1}), **settings)
    (position,) = tokenmill.state_dict()["loaders"]
    assert json.loads(position)["tokens_seen"] == 8 * SEQ_LEN, "other weights go on, where it is plain from what"


@pytest.mark.parametrize("batch_size", [1, 8])
def test_an_error_of_what_comes_later_comes_when_it_is_its_turn(sets, batch_size):
    mixture = mix(sets, [(0, {"math": 1}), (100_000, {"web": 1})], max_epochs={"math": 2}, on_cap="retire")
    loader = make(mixture, batch_size, prefetch=0)
    with pytest.raises(ValueError, match="all sources of stage 0 are used up after"):
        take(loader, 10_000)
    whole = 2 * loader._feed.sources["math"].plans().count(0)
    assert abs(loader.tokens_seen // SEQ_LEN - whole) <= batch_size + 2


def test_a_loader_of_a_mixture_tells_what_it_is(sets):
    loader = make(mix(sets))
    take(loader, 2)
    assert repr(loader).startswith("RowLoader('a mixture of web, code, math', 'train': endless rows of 16 + 1 tokens")
    assert "next: after 64 tokens" in repr(loader)
    assert loader.rows is None
    assert loader.batches_per_epoch() is None
    assert "document" in loader._repr_html_()
    assert loader.token_set.path == sets / "web"
    loader.close()
    with pytest.raises(ValueError, match="this RowLoader of a mixture of web, code, math, 'train', is closed"):
        next(loader)
