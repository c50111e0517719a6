"""`tokenmill show` prints what a training loop got, whatever changed in its run: compared with what the loop logged."""

import collections
import contextlib
import functools
import json
import pickle
import random
import re
import shutil
import warnings
import zlib
from base64 import b85decode, b85encode
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed.checkpoint as dcp
from making import give_tokenizer, make_text, make_token_set, run_prepare, write_parquet
from making_views import make_view

import tokenmill
from tokenmill import Mixture, TokenSet, cli, get_batch
from tokenmill.feed.config import LoaderConfig
from tokenmill.look.checkpoint_files import position_of, positions_in
from tokenmill.look.source_places import SourceLocator
from tokenmill.look.steps import RunRows
from tokenmill.numpy import RowLoader
from tokenmill.rows import windows
from tokenmill.tokenize.tokenizer import Tokenizer

T = 16
NAMES = ("web", "code", "math", "chat")
PACKINGS = [{}, {"long_documents": "crop"}, {"packing": "concat"}, {"packing": "random"}, {"shuffle": False}]


@pytest.fixture(scope="module", autouse=True)
def small_windows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "DEFAULT_WINDOW_SIZE", windows.WindowSize(slice=16, window=128))
        yield


def corpus(folder, name, file, rng):
    """A source file: with scores, without, lines, or conversations of a word or many."""
    (folder / name).mkdir(exist_ok=True)
    texts = [*make_text(25, seed=rng.randrange(99), words=6), *make_text(3, seed=rng.randrange(99), words=25)]
    if name == "chat":
        talk = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": rng.choice(["to ken", "mil"])}]
        rows = [
            {"messages": [*talk, talk[0], {**talk[1], "content": text}]} if i % 2 else {"messages": talk}
            for i, text in enumerate(texts)
        ]
        (folder / name / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif name == "math":
        (folder / name / f"{file}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    else:
        table = {"text": texts, "score": [*range(len(texts))], "meta": [{"note": f"\x1b[31m:fire:{file}"}] * len(texts)}
        pq.write_table(pa.table(table), folder / name / f"{file}.parquet", row_group_size=5)


@pytest.fixture(scope="module")
def sets(tmp_path_factory, tokenizer_json):
    """Token sets: web with views a and b as it was, `small`, and with more shards, `grown`; the others are the same."""
    cwd, found = tmp_path_factory.mktemp("sets"), {}
    for root, name, files in [("small", name, "bz") for name in NAMES] + [("grown", "web", "ac")]:
        for file in files:
            corpus(cwd, name, file, random.Random(f"{name} {file}"))
        if root == "grown":
            shutil.copytree(cwd / "small", cwd / "grown")
        flags = ["--source", name, "--name", name, "--tokens-root", root, "--tokenizer", tokenizer_json]
        flags += ["--chat", "chatml"] if name == "chat" else ["--keep-columns", "score,meta"] * (name in "web code")
        folder = cwd / run_prepare(*flags, "--workers", 1, cwd=cwd).stdout.splitlines()[-1]
        found[root, name] = found["grown", name] = folder
        for view in "ab" if name == "web" else "":
            rng, entries = random.Random(view), TokenSet(folder).entries
            make_view(folder, view, {entry.name: rng.choices([0, 1, 1, 2, 3], k=entry.documents) for entry in entries})
    return found


def mixture_file(path, sets, names, weights):
    path.write_text(weights + "".join(f"[sources.{name}]\npath = '{sets['grown', name]}'\n" for name in names))
    return path


@pytest.fixture(scope="module")
def everything(sets):
    """A mixture's file that names all four sets as they are now."""
    weights = "".join(f"{name} = 1\n" for name in NAMES)
    return mixture_file(sets["grown", "web"].parents[1] / "all.toml", sets, NAMES, f"[weights]\n{weights}")


@pytest.fixture(scope="module")
def opened(sets):
    return {name: TokenSet(sets["grown", name]) for name in NAMES}


# ---------------------------------------------------------------------------- the oracle: what a loop logged


class Loop:
    """A training loop that is stopped and changed. It logs what each rank got at each call, and its last position."""

    def __init__(self, state=None):
        self.log, self.state = [], state

    def go_on(self, tokens, calls, world_size=1, skip=0, breaks=None, **settings):
        ranks = [RowLoader(tokens, rank=r, world_size=world_size, prefetch=0, **settings) for r in range(world_size)]
        for loader in ranks:
            if self.state is not None:
                loader.load_state_dict(self.state)
            iter(loader)
            with contextlib.suppress(ValueError):  # fewer are left
                loader.skip(skip)
        breaks = breaks or {}
        for number in range(calls):
            if batches := [] if number in breaks else self.next(ranks):
                self.log.append({rank: seen(batch) for rank, batch in enumerate(batches) if len(batch[0])})
            elif not settings.get("epochs"):
                break  # the mixture is used up
            for loader in ranks if not batches else ():
                iter(loader) if breaks.get(number) is None else loader.set_epoch(breaks[number] * settings["epochs"])
        (self.state,) = {json.dumps(loader.state_dict()): loader.state_dict() for loader in ranks}.values()
        return self

    @staticmethod
    def next(ranks):
        """What each rank gets at a call; nothing at the end of an iteration, or of the mixture."""
        found = []
        for loader in ranks:
            try:
                found.append(next(loader))
            except StopIteration:
                pass
            except ValueError as error:
                if "are used up after" not in str(error):
                    raise
        return found


def seen(batch):
    """A batch as the training step sees it: (inputs, targets) of each row."""
    return [*zip(batch[0].tolist(), batch[1].tolist(), strict=True)]


def told(row, bos_id):
    """A row that `show` found, as a training step sees it, from its pieces."""
    ids, in_loss = [], []
    for piece in row.pieces:
        ids += piece.tokens(bos_id).tolist()
        size, marks = piece.length + piece.bos, piece.in_loss()
        in_loss += [not piece.is_padding] * size if marks is None else marks.tolist()
    return ids[:-1], [token if marked else -100 for token, marked in zip(ids[1:], in_loss[1:], strict=True)]


def by_rank(rows, bos_id):
    found = collections.defaultdict(list)
    for row in rows:
        found[row.rank].append(told(row, bos_id))
    return dict(found)


def printed(capsys, *words):
    """What the command prints with --ids: (place, rank, token ids, tokens of padding) of each row; and all of it."""
    assert cli.main(["show", *map(str, words), "--ids"]) == 0, capsys.readouterr().err
    out, rows = capsys.readouterr().out, []
    lines = out.partition("┏")[0]  # before a table of columns
    places = re.split(r"^row ([\w/]*\d+:\d+:\d+)(?:, rank (\d+))?\n", lines, flags=re.MULTILINE)[1:]
    for place, rank, text in zip(*[iter(places)] * 3, strict=True):
        ids, padding = [], 0
        for piece in re.split(r"^  [A-Za-z] (?=[\d,]+ (?:of|tokens of) )", text, flags=re.MULTILINE)[1:]:
            if found := re.match(r"([\d,]+) tokens of padding", piece):
                padding += int(found[1].replace(",", ""))
            else:
                ids += map(int, piece.rstrip("\n").split("\n")[-1].split())
        rows.append((place, rank, ids, padding))
    return rows, out


def require_printed(rows, logged):
    """That the command printed the rows of a call: without the ids of padding, which ends a row."""
    expected = [(rank, inputs) for rank, own in logged.items() for inputs, _ in own]
    assert [None if rank is None else int(rank) for _, rank, *_ in rows] == [rank for rank, _ in expected]
    for (*_, ids, padding), (_, inputs) in zip(rows, expected, strict=True):
        assert len(ids) + padding == len(inputs) + 1
        assert ids[: len(inputs)] == inputs[: len(ids)]


def saved(state, folder, kind):
    """A checkpoint of some kind with a state somewhere in it."""
    path, whole = folder / f"checkpoint.{kind}", {"model": torch.nn.Linear(3, 3).state_dict(), "step": 5, "data": state}
    if kind == "json":
        path.write_text(json.dumps({"progress": [{"data": state}]}))
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(whole | {"more": collections.defaultdict(list), "config": SimpleNamespace(a=1)}))
    elif kind == "torch":
        torch.save(whole, path)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save(whole, checkpoint_id=path)
    return path


# ---------------------------------------------------------------------------- every step of a run

KINDS = ("mixture", "mixture", "chats", "one set", "iterations", "nanochat")


def random_run(sets, kind, rng):
    """A run of some legs, and how it would go on: (loop, tokens, settings)."""
    loop, root, names, seq_len = Loop(), "small", ["web"], T
    packing = {"nanochat": "nanochat", "chats": "best_fit"}.get(kind) or rng.choice(
        ["best_fit"] * 3 + ["concat", "random"]
    )
    long = rng.choice(["crop", "drop"] if kind == "chats" else ["split", "crop"])
    fixed = {"packing": packing, "shuffle": rng.random() < 0.8, "seed": rng.choice([7, 1337])}
    ranks, tokens, settings = rng.randint(1, 3), None, {}
    for number in range(rng.randint(2, 6)):
        if packing == "best_fit":
            seq_len = rng.choice([24, 40, 60] if kind == "chats" else [7, T, T, 24, 40])
        if kind != "nanochat":
            ranks, root = rng.randint(1, 3), "grown" if rng.random() < 0.3 else root
        sizes = {"batch_size": rng.randint(1, 4), "seq_len": seq_len, "world_size": ranks} | fixed
        view = rng.choice([None, "a", "b"]) if packing == "best_fit" else None
        if kind in ("one set", "iterations", "nanochat") or (kind == "mixture" and number == 0 and rng.random() < 0.3):
            tokens, settings = sets[root, "web"], sizes | {"view": view, "long_documents": long}
            if kind == "iterations":
                many = {"epochs": rng.randint(1, 2), "drop_last": rng.random() < 0.5}
                settings |= many | {
                    "breaks": {rng.randrange(40): rng.choice([None, 0, 3]) for _ in range(rng.randrange(3))}
                }
        else:
            if number == 0 or rng.random() < 0.6:
                names = rng.sample(NAMES if kind == "chats" else NAMES[:3], rng.randint(1, 3))
                names += ["web"] * ("web" not in names and number == 1)  # with which it may have begun alone
            weights = lambda: {name: rng.randint(1, 6) for name in names}  # noqa: E731
            tokens = Mixture(
                [(0, weights()), (rng.randint(100, 3000), weights())][: rng.randint(1, 2)],
                sources={name: sets[root, name] for name in names},
                views={"web": view} if "web" in names else None,
                max_epochs={name: rng.randint(1, 4) for name in names if rng.random() < 0.2},
                removed=[name for name in NAMES if name not in names],
            )
            settings = sizes | {"long_documents": long if kind != "chats" or "chat" in names else "split"}
        skip = rng.randint(1, 9) * (kind != "nanochat" and rng.random() < 0.4)
        loop.go_on(tokens, rng.choice([0, 1, 4, 9, 16]), skip=skip, **settings)
    return loop, tokens, settings


@pytest.mark.filterwarnings("ignore:.*have no target in their first:UserWarning")
@pytest.mark.parametrize("seed", range(30))
def test_every_step_of_a_run_is_shown_as_its_loop_logged_it(sets, opened, everything, tmp_path, capsys, seed):
    rng, kind = random.Random(seed), KINDS[seed % len(KINDS)]
    loop, tokens, settings = random_run(sets, kind, rng)
    state, known, bos_id = loop.state, len(loop.log), opened["web"].bos_id
    loop.go_on(tokens, 9, **settings | {"breaks": {}})
    run = RunRows.of_position(state, opened if kind != "nanochat" else {"": opened["web"]})
    for step, logged in enumerate(loop.log):
        assert by_rank(run.step(step), bos_id) == logged, f"step {step} of {known}"

    path = saved(state, tmp_path, rng.choice(["json", "pickle", "torch", "dcp"]))
    shown = sets["grown", "web"] if kind in ("one set", "iterations", "nanochat") else everything
    for step in rng.sample(range(len(loop.log)), min(2, len(loop.log))):
        rows, out = printed(capsys, shown, "--checkpoint", path, "--step", step)
        require_printed(rows, loop.log[step])
        assert ("is to come" in out) == (step >= known)
        rank = rng.choice([*loop.log[step]])
        rows, _ = printed(capsys, shown, "--checkpoint", path, "--batch", step, "--rank", rank)
        require_printed(rows, {rank: loop.log[step][rank]})
    if kind not in ("nanochat", "iterations"):  # in which an epoch may come again, with other rows
        for row in run.step(rng.randrange(known)) if known else ():
            again = told(run.at(*row[:4]), bos_id)
            assert again == told(row, bos_id), f"{row.place} is another row than the run had there"


def test_a_checkpoint_says_the_settings_of_each_leg(sets, everything, tmp_path, capsys):
    loop = Loop().go_on(sets["small", "web"], 4, world_size=2, batch_size=2, seq_len=T)
    loop.go_on(sets["grown", "web"], 3, batch_size=3, seq_len=24)
    path, digest = saved(loop.state, tmp_path, "json"), TokenSet(sets["small", "web"]).digest
    for step, said in (
        (1, "rows of 16 + 1 tokens, best_fit; seed 1337; 2 rows on each of 2 ranks; leg 0 of the run, from step 0 on"),
        (4, "rows of 24 + 1 tokens, best_fit; seed 1337; 3 rows on each of 1 rank; leg 1 of the run, from step 4 on"),
        (8, "from step 4 on; the checkpoint is after 7 steps, so this one is to come"),
    ):
        out = " ".join(printed(capsys, everything, "--checkpoint", path, "--step", step)[1].split())
        assert said in out
        assert (f"as of manifest {digest}" in out) == (step == 1)


WITHOUT = [
    *[("web", settings) for settings in [*PACKINGS, {"packing": "nanochat"}, {"view": "a"}, {"split": "val"}]],
    ("chat", {"long_documents": "drop"}),
    ("mixture", {"seed": 5}),
]


@pytest.mark.filterwarnings("ignore:.*longer than a row:UserWarning")
@pytest.mark.parametrize(("name", "settings"), WITHOUT)
def test_without_a_checkpoint_the_settings_say_which_rows_a_step_had(sets, opened, everything, capsys, name, settings):
    stages = "[[stages]]\nbegin = 0\nweights = {web = 3, code = 2}\n[[stages]]\nbegin = '1K'\nweights = {math = 1}\n"
    tokens = mixture_file(everything.with_name("stages.toml"), sets, NAMES[:3], stages)
    tokens = tokens if name == "mixture" else sets["grown", name]
    sizes = {"batch_size": 3, "world_size": 2, "seq_len": 24 if name == "chat" else T}
    loop = Loop().go_on(tokens, 20, **sizes, **settings)
    config = LoaderConfig(tokens=tokens, rank=0, **sizes, **settings)
    run = RunRows.of_config(config, config.mixture.open())
    assert [by_rank(run.step(step), opened["web"].bos_id) for step in range(20)] == loop.log
    flags = [word for key, value in (sizes | settings).items() for word in (f"--{key.replace('_', '-')}", value)]
    require_printed(printed(capsys, tokens, "--step", 17, *flags)[0], loop.log[17])
    require_printed(printed(capsys, tokens, "--batch", 19, "--rank", 1, *flags)[0], {1: loop.log[19][1]})


def test_a_row_s_number_and_its_place_are_the_same_row(sets, everything, capsys):
    for tokens, last in ((sets["grown", "web"], r"[1-9]:\d+:\d+"), (everything, r"\w+/\d:\d+:\d+")):
        long = ["--long-documents", "drop"] * (tokens == everything)
        loop = Loop().go_on(tokens, 120, batch_size=1, seq_len=24, **({"long_documents": "drop"} if long else {}))
        for number in (0, 17, 119):
            rows, _ = printed(capsys, tokens, "--row", number, "--seq-len", 24, *long)
            require_printed(rows, {None: loop.log[number][0]})
            assert printed(capsys, tokens, "--row", rows[0][0], "--seq-len", 24, *long)[0] == rows
        assert re.fullmatch(last, rows[0][0]), "a later epoch"


# ---------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("kind", ["json", "pickle", "torch", "dcp"])
def test_a_step_of_get_batch_is_found_in_every_kind_of_checkpoint(sets, tmp_path, capsys, kind):
    log, web = {"train": [], "val": []}, sets["grown", "web"]
    for _ in range(9):
        log["train"].append({0: seen(get_batch("train", 3, T, tokens=web))})
        log["val"].append({0: seen(get_batch("val", 2, T, tokens=web))})
        get_batch("train", 2, T, tokens=web, purpose="eval")
    path = saved(tokenmill.state_dict(), tmp_path, kind)
    where = "progress.0.data" if kind == "json" else "data"
    assert [found.where for found in positions_in(path)] == [f"{where}[{number}]" for number in range(3)]
    for split, logged in log.items():
        rows, _ = printed(capsys, web, "--checkpoint", path, "--split", split, "--step", 7)
        require_printed(rows, logged[7])
    get_batch("train", 1, T, tokens=web)
    path = saved(tokenmill.state_dict(), tmp_path, kind if kind != "dcp" else "json")
    assert cli.main(["show", str(web), "--checkpoint", str(path), "--step", "7"]) == 1
    assert "found 2 positions of it among" in capsys.readouterr().err


RAN = []


def run_code(*_):
    RAN.append("code ran")


class Holder:
    """A class of a training script. Reading its pickle may import it no more than call what `Code` names."""

    def __init__(self, value):
        self.value = value


class Slots:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Code:
    def __reduce__(self):
        return run_code, ("rm -rf",)


Pair = collections.namedtuple("Pair", "first second")
Pair.__module__ = __name__
WAYS = {
    "an attribute": Holder,
    "a slot": Slots,
    "a namedtuple": lambda state: Pair(1, state),
    "an argument": lambda state: functools.partial(print, state),
    "a deque": lambda state: collections.deque([state]),
    "a dict of a library": lambda state: collections.UserDict(a=state),
    "an OrderedDict": lambda state: collections.OrderedDict(a=(0, [state])),
    "a defaultdict": lambda state: collections.defaultdict(functools.partial(dict), a=state),
    "an array": lambda state: np.array([None, state], object),
}


def circle(state):
    """Objects that contain each other, with the state in one of them."""
    nodes = [Holder([]) for _ in range(40)]
    for node in nodes:
        node.value += nodes
    nodes[7].value.append(state)
    return nodes


@pytest.mark.parametrize("save", [lambda value, path: path.write_bytes(pickle.dumps(value)), torch.save])
@pytest.mark.parametrize("way", [*WAYS, "a circle"])
def test_a_position_is_found_wherever_it_is_and_no_class_is_imported_and_no_code_run(
    sets, tmp_path, monkeypatch, way, save
):
    state, path = Loop().go_on(sets["small", "web"], 3, batch_size=2, seq_len=T).state, tmp_path / "ckpt"
    save({"code": Code(), "model": torch.nn.Linear(2, 2), "run": WAYS.get(way, circle)(state), "n": np.int64(3)}, path)
    for name in ("Holder", "Slots", "Pair"):
        monkeypatch.delattr(f"{__name__}.{name}")
    assert position_of("--checkpoint", path, "train", "a position") == state
    assert not RAN


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lambda state, other: {"a": 1}, "expected a checkpoint with a position in it, found none in it"),
        (lambda state, other: {"a": state, "b": [other]}, "found 2 positions of it among a of split train, b.0 of"),
        (lambda state, other: None, "found JSONDecodeError"),
        (lambda state, other: {"a": state, "b": {"c": state}}, None),  # the same one twice
        (lambda state, other: {"versions": {"torch": "2.9", "tokenmill": "0.4.0"}, "data": state}, None),
        (lambda state, other: {"data": {"get_batch": "[1"}}, "expected the positions of get_batch's loaders as JSON"),
        (lambda state, other: {"config": {"tokenmill": {"seq_len": 16}}, "data": state}, None),
        (lambda state, other: {"tokenmill": json.dumps({"version": 99})}, "expected a position of version 1, found 99"),
    ],
)
def test_a_file_without_one_position_says_what_it_has(sets, tmp_path, capsys, content, said):
    web, path = sets["small", "web"], tmp_path / "checkpoint.json"
    loop, other = (Loop().go_on(web, 2, batch_size=size, seq_len=T) for size in (2, 3))
    content = content(loop.state, other.state)
    path.write_text("" if content is None else json.dumps(content))
    if said is None:
        require_printed(printed(capsys, web, "--checkpoint", path, "--step", 1)[0], loop.log[1])
    else:
        assert cli.main(["show", str(web), "--checkpoint", str(path), "--step", "1"]) == 1
        assert re.fullmatch(f"error: .*{re.escape(said)}.*\n", capsys.readouterr().err)


