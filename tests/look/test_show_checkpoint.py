"""`show --checkpoint` finds each step of a run, whatever changed before it: compared with what the loop logged."""

import json
import pickle
import random
import warnings
from itertools import islice

import pytest
import torch
import torch.distributed.checkpoint as dcp
from making import make_sources, make_token_set
from making_views import make_view
from reference import rows_of, without_log

import tokenmill
from tokenmill import RowLoader, cli, get_batch
from tokenmill.batches import get_batch as module
from tokenmill.batches.get_batch import LoaderCache
from tokenmill.batches.packed_rows import PackedRows
from tokenmill.feed import window_plans
from tokenmill.feed.window_plans import WindowPlans
from tokenmill.look.checkpoint_files import positions_in
from tokenmill.look.show_config import Show
from tokenmill.look.show_notes import of_run
from tokenmill.look.show_query import ShowQuery
from tokenmill.rows.windows import WindowSize

T = 16


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(window_plans, "DEFAULT_WINDOW_SIZE", WindowSize(slice=16, window=128))


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    return make_sources(tmp_path_factory.mktemp("run"), documents=20)


def rows_by_rank(found):
    """The rows that `show` found: the tokens of each rank's."""
    ranks = {}
    for rank, row in found:
        ranks.setdefault(rank, []).append([token for piece in row.pieces for token in piece.tokens(0).tolist()])
    return ranks


def shown(tokens, checkpoint, **asked):
    return rows_by_rank(ShowQuery(Show(str(tokens), checkpoint=str(checkpoint), **asked)).rows())


class Run:
    """A run that is stopped and changed: what every rank got at each call, and its last position."""

    def __init__(self):
        self.log, self.state = [], None

    def go_on(self, tokens, calls, world_size=1, **settings):
        loaders = [RowLoader(tokens, rank=rank, world_size=world_size, **settings) for rank in range(world_size)]
        for loader in loaders:
            if self.state is not None:
                loader.load_state_dict(self.state)
            iter(loader)  # an iteration that has ended is followed by the next one
        for _ in range(calls):
            self.log.append({rank: rows_of(next(loader)) for rank, loader in enumerate(loaders)})
        self.state = json.loads(json.dumps(loaders[0].state_dict()))
        return self


def mixture_file(folder, rng, number):
    """A mixture of the three sets with random weights, perhaps in two stages."""
    weights = [f"{name} = {rng.randint(1, 5)}" for name in ("web", "code", "math")]
    text = f"[weights]\n{chr(10).join(weights)}\n"
    if rng.random() < 0.5:
        first, second = (", ".join(rng.sample(weights, k)) for k in (3, rng.randint(1, 3)))
        text = f"[[stages]]\nbegin = 0\nweights = {{{first}}}\n[[stages]]\nbegin = 700\nweights = {{{second}}}\n"
    text += "".join(f"[sources.{name}]\npath = '{folder / name}'\n" for name in ("web", "code", "math"))
    path = folder / f"mixture{number}.toml"
    path.write_text(text)
    return path


def saved(state, folder, kind):
    """A checkpoint of some kind with a state somewhere in it."""
    path = folder / f"checkpoint.{kind}"
    whole = {"model": torch.nn.Linear(3, 3).state_dict(), "step": 5, "data": state}
    if kind == "json":
        path.write_text(json.dumps({"progress": [{"data": state}]}))
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(whole))
    elif kind == "torch":
        torch.save(whole, path)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save(whole, checkpoint_id=path)
    return path


@pytest.mark.parametrize("seed", range(50))
def test_every_step_of_a_random_history_is_what_the_loop_logged(sets, tmp_path, seed):
    rng = random.Random(seed)
    run, packing = Run(), rng.choice(["best_fit", "best_fit", "concat"])
    is_mixture = rng.random() < 0.6
    seq_len = T
    for number in range(rng.randint(1, 4)):
        if number and rng.random() < 0.3:
            seq_len = rng.choice([8, 16, 24])
        tokens = mixture_file(sets, rng, number) if is_mixture else sets / "web"
        sizes = {"batch_size": rng.randint(1, 4), "world_size": rng.randint(1, 3)}
        run.go_on(tokens, rng.randint(1, 25), seq_len=seq_len, packing=packing, prefetch=0, **sizes)
    path = saved(run.state, tmp_path, rng.choice(["json", "pickle", "torch", "dcp"]))
    known = len(run.log)
    run.go_on(tokens, 3, seq_len=seq_len, packing=packing, prefetch=0, **sizes)
    steps = {0, known, known + 2, *rng.sample(range(len(run.log)), min(8, len(run.log)))}
    for step in sorted(steps):
        assert shown(tokens, path, step=step) == run.log[step], f"step {step} of {known}"
    step = rng.choice(sorted(steps))
    rank = rng.randrange(len(run.log[step]))
    assert shown(tokens, path, batch=step, rank=rank) == {rank: run.log[step][rank]}


