"""`tokenmill show` prints what a training loop got, whatever changed in its run: compared with what
the loop logged.
"""

import collections
import contextlib
import functools
import html
import json
import pickle
import random
import re
import shutil
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed.checkpoint as dcp
from making import give_tokenizer, make_text, make_token_set, run_prepare, some_slow, write_parquet
from making_views import make_view

import tokenmill
from tokenmill import Mixture, PackedRows, TokenSet, cli, get_batch
from tokenmill.feed.config import LoaderConfig
from tokenmill.look.checkpoint_files import position_of, positions_in
from tokenmill.look.rows_with import rows_with
from tokenmill.look.steps import RunRows
from tokenmill.numpy import RowLoader
from tokenmill.rows import windows
from tokenmill.tokenize.tokenizer import Tokenizer

T = 16
NAMES = ("web", "code", "math", "chat")
KINDS = ("mixture", "mixture", "chats", "one set", "iterations", "nanochat")
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(have no target in their first|longer than a row):UserWarning"
)


@pytest.fixture(scope="module", autouse=True)
def small_windows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "DEFAULT_WINDOW_SIZE", windows.WindowSize(slice=16, window=128))
        yield


def write_corpus(folder, file, rng):
    """A source file: of web and code with metadata, of math lines, of chat conversations of one
    turn and of two.
    """
    folder.mkdir(exist_ok=True)
    texts = [
        *make_text(25, seed=rng.randrange(99), words=6),
        *make_text(3, seed=rng.randrange(99), words=25),
    ]
    lines = [{"text": text} for text in texts]
    if folder.name == "chat":
        turns = [
            {"role": role, "content": text} for role, text in (("user", "ab"), ("assistant", "mil"))
        ]
        longer = [[*turns, turns[0], {"role": "assistant", "content": text}] for text in texts[::2]]
        lines = [{"messages": messages} for messages in [turns] * 14 + longer]
    if folder.name in ("chat", "math"):
        (folder / f"{file}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        table = {
            "text": texts,
            "score": [*range(len(texts))],
            "meta": [{"note": f"\x1b[31m:fire:{file}"}] * len(texts),
        }
        pq.write_table(pa.table(table), folder / f"{file}.parquet", row_group_size=5)


@pytest.fixture(scope="module")
def sets(tmp_path_factory, tokenizer_json):
    """Token sets: web with views a and b as it was, `small`, and with more shards, `grown`; the
    others are the same.

    "all" is a mixture's file of all four as they are now, in two stages.
    """
    cwd = tmp_path_factory.mktemp("sets")
    folders = {}
    for root, name, files in [("small", name, "bz") for name in NAMES] + [("grown", "web", "ac")]:
        for file in files:
            write_corpus(cwd / name, file, random.Random(f"{name} {file}"))
        if root == "grown":
            shutil.copytree(cwd / "small", cwd / "grown")
        flags = ["--source", name, "--val-file", "last", "--name", name, "--tokens-root", root]
        flags += ["--tokenizer", tokenizer_json]
        if name == "chat":
            flags += ["--chat", "chatml"]
        elif name != "math":
            flags += ["--keep-columns", "score,meta"]
        folder = cwd / run_prepare(*flags, "--workers", 1, cwd=cwd).stdout.splitlines()[-1]
        folders[root, name] = folders["grown", name] = folder
        if name == "web":
            make_views(folder)
    weights = ", ".join(f"{name} = 1" for name in NAMES)
    stages = "[[stages]]\nbegin = 0\nweights = {web = 3, code = 2}\n"
    stages += f"[[stages]]\nbegin = '1K'\nweights = {{{weights}}}\n"
    sources = "".join(f"[sources.{name}]\npath = '{folders['grown', name]}'\n" for name in NAMES)
    (cwd / "all.toml").write_text(stages + sources)
    return folders | {("grown", "all"): cwd / "all.toml"}


def make_views(folder):
    for view in ("a", "b"):
        rng = random.Random(view)
        repeats = {}
        for entry in TokenSet(folder).entries:
            repeats[entry.name] = rng.choices([0, 1, 1, 2, 3], k=entry.documents)
        make_view(folder, view, repeats)


# ---------------------------------------------------------------------------- the oracle: what a
# loop logged