def test_a_position_that_is_damaged_is_one_line_of_error(sets, tmp_path, capsys):
    """Whatever value a part of it has: rows, or a sentence, and never a traceback."""
    web, rng, path = sets["small", "web"], random.Random(0), tmp_path / "checkpoint.json"
    loop = Loop().go_on(web, 2, batch_size=2, seq_len=T).go_on(web, 2, batch_size=3, seq_len=24)
    position, ended = json.loads(loop.state["tokenmill"]), 0
    position["legs"] = json.loads(zlib.decompress(b85decode(position["legs"])))
    for number in range(250):
        damaged = json.loads(json.dumps(position))
        inner, key = damaged, rng.choice([*damaged])
        while isinstance(inner[key], dict | list) and inner[key] and rng.random() < 0.85:
            inner = inner[key]
            key = rng.choice([*inner] if isinstance(inner, dict) else range(len(inner)))
        inner[key] = rng.choice([None, [], {}, "x", -1, 0, 3, 1.5, True, [[1]], {"web": 5}])
        if rng.random() < 0.1:
            del inner[key]
        if "legs" in damaged:
            damaged["legs"] = b85encode(zlib.compress(json.dumps(damaged["legs"]).encode())).decode()
        path.write_text(json.dumps({"tokenmill": json.dumps(damaged)}))
        asked = ["--step", str(number % 6)] if number % 3 else ["--document", "0"]
        try:
            ended += cli.main(["show", str(web), "--checkpoint", str(path), *asked])
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} {error}: {damaged}, legs {inner}") from error
        told = capsys.readouterr().err
        assert re.fullmatch("(error: [^\n]+\n)?", told)
    assert ended > 100