@pytest.mark.parametrize("seed", range(6))
def test_calls_of_iterations_are_counted_whatever_their_last_batch_was(sets, tmp_path, seed):
    """With drop_last=False the last call of an iteration has fewer rows; otherwise some rows are never used."""
    rng = random.Random(seed)
    log, epochs, state = [], rng.randint(1, 2), None
    for drop_last in rng.choices([True, False], k=2):
        loader = RowLoader(sets / "web", batch_size=rng.randint(2, 5), seq_len=T, epochs=epochs, drop_last=drop_last)
        if state is not None:
            loader.load_state_dict(state)
        for _ in range(2):
            log += [{0: rows_of(batch)} for batch in loader]
        loader.set_epoch(4 * epochs)
        log += [{0: rows_of(batch)} for batch in islice(loader, 4)]
        state = loader.state_dict()
    path = saved(state, tmp_path, "json")
    for step in range(len(log)):
        assert shown(sets / "web", path, step=step) == log[step], step


@pytest.mark.parametrize("kind", ["torch", "dcp"])
def test_a_step_of_get_batch_is_found_in_its_checkpoint(sets, tmp_path, kind, monkeypatch):
    monkeypatch.setattr(module, "_loaders", LoaderCache())
    log = []
    for _ in range(9):
        log.append({0: rows_of(get_batch("train", 3, T, tokens=sets / "web"))})
        get_batch("val", 2, T, tokens=sets / "web")
        get_batch("train", 2, T, tokens=sets / "web", purpose="eval")
    path = saved(tokenmill.state_dict(), tmp_path, kind)
    for step in range(9):
        assert shown(sets / "web", path, step=step) == log[step]
    assert [found.where for found in positions_in(path)] == ["data[0]", "data[1]", "data[2]"]
    assert shown(sets / "web", path, step=0, split="val")[0]


def test_a_step_of_several_calls_is_shown_whole_though_ranks_changed(sets, tmp_path):
    """The global batch stays, as nanoGPT, nanochat and llm.c keep it: 2 x 2 ranks x 3 calls, then 4 x 1 x 3, 6 x 2."""
    run = Run().go_on(sets / "web", 6, batch_size=2, world_size=2, seq_len=T)
    run.go_on(sets / "web", 3, batch_size=4, seq_len=T).go_on(sets / "web", 2, batch_size=6, world_size=2, seq_len=T)
    path = saved(run.state, tmp_path, "json")
    calls = [run.log[0:3], run.log[3:6], run.log[6:9], run.log[9:10], run.log[10:11]]
    for step, logged in enumerate(calls):
        expected = {}
        for call in logged:
            for rank, rows in call.items():
                expected[rank] = expected.get(rank, []) + rows
        assert shown(sets / "web", path, step=step, global_batch_size=12) == expected
    with pytest.raises(ValueError, match="got 4 rows at a call, and --global-batch-size 6 is no whole number"):
        shown(sets / "web", path, step=0, global_batch_size=6)
    with pytest.raises(ValueError, match="from row 36 of this run on, .* --global-batch-size 24 is no whole number"):
        shown(sets / "web", path, step=0, global_batch_size=24)
    flags = {"batch_size": 2, "world_size": 2, "seq_len": T, "global_batch_size": 12}
    found = rows_by_rank(ShowQuery(Show(sets / "web", step=1, **flags)).rows())
    assert found == shown(sets / "web", path, step=1, global_batch_size=12), "without a checkpoint too"