class Loop:
    """A training loop that is stopped and changed.

    It logs what each rank got at each call, and its last position.
    """

    def __init__(self):
        self.log = []
        self.state = None

    def go_on(self, tokens, calls, world_size=1, skip=0, breaks=None, **settings):
        """With `epochs`, iterations follow each other; at calls of `breaks`, one is left for
        another.
        """
        ranks = [
            RowLoader(tokens, rank=r, world_size=world_size, prefetch=0, **settings)
            for r in range(world_size)
        ]
        for loader in ranks:
            if self.state is not None:
                loader.load_state_dict(self.state)
            iter(loader)
            with contextlib.suppress(ValueError):  # fewer are left
                loader.skip(skip)
        breaks = breaks or {}
        for number in range(calls):
            batches = [] if number in breaks else list(filter(None, map(call, ranks)))
            if batches:
                self.log.append(
                    {rank: seen(batch) for rank, batch in enumerate(batches) if len(batch[0])}
                )
                continue
            if "epochs" not in settings:
                break  # the mixture is used up
            for loader in ranks:
                iter(loader) if breaks.get(number) is None else loader.set_epoch(breaks[number])
        states = {json.dumps(loader.state_dict()): loader.state_dict() for loader in ranks}
        (self.state,) = states.values()
        return self


def call(loader):
    """The loader's next batch; None at the end of an iteration, or of the mixture."""
    try:
        return next(loader, None)
    except ValueError as error:
        if "are used up after" not in str(error):
            raise


def seen(batch):
    """A batch as the training step sees it: (inputs, targets) of each row."""
    return [*zip(batch[0].tolist(), batch[1].tolist(), strict=True)]


def seen_row(row):
    """A row that `show` found, from its pieces, as a training step sees it."""
    ids = []
    in_loss = []
    for piece in row.pieces:
        ids += piece.tokens(int(piece.shard.tokens[0])).tolist()  # every shard begins with BOS
        marks = piece.in_loss()
        if marks is None:
            in_loss += [not piece.is_padding] * (piece.length + piece.bos)
        else:
            in_loss += marks.tolist()
    targets = np.where(in_loss[1:], ids[1:], -100)
    return ids[:-1], targets.tolist()


def by_rank(rows):
    ranks = {}
    for row in rows:
        ranks.setdefault(row.rank, []).append(seen_row(row))
    return ranks


def run(capsys, *words):
    """What the command prints."""
    assert cli.main(["show", *map(str, words)]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys, *words):
    """The line that the command refuses these words with."""
    try:
        status = cli.main(["show", *map(str, words)])
    except SystemExit as error:
        status = error.code
    assert status, words
    return " ".join(capsys.readouterr().err.replace("│", " ").split())


def show(capsys, *words):
    """What the command prints with --ids: (place, rank, token ids, tokens of padding) of each row;
    and all of it.
    """
    out = run(capsys, *words, "--ids")
    rows = []
    lines = out.partition("┏")[0]  # before a table of columns
    places = re.split(r"^row ([\w/]*\d+:\d+:\d+)(?:, rank (\d+))?\n", lines, flags=re.MULTILINE)[1:]
    for place, rank, text in zip(*[iter(places)] * 3, strict=True):
        ids = []
        padding = 0
        head = r"^  [A-Za-z] (?=[\d,]+ (?:of|tokens of) )"
        for piece in re.split(head, text, flags=re.MULTILINE)[1:]:
            padding_line = re.match(r"(\d+) tokens of padding", piece)
            if padding_line:
                padding += int(padding_line[1])
            else:
                ids += map(int, piece.rstrip("\n").split("\n")[-1].split())
        rows.append((place, rank and int(rank), ids, padding))
    return rows, out


def require_shown(capsys, logged, *words):
    """That the command prints the rows of a call; without the ids of padding, which ends a row.

    What it prints.
    """
    rows, out = show(capsys, *words)
    expected = []
    for rank, batch in logged.items():
        expected += [(rank, inputs) for inputs, _ in batch]
    assert [rank for _, rank, *_ in rows] == [rank for rank, _ in expected]
    for (*_, ids, padding), (_, inputs) in zip(rows, expected, strict=True):
        assert len(ids) + padding == len(inputs) + 1
        assert ids[: len(inputs)] == inputs[: len(ids)]
    return out


def save(state, folder, kind):
    """A checkpoint of some kind with a state somewhere in it."""
    path = folder / f"checkpoint.{kind}"
    checkpoint = {"model": torch.nn.Linear(3, 3).state_dict(), "step": 5, "data": state}
    if kind == "json":
        path.write_text(json.dumps({"progress": [{"data": state}]}))
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(checkpoint))
    elif kind == "torch":
        torch.save(checkpoint, path)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save(checkpoint, checkpoint_id=path)
    return path