def test_a_set_or_a_split_that_the_run_did_not_read_is_refused(sets, everything, tmp_path, capsys):
    """A position of one set is shown by a mixture that has it, and one of a mixture by files that name its sources."""
    mixture = Mixture({"web": 1, "math": 1}, sources={name: sets["small", name] for name in ("web", "math")})
    loop = Loop().go_on(mixture, 5, batch_size=2, seq_len=T)
    path = saved(loop.state, tmp_path, "json")
    for tokens, words, said in (
        (sets["small", "code"], ["--step", 1], "the run read source 'web' with manifest"),
        (sets["small", "web"], ["--step", 1], "the run read source 'math' with manifest"),
        (everything, ["--step", 1, "--split", "val"], "split"),
        (everything, ["--row", "code/0:0:1"], "'code' is not a source of the run, which has web, math"),
        (everything, ["--row", 7], "--row of a checkpoint must be a place"),
        (everything, ["--batch", 1, "--rank", 1], "--rank must be from 0 to 0, found 1"),
        (everything, ["--document", 3], "a row or document of a mixture must name its source, as in web/"),
    ):
        assert cli.main(["show", *map(str, [tokens, "--checkpoint", path, *words])]) == 1, words
        assert re.fullmatch(f"error: .*{re.escape(said)}.*\n", capsys.readouterr().err)