def test_what_a_checkpoint_says_is_printed_and_may_not_be_said_otherwise(sets, tmp_path, capsys):
    run = Run().go_on(sets / "web", 4, batch_size=2, world_size=2, seq_len=T)
    run.go_on(sets / "web", 4, batch_size=3, seq_len=8)
    path = saved(run.state, tmp_path, "json")
    for step, line in (
        (1, "rows 4 to 7 of the run, in segment 0, after 64 tokens, with rows of 16 + 1; batches of 2 rows on 2 ranks"),
        (
            5,
            "rows 19 to 21 of the run, in segment 1, after 280 tokens, with rows of 8 + 1; batches of 3 rows on 1 rank",
        ),
        (
            9,
            "rows 31 to 33 of the run, after the checkpoint, which is after 28 rows; these are the rows if the run",
        ),
    ):
        query = ShowQuery(Show(sets / "web", step=step, checkpoint=str(path)))
        (found,) = of_run(query, [row for _, row in query.rows()])
        assert found.startswith(line)
    for wrong in ({"batch_size": 2}, {"world_size": 2}, {"seq_len": T}):
        with pytest.raises(ValueError, match="but the state of --checkpoint has"):
            shown(sets / "web", path, step=1, **wrong)
    with pytest.raises(ValueError, match="--batch 1 needs --rank: it had 2 ranks, from 0 on$"):
        shown(sets / "web", path, batch=1)
    with pytest.raises(ValueError, match="--batch 1 needs --rank: it had 2 ranks, from 0 on, found 2"):
        shown(sets / "web", path, batch=1, rank=2)


def test_what_a_position_does_not_say_is_refused_or_has_to_be_given(sets, tmp_path):
    """Positions of an older tokenmill have no log."""
    run = Run().go_on(sets / "web", 5, batch_size=3, seq_len=T)
    run.state = without_log(run.state)
    old = saved(run.state, tmp_path, "json")
    with pytest.raises(ValueError, match="--step needs --batch-size and --world-size, as in training"):
        shown(sets / "web", old, step=2)
    flags = {"batch_size": 3, "world_size": 1}
    with pytest.raises(ValueError, match="the position has no log of its run at that time, because an older"):
        shown(sets / "web", old, step=2, **flags)
    with pytest.raises(ValueError, match=r"no whole number of calls of 4 rows on each of 1 ranks, so these"):
        shown(sets / "web", old, step=9, batch_size=4, world_size=1)
    run.go_on(sets / "web", 4, batch_size=3, seq_len=T)
    assert shown(sets / "web", old, step=7, **flags) == run.log[7], "after it"
    later = saved(run.state, tmp_path, "pickle")
    with pytest.raises(ValueError, match="does not say how many rows the calls of this run had"):
        shown(sets / "web", later, step=6)
    assert shown(sets / "web", later, step=6, global_batch_size=3) == run.log[6]
    with pytest.raises(ValueError, match="has no log of its run at that time"):
        shown(sets / "web", later, step=2, global_batch_size=3)


def test_rows_that_a_dataloader_batches_have_no_steps(sets, tmp_path):
    rows = iter(PackedRows(sets / "web", seq_len=T))
    given = [rows_of([tensor[None] for tensor in next(rows)]) for _ in range(12)]
    path = saved(rows.state_dict(), tmp_path, "json")
    with pytest.raises(ValueError, match="needs --batch-size and --world-size"):
        shown(sets / "web", path, step=2)
    found = shown(sets / "web", path, step=2, global_batch_size=4)
    assert found == {None: [row for rows in given[8:] for row in rows]}


def grow(small, folder, more):
    """A set that has grown, and knows what it was."""
    grown = make_token_set(folder, train=[[9, 5, 17, 3] * 10, more], val=[[9]])
    for path in (small / "manifests").iterdir():
        (grown / "manifests" / path.name).write_bytes(path.read_bytes())
    return grown


@pytest.mark.parametrize("epochs", [None, 1])
def test_a_set_that_grew_between_epochs_is_shown_as_it_was_in_each(tmp_path, epochs):
    small = make_token_set(tmp_path / "set", train=[[9, 5, 17, 3] * 10], val=[[9]])
    run = Run().go_on(small, RowLoader(small, batch_size=1, seq_len=T).rows, batch_size=1, seq_len=T, epochs=epochs)
    grown = grow(small, tmp_path / "grown", [17, 8] * 40)
    run.go_on(grown, 30, batch_size=1, seq_len=T, epochs=epochs)
    run.go_on(grown, 9, batch_size=2, seq_len=T, epochs=epochs)
    path = saved(run.state, tmp_path, "json")
    larger = grow(grown, tmp_path / "larger", [17, 8] * 40)
    for step in range(len(run.log)):
        assert shown(larger, path, step=step) == run.log[step], step