# ---------------------------------------------------------------------------- every step of a run


def random_run(sets, kind, rng):
    """A run of some legs, and how it would go on: (loop, tokens, settings)."""
    loop = Loop()
    root = "small"
    names = ["web"]
    seq_len = T
    ranks = rng.randint(1, 3)
    packing = kind
    if kind != "nanochat":
        packing = rng.choice(["best_fit"] * 3 + ["concat", "random"])
    if kind == "chats":
        packing = "best_fit"
    long = rng.choice(["crop", "drop"] if kind == "chats" else ["split", "crop"])
    if packing != "best_fit":
        long = "split"
    is_shuffled = rng.random() < 0.8 or packing == "nanochat"
    fixed = {"packing": packing, "shuffle": is_shuffled, "seed": rng.choice([7, 1337])}
    for number in range(rng.randint(2, 6)):
        if kind != "nanochat":
            ranks = rng.randint(1, 3)
            root = "grown" if rng.random() < 0.3 else root
        view = None
        if packing == "best_fit":
            seq_len = rng.choice([24, 40, 60] if kind == "chats" else [7, T, T, 40])
            view = rng.choice([None, "a", "b"])
        settings = fixed | {
            "batch_size": rng.randint(1, 4),
            "seq_len": seq_len,
            "world_size": ranks,
        }
        if kind in ("mixture", "chats") and (number or rng.random() < 0.7):
            if number < 2 or rng.random() < 0.6:
                names = rng.sample(NAMES if kind == "chats" else NAMES[:3], rng.randint(1, 3))
                if "web" not in names:
                    names.append("web")  # with which it may have begun alone
            first = {name: rng.randint(1, 6) for name in names}
            second = {name: rng.randint(1, 6) for name in names}
            tokens = Mixture(
                [(0, first), (rng.randint(100, 3000), second)][: rng.randint(1, 2)],
                sources={name: sets[root, name] for name in names},
                views={"web": view},
                max_epochs={name: rng.randint(1, 4) for name in names if rng.random() < 0.2},
                removed=[name for name in NAMES if name not in names],
            )
            settings["long_documents"] = long if kind != "chats" or "chat" in names else "split"
        else:
            tokens = sets[root, "web"]
            settings |= {"view": view, "long_documents": long if kind != "chats" else "split"}
        if kind == "iterations":
            epochs = rng.randint(1, 2)
            settings |= {"epochs": epochs, "drop_last": rng.random() < 0.5}
            settings["breaks"] = {
                rng.randrange(16): rng.choice([None, 0, 2 * epochs])
                for _ in range(rng.randrange(3))
            }
        skip = rng.randint(1, 9)
        if kind == "nanochat" or rng.random() >= 0.4:
            skip = 0
        loop.go_on(tokens, rng.choice([0, 1, 4, 9, 16]), skip=skip, **settings)
    return loop, tokens, settings


@pytest.mark.parametrize("seed", some_slow([0, 1, 2, 3, 16, 22, 5], quick=[0, 2, 3, 16, 5]))
def test_every_step_of_a_run_is_shown_as_its_loop_logged_it(sets, tmp_path, capsys, seed):
    rng = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    loop, tokens, settings = random_run(sets, kind, rng)
    state = loop.state
    known = len(loop.log)
    loop.go_on(tokens, 9, **settings | {"breaks": None})
    shown = sets["grown", "web" if kind == "nanochat" else "all"]
    mixture = LoaderConfig(tokens=shown, batch_size=1, seq_len=1).mixture.open()
    run_rows = RunRows.of_position(state, mixture)
    for step, logged in enumerate(loop.log):
        assert by_rank(run_rows.step(step)) == logged, f"step {step} of {known}"
    # in these two an epoch may come again, with other rows
    if known and kind not in ("nanochat", "iterations"):
        for row in run_rows.step(rng.randrange(known)):
            assert seen_row(run_rows.at(*row[:4])) == seen_row(row), (
                f"{row.place} is another row than the run had there"
            )
            length = sum(piece.length + piece.bos for piece in row.pieces)
            assert length == run_rows.leg_at(*row[:4]).setting.seq_len + 1
    path = save(state, tmp_path, rng.choice(["json", "pickle", "torch", "dcp"]))
    for step in rng.sample(range(len(loop.log)), min(2, len(loop.log))):
        out = require_shown(capsys, loop.log[step], shown, "--checkpoint", path, "--step", step)
        assert ("is to come" in out) == (step >= known)
        rank, batch = rng.choice([*loop.log[step].items()])
        assert f": rows of {len(batch[0][0])} + 1 tokens, {settings['packing']}" in out
        words = ["--checkpoint", path, "--batch", step, "--rank", rank]
        require_shown(capsys, {rank: batch}, shown, *words)