# ---------------------------------------------------------------------------- documents


def holders(rows):
    """The places of the rows that hold each document of a shard, and whether they have only copies of it as filler."""
    found = collections.defaultdict(dict)
    for row in rows:
        for piece in row.pieces:
            if not piece.is_padding:
                own = found[row.name, piece.shard.entry.name, piece.document]
                own[row.place] = own.get(row.place, True) and piece.filler
    return {document: [*own.items()] for document, own in found.items()}


def require_found(run, rows, epoch):
    """That each document of an epoch is found in just those of its rows that hold it, in their order."""
    expected = holders(row for row in rows if row.epoch == epoch)
    assert expected
    for name, token_set in run.sets.items():
        for entry in token_set.split(run.order.split):
            for document in range(entry.documents):
                found = [(row.place, row.filler) for row in run.with_document(name, entry, document, epoch)]
                assert found == expected.get((name, entry.name, document), []), (name, entry.name, document)


@pytest.mark.filterwarnings("ignore:.*longer than a row:UserWarning")
@pytest.mark.parametrize(("name", "settings"), [one for one in WITHOUT if one[1] != {"packing": "nanochat"}])
def test_a_document_is_in_the_rows_that_a_search_of_all_rows_finds(sets, everything, name, settings):
    tokens = everything if name == "mixture" else sets["grown", name]
    settings = {"long_documents": "drop"} if name == "mixture" else settings
    sizes = {"batch_size": 1000, "world_size": 1, "seq_len": 24 if name in ("chat", "mixture") else T}
    config = LoaderConfig(tokens=tokens, rank=0, **sizes, **settings)
    run = RunRows.of_config(config, config.mixture.open())
    require_found(run, run.step(0), epoch=1)


