"""What a run says of its past, where histories seldom show it, and how a position keeps a run."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.rows.position import read_position, write_position
from tokenmill.rows.run import (
    Cursor,
    Documents,
    Leg,
    Run,
    Setting,
    Stage,
    past_of,
    set_of,
)


def setting(names="a", seq_len=8, manifest="m0", **more):
    """The setting of a mixture of sources with names of one letter."""
    values = {
        "batch_size": 2,
        "world_size": 1,
        "stages": [Stage(0, dict.fromkeys(names, 1))],
        "caps": {},
    }
    sets = {name: Documents(manifest, "", name) for name in names}
    return Setting(**(values | {"seq_len": seq_len, "sets": sets} | more))


def moved(run, steps=1, **cursors):
    """The run after some steps, with sources that are at other cursors then."""
    names = run.setting.sets
    places = {name: Cursor(*cursors.get(name, run.now.cursors[name])) for name in names}
    rows = steps * run.setting.global_batch
    point = run.now._replace(
        step=run.now.step + steps,
        tokens=run.now.tokens + rows * run.setting.seq_len,
        turn=run.now.turn + rows,
        weights=run.setting.stages[0].weights,
        cursors={**run.now.cursors, **places},
        rows={**run.now.rows, **{name: run.now.rows[name] + rows for name in names}},
    )
    return run._replace(now=point)


def test_an_epoch_goes_over_what_there_was_when_its_first_row_came():
    old = Documents("m0", "", "a")
    new = Documents("m1", "", "a")
    run = moved(Run.start(setting()), a=(0, 1, 3)).go_on(setting(manifest="m1"))
    assert [set_of(run.legs, "a", epoch) for epoch in (0, 1, 2)] == [old, new, new]
    run = moved(run, a=(1, 0, 0)).go_on(setting(manifest="m2"))
    assert set_of(run.legs, "a", 1).manifest == "m2", "no row of it was dealt"
    run = moved(run, a=(1, 0, 1)).go_on(setting("b", manifest="m3"))
    run = moved(run).go_on(setting("ab", manifest="m3"))
    assert [set_of(run.legs, "a", epoch).manifest for epoch in (1, 2)] == ["m2", "m3"], (
        "also after it was away"
    )


def test_an_epoch_may_be_begun_again_whatever_was_used_of_it():
    run = moved(Run.start(setting(epochs=1)), a=(0, 1, 5)).go_on(
        setting(seq_len=16, manifest="m1", epochs=1)
    )
    run = moved(run, a=(0, 1, 7))
    back = run.begin_epoch(0)
    assert (back.now.cursors["a"], back.now.until, back.now.step) == (Cursor(0), 1, 2)
    assert past_of(back.legs, "a", 0, 1) == ([], 0)
    assert set_of(back.legs, "a", 0).manifest == "m1"
    assert run.begin_epoch(7).now.until == 8
    later = moved(back, a=(0, 1, 3)).go_on(setting(seq_len=8, manifest="m1", epochs=1))
    assert past_of(later.legs, "a", 0, 1) == ([(16, 3)], 3)


def random_run(rng, legs, names="abcd"):
    """A run of legs in which anything may have changed."""
    run = Run.start(setting(rng.sample(names, 2)))
    for _ in range(legs):
        for name in run.setting.sets:
            epoch, window, row = run.now.cursors[name]
            place = rng.choice(
                [
                    (epoch, window, row + rng.randint(0, 9)),
                    (epoch, window + 1, 3),
                    (epoch + 1, 0, 0),
                ]
            )
            run = moved(run, rng.randint(0, 5), **{name: place})
        more = {
            "batch_size": rng.randint(1, 4),
            "caps": {names[0]: 2} if rng.random() < 0.5 else {},
        }
        chosen = rng.sample(names, rng.randint(1, len(names)))
        changed = setting(
            chosen,
            rng.choice([8, 16]),
            rng.choice(["m0", "m1"]),
            epochs=rng.choice([None, 1]),
            **more,
        )
        run = run.go_on(changed, restarts=rng.random() < 0.1)
    return run


@given(st.integers(0, 10**9), st.integers(0, 12))
def test_a_position_is_the_run(seed, legs):
    run = random_run(random.Random(seed), legs)
    settings = {"seed": 1337, "split": "train", "shuffle": True}
    state = json.loads(json.dumps(write_position(run, settings)))
    assert list(state) == ["tokenmill"], "one text, which torch.distributed.checkpoint takes"
    assert read_position(state) == (run, settings)
    assert all(isinstance(leg, Leg) for leg in read_position(state)[0].legs)


def test_weights_that_make_no_pattern_are_refused():
    """A pattern has a turn for each of their sum."""
    run = Run.start(setting(stages=[Stage(0, {"a": 1 << 40})]))
    with pytest.raises(ValueError, match="expected weights whose sum is at most 65,536"):
        read_position(write_position(run, {}))


def test_a_position_stays_small():
    """100 legs of 50 sources, with thousands of rows from leg to leg."""
    rng = random.Random(0)
    names = [f"source-{number:02}" for number in range(50)]
    window_rows = 20_000
    weights = {name: rng.randint(1, 999) for name in names}
    sets = {name: Documents(f"{rng.getrandbits(64):016x}", "", name) for name in names}
    run = Run.start(setting(names, stages=[Stage(0, weights)], sets=sets))
    for leg in range(100):
        steps = rng.randint(1_000, 9_000)
        cursors = {}
        rows = dict(run.now.rows)
        for name, (epoch, window, row) in run.now.cursors.items():
            num_rows = steps * weights[name] // sum(weights.values()) + rng.randint(0, 1)
            rows[name] += num_rows
            cursors[name] = (
                epoch,
                window + (row + num_rows) // window_rows,
                (row + num_rows) % window_rows,
            )
        run = moved(run, steps, **cursors)
        run = run._replace(now=run.now._replace(rows=rows))
        run = run.go_on(
            setting(names, 2048, world_size=leg + 1, stages=[Stage(0, weights)], sets=sets)
        )
    assert len(run.legs) == 101
    state = write_position(run, {"seed": 1337})
    assert len(state["tokenmill"]) < 20_000
    assert read_position(state)[0] == run
