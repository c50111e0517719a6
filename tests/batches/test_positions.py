"""A run goes on exactly, at any batch, on other ranks and sizes; what does not fit is refused and
changes nothing.
"""

import json
import shutil
import warnings
import zlib
from base64 import b85decode, b85encode
from contextlib import suppress
from itertools import islice, product

import pytest
import torch
import torch.distributed.checkpoint as dcp
import warm
from making import ROOT, make_chat_set, make_sources, make_token_set
from reference import PACKINGS, SEQ_LEN, make_loader, rows_in, rows_of

import tokenmill
from tokenmill import Mixture, RowLoader, get_batch


def dealt_by(loaders, calls):
    """The rows of some calls of all ranks, in the global order."""
    return rows_in(map(next, calls * loaders))


# ---------------------------------------------------------------------------- it goes on


@pytest.mark.parametrize("settings", [*PACKINGS, {"packing": "nanochat"}], ids=str)
def test_the_position_that_comes_with_a_batch_is_continued_by_the_next(
    token_set, settings, windows
):
    loader = make_loader(token_set, **settings)
    batches = []
    states = [make_loader(token_set, **settings).state_dict()]
    for batch, state in islice(loader.with_state(), 15):
        batches.append(rows_of(batch))
        states.append(state)
    for step, state in enumerate(states[:-1]):
        resumed = make_loader(token_set, prefetch=step % 3, **settings)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert (resumed.state_dict(), resumed.step, resumed.tokens_seen) == (
            state,
            step,
            step * 2 * SEQ_LEN,
        )
        assert [rows_of(batch) for batch in islice(resumed, min(3, 15 - step))] == batches[
            step : step + 3
        ]
    for step in (12, 3, 7):  # a loader that runs goes where it is told
        loader.load_state_dict(states[step])
        assert rows_of(next(loader)) == batches[step]


def histories(token_set, folder):
    """(a loader after something, a fresh one that goes on from it)."""
    weights = {"web": 2, "code": 1}, {"web": 2, "code": 1, "math": 1}, {"web": 1, "math": 1}
    mixtures = []
    for of_sources, removed in zip(weights, ([], [], ["code"]), strict=True):
        sources = {name: folder / name for name in of_sources}
        mixtures.append(Mixture(of_sources, sources=sources, removed=removed))
    for tokens, before, after in (
        ([token_set] * 3, {}, {"seq_len": 8}),
        ([token_set] * 3, {"packing": "nanochat"}, {"packing": "nanochat"}),
        (mixtures, {"seq_len": 8}, {"batch_size": 3}),
    ):
        how = {"batch_size": 2, "seq_len": SEQ_LEN}
        loader = RowLoader(tokens[0], **how | before)
        then = RowLoader(tokens[1], **how | after)
        dealt_by([loader], 3)
        if "packing" not in before:
            loader.skip(2)
        then.load_state_dict(loader.state_dict())
        dealt_by([then], 3)
        yield then, RowLoader(tokens[2], **how | after)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_position_goes_through_checkpoints_of_torch_and_json_into_any_loader(token_set, tmp_path):
    for number, (loader, fresh) in enumerate(
        histories(token_set, make_sources(tmp_path / "sets", documents=20))
    ):
        state = loader.state_dict()
        dcp.save({"data": loader}, checkpoint_id=tmp_path / str(number))
        dcp.load({"data": fresh}, checkpoint_id=tmp_path / str(number))
        loaders = [type(fresh).of(fresh.config) for _ in range(2)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.save(state, tmp_path / "state.pt")
            loaders[0].load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        loaders[1].load_state_dict(json.loads(json.dumps(state)))
        assert rows_of(next(fresh)) == rows_of(next(loaders[0])) == rows_of(next(loaders[1]))
        assert fresh.state_dict() == loaders[0].state_dict() == loaders[1].state_dict() != state


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_so_does_that_of_get_batch_in_a_fresh_process(token_set, tmp_path):
    """`tokenmill` itself has a state, before any of its names was used."""
    code = """if True:
    import sys, tokenmill, torch.distributed.checkpoint as dcp
    folder, tokens = sys.argv[1:]
    dcp.load({"data": tokenmill}, checkpoint_id=folder)
    print(tokenmill.get_batch("train", 2, 16, tokens=tokens)[0].tolist())
    """
    for _ in range(3):
        get_batch("train", 2, SEQ_LEN, tokens=token_set)
    dcp.save({"data": tokenmill}, checkpoint_id=tmp_path)
    done = warm.run("-c", code, tmp_path, token_set, cwd=ROOT)
    assert done.stdout == f"{get_batch('train', 2, SEQ_LEN, tokens=token_set)[0].tolist()}\n", (
        done.stderr
    )


# ---------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"packing": "concat"}, "packing is 'best_fit' in the position, 'concat' here"),
        ({"seed": 1}, "seed is 1337 in the position, 1 here"),
        ({"loss": "once"}, "loss is 'all' in the position, 'once' here"),
        ({"split": "val"}, "split is 'train' in the position, 'val' here"),
        ({"shuffle": False}, "shuffle is True in the position, False here"),
        ({"long_documents": "crop"}, "long_documents is 'split' in the position, 'crop' here"),
    ],
)
def test_a_position_of_other_settings_is_refused_with_both_values(token_set, other, message):
    loader = RowLoader(token_set, **({"batch_size": 1, "seq_len": SEQ_LEN} | other))
    next(loader)
    before = loader.state_dict()
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict(make_loader(token_set).state_dict())
    assert loader.state_dict() == before