@pytest.mark.parametrize("changes", [{"seq_len": 7}, {"view": "b"}])
def test_a_document_of_a_run_that_changed_is_in_the_rows_that_the_run_had_and_will_have(sets, changes):
    web, settings = sets["grown", "web"], {"batch_size": 1, "seq_len": T, "view": "a"}
    loop = Loop().go_on(web, 13, **settings).go_on(web, 3, **settings | changes | {"batch_size": 250})
    run = RunRows.of_position(loop.state, {"": TokenSet(web)})
    rows = [row for step in range(len(loop.log)) for row in run.step(step)]
    for epoch in (0, 1):
        require_found(run, rows, epoch)


def test_a_document_is_printed_whole_with_what_is_known_of_it_and_its_rows(sets, everything, tmp_path, capsys):
    web, texts = sets["small", "web"], pq.read_table(sets["small", "web"].parents[1] / "web" / "b.parquet")["text"]
    mixture = Mixture({"web": 1, "code": 1}, sources={name: sets["small", name] for name in ("web", "code")})
    path = saved(Loop().go_on(mixture, 2, batch_size=2, seq_len=T).state, tmp_path, "torch")
    run = RunRows.of_config(LoaderConfig(tokens=web, batch_size=1, seq_len=T), {"": TokenSet(web)})
    for words in ([web, "--document", 9, "--seq-len", T], [everything, "--document", "web/9", "--checkpoint", path]):
        assert cli.main(["show", *map(str, words)]) == 0
        out = capsys.readouterr().out
        place = "document 9 of shard b.000, b.parquet row 9"
        assert re.search(rf"{place}\n<\|bos\|>{re.escape(texts[9].as_py())}\nscore: 9\nmeta: .*31m:fire:b", out)
        assert "\x1b" not in out
        rows = re.findall(r"^  ((?:web/)?0:\d+:\d+)( \(only a copy, as filler\))?$", out, re.MULTILINE)
        assert f"epoch 0: {len(rows)} row" in out
    entry = TokenSet(web).split("train")[0]
    assert rows, "of the mixture, in another order than alone"
    cli.main(["show", str(web), "--document", "9", "--seq-len", "16", "--epoch", "2"])
    expected = [
        f"  {row.place}" + " (only a copy, as filler)" * row.filler for row in run.with_document("", entry, 9, 2)
    ]
    assert "\n".join(expected) in capsys.readouterr().out


