"""The rows of a mixture, turn by turn as a slow reference has them; what may change in a run; what
is refused.
"""

import json
import random
from collections import Counter
from itertools import chain, islice
from math import gcd

import pytest
from making import make_token_set, read_manifest
from reference import SEED, SEQ_LEN, reference_rows, rows_in, rows_of
from slow_turns import slow_turns

from tokenmill import Mixture
from tokenmill.numpy import RowLoader
from tokenmill.rows import windows as window_sizes
from tokenmill.rows.windows import WindowSize

NAMES = "web", "code", "math"
WEIGHTS = {"web": 12, "code": 5, "math": 3}
STAGES = [
    (0, {"web": 2, "code": 1}),
    (1_000, {"code": 1, "math": 1}),
    (2_001, {"web": 1, "math": 1}),
]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(window_sizes, "DEFAULT_WINDOW_SIZE", WindowSize(slice=16, window=128))


def lengths_of(rng, count):
    return [rng.randint(1, 40) for _ in range(count or rng.randint(8, 20))]


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Three token sets of some rows each, in several windows."""
    folder = tmp_path_factory.mktemp("mixed")
    for number, name in enumerate(NAMES):
        rng = random.Random(number)
        *lengths, val = (lengths_of(rng, count) for count in (None, None, 20))
        make_token_set(folder / name, train=lengths, val=[val], seed=number)
    return folder


def names_in(stages):
    return set().union(*(weights for _, weights in stages))


def mix(sets, weights=WEIGHTS, **more):
    """A mixture of the sets by name, of these weights or stages."""
    stages = [(0, weights)] if isinstance(weights, dict) else weights
    names = names_in(stages)
    return Mixture(weights, sources={name: sets / name for name in NAMES if name in names}, **more)


def make(mixture, batch_size=2, state=None, **settings):
    loader = RowLoader(
        mixture, batch_size=batch_size, **({"seq_len": SEQ_LEN, "seed": SEED} | settings)
    )
    if state is not None:
        loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


def take(loader, calls):
    """The rows of the next batches, each with its source's name."""
    dealt = []
    for batch in islice(loader, calls):
        dealt += zip(
            [loader.sources[number] for number in loader.row_sources], rows_of(batch), strict=True
        )
    return dealt