WITHOUT = [{}, {"long_documents": "crop", "view": "a"}, {"shuffle": False, "split": "val"}]
WITHOUT += [{"packing": packing} for packing in ("concat", "random", "nanochat")]
WITHOUT = [("web", {"seq_len": T, **settings}) for settings in WITHOUT]
WITHOUT += [
    ("chat", {"seq_len": 40, "long_documents": "crop"}),
    ("all", {"seq_len": 40, "long_documents": "drop"}),
]


def run_of(tokens, batch_size, world_size=1, **settings):
    config = LoaderConfig(
        tokens=tokens, batch_size=batch_size, rank=0, world_size=world_size, **settings
    )
    return RunRows.of_config(config, config.mixture.open())


@pytest.mark.parametrize(("name", "settings"), WITHOUT)
def test_without_a_checkpoint_the_settings_say_which_rows_a_step_had(sets, capsys, name, settings):
    tokens = sets["grown", name]
    sizes = {"batch_size": 3, "world_size": 2}
    loop = Loop().go_on(tokens, 20, **settings, **sizes)
    run_rows = run_of(tokens, **settings, **sizes)
    assert [by_rank(run_rows.step(step)) for step in range(20)] == loop.log
    flags = [tokens]
    for key, value in settings.items():
        flags += [f"--{key.replace('_', '-')}", value]
    sizes = [*flags, "--full", "--batch-size", 3, "--world-size", 2]
    require_shown(capsys, loop.log[17], *sizes, "--step", 17)
    out = require_shown(capsys, {1: loop.log[19][1]}, *sizes, "--batch", 19, "--rank", 1)
    if name == "chat":
        in_loss = 0
        for _, targets in loop.log[19][1]:
            in_loss += len(targets) - targets.count(-100)
        assert sum(map(int, re.findall(r"(\d+) tokens are in the loss", out))) == in_loss
    if settings.get("packing") != "nanochat":  # which has no order of all ranks
        rows, _ = show(capsys, *flags, "--row", 17 * 6 + 4)
        for asked in (17 * 6 + 4, rows[0][0]):  # the row's number, and its place
            require_shown(capsys, {None: [loop.log[17][1][1]]}, *flags, "--row", asked)


# ---------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("kind", ["json", "pickle", "torch", "dcp"])
def test_a_step_of_get_batch_is_found_in_every_kind_of_checkpoint(sets, tmp_path, capsys, kind):
    log = {"train": [], "val": []}
    web = sets["grown", "web"]
    for _ in range(9):
        log["train"].append({0: seen(get_batch("train", 3, T, tokens=web))})
        log["val"].append({0: seen(get_batch("val", 2, T, tokens=web))})
        get_batch("train", 2, T, tokens=web, purpose="eval")
    path = save(tokenmill.state_dict(), tmp_path, kind)
    where = "progress.0.data" if kind == "json" else "data"
    wheres = [position.where for position in positions_in(path)]
    assert wheres == [f"{where}[{number}]" for number in range(3)]
    for split, logged in log.items():
        require_shown(capsys, logged[7], web, "--checkpoint", path, "--split", split, "--step", 7)


def test_the_loss_of_a_run_is_said(sets, tmp_path, capsys):
    web = sets["grown", "web"]
    loader = tokenmill.RowLoader(web, batch_size=2, seq_len=T, rank=0, world_size=1, loss="once")
    next(loader)
    path = save(loader.state_dict(), tmp_path, "json")
    _, out = show(capsys, web, "--checkpoint", path, "--step", 0)
    assert "best_fit, loss once;" in out


class Holder:
    """A class of a training script, which `show` must neither import nor call."""

    def __init__(self, value):
        self.value = value


class Code:
    ran = []

    @classmethod
    def run(cls, word):
        cls.ran.append(word)

    def __reduce__(self):
        return Code.run, ("code",)