def test_a_document_is_of_the_split_that_the_checkpoint_is_of(sets, tmp_path, capsys):
    path = saved(Loop().go_on(sets["small", "web"], 2, batch_size=2, seq_len=T, split="val").state, tmp_path, "json")
    words = [str(sets["small", "web"]), "--document", "9", "--checkpoint", str(path), "--split", "val"]
    assert cli.main(["show", *words]) == 0
    out = capsys.readouterr().out
    assert "document 9 of shard z.000, z.parquet row 9" in out
    assert re.search(r"^  0:\d+:\d+$", out, re.MULTILINE), "rows that hold it"


# ---------------------------------------------------------------------------- what is printed


def test_a_row_is_printed_with_its_text_and_where_each_document_is_from(sets, capsys, tokenizer_json):
    tokenizer, whole = Tokenizer.load(tokenizer_json), 0
    for name in ("web", "math"):
        corpus = sets["grown", name].parents[1] / name
        texts = {path.name: [json.loads(line)["text"] for line in path.open()] for path in corpus.glob("*.jsonl")}
        texts |= {path.name: pq.read_table(path)["text"].to_pylist() for path in corpus.glob("*.parquet")}
        for number in range(0, 60, 7):
            out = printed(capsys, sets["grown", name], "--row", number, "--seq-len", 64)[1]
            found = re.findall(r"^  [A-Z] ([\d,]+) of .*, whole: .*, (\S+) (row|line) (\d+)\n(.*)\n", out, re.MULTILINE)
            for length, file, kind, row, text in found:
                source = texts[file][int(row) - (kind == "line")]
                assert len(tokenizer.encode(source)) + 1 == int(length)
                assert ("<|bos|>" + source).startswith(text)
            whole += len(found)
    assert whole > 40
    rows = [
        printed(capsys, sets["grown", "web"], "--step", 3, "--batch-size", 2, "--world-size", 1, "--seq-len", 64, *more)
        for more in ((), ("--full",))
    ]
    assert rows[0][0] == rows[1][0]
    assert " ... " in rows[0][1]
    assert " ... " not in rows[1][1], "texts are whole"


def test_a_step_is_printed_as_bars_whose_lowercase_letters_are_filler(sets, capsys):
    words = ["--batch-size", 4, "--world-size", 2, "--seq-len", T]
    rows, out = printed(capsys, sets["grown", "web"], "--step", 3, *words)
    bars = re.findall(r"^row (\d:\d+:\d+), rank (\d)  ([A-Za-z]+)$", out, re.MULTILINE)
    assert [(place, rank) for place, rank, _ in bars] == [(place, rank) for place, rank, *_ in rows]
    config = LoaderConfig(tokens=sets["grown", "web"], batch_size=4, rank=0, world_size=2, seq_len=T)
    for row, (*_, bar) in zip(RunRows.of_config(config, config.mixture.open()).step(3), bars, strict=True):
        letters = [chr(ord("a" if piece.filler else "A") + number) for number, piece in enumerate(row.pieces)]
        assert {*bar} <= {*letters}
        assert "".join(sorted(bar, key=letters.index)) == bar