def reference(sets, weights=WEIGHTS, caps=None):
    """Turn by turn: the rule of the weights in force, which begins again whenever they change."""
    stages = [(0, weights)] if isinstance(weights, dict) else weights
    rows = {}
    ahead = {}
    num_given = None
    turns = None
    tokens = 0
    for name in names_in(stages):
        rows[name] = reference_rows(sets / name, name=name, epochs=(caps or {}).get(name))
        ahead[name] = next(rows[name])
    while True:
        stage = [in_force for begin, in_force in stages if begin <= tokens][-1]
        live = {name: weight for name, weight in stage.items() if weight and ahead[name]}
        if not live:
            return
        live = {name: weight // gcd(*live.values()) for name, weight in live.items()}
        if live != num_given:
            num_given = live
            turns = slow_turns(live, 10**9)
        name, _ = next(turns)
        yield name, ahead[name]
        ahead[name] = next(rows[name], None)
        tokens = tokens + SEQ_LEN


CASES = [
    (WEIGHTS, None),
    (STAGES, None),
    (WEIGHTS, {"code": 1}),
    (STAGES, {"code": 2, "math": 1}),
    ([(0, {"web": 2, "code": 1, "math": 0}), (700, {"web": 0, "code": 3, "math": 1})], None),
    ({"web": 1}, None),
]


# ---------------------------------------------------------------------------- the order


@pytest.mark.parametrize(("weights", "caps"), CASES)
def test_rows_are_the_reference_on_any_ranks_whatever_changes_in_the_middle_of_a_batch(
    sets, weights, caps
):
    expected = list(islice(reference(sets, weights, caps), 300))
    for batch_size, world_size in [(1, 1), (2, 4), (5, 3), (64, 1)]:
        ranks = [
            make(
                mix(sets, weights, max_epochs=caps),
                batch_size,
                rank=rank,
                world_size=world_size,
                prefetch=rank % 3,
            )
            for rank in range(world_size)
        ]
        dealt = []
        while len(dealt) < 300 - batch_size * world_size:
            dealt += chain.from_iterable(take(loader, 1) for loader in ranks)
        assert dealt == expected[: len(dealt)]


@pytest.mark.parametrize(("weights", "caps"), [CASES[0], CASES[3], CASES[4]])
def test_from_every_step_it_continues_as_the_unbroken_run(sets, weights, caps):
    expected = list(islice(reference(sets, weights, caps), 160))
    mixture = mix(sets, weights, max_epochs=caps)
    loader = make(mixture)
    for step in range(72):
        assert loader.tokens_seen == 2 * step * SEQ_LEN
        again = make(mixture, 3, loader.state_dict(), prefetch=step % 2)
        assert take(again, 4) == expected[2 * step : 2 * step + 12]
        assert step % 5 or make(mixture, 2, loader.state_dict()).state_dict() == loader.state_dict()
        next(loader)
    counts = Counter(name for name, _ in expected[:144])
    assert {name: usage.rows for name, usage in loader.seen().items()} == counts
    assert (
        sum(usage.tokens for usage in loader.seen().values()) == loader.tokens_seen == 144 * SEQ_LEN
    )
    assert loader.epoch == min(int(usage.epochs) for usage in loader.seen().values())
    assert make(mixture, 2, loader.state_dict(), seq_len=9).seen() == loader.seen()


def test_a_source_with_weight_0_keeps_its_place_for_later(sets):
    loader = make(mix(sets, {"web": 1, "code": 1}))
    before = take(loader, 9)
    paused = make(mix(sets, {"web": 1, "code": 0}), state=loader.state_dict())
    assert {name for name, _ in take(paused, 5)} == {"web"}
    again = take(make(mix(sets, {"web": 0, "code": 1}), state=paused.state_dict()), 5)
    rows_of_code = [row for name, row in before + again if name == "code"]
    expected = islice(reference(sets, {"code": 1}), len(rows_of_code))
    assert rows_of_code == [row for _, row in expected]


def test_validation_has_the_weights_and_one_order_whatever_the_seed(sets):
    first = take(make(mix(sets), split="val", seed=1), 20)
    assert first == take(make(mix(sets), split="val", seed=2), 20)
    assert Counter(name for name, _ in first) == {"web": 24, "code": 10, "math": 6}


@pytest.mark.parametrize("drop_last", [True, False])
def test_when_all_sources_have_retired_it_ends(sets, drop_last):
    weights = {"web": 1, "math": 2}
    caps = {"web": 1, "math": 2}
    every_row = list(reference(sets, weights, caps))
    mixture = mix(sets, weights, max_epochs=caps)
    loader = make(mixture, 4, drop_last=drop_last)
    dealt = take(loader, None)
    assert dealt == (every_row[: len(every_row) // 4 * 4] if drop_last else every_row)
    assert list(loader) == []
    with pytest.raises(
        ValueError,
        match="the mixture has fewer rows than a global batch of 9,999; lower batch_size",
    ):
        next(make(mixture, 9999))
    more = make(mix(sets, weights, max_epochs={"web": 2, "math": 2}), 4, loader.state_dict())
    assert len(take(more, 3)) == 12, "with a larger max_epochs it continues"
    ranks = [list(make(mixture, 4, drop_last=False, rank=rank, world_size=3)) for rank in range(3)]
    assert sum(len(rows_in(batches)) for batches in ranks) == len(every_row)
    assert len({len(batches) for batches in ranks}) == 1


def test_a_stage_that_is_used_up_before_the_next_one_is_an_error_at_that_time(sets):
    mixture = mix(sets, [(0, {"math": 1}), (100_000, {"web": 1})], max_epochs={"math": 2})
    loader = make(mixture, 4, prefetch=0)
    rows = 2 * make(sets / "math").rows
    with pytest.raises(
        ValueError, match="all sources of the stage from 0 tokens on are used up after"
    ):
        take(loader, None)
    assert 0 <= rows - loader.step * 4 < 8


# ---------------------------------------------------------------------------- what may change


def test_a_run_of_one_token_set_continues_as_a_source_of_a_mixture(sets):
    alone = make(sets / "web")
    expected = rows_in(islice(alone, 5))
    mixed = make(mix(sets), state=alone.state_dict())
    assert mixed.tokens_seen == alone.tokens_seen == mixed.seen()["web"].tokens
    dealt = take(mixed, 30)
    dealt += take(make(mix(sets), state=mixed.state_dict()), 10)
    web = [row for name, row in dealt if name == "web"]
    assert web == list(
        islice(reference_rows(sets / "web"), len(expected), len(expected) + len(web))
    )
    code = [row for name, row in dealt if name == "code"]
    assert code == list(islice(reference_rows(sets / "code", name="code"), len(code)))
    with pytest.raises(
        ValueError,
        match="this position is of a mixture of web, code, math, but this is one token set",
    ):
        make(sets / "web", state=mixed.state_dict())
    with pytest.raises(ValueError, match="0 sources of the mixture"):
        make(mix(sets, {"code": 1}), state=alone.state_dict())


# ---------------------------------------------------------------------------- what is refused


def test_a_position_of_other_sources_is_refused(sets):
    ours = mix(sets, {"web": 1, "code": 1})
    loader = make(ours)
    take(loader, 3)
    state = loader.state_dict()
    gone = make(mix(sets, {"code": 1}, removed=["web"]), state=state).state_dict()
    renamed = Mixture(
        {"internet": 1, "code": 1}, sources={"internet": sets / "web", "code": sets / "code"}
    )
    other_set = Mixture(
        {"web": 1, "code": 1}, sources={"web": sets / "math", "code": sets / "code"}
    )
    for mixture, position, message in [
        (
            mix(sets, {"web": 1}),
            state,
            r"has a source 'code', but the mixture has only web; .*removed=\['code'\]",
        ),
        (
            renamed,
            state,
            "has a source 'web', but the mixture has only internet, code; add it by this name",
        ),
        (
            other_set,
            state,
            "source 'web' of this position is of a token set with manifest .* never had",
        ),
        (other_set, gone, "source 'web' of this position .* never had"),
    ]:
        with pytest.raises(ValueError, match=message):
            make(mixture, state=position)
    assert take(make(ours, state=state), 1) == take(loader, 1)


def test_what_does_not_go_together_is_refused(sets, tmp_path):
    same, twin = (
        make_token_set(tmp_path / name, train=[[20] * 5], val=[], seed=3)
        for name in ("same", "twin")
    )
    other_set = make_token_set(tmp_path / "other", train=[[20] * 5], val=[])
    loader = make(mix(sets))
    manifest = read_manifest(other_set)
    manifest["tokenizer"]["fingerprint"] = "e" * 64
    (other_set / "manifest.json").write_text(json.dumps(manifest))
    for ask, message in [
        (
            lambda: make(Mixture({sets / "web": 1, other_set: 1})),
            "the same tokenizer, found 'web' with random, ffff.*'other'",
        ),
        (
            lambda: make(Mixture({same: 1, twin: 1})),
            "sources 'same' and 'twin' have the same documents",
        ),
        (
            lambda: make(Mixture({sets / "web": 1, same: 1}), split="val"),
            "source 'same', .*same: split 'val' has 0 rows",
        ),
        (lambda: make(mix(sets, STAGES), split="val"), "validation .*stages|stages.* validation"),
        (lambda: make({sets / "web": 1}), r"pass Mixture\(\{...\}\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            ask()
    with pytest.raises(FileNotFoundError, match="nowhere: expected a finished token set"):
        make(Mixture({tmp_path / "nowhere": 1}))
    assert loader.rows is None
    with pytest.raises(TypeError, match="endless"):
        len(loader)