def test_a_position_is_found_wherever_it_is_and_no_class_is_imported_and_no_code_run(
    sets, tmp_path, monkeypatch
):
    state = Loop().go_on(sets["small", "web"], 3, batch_size=2, seq_len=T).state
    nodes = [Holder([]) for _ in range(40)]
    for node in nodes:
        node.value += nodes  # objects that contain each other
    nodes[7].value.append(state)
    ways = [
        nodes,
        Holder(state),
        functools.partial(print, state),
        np.array([state], object),
        collections.deque([state]),
        collections.defaultdict(functools.partial(dict), a=(0, [state])),
    ]
    files = []
    for number, way in enumerate(ways):
        checkpoint = {"code": Code(), "model": torch.nn.Linear(2, 2), "run": way, "n": np.int64(3)}
        files += [tmp_path / f"pickle{number}", tmp_path / f"torch{number}"]
        files[-2].write_bytes(pickle.dumps(checkpoint))
        torch.save(checkpoint, files[-1])
    monkeypatch.delattr(f"{__name__}.Holder")
    assert all(position_of("--checkpoint", file, "train", "a position") == state for file in files)
    assert not Code.ran
    pickle.loads(pickle.dumps(Code()))
    assert Code.ran, "as it would have"


def test_a_file_without_one_position_says_what_it_has(sets, tmp_path, capsys):
    web = sets["small", "web"]
    path = tmp_path / "checkpoint.json"
    loop = Loop().go_on(web, 2, batch_size=2, seq_len=T)
    state = loop.state
    of_three = Loop().go_on(web, 2, batch_size=3, seq_len=T).state
    for content, message in (
        ({"a": 1}, "expected a checkpoint with a position in it, found none in it"),
        ({"a": state, "b": [of_three]}, "found 2 positions of it among a of split train, b.0 of"),
        ({"data": {"get_batch": "[1"}}, "expected the positions of get_batch's loaders as JSON"),
        ({"tokenmill": json.dumps({"version": 99})}, "expected a position of version 1, found 99"),
    ):
        path.write_text(json.dumps(content))
        assert message in refused(capsys, web, "--checkpoint", path, "--step", 1)
    for more in (
        {"b": state},
        {"versions": {"tokenmill": "0.4.0"}},
        {"config": {"tokenmill": {"seq_len": 16}}},
    ):
        path.write_text(json.dumps({"data": state} | more))
        require_shown(capsys, loop.log[1], web, "--checkpoint", path, "--step", 1)
    path.write_text("")
    assert "found JSONDecodeError" in refused(capsys, web, "--checkpoint", path, "--step", 1)


# ---------------------------------------------------------------------------- documents


def places_of_documents(rows):
    """By document: each place, and whether all that it has there is filler."""
    places = collections.defaultdict(dict)
    for row in rows:
        for piece in row.pieces:
            if piece.is_padding:
                continue
            document = places[row.name, piece.shard.entry.name, piece.document]
            document[row.place] = document.get(row.place, True) and piece.filler
    return places


def require_found(run_rows, rows, epoch):
    """That each document of an epoch is found in just those of its rows that hold it, in their
    order.
    """
    assert {row.name for row in rows if row.epoch > epoch} == {*run_rows.sets}, "the whole epoch"
    expected = places_of_documents(row for row in rows if row.epoch == epoch)
    for name, token_set in run_rows.sets.items():
        for entry in token_set.split(run_rows.order.split):
            for document in range(entry.documents):
                holding = rows_with(run_rows, name, entry, document, epoch)
                places = [(row.place, row.filler) for row in holding]
                key = name, entry.name, document
                assert places == [*expected[key].items()], key


@pytest.mark.parametrize(
    ("name", "settings"), [case for case in WITHOUT if case[1].get("packing") != "nanochat"]
)
def test_a_document_is_in_the_rows_that_a_search_of_all_rows_finds(sets, name, settings):
    run_rows = run_of(sets["grown", name], batch_size=1000, **settings)
    require_found(run_rows, run_rows.step(0), epoch=1)