def test_the_table_of_columns_has_a_line_for_each_piece_that_is_no_filler(sets, everything, tmp_path, capsys):
    web = sets["grown", "web"]
    sizes = ["--batch-size", 4, "--world-size", 1, "--seq-len", 24, "--view", "a", "--step", 2]
    config = LoaderConfig(tokens=web, view="a", batch_size=4, seq_len=24)
    rows = RunRows.of_config(config, config.mixture.open()).step(2)
    pieces = [(row.place, piece) for row in rows for piece in row.pieces if not piece.filler]
    for columns in ("score,meta.note", "all"):
        out = printed(capsys, web, *sizes, "--columns", columns)[1]
        table = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.split("\n") if line.startswith("│")]
        assert [(place, int(tokens)) for place, _, tokens, *_ in table] == [(p, piece.length) for p, piece in pieces]
        for (_, document, _, score, note), (_, piece) in zip(table, pieces, strict=True):
            assert re.fullmatch(rf"\w\.parquet row {score}", document), "scores are the numbers of rows"
            assert int(score) == piece.document
            assert "[31m:fire:" in note, "neither an escape sequence nor an emoji"
        assert "\x1b" not in out
    assert cli.main(["show", str(web), *map(str, sizes), "--columns", "scor"]) == 1
    assert "no document of these rows has 'scor'; there are score, meta" in capsys.readouterr().err
    mixture = Mixture({"web": 1, "math": 1, "chat": 1}, sources={n: sets["grown", n] for n in ("web", "math", "chat")})
    loop = Loop().go_on(mixture, 2, batch_size=6, seq_len=24, long_documents="drop")
    path = saved(loop.state, tmp_path, "json")
    out = printed(capsys, everything, "--checkpoint", path, "--step", 1, "--columns", "score")[1]
    assert re.search(r"│ web/0:\S+ +│ \w\.parquet row (\d+) +│ +\d+ │ \1 +│", out)
    assert re.search(r"│ math/0:\S+ +│ \w\.jsonl line \d+ +│ +\d+ │ +│", out), "which has no such column"


def test_a_place_is_no_emoji(sets, monkeypatch, capsys):
    monkeypatch.setattr(windows, "DEFAULT_WINDOW_SIZE", windows.WindowSize(slice=4, window=12))
    rows, out = printed(capsys, sets["grown", "web"], "--row", "0:100:0", "--seq-len", T)
    assert rows
    assert "row 0:100:0  " in out


def test_a_text_cannot_steer_the_terminal(tmp_path, tokenizer_json, capsys):
    for number in range(2):
        write_parquet(tmp_path / "in" / f"{number}.parquet", ["red \x1b[31m\r\x7f\x9b2J\n\tand on [bold]:fire:"])
    folder = (
        tmp_path / run_prepare("--source", "in", "--tokenizer", tokenizer_json, cwd=tmp_path).stdout.splitlines()[-1]
    )
    for words in (["--document", "0"], ["--row", "0"], ["--row", "0", "--full", "--ids"]):
        assert cli.main(["show", str(folder), *words, "--seq-len", "40"]) == 0
        assert "<|bos|>red ␛[31m␍␡\\x9b2J\n\tand on [bold]:fire:" in capsys.readouterr().out.replace("�", "\\x9b")


def test_where_documents_were_left_out_it_is_said_which_of_those_with_text_it_was(tmp_path, tokenizer_json):
    for number in range(2):
        write_parquet(tmp_path / "in" / f"{number}.parquet", ["a b", None, "c d", "", "e f", "g h"], row_group_size=3)
    done = run_prepare("--source", "in", "--tokenizer", tokenizer_json, cwd=tmp_path)
    token_set = TokenSet(tmp_path / done.stdout.splitlines()[-1])
    found = [SourceLocator(token_set).find(token_set.entries[0], document) for document in range(4)]
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert found == [f"0.parquet row group {g}, document {nth} of those that were kept" for g, nth in places]


def test_a_line_of_a_file_of_many_shards_is_counted_from_one(tmp_path, tokenizer_json):
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        lines = "".join(f'{{"text": "{name} document {i}"}}\n' for i in range(300))
        (tmp_path / "in" / f"{name}.jsonl").write_text(lines)
    flags = ("--tokenizer", tokenizer_json, "--shard-text-bytes", 2000)
    token_set = TokenSet(tmp_path / run_prepare("--source", "in", *flags, cwd=tmp_path).stdout.splitlines()[-1])
    train, tokenizer = token_set.split("train"), Tokenizer.load(token_set.path / "tokenizer.json")
    assert len(train) > 3
    for entry in train:
        shard = token_set.open(entry)
        text = tokenizer.decode(shard.tokens[1 : shard.offsets[1]])
        assert SourceLocator(token_set).find(entry, 0) == f"a.jsonl line {int(text.split()[-1]) + 1}"