def test_a_position_of_another_token_set_is_refused(token_set, tmp_path, monkeypatch):
    other_set = make_token_set(tmp_path / "other", train=[[50] * 9], val=[[40]])
    with pytest.raises(ValueError, match=r"manifest \w{16}, which .*other never had; name the set"):
        make_loader(other_set).load_state_dict(make_loader(token_set).state_dict())
    right_set = tmp_path / "data" / "tokens" / "right"
    shutil.copytree(token_set, right_set)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="name the set that it was, data/tokens/right$"):
        make_loader(other_set).load_state_dict(make_loader(token_set).state_dict())


@pytest.mark.filterwarnings("ignore:.* have no target")
def test_chats_may_join_a_run_of_text_and_then_keep_what_is_said_of_long_ones(tmp_path, token_set):
    chats = make_chat_set(tmp_path / "chats", train=[[10, 9, 12, 5] * 20], val=[[9]])
    text = make_loader(Mixture({"text": 1}, sources={"text": token_set}))
    next(text)
    both = Mixture({"text": 1, "chats": 1}, sources={"text": token_set, "chats": chats})
    loader = make_loader(both, long_documents="crop")
    loader.load_state_dict(text.state_dict())
    next(loader)
    make_loader(both, long_documents="crop").load_state_dict(loader.state_dict())
    with pytest.raises(
        ValueError, match="long_documents of chats is 'crop' in the position, 'drop' here"
    ):
        make_loader(both, long_documents="drop").load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    "wrong", [None, [], "x", {}, {"tokenmill": 1}, {"tokenmill": "x"}, {"tokenmill": "9" * 5000}]
)
def test_what_is_no_position_is_refused(token_set, wrong):
    with pytest.raises(
        ValueError, match="expected a position, the dict that state_dict made, found"
    ):
        make_loader(token_set).load_state_dict(wrong)
    changed = json.dumps(
        json.loads(make_loader(token_set).state_dict()["tokenmill"]) | {"version": 0}
    )
    with pytest.raises(ValueError, match="expected a position of version .*, found 0: start again"):
        make_loader(token_set).load_state_dict({"tokenmill": changed})


WRONG = [None, True, -1, 1 << 80, [], {"a": 1}, 0.5, float("nan"), "9" * 5000]


def unpacked(state):
    """What a position says, legs and all."""
    position = json.loads(state["tokenmill"])
    return position | {"legs": json.loads(zlib.decompress(b85decode(position["legs"])))}


def packed(found):
    legs = b85encode(zlib.compress(json.dumps(found["legs"]).encode())).decode()
    return {"tokenmill": json.dumps(found | {"legs": legs})}


def places_in(value, path=()):
    """The way to every value in a position."""
    items = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield (*path, key)
        yield from places_in(inner, (*path, key))


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [*product(["epochs", "a mixture"], WRONG), *product(["nanochat"], WRONG[::3])],
    ids=lambda one: str(one)[:9],
)
def test_a_position_with_a_wrong_value_goes_on_or_is_refused_and_changes_nothing(
    tmp_path, kind, wrong
):
    """Each value of it in turn; another number may be that of another row."""
    folder = make_sources(tmp_path, documents=20)
    tokens = Mixture(
        {"web": 3, "code": 1}, sources={name: folder / name for name in ("web", "code")}
    )
    how = {"batch_size": 2, "seq_len": 12, "prefetch": 0, "epochs": 2 if kind == "epochs" else None}
    how["packing"] = kind if kind == "nanochat" else "best_fit"
    loader = RowLoader(tokens if kind == "a mixture" else folder / "web", **how)
    dealt_by([loader], 3)
    if kind != "nanochat":
        loader.skip(1)
    dealt_by([loader], 2)
    state = loader.state_dict()
    for path in places_in(unpacked(state)):
        content = at = unpacked(state)
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = wrong
        second = RowLoader.of(loader.config)
        before = second.state_dict()
        try:
            second.load_state_dict(packed(content))
        except (ValueError, FileNotFoundError):  # the latter of a view that there never was
            assert second.state_dict() == before
        else:  # legs have a checksum, and a row of nanochat's that is far away is searched for
            if path[0] != "legs" and (kind, path[-1]) != ("nanochat", 2):
                with suppress(StopIteration):
                    dealt_by([second], 2)