def test_a_document_is_printed_whole_with_what_is_known_of_it_and_its_rows(sets, tmp_path, capsys):
    web = sets["small", "web"]
    texts = pq.read_table(web.parents[1] / "web" / "b.parquet")["text"]
    run_rows = run_of(web, batch_size=1, seq_len=T)
    entry = TokenSet(web).split("train")[0]
    for number, epoch in ((9, 0), (9, 2), (27, 1)):
        expected = []
        for row in rows_with(run_rows, "", entry, number, epoch):
            copy = " (only a copy, as filler)" if row.filler else ""
            expected.append(f"  {row.place}{copy}")
        out = run(capsys, web, "--document", number, "--seq-len", T, "--epoch", epoch)
        assert "\n".join(expected) in out
    sources = {name: sets["small", name] for name in ("web", "code")}
    mixture = Mixture({"web": 1, "code": 1}, sources=sources)
    path = save(Loop().go_on(mixture, 2, batch_size=2, seq_len=T).state, tmp_path, "torch")
    out = run(capsys, sets["grown", "all"], "--document", "web/9", "--checkpoint", path)
    place = r"document 9 of shard b.000, b.parquet row 9\n"
    text = re.escape(texts[9].as_py())
    known = rf"<\|bos\|>{text}\nscore: 9\nmeta: .*31m:fire:b"
    assert re.search(rf"{place}{known}.*\n(.*\n)*  web/0:\d+:\d+\n", out)
    assert "\x1b" not in out
    path = save(Loop().go_on(web, 2, batch_size=2, seq_len=T, split="val").state, tmp_path, "json")
    out = run(capsys, web, "--document", 9, "--checkpoint", path, "--split", "val")
    assert re.search(r"document 9 of shard z.000, z.parquet row 9\n(.*\n)+  0:\d+:\d+\n", out), (
        "of the split"
    )


# ---------------------------------------------------------------------------- what is printed


def test_a_row_is_printed_with_its_text_and_where_each_document_is_from(
    sets, capsys, tokenizer_json
):
    tokenizer = Tokenizer.load(tokenizer_json)
    of_whole_document = r"  [A-Z] (\d+) of .*, whole: .*, (\S+) (row|line) (\d+)\n"
    num_whole = 0
    for name in ("web", "math"):
        corpus = sets["grown", name].parents[1] / name
        texts = {}
        for path in corpus.glob("*.jsonl"):
            texts[path.name] = [json.loads(line)["text"] for line in path.open()]
        for path in corpus.glob("*.parquet"):
            texts[path.name] = pq.read_table(path)["text"].to_pylist()
        for number in range(0, 60, 7):
            out = show(capsys, sets["grown", name], "--row", number, "--seq-len", 64)[1]
            for length, file, kind, row in re.findall(of_whole_document, out):
                source = texts[file][int(row) - (kind == "line")]
                num_whole += 1
                assert len(tokenizer.encode(source)) + 1 == int(length)
                assert f"{file} {kind} {row}\n<|bos|>{source}\n" in out
    assert num_whole > 40
    web = sets["grown", "web"]
    words = ["--step", 4, "--batch-size", 4, "--world-size", 2, "--seq-len", 64]
    rows, out = show(capsys, web, *words)
    assert max(map(len, re.findall("^    (.*)$", out, re.MULTILINE))) <= 76, (
        "of many rows, a line for each piece"
    )
    assert len(show(capsys, web, *words, "--full")[1]) > len(out)
    bars = re.findall(r"^row (\d:\d+:\d+), rank (\d) +([A-Za-z]+)$", out, re.MULTILINE)
    assert [(place, int(rank)) for place, rank, _ in bars] == [
        (place, rank) for place, rank, *_ in rows
    ]
    shown = run_of(web, batch_size=4, world_size=2, seq_len=64).step(4)
    for row, (*_, bar) in zip(shown, bars, strict=True):
        letters = [
            chr(ord("a" if piece.filler else "A") + number)
            for number, piece in enumerate(row.pieces)
        ]
        assert re.fullmatch("".join(f"{letter}*" for letter in letters), bar), (
            "lowercase letters are filler"
        )