@pytest.mark.parametrize("packing", ["best_fit", "concat", "random"])
def test_steps_are_shown_whatever_was_skipped_since(sets, tmp_path, packing):
    """Rows to skip that were named, replaced and dropped, also with changes of the row length."""
    settings = {"batch_size": 1, "seq_len": T, "packing": packing}
    changes = [
        ({"skip_rows": ["0:0:1-2"]}, 20),
        ({"skip_rows": ["0:0:4-5", "1:0:0"]}, 20),  # of rows that were used already
        ({"seq_len": 8}, 9),
        ({"seq_len": 8, "skip_rows": ["1:1:3-4"]}, 40),
        ({}, 30),
        ({"skip_rows": []}, 50),
    ]
    run = Run()
    for change, calls in changes:
        run.go_on(sets / "web", calls, **settings | change)
    path = saved(run.state, tmp_path, "json")
    for step in range(len(run.log)):
        assert shown(sets / "web", path, step=step) == run.log[step], step


def test_steps_are_shown_in_the_view_that_the_run_had(tmp_path):
    folder = make_token_set(tmp_path / "set", train=[[9, 5, 17, 3] * 10], val=[[9]])
    make_view(folder, "a", {"train_0.000": [1, 0, 2, 1] * 10})
    make_view(folder, "b", {"train_0.000": [0, 1, 2, 1] * 10})
    for epochs in (None, 1):
        run = Run()
        for view, calls in (("a", 30), ("b", 20), (None, 20), ("a", 11)):
            calls = calls if epochs is None else RowLoader(folder, batch_size=1, seq_len=T, view=view).rows
            run.go_on(folder, calls, batch_size=1, seq_len=T, view=view, epochs=epochs)
        path = saved(run.state, tmp_path, "json")
        for step in range(len(run.log)):
            assert shown(folder, path, step=step) == run.log[step], step


def test_steps_of_a_source_that_was_taken_out_and_returned_are_shown(sets, tmp_path):
    paths = {name: sets / name for name in ("web", "code", "math")}
    run = Run()
    for number, names in enumerate((("web", "code", "math"), ("web", "code"), ("web", "code", "math"))):
        text = "".join(f"{name} = {number + 1}\n" for name in names)
        gone = [name for name in paths if name not in names]
        removed = f"removed = {gone}\n" if gone else ""
        file = tmp_path / f"{number}.toml"
        listed = "".join(f"[sources.{name}]\npath = '{paths[name]}'\n" for name in names)
        file.write_text(f"{removed}[weights]\n{text}{listed}")
        run.go_on(file, 15, batch_size=2, seq_len=T)
    path = saved(run.state, tmp_path, "json")
    for step in range(45):
        assert shown(file, path, step=step) == run.log[step], step
    with pytest.raises(ValueError, match="also read source 'math' then, which this mixture does not name"):
        shown(tmp_path / "1.toml", path, step=1)


def test_a_checkpoint_of_one_set_is_shown_by_a_mixture_that_contains_it(sets, tmp_path):
    run = Run().go_on(sets / "web", 9, batch_size=2, seq_len=T)
    path = saved(run.state, tmp_path, "json")
    mixture = tmp_path / "mixture.toml"
    mixture.write_text(
        f"[weights]\nweb = 1\ncode = 1\n[sources.web]\npath = '{sets / 'web'}'\n"
        f"[sources.code]\npath = '{sets / 'code'}'\n"
    )
    assert [shown(mixture, path, step=step) for step in range(9)] == run.log