# ---------------------------------------------------------------------------- what is asked for, and what is refused

SIZES = ["--batch-size", "2", "--world-size", "1", "--seq-len", "16"]
STATED = [
    "--batch-size 2",
    "--world-size 1",
    "--seq-len 16",
    "--view a",
    "--packing best_fit",
    "--long-documents split",
]
STATED += ["--shuffle True", "--seed 1337"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("", "expected one of --row, --document, --batch and --step, found none; --row 0 is the first row"),
        ("--row 1 --step 1", "expected one of --row, --document, --batch and --step, found --row, --step"),
        ("--step -1", "--step counts from 0, found -1"),
        ("--document web", "--document must be a number from 0, or web/7 in a mixture, not 'web'"),
        ("--document -3", "--document must be a number from 0"),
        ("--document 3 --seq-len 16 --epoch -1", "epoch"),
        ("--step 3", "--step needs --seq-len and --batch-size and --world-size, as in training, or a --checkpoint"),
        ("--step 3 --world-size 2 --seq-len 8", "--step needs --batch-size, as in training"),
        ("--batch 3 --batch-size 2 --seq-len 8", "--batch needs --world-size, as in training"),
        ("--row 3", "--row needs --seq-len, as in training"),
        ("--document 3", "--document needs --seq-len, as in training"),
        ("--batch 3 --batch-size 2 --world-size 2 --seq-len 8", "--batch needs --rank: each of 2 ranks got other rows"),
        ("--batch 0 --rank 3 --batch-size 2 --world-size 2 --seq-len 8", "--rank must be from 0 to 1, found 3"),
        ("--row 3 --packing nanochat --seq-len 8", "--row needs one order of all ranks, which nanochat's rows do not"),
        ("--row x --seq-len 8", "--row must be a number, or a place as 0:12:100 (epoch:window:row), not 'x'"),
        ("--row 0:99:0 --seq-len 8", "no such window: 99 of epoch 0"),
        ("--row 0:0:9999 --seq-len 8", "no such row: 9,999 of epoch 0, window 0, which has rows 0 to"),
        ("--row web/0:0:1 --seq-len 8", "'web' is not a source of the run, which has one token set"),
        ("--document 9999 --seq-len 8", "split 'train' has 28 documents, 0 to 27"),
        ("--row 1 --seq-len 0", "seq_len must be a whole number of at least 1"),
        ("--row 1 --seq-len 8 --view none", "view"),
        ("--step 1 --checkpoint nothing.pt", "--checkpoint nothing.pt: expected a checkpoint with a position in it, found no such"),
        *[(f"--step 1 --checkpoint ckpt.json {flag}", f"--checkpoint says {flag.split()[0]}; leave it out") for flag in STATED],
    ],
)  # fmt: skip
def test_what_is_missing_is_asked_for_and_what_a_checkpoint_says_is_refused(
    sets, tmp_path, monkeypatch, capsys, asked, said
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    saved(Loop().go_on(sets["small", "web"], 3, batch_size=2, seq_len=T).state, tmp_path, "json").rename("ckpt.json")
    status = 0
    try:
        status = cli.main(["show", str(sets["small", "web"]), *asked.split()])
    except SystemExit as error:
        status = error.code
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert status
    assert said in told


def test_a_rank_that_got_no_rows_of_a_short_last_batch_is_told_so(sets, tmp_path, capsys):
    settings = {"batch_size": 3, "seq_len": T, "epochs": 1, "drop_last": False}
    rows = RowLoader(sets["small", "web"], **settings).rows
    ranks = next(n for n in range(2, 30) if 0 < rows % (3 * n) < n)  # the last batch has fewer rows than ranks
    loop = Loop().go_on(sets["small", "web"], rows // (3 * ranks) + 1, world_size=ranks, **settings)
    path, last = saved(loop.state, tmp_path, "json"), len(loop.log) - 1
    without = next(rank for rank in range(ranks) if rank not in loop.log[last])
    words = [sets["small", "web"], "--checkpoint", path, "--batch", last, "--rank"]
    for rank in loop.log[last]:
        require_printed(printed(capsys, *words, rank)[0], {rank: loop.log[last][rank]})
    assert cli.main(["show", *map(str, words), str(without)]) == 1
    assert f"rank {without}" in capsys.readouterr().err


def test_a_folder_that_is_no_token_set_and_a_split_without_documents_are_errors(tmp_path, tokenizer, capsys):
    empty, foreign = (make_token_set(tmp_path / name, train=[[3]], val=[[]]) for name in ("empty", "foreign"))
    give_tokenizer(empty, tokenizer)
    for folder, more, said in (
        (tmp_path / "nowhere", [], "found no such folder"),
        (empty, ["--split", "val"], "split 'val'"),
        (foreign, [], "tokenizer.json"),
    ):
        assert cli.main(["show", str(folder), "--row", "0", "--seq-len", "8", *more]) == 1
        assert re.fullmatch(f"error: .*{said}.*\n", capsys.readouterr().err)