def test_every_document_of_a_row_is_drawn_and_has_its_id_by_which_it_is_found(
    tmp_path, tokenizer_json, capsys, monkeypatch
):
    monkeypatch.setattr(windows, "DEFAULT_WINDOW_SIZE", windows.WindowSize(1 << 20, 1 << 28))
    texts = [*make_text(5, seed=1, words=300), "a", "b c"]
    lines = [json.dumps({"id": f"x-{n}", "text": text}) for n, text in enumerate(texts)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    flags = ("--keep-columns", "id", "--tokenizer", tokenizer_json, "--val-fraction", 1e-6)
    done = run_prepare("--source", "corpus.jsonl", *flags, cwd=tmp_path)
    folder = tmp_path / done.stdout.splitlines()[-1]
    out = show(capsys, folder, "--row", 0, "--seq-len", 8192)[1]
    drawn = re.search(r"^row 0:0:0 +([A-Za-z]+)$", out, re.MULTILINE)[1]
    pieces = run_of(folder, batch_size=1, seq_len=8192).step(0)[0].pieces
    assert len(set(drawn)) == len(pieces) > 7
    assert {f"id x-{n}, document {n} of shard" for n in range(7)} <= set(
        re.findall(r"id x-\d+, document \d+ of shard", out)
    )
    one = run(capsys, folder, "--where", "id = 'x-6'", "--seq-len", 64)
    assert one == run(capsys, folder, "--document", 6, "--seq-len", 64)
    several = refused(capsys, folder, "--where", "id >= 'x-5'", "--seq-len", "64")
    assert "2 documents of split 'train'; show one by --document, as 5 or 6" in several


def test_a_notebook_draws_what_the_commands_print(sets, capsys, monkeypatch):
    monkeypatch.setattr("tokenmill.look.packing_stats.NANOCHAT_SETTLED", 3000)
    web = sets["grown", "web"]
    shown = tokenmill.show(web, row=3, seq_len=64)
    assert re.findall("^  [A-Z] .*", repr(shown), re.MULTILINE) == re.findall(
        "^  [A-Z] .*", run(capsys, web, "--row", 3, "--seq-len", 64), re.MULTILINE
    )
    assert "background-color" in shown._repr_html_()
    report = tokenmill.report(web, seq_len=64)
    assert "best_fit drops nothing" in repr(report)
    assert "<h1>" in html.unescape(report._repr_html_())
    token_set = TokenSet(web)
    documents = token_set.manifest["documents"]
    assert f"{web}: {documents} documents, " in repr(token_set)
    rows = PackedRows(web, batch_size=2, seq_len=64)
    assert repr(rows) == f"<PackedRows of {web}, train: 2 rows of 64 tokens an item>"


def test_a_text_cannot_steer_the_terminal(tmp_path, tokenizer_json, capsys):
    for number in range(2):
        write_parquet(
            tmp_path / "in" / f"{number}.parquet",
            ["red \x1b[31m\r\x7f\x9b2J\n\tand on [bold]:fire:"],
        )
    done = run_prepare(
        "--source", "in", "--val-file", "last", "--tokenizer", tokenizer_json, cwd=tmp_path
    )
    for words in (["--document", "0"], ["--row", "0"], ["--row", "0", "--full", "--ids"]):
        out = run(capsys, tmp_path / done.stdout.splitlines()[-1], *words, "--seq-len", 40)
        assert re.search(r"<\|bos\|>red ␛\[31m␍␡[^\x9b]+2J\n\tand on \[bold\]:fire:", out)


# ---------------------------------------------------------------------------- what is asked for,
# and what is refused

OF_RUN = [
    "--batch-size 2",
    "--world-size 1",
    "--seq-len 16",
    "--view a",
    "--packing best_fit",
    "--seed 1337",
]
OF_RUN += ["--long-documents split", "--shuffle True"]
REFUSED = [
    (
        "{web}",
        "expected one of --row, --document, --where, --batch and --step, found none; "
        "--row 0 is the first row",
    ),
    (
        "{web} --row 1 --step 1",
        "expected one of --row, --document, --where, --batch and --step, found --row, --step",
    ),
    (
        "{web} --document web",
        "--document must be a number from 0, or web/7 in a mixture, not 'web'",
    ),
    ("{web} --document 3 --seq-len 16 --epoch -1", "epoch"),
    ("{web} --row 3 --seq-len 16 --epoch 1", "--epoch is for --document, --where, not --row"),
    ("{web} --row 3 --seq-len 16 --rank 0", "--rank is for --batch, not --row"),
    ("{web} --document 3 --seq-len 16 --columns all", "--columns is for --row, --batch, --step"),
    (
        "{web} --step 3",
        "--step needs --seq-len and --batch-size and --world-size, as in training, "
        "or a --checkpoint",
    ),
    ("{web} --batch 3 --batch-size 2 --seq-len 8", "--batch needs --world-size, as in training"),
    (
        "{web} --batch 3 --batch-size 2 --world-size 2 --seq-len 8",
        "--batch needs --rank: each of 2 ranks got other",
    ),
    (
        "{web} --batch 0 --rank 3 --batch-size 2 --world-size 2 --seq-len 8",
        "--rank must be from 0 to 1, found 3",
    ),
    (
        "{web} --row 3 --packing nanochat --seq-len 8",
        "--row needs one order of all ranks, which nanochat's rows do",
    ),
    (
        "{web} --row x --seq-len 8",
        "--row must be a number, or a place as 0:12:100 (epoch:window:row), not 'x'",
    ),
    ("{web} --row 5159780352 --seq-len 8", "row 5,159,780,352 from here on is not looked up: 100"),
    (
        "{web} --step 100000 --batch-size 2 --world-size 2 --seq-len 8",
        "row 400,000 from here on is not looked up: 100 epochs have about",
    ),
    ("{web} --row 0:99:0 --seq-len 8", "no such window: 99 of epoch 0"),
    (
        "{web} --row 0:0:9999 --seq-len 8",
        "no such row: 9,999 of epoch 0, window 0, which has rows 0 to",
    ),
    ("{web} --document 9999 --seq-len 8", "split 'train' has 28 documents, 0 to 27"),
    ("{web} --row 1 --seq-len 8 --view none", "view"),
    ("nowhere --row 1 --seq-len 8", "found no such folder"),
    ("foreign --row 1 --seq-len 8", "tokenizer.json"),
    ("empty --row 1 --seq-len 8 --split val", "split 'val'"),
    (
        "{web} --step 1 --checkpoint no.pt",
        "--checkpoint no.pt: expected a checkpoint with a position in it, found no",
    ),
    ("{web} --step 1 --checkpoint checkpoint.json --split val", "split val"),
    ("{code} --step 1 --checkpoint checkpoint.json", "the run read source 'web' with manifest"),
    ("{web} --step 1 --checkpoint checkpoint.json", "the run read source 'math' with manifest"),
    (
        "{all} --row code/0:0:1 --checkpoint checkpoint.json",
        "'code' is not a source of the run, which has web, math",
    ),
    ("{all} --row 7 --checkpoint checkpoint.json", "--row of a checkpoint must be a place"),
    (
        "{all} --batch 1 --rank 1 --checkpoint checkpoint.json",
        "--rank must be from 0 to 0, found 1",
    ),
    (
        "{all} --document 3 --checkpoint checkpoint.json",
        "a row or document of a mixture must name its source, as in",
    ),
    *[
        ("{web} --step 1 --checkpoint no.pt " + flag, f"--checkpoint says {flag.split()[0]}; leave")
        for flag in OF_RUN
    ],
]


def test_what_is_missing_is_asked_for_and_what_is_not_there_is_refused(
    sets, tmp_path, monkeypatch, capsys, tokenizer
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    paths = {name: sets["small", name] for name in NAMES} | {"all": sets["grown", "all"]}
    mixture = Mixture(
        {"web": 1, "math": 1}, sources={name: paths[name] for name in ("web", "math")}
    )
    save(Loop().go_on(mixture, 5, batch_size=2, seq_len=T).state, tmp_path, "json")
    empty, _ = (
        make_token_set(tmp_path / name, train=[[3]], val=[[]]) for name in ("empty", "foreign")
    )
    give_tokenizer(empty, tokenizer)
    wrong = {}
    for words, message in REFUSED:
        printed = refused(capsys, *words.format(**paths).split())
        if message not in printed:
            wrong[words] = printed
    assert wrong == {}


def test_a_rank_that_got_no_rows_of_a_short_last_batch_is_told_so(sets, tmp_path, capsys):
    web = sets["small", "web"]
    settings = {"batch_size": 3, "seq_len": T, "epochs": 1, "drop_last": False}
    rows = RowLoader(web, **settings).rows
    # the last batch has fewer rows than ranks
    ranks = next(n for n in range(2, 30) if 0 < rows % (3 * n) < n)
    loop = Loop().go_on(web, rows // (3 * ranks) + 1, world_size=ranks, **settings)
    path = save(loop.state, tmp_path, "json")
    for rank in range(ranks):
        words = [web, "--checkpoint", path, "--batch", len(loop.log) - 1, "--rank", rank]
        if rank in loop.log[-1]:
            require_shown(capsys, {rank: loop.log[-1][rank]}, *words)
        else:
            assert f"rank {rank} got no row" in refused(capsys, *words)