def test_rows_before_a_checkpoint_are_counted_once(sets, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = Run().go_on(sets / "web", 30, batch_size=2, seq_len=T)
    path = saved(run.state, tmp_path, "json")
    counted, count = [], WindowPlans.count_rows
    monkeypatch.setattr(WindowPlans, "count_rows", lambda *asked: (counted.append(asked[1:]), count(*asked))[1])
    assert shown(sets / "web", path, step=29) == run.log[29]
    assert counted
    counted.clear()
    assert shown(sets / "web", path, step=29) == run.log[29]
    assert not counted


def test_a_short_last_call_is_divided_as_the_ranks_got_it(sets, tmp_path):
    ranks, settings = 8, {"batch_size": 3, "seq_len": T, "epochs": 1, "drop_last": False}
    loaders = [RowLoader(sets / "web", rank=rank, world_size=ranks, **settings) for rank in range(ranks)]
    log = [
        {rank: rows_of(batch) for rank, batch in enumerate(batches) if len(batch[0])}
        for batches in zip(*loaders, strict=True)
    ]
    path = saved(loaders[0].state_dict(), tmp_path, "json")
    assert len({len(rows) for rows in log[-1].values()}) > 1, "of unequal parts"
    for step, expected in enumerate(log):
        assert shown(sets / "web", path, step=step) == expected
    with pytest.raises(ValueError, match=f"the run has {len(log)} calls up to the checkpoint, and because its loader"):
        shown(sets / "web", path, step=len(log))
    shorter = [RowLoader(sets / "web", rank=0, world_size=1, **settings | {"seq_len": 4})]
    shorter[0].load_state_dict(loaders[0].state_dict())
    iter(shorter[0])
    log += [{0: rows_of(next(shorter[0]))} for _ in range(9)]
    path = saved(shorter[0].state_dict(), tmp_path, "json")
    for step, expected in enumerate(log):
        assert shown(sets / "web", path, step=step) == expected, "though the length changed at the end of the epoch"


def test_objects_that_contain_each_other_are_searched_once(sets, tmp_path):
    run = Run().go_on(sets / "web", 2, batch_size=2, seq_len=T)
    nodes = [Config([]) for _ in range(40)]
    for node in nodes:
        node.data += nodes
    path = tmp_path / "checkpoint.pkl"
    path.write_bytes(pickle.dumps({"nodes": nodes, "data": run.state}))
    assert shown(sets / "web", path, step=1) == run.log[1]


@pytest.mark.parametrize("key", ["packing", "sources", "segments", "seq_len", "split", "turns", "seed"])
@pytest.mark.parametrize("value", [None, [], {}, 5, "x", [[1]], {"tokens": 5}])
def test_a_position_that_is_not_whole_is_an_error_in_words(sets, tmp_path, capsys, key, value):
    run = Run().go_on(sets / "web", 2, batch_size=2, seq_len=T)
    path = saved(run.state | {key: value}, tmp_path, "pickle")
    if cli.main(["show", str(sets / "web"), "--step", "1", "--checkpoint", str(path)]):
        assert capsys.readouterr().err.startswith("error: ")


class Config:
    """A class of a training script, which `show` cannot import."""

    def __init__(self, data):
        self.data = data


def test_no_class_of_the_script_is_imported_and_no_code_is_run(sets, tmp_path):
    run = Run().go_on(sets / "web", 3, batch_size=2, seq_len=T)
    path = tmp_path / "checkpoint.pt"
    torch.save({"config": Config(run.state), "run": Runs(), "model": torch.nn.Linear(2, 2)}, path)
    assert shown(sets / "web", path, step=1) == run.log[1]
    assert not Runs.ran


class Runs:
    """Its pickle calls a function of this module."""

    ran = False

    def __reduce__(self):
        return _run, ()


def _run():
    Runs.ran = True


def test_a_file_without_one_position_of_the_split_says_what_it_has(sets, tmp_path):
    run = Run().go_on(sets / "web", 1, batch_size=2, seq_len=T)
    other = Run().go_on(sets / "web", 2, batch_size=3, seq_len=T)
    path = tmp_path / "checkpoint.json"
    for content, told in (
        ({"a": 1}, "expected a checkpoint with a loader's state_dict.., found none in it"),
        (
            {"a": run.state, "b": [other.state]},
            "found 2 positions of it among a of split train, b.0 of split train; save",
        ),
        ("", "found JSONDecodeError"),
    ):
        path.write_text(json.dumps(content) if content else "")
        with pytest.raises(ValueError, match=told):
            shown(sets / "web", path, step=0)
    path.write_text(json.dumps({"a": run.state, "b": run.state}))
    assert shown(sets / "web", path, step=0) == run.log[0], "the same one twice"
    with pytest.raises(ValueError, match="or a folder of torch.distributed.checkpoint with a file .metadata"):
        shown(sets / "web", tmp_path, step=0)
