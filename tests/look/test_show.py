"""`show` decodes just the rows that a loader gives, and says where they are from."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from making import BOS, ROOT, make_text, make_token_set, run_prepare, write_parquet
from reference import PACKINGS, SEQ_LEN, cursor_of, make_loader, of_source, rows_of, without_log

import tokenmill
from tokenmill import RowLoader, cli, get_batch
from tokenmill.feed import window_plans
from tokenmill.feed.window_plans import WindowPlans
from tokenmill.look.show_config import Show
from tokenmill.look.show_notes import former_manifests, of_step
from tokenmill.look.show_query import ShowQuery
from tokenmill.look.source_places import SourceLocator
from tokenmill.look.when_seen import when
from tokenmill.rows.position import OF_SPLIT
from tokenmill.rows.run_log import log_of
from tokenmill.store.token_sets import TokenSet
from tokenmill.tokenize.tokenizer import Tokenizer

LOADER = {"batch_size": 2, "seq_len": SEQ_LEN}
ONE_RANK = LOADER | {"world_size": 1}
SIZES, LENGTH = ("--batch-size", "2", "--world-size", "1"), ("--seq-len", "16")


def shown_rows(config):
    return ShowQuery(config).rows()


def seen_when(config):
    return when(ShowQuery(config))


def ids_of(rows):
    return [[i for piece in row.pieces for i in piece.tokens(BOS).tolist()] for _, row in rows]


pytestmark = pytest.mark.usefixtures("windows")


@pytest.mark.parametrize("settings", [*PACKINGS, {"packing": "nanochat"}])
@pytest.mark.parametrize(("split", "ranks"), [("train", [0, 1]), ("val", [0])])
def test_a_step_s_rows_are_those_that_the_loaders_of_its_ranks_get(token_set, settings, split, ranks):
    settings = settings | {"world_size": len(ranks), "split": split}
    loaders = [make_loader(token_set, rank=rank, **settings) for rank in ranks]
    for step in range(9):
        batches = [rows_of(next(loader)) for loader in loaders]
        found = list(shown_rows(Show(token_set, step=step, **LOADER, **settings)))
        for rank in ranks:
            assert ids_of([row for row in found if row[0] == rank]) == batches[rank]
        of_the_last = shown_rows(Show(token_set, batch=step, rank=ranks[-1], **LOADER, **settings))
        assert ids_of(of_the_last) == batches[-1]


def test_a_row_s_number_and_its_place_are_the_same_row(token_set):
    loader = make_loader(token_set, batch_size=1)
    for number in range(45):
        ((_, row),) = shown_rows(Show(token_set, row=str(number), seq_len=SEQ_LEN))
        ((_, again),) = shown_rows(Show(token_set, row=row.place, seq_len=SEQ_LEN))
        assert ids_of([(0, row)]) == ids_of([(0, again)]) == rows_of(next(loader))
    assert not row.place.startswith("0:"), "later epochs too"


def test_steps_are_counted_from_a_checkpoint_also_where_the_batches_were_others_before_it(token_set):
    small, large = make_loader(token_set, batch_size=1), make_loader(token_set, batch_size=4)
    for _ in range(7):
        next(small)
    place = cursor_of(small.state_dict())
    large.load_state_dict(small.state_dict())
    for step in range(7, 20):
        config = Show(token_set, step=step, since=(7, place), batch_size=2, world_size=2, seq_len=SEQ_LEN)
        assert ids_of(shown_rows(config)) == rows_of(next(large))


@pytest.mark.parametrize("change", [{}, {"seq_len": 9}])
def test_steps_are_counted_from_the_state_file_of_a_checkpoint(token_set, tmp_path, change):
    loader = make_loader(token_set, batch_size=1)
    for _ in range(7):
        next(loader)
    after = RowLoader(token_set, **({"batch_size": 4, "seq_len": SEQ_LEN} | change))
    after.load_state_dict(loader.state_dict())
    state = tmp_path / "state.json"
    state.write_text(json.dumps(after.state_dict()))
    for step in range(7, 14):
        config = Show(token_set, step=step, since=(7, str(state)), batch_size=2, world_size=2)
        assert ids_of(shown_rows(config)) == rows_of(next(after))


def test_a_file_that_is_no_state_is_refused(token_set, tmp_path, capsys):
    for text in ("{}", "[]", "no json", json.dumps({"version": 1})):
        (tmp_path / "state.json").write_text(text)
        status, _, error = run(capsys, token_set, "--step", 9, *SIZES, "--since", 5, tmp_path / "state.json")
        assert status == 1
        assert "a loader's state_dict()" in error


# ---------------------------------------------------------------------------- when a document was seen


@pytest.mark.parametrize("settings", [{}, {"packing": "concat"}, {"shuffle": False}, {"seq_len": 5}])
def test_when_a_document_was_seen_is_when_the_loaders_dealt_it(token_set, settings):
    settings = LOADER | settings
    ranks = [RowLoader(token_set, rank=rank, world_size=2, **settings) for rank in range(2)]
    dealt = {}  # (epoch, step, rank, row of the batch) -> the row's tokens
    while ranks[0].epoch < 2:
        step = ranks[0].tokens_seen // settings["seq_len"] // 4
        dealt |= {(step, rank, i): row for rank, one in enumerate(ranks) for i, row in enumerate(rows_of(next(one)))}
    until = cursor_of(ranks[0].state_dict())
    first = 0
    token_set_ = TokenSet(token_set)
    for entry in token_set_.split("train"):
        shard = token_set_.open(entry)
        for document in range(0, entry.documents, 3):
            found = shown_document(token_set, first + document, until, settings)
            begin, end = shard.offsets[document : document + 2].tolist()
            expected = rows_with(token_set, settings, entry.name, begin, end, len(dealt))
            assert {(step, rank, row) for _, step, rank, row, *_ in found} == {
                (number // 4, number % 4 // 2, number % 2) for number in expected
            }
        first += entry.documents


def shown_document(token_set, document, until, settings):
    """(epoch, step, rank, row of the batch, place, note) of each line."""
    config = Show(token_set, document=document, until=until, world_size=2, **settings)
    told = re.findall(
        r"seen in epoch ([\d,]+), step ([\d,]+), rank (\d+), row (\d+) of its batch, at (\S+?)(,.*)?\n",
        "\n".join([*seen_when(config), ""]),
    )
    return [(*map(int, numbers[:4]), *numbers[4:]) for numbers in told]


def rows_with(token_set, settings, name, begin, end, count):
    """The rows of the global order that hold some of a stretch of a shard, slowly."""
    config = Show(token_set, batch=0, **(settings | {"batch_size": count, "world_size": 1}))
    found = set()
    for number, (_, row) in enumerate(shown_rows(config)):
        for piece in row.pieces:
            at = int(piece.shard.offsets[piece.document]) + piece.start
            if piece.shard.entry.name == name and at < end and at + piece.length > begin:
                found.add(number)
    return found


def test_a_step_is_said_to_be_a_call_unless_its_rows_are_given(token_set):
    for more, said in (({}, True), ({"global_batch_size": 4}, False)):
        query = ShowQuery(Show(token_set, step=1, **ONE_RANK, **more))
        assert ("pass --global-batch-size" in "".join(of_step(query))) == said
    assert of_step(ShowQuery(Show(token_set, batch=1, **ONE_RANK))) == []


def test_what_an_older_position_does_not_say_is_said(token_set, tmp_path):
    """A position of tokenmill 0.3.0 has no segments: whether the run was another before it is seen by its tokens."""
    loader = make_loader(token_set, batch_size=1)
    loader.load_state_dict(as_by_0_3_0(loader.state_dict()))  # begins the order of 0.3.0
    for _ in range(30):
        next(loader)
    state = loader.state_dict()
    assert when_of(tmp_path, token_set, as_by_0_3_0(state))[1].startswith("seen in ")
    other = as_by_0_3_0(state) | {"tokens_seen": 488}
    assert "but the run saw 488 tokens by then, and these" in when_of(tmp_path, token_set, other)[1]
    loader.load_state_dict(other)
    next(loader)
    lines = when_of(tmp_path, token_set, loader.state_dict())
    assert "the position does not say which rows the first 488 tokens of the run were" in lines
    assert not any(", step " in line for line in lines), "steps cannot be counted from there"


def as_by_0_3_0(state):
    """A position of one token set as tokenmill 0.3.0 wrote it."""
    own = {key: of_source(state, key) for key in OF_SPLIT}
    new = ("sources", "segments", "turns", "asked", "order_version")
    kept = {key: value for key, value in state.items() if key not in new}
    return kept | own | {"version": 2, "seq_len": state["seq_len"]}


def when_of(tmp_path, token_set, state, document=3):
    (tmp_path / "state.json").write_text(json.dumps(state))
    return list(seen_when(Show(token_set, document=document, until=str(tmp_path / "state.json"))))


def test_a_document_that_was_dealt_before_the_length_changed_in_its_window_was_seen(token_set, tmp_path):
    loader = make_loader(token_set, batch_size=1)
    for _ in range(3):
        next(loader)
    ((_, row),) = shown_rows(Show(token_set, row="1", seq_len=SEQ_LEN))
    piece = row.pieces[0]
    before = [entry.documents for entry in TokenSet(token_set).split("train")]
    number = piece.document + sum(before[: int(piece.shard.entry.name[6])])
    shorter = RowLoader(token_set, batch_size=1, seq_len=8)
    shorter.load_state_dict(loader.state_dict())
    next(shorter)
    (tmp_path / "state.json").write_text(json.dumps(shorter.state_dict()))
    config = Show(token_set, document=number, until=str(tmp_path / "state.json"))
    lines = list(seen_when(config))
    assert (
        f"seen in epoch 0, step 1, rank 0, row 0 of its batch, at {row.place}, when rows were of 16 + 1 tokens" in lines
    )


def test_a_set_that_has_grown_says_that_former_rows_were_others(tmp_path):
    folder = make_token_set(tmp_path / "set", train=[[9] * 30], val=[[9]])
    was = TokenSet(folder).digest
    make_token_set(tmp_path / "large", train=[[9] * 30, [17] * 30], val=[[9]])
    (tmp_path / "large" / "manifests").mkdir(exist_ok=True)
    for path in (folder / "manifests").iterdir():
        shutil.copy(path, tmp_path / "large" / "manifests")
    grown = TokenSet(tmp_path / "large")
    assert f"pass --manifest {was}" in list(seen_when(Show(grown.path, document=3, seq_len=8)))[1]
    told = list(seen_when(Show(grown.path, document=3, seq_len=8, manifest=was)))
    assert f"manifest {was}" in told[0]
    assert told[1].startswith("seen in epoch 0, at 0:")
    told = list(seen_when(Show(grown.path, document=3, seq_len=8, manifest=was, batch_size=2, world_size=1)))
    assert told[1].startswith("seen in epoch 0, step ")


def test_the_settings_that_are_printed_are_those_of_a_state_file(prepared, tmp_path, capsys):
    loader = RowLoader(prepared[1], batch_size=1, seq_len=77, seed=5)
    next(loader)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    sizes = ("--batch-size", 1, "--world-size", 1)
    _, printed, _ = run(capsys, prepared[1], "--step", 3, *sizes, "--since", 1, tmp_path / "state.json")
    assert "rows of 77 + 1 tokens, best_fit, split long documents, seed 5" in printed
    _, _, error = run(capsys, prepared[1], "--document", 3, "--until", "nowhere.json")
    assert error.startswith(
        "error: --until nowhere.json: expected a place as 0:12:100, or a checkpoint with a loader's"
    )


def test_a_setting_that_is_not_the_state_s_is_refused(token_set, tmp_path):
    (tmp_path / "state.json").write_text(json.dumps(make_loader(token_set).state_dict()))
    sizes = {"batch_size": 1, "world_size": 1}
    config = Show(token_set, step=5, since=(5, str(tmp_path / "state.json")), seq_len=24, **sizes)
    with pytest.raises(ValueError, match=r"--seq-len 24, but the state of --since has 16; leave --seq-len out"):
        list(shown_rows(config))


def test_a_document_that_was_skipped_was_not_seen(token_set, capsys):
    ((_, row),) = shown_rows(Show(token_set, row="3", seq_len=SEQ_LEN))
    piece = row.pieces[0]
    before = [entry.documents for entry in TokenSet(token_set).split("train")]
    number = piece.document + sum(before[: int(piece.shard.entry.name[6])])
    (seen,) = [s for s in shown_document(token_set, number, "1:0:0", LOADER) if s[4] == row.place]
    assert seen[:4] == (0, 0, 1, 1)
    skipping = {**LOADER, "skip_rows": (row.place,)}
    assert row.place not in [s[4] for s in shown_document(token_set, number, "1:0:0", skipping)]


def test_a_deep_step_is_counted_once(token_set, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    counted, count = [], WindowPlans.count_rows
    monkeypatch.setattr(WindowPlans, "count_rows", lambda *asked: (counted.append(asked[1:]), count(*asked))[1])
    config = Show(token_set, step=30, **ONE_RANK)
    first = ids_of(shown_rows(config))
    assert counted
    counted.clear()
    assert ids_of(shown_rows(config)) == first
    assert not counted
    for path in (tmp_path / "tokenmill").iterdir():
        path.write_text("broken")
    assert ids_of(shown_rows(config)) == first, "counted again"


def test_where_nothing_can_be_kept_rows_are_counted_each_time(token_set, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    config = Show(token_set, step=30, **ONE_RANK)
    assert ids_of(shown_rows(config))


def test_pieces_say_what_they_are(token_set):
    """Fillers are told apart, and every token of every document is in just one other piece."""
    rows = make_loader(token_set).rows
    seen = set()
    for _, row in shown_rows(Show(token_set, batch=0, batch_size=rows, world_size=1, seq_len=SEQ_LEN)):
        assert sum(piece.length + piece.bos for piece in row.pieces) == SEQ_LEN + 1
        for piece in row.pieces:
            assert piece.bos == (piece.start > 0)
            places = {(piece.shard.entry.name, piece.document, piece.start + i) for i in range(piece.length)}
            if not piece.filler:
                assert not places & seen
                seen |= places
    assert len(seen) == sum(entry.tokens for entry in TokenSet(token_set).split("train"))


# ---------------------------------------------------------------------------- in the terminal


def run(capsys, *arguments):
    status = cli.main(["show", *map(str, arguments)])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.fixture(scope="module")
def texts(prepared):
    source, token_set = prepared
    names = sorted(path.name for path in source.iterdir())
    return {name: pq.read_table(source / name)["text"].to_pylist() for name in names}


def test_a_row_is_printed_with_its_text_and_the_rows_of_the_source_file(prepared, texts, capsys):
    _, token_set = prepared
    status, printed, _ = run(capsys, token_set, "--row", 17, "--seq-len", 256)
    assert status == 0
    loader = RowLoader(token_set, batch_size=1, seq_len=256)
    for _ in range(18):
        batch = rows_of(next(loader))
    tokenizer = Tokenizer.load(token_set / "tokenizer.json")
    body = re.split(r"\nrow 17, at \d:\d+:\d+\n", printed)[1]
    pieces = re.findall(
        r"^  [A-Z] [\d,]+ of ([\d,]+) tokens, (.*): document .*, (\S+) row ([\d,]+)\n", body, re.MULTILINE
    )
    text = re.sub(r"^  [A-Z] [\d,]+ of .* row [\d,]+\n", "\0", body, flags=re.MULTILINE)
    assert text.replace("\0", "").replace("\n", "") == tokenizer.decode(batch[0]).replace("\n", "")
    assert len(pieces) > 1
    for (whole, _, name, row), shown in zip(pieces, text.split("\0")[1:], strict=True):
        source = texts[name][int(row.replace(",", ""))]
        assert len(tokenizer.encode(source)) + 1 == int(whole.replace(",", ""))
        assert shown.removeprefix("<|bos|>").strip() in source


def test_a_row_of_a_later_epoch_is_said_to_be_one(prepared, capsys):
    folder, rows = prepared[1], RowLoader(prepared[1], batch_size=1, seq_len=256).rows
    told = {n: run(capsys, folder, "--row", n, "--seq-len", 256)[1] for n in (rows - 1, rows, 6 * rows, "1:0:0")}
    assert "in epoch" not in told[rows - 1]
    assert "this is in epoch 1, after 1 pass over the set\n" in told[rows]
    assert re.match("counting the rows of about \\d+ epochs that come before\n", told[6 * rows])
    assert "in epoch" not in told["1:0:0"], "it was asked for"


def test_a_step_s_rows_are_printed_with_what_skip_rows_takes(prepared, capsys):
    _, token_set = prepared
    status, printed, _ = run(capsys, token_set, "--step", 3, "--batch-size", 2, "--world-size", 4, "--seq-len", 64)
    assert status == 0
    places = re.search(r"skip_rows=(\[.*\])", printed)[1]
    loader = RowLoader(token_set, batch_size=8, seq_len=64)
    without = RowLoader(token_set, batch_size=8, seq_len=64, skip_rows=eval(places))
    batches = [rows_of(next(loader)) for _ in range(6)]
    assert [rows_of(next(without)) for _ in range(5)] == batches[:3] + batches[4:]
    assert len(re.findall(r"^row \d+, at \d+:\d+:\d+, rank [0-3]  [A-Za-z]+$", printed, re.MULTILINE)) == 8


def test_token_ids_are_printed_on_request(prepared, capsys):
    _, token_set = prepared
    status, printed, _ = run(capsys, token_set, "--row", 0, "--seq-len", 64, "--ids")
    row = rows_of(next(RowLoader(token_set, batch_size=1, seq_len=64)))[0]
    found = [int(i) for line in printed.splitlines() if re.fullmatch(r"[\d ]{3,}", line) for i in line.split()]
    assert (status, found) == (0, row)


def test_a_document_is_printed_whole(prepared, texts, capsys):
    _, token_set = prepared
    for number in (0, 700, 2099):
        status, printed, _ = run(capsys, token_set, "--document", number, "--seq-len", 64, *SIZES)
        name, row = f"shard_{number // 700}.parquet", number % 700
        assert status == 0
        assert f"{name} row {row:,}\n<|bos|>{texts[name][row]}" in printed
        assert re.search(
            r"manifest \w{16}\nseen in epoch 0, step \d+, rank 0, row \d of its batch, at 0:\d+:\d+", printed
        )
    assert "not seen before 0:0:0" in run(capsys, token_set, "--document", 0, "--until", "0:0:0", "--seq-len", 64)[1]
    asked = ("--document", 0, "--packing", "nanochat", "--seq-len", 64)
    assert "packing nanochat does not record when" in run(capsys, token_set, *asked)[1]


def test_where_documents_were_left_out_it_is_said_which_of_those_with_text_it_was(tmp_path, tokenizer_json):
    for number in range(2):
        write_parquet(tmp_path / "in" / f"{number}.parquet", ["a b", None, "c d", "", "e f", "g h"], row_group_size=3)
    done = run_prepare("--source", "in", "--tokenizer", tokenizer_json, cwd=tmp_path)
    token_set = TokenSet(tmp_path / done.stdout.splitlines()[-1])
    found = [SourceLocator(token_set).find(token_set.entries[0], document) for document in range(4)]
    assert found == [
        f"0.parquet row group {group}, document {nth} of those that were kept"
        for group, nth in [(0, 0), (0, 1), (1, 0), (1, 1)]
    ]


def test_a_line_of_a_file_of_many_shards_is_counted_from_one(tmp_path, tokenizer_json):
    for name in ("a", "b"):
        lines = "".join(f'{{"text": "{name} document {i}"}}\n' for i in range(300))
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{name}.jsonl").write_text(lines)
    flags = ("--tokenizer", tokenizer_json, "--shard-text-bytes", 2000)
    done = run_prepare("--source", "in", *flags, cwd=tmp_path)
    token_set = TokenSet(tmp_path / done.stdout.splitlines()[-1])
    train, tokenizer = token_set.split("train"), Tokenizer.load(token_set.path / "tokenizer.json")
    assert len(train) > 3
    for entry in train:
        shard = token_set.open(entry)
        text = tokenizer.decode(shard.tokens[1 : shard.offsets[1]])
        assert SourceLocator(token_set).find(entry, 0) == f"a.jsonl line {int(text.split()[-1]) + 1}"


def test_a_text_cannot_steer_the_terminal(tmp_path, tokenizer_json, capsys):
    for number in range(2):
        write_parquet(tmp_path / "in" / f"{number}.parquet", ["red \x1b[31m\r\x7f\n\tand on"])
    done = run_prepare("--source", "in", "--tokenizer", tokenizer_json, cwd=tmp_path)
    folder = tmp_path / done.stdout.splitlines()[-1]
    asked = ("--document", 0, "--until", "0:0:0", *LENGTH)  # no row holds it: it is shorter than one
    _, printed, _ = run(capsys, folder, *asked)
    assert "<|bos|>red ␛[31m␍␡\n\tand on\n" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--row", "x", *LENGTH], "--row must be a number, or a place as 0:12:100"),
        (["--row", "0:9:0", *LENGTH], "no such row: epoch 0, window 9, row 0"),
        (["--document", "34"], "split 'train' has 33 documents, 0 to 32"),
        (
            ["--row", "0:0:1", "--packing", "nanochat", "--world-size", "1", *LENGTH],
            "--row must be a number, not '0:0:1'",
        ),
        (
            ["--step", "9", *SIZES, "--since", "5", "12"],
            "--since must be a place as 0:12:100 (epoch:window:row), not '12'",
        ),
        (
            ["--batch", "0", *SIZES, *LENGTH, "--rank", "3"],
            "rank must be from 0 to world_size - 1, found rank=3, world_size=1",
        ),
        (["--row", "1", "--seq-len", "0"], "seq_len must be a whole number of at least 1"),
        (["--row", "1", *LENGTH], "tokenizer.json"),
    ],
)
def test_what_is_not_there_is_an_error_that_says_so(token_set, capsys, arguments, message):
    status, _, error = run(capsys, token_set, *arguments)
    assert status == 1
    assert error.startswith("error: ")
    assert message in error


def test_a_folder_that_is_no_token_set_and_a_split_without_documents_are_errors(tmp_path, capsys):
    assert "found no such folder" in run(capsys, tmp_path / "nowhere", "--row", 1, *LENGTH)[2]
    empty = make_token_set(tmp_path / "set", train=[[3]], val=[[]])
    status, _, error = run(capsys, empty, "--row", 1, *LENGTH, "--split", "val")
    assert (status, "split 'val' has no documents" in error) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--row", "1", "--step", "1"],
        ["--step", "-1"],
        ["--step", "4", "--since", "5", "0:0:1"],
        ["--row", "4", "--since", "5", "0:0:1"],
        ["--step", "6", "--since", "5", "0:0:1", "--packing", "nanochat"],
    ],
)
def test_exactly_one_thing_is_asked_for(token_set, capsys, arguments):
    with pytest.raises(SystemExit):
        run(capsys, token_set, *arguments)
    assert "--" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (["--step", "3"], "--step needs --batch-size and --world-size, as in training"),
        (["--step", "3", "--world-size", "2"], "--step needs --batch-size, as in training"),
        (["--batch", "3", "--batch-size", "2"], "--batch needs --world-size, as in training"),
        (["--batch", "3", "--batch-size", "2", "--world-size", "2"], "--batch needs --rank: each of 2 ranks got other"),
        (["--row", "3", "--packing", "nanochat", "--world-size", "2"], "--row needs --rank: each of 2 ranks got other"),
        (["--row", "3", "--packing", "nanochat"], "--row with packing nanochat needs --world-size, as in training"),
        (["--step", "3", *SIZES], "--step needs --seq-len, as in training"),
        (["--row", "3"], "--row needs --seq-len, as in training"),
        (["--document", "3", "--until", "0:0:9"], "--until needs --seq-len, as in training"),
    ],
)
def test_a_setting_that_decides_what_is_shown_is_never_guessed(token_set, capsys, monkeypatch, arguments, missing):
    monkeypatch.setenv("COLUMNS", "200")
    with contextlib.suppress(SystemExit):
        assert run(capsys, token_set, *arguments)[2].startswith(f"error: {missing}")
        return
    assert missing in capsys.readouterr().err


def test_a_document_is_shown_without_settings_but_not_when_it_was_seen(prepared, capsys):
    status, printed, _ = run(capsys, prepared[1], "--document", 7)
    assert status == 0
    assert printed.splitlines()[-1] == "when it was seen depends on the length of rows: pass --seq-len, as in training"
    _, printed, _ = run(capsys, prepared[1], "--document", 7, "--seq-len", 64)
    assert re.search(r"seen in epoch 0, at 0:", printed), "no step: which one depends on the size of batches"


def test_a_state_of_get_batch_is_that_of_its_loader_of_the_split(token_set, tmp_path):
    state = tmp_path / "state.json"
    for split in ("train", "val"):
        get_batch(split, tokens=token_set, batch_size=2, seq_len=SEQ_LEN)
    state.write_text(json.dumps(tokenmill.state_dict()))
    for split in ("train", "val"):
        config = Show(token_set, step=1, since=(1, str(state)), batch_size=2, world_size=1, split=split)
        inputs, targets = get_batch(split, tokens=token_set, batch_size=2, seq_len=SEQ_LEN)
        assert ids_of(shown_rows(config)) == rows_of((inputs, targets))
    get_batch("train", tokens=token_set, batch_size=1, seq_len=8)
    state.write_text(json.dumps(tokenmill.state_dict()))
    config = Show(token_set, step=1, since=(1, str(state)), batch_size=2, world_size=1)
    with pytest.raises(ValueError, match="found 2 positions of it among"):
        shown_rows(config)


def test_it_starts_without_torch():
    """So that a step is found in under a second."""
    code = "import sys, tokenmill.look.show; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "False\n"


def test_a_position_with_smaller_windows_is_taken_as_a_loader_takes_it(token_set, tmp_path):
    """As of a loader whose remote cache was small."""
    half = window_plans.DEFAULT_WINDOW_SIZE.window // 2
    state = make_loader(token_set, batch_size=1).state_dict() | {"window_tokens": half}
    resumed = make_loader(token_set, batch_size=4)
    resumed.load_state_dict(state)
    (tmp_path / "state.json").write_text(json.dumps(state))
    for step in range(3):
        config = Show(token_set, step=step, since=(0, str(tmp_path / "state.json")), batch_size=2, world_size=2)
        assert ids_of(shown_rows(config)) == rows_of(next(resumed))
    lines = [line for n in range(20) for line in when_of(tmp_path, token_set, resumed.state_dict(), document=n)]
    assert any(line.startswith("seen in epoch 0, step ") for line in lines)


def test_a_step_that_a_state_file_is_not_of_is_pointed_out(prepared, tmp_path, capsys):
    loader = RowLoader(prepared[1], batch_size=2, seq_len=77)
    for _ in range(3):
        next(loader)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    for step, batch_size, hint in ((3, 2, False), (2, 2, True), (3, 4, True)):
        since = ("--since", step, tmp_path / "state.json", "--batch-size", batch_size, "--world-size", 1)
        _, shown, _ = run(capsys, prepared[1], "--step", 5, *since)
        assert ("the state file is after 6 rows, but" in shown) == hint


def seen_rows(lines):
    return {int(found[1]) for line in lines if (found := re.search(r"step (\d+),", line))}


def run_of(token_set, *moves, **settings):
    """A loader after some moves, and the documents of each row that it returned."""
    loader, rows = RowLoader(token_set, **({"batch_size": 1, "seq_len": SEQ_LEN, "prefetch": 0} | settings)), []
    for move in moves:
        if move == "again":
            loader.set_epoch(0)
            continue
        ahead = loader._make_rows(ahead=False)
        ahead.seek(loader._state.place)
        for _ in range(move):
            rows += [{(piece.shard.entry.name, piece.document) for piece in row} for row in ahead.pieces(1)]
            next(loader)
    return loader, rows


def test_before_the_first_batch_nothing_was_seen(token_set, tmp_path):
    loader = make_loader(token_set, batch_size=1)
    for number in (0, 3):
        assert "not seen in the first 0 tokens of the run" in when_of(tmp_path, token_set, loader.state_dict(), number)
    loader.set_epoch(1)
    lines = when_of(tmp_path, token_set, loader.state_dict())
    assert "not seen in the first 0 tokens of the run" in lines


@pytest.mark.parametrize("packing", ["best_fit", "concat"])
def test_an_epoch_that_was_begun_again_is_traced_as_it_was(token_set, tmp_path, packing):
    loader, rows = run_of(token_set, 3, "again", 3, "again", 5, packing=packing)
    state, number = loader.state_dict(), 0
    for entry in TokenSet(token_set).split("train"):
        for document in range(entry.documents):
            (tmp_path / "state.json").write_text(json.dumps(state))
            config = Show(token_set, document=number, until=str(tmp_path / "state.json"), batch_size=1, world_size=1)
            expected = {step for step, row in enumerate(rows) if (entry.name, document) in row}
            assert seen_rows(seen_when(config)) == expected
            number += 1


def test_a_set_that_grew_after_the_state_is_traced_without_the_new_shards(tmp_path):
    small = make_token_set(tmp_path / "set", train=[[9] * 30], val=[[9]])
    loader, rows = run_of(small, RowLoader(small, batch_size=1, seq_len=SEQ_LEN).rows, epochs=1)
    state = loader.state_dict()
    large = make_token_set(tmp_path / "large", train=[[9] * 30, [17] * 30], val=[[9]])
    (large / "manifests").mkdir(exist_ok=True)
    for path in (small / "manifests").iterdir():
        shutil.copy(path, large / "manifests")
    (tmp_path / "state.json").write_text(json.dumps(state))
    for number in range(30):
        config = Show(
            large, document=number, until=str(tmp_path / "state.json"), batch_size=1, world_size=1, seq_len=SEQ_LEN
        )
        expected = {step for step, row in enumerate(rows) if ("train_0.000", number) in row}
        lines = list(seen_when(config))
        assert seen_rows(lines) == expected
    assert not any(line.startswith("this set has grown") for line in lines), "the log of the run says it"
    (tmp_path / "state.json").write_text(json.dumps(without_log(state)))
    assert any(line.startswith("this set has grown") for line in seen_when(replace(config, world_size=1, batch_size=1)))


@pytest.mark.parametrize("rows", [0, 3])
def test_steps_after_a_state_are_those_of_the_run_though_the_set_has_grown_since(tmp_path, rows):
    """At the first row of an epoch (0), and within it: the run went on without the shards that were added."""
    small = make_token_set(tmp_path / "small", train=[[9, 5, 17, 3] * 30], val=[[9]])
    grown = make_token_set(tmp_path / "grown", train=[[9, 5, 17, 3] * 30, [17, 8] * 40], val=[[9]])
    for path in (small / "manifests").iterdir():
        shutil.copy(path, grown / "manifests")
    loader = RowLoader(small, batch_size=1, seq_len=SEQ_LEN)
    for _ in range(loader.rows + rows):
        next(loader)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    resumed = RowLoader(grown, batch_size=1, seq_len=SEQ_LEN)
    resumed.load_state_dict(loader.state_dict())

    def shown(step, **more):
        config = Show(grown, step=step, since=(0, str(tmp_path / "state.json")), batch_size=1, world_size=1, **more)
        return ids_of(shown_rows(config))

    for step in range(30):
        assert shown(step) == rows_of(next(loader))
        if not rows:  # a resumed run begins the epoch with the new shards
            assert shown(step, manifest=TokenSet(grown).digest) == rows_of(next(resumed))
    query = ShowQuery(Show(grown, step=3, since=(0, str(tmp_path / "state.json")), batch_size=1, world_size=1))
    assert (f"pass --manifest {TokenSet(grown).digest}" in "".join(former_manifests(query))) == (rows == 0)


def test_rows_to_skip_are_left_out_of_the_steps_after_a_state(token_set, tmp_path):
    loader = make_loader(token_set, batch_size=1)
    for _ in range(5):
        next(loader)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    skip_rows = ("1:0:0", "2:0:0")
    resumed = make_loader(token_set, batch_size=1, skip_rows=skip_rows)
    resumed.load_state_dict(loader.state_dict())
    for step in range(5, 40):
        config = Show(
            token_set,
            step=step,
            since=(5, str(tmp_path / "state.json")),
            batch_size=1,
            world_size=1,
            skip_rows=skip_rows,
        )
        assert ids_of(shown_rows(config)) == rows_of(next(resumed))


def test_two_changes_of_length_in_an_epoch_of_concat_are_traced(token_set, tmp_path):
    tokens, state = 0, None
    seen: dict[tuple[str, int], set[int]] = {}
    for seq_len, calls in ((33, 4), (16, 3), (8, 12)):
        loader = RowLoader(token_set, batch_size=1, seq_len=seq_len, packing="concat", prefetch=0)
        if state is not None:
            loader.load_state_dict(state)
        ahead = loader._make_rows(ahead=False)
        ahead.seek(loader._state.place)
        for row in ahead.pieces(calls):
            for piece in row:
                seen.setdefault((piece.shard.entry.name, piece.document), set()).add(tokens)
            tokens += seq_len
        for _ in range(calls):
            next(loader)
        state = loader.state_dict()
    query = query_of(token_set, state, tmp_path)
    lines, total = query.tracer.history("", None, of_state=True)
    assert total == tokens
    for entry in TokenSet(token_set).split("train"):
        for document in range(entry.documents):
            for log in ((), log_of(state)):
                found = {one.tokens for one in query.tracer.sightings("", entry, document, lines, total, log)}
                assert found == seen.get((entry.name, document), set())
    query = query_of(token_set, without_log(state), tmp_path)
    assert any("rows had several lengths" in line for line in when(query))


def query_of(token_set, state, tmp_path):
    (tmp_path / "state.json").write_text(json.dumps(state))
    return ShowQuery(Show(token_set, document=0, until=str(tmp_path / "state.json")))


# ---------------------------------------------------------------------------- views and metadata


@pytest.fixture(scope="module")
def scored(tokenizer_json, tmp_path_factory):
    """A set of 40 documents a file, with their number as a score, and a view of those over 20."""
    cwd = tmp_path_factory.mktemp("scored")
    (cwd / "corpus").mkdir()
    for number in range(3):
        table = {"text": make_text(40, seed=number, words=8), "score": list(range(40)), "meta": [{"n": number}] * 40}
        pq.write_table(pa.table(table), cwd / "corpus" / f"{number}.parquet")
    flags = ("--source", "corpus", "--tokenizer", tokenizer_json, "--keep-columns", "score,meta")
    folder = cwd / run_prepare(*flags, cwd=cwd).stdout.splitlines()[-1]
    assert cli.main(["view", str(folder), "--name", "over", "--where", "score > 20"]) == 0
    assert cli.main(["view", str(folder), "--name", "under", "--where", "score <= 20"]) == 0
    return folder


def shown(capsys, *words):
    assert cli.main(["show", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_a_batch_of_a_view_is_shown_with_its_metadata(scored, capsys):
    sizes = ("--batch-size", 4, "--world-size", 1, "--seq-len", 64)
    out = shown(capsys, scored, "--view", "over", "--step", 1, *sizes, "--columns", "score,meta.n")
    assert ", view over, train: rows of 64 + 1 tokens" in out
    table = [line.split("│")[1:-1] for line in out.splitlines() if line.startswith("│")]
    assert table
    assert all(int(score) > 20 for *_, score, _ in table)
    assert {n.strip() for *_, n in table} <= {"0", "1"}
    with RowLoader(scored, view="over", batch_size=4, seq_len=64) as loader:
        next(loader)
        before = loader.stats().pieces
        next(loader)
        assert len(table) == loader.stats().pieces - before
    assert "expected" not in shown(capsys, scored, "--view", "over", "--row", 0, *sizes[2:], "--columns", "all")
    assert cli.main(["show", str(scored), "--row", "0", "--seq-len", "64", "--columns", "scor"]) == 1
    assert "no document of these rows has 'scor'; there are score, meta" in capsys.readouterr().err


def test_a_document_is_shown_with_its_metadata_and_when_a_view_dealt_it(scored, capsys):
    sizes = ("--batch-size", 2, "--world-size", 1, "--seq-len", 64)
    out = shown(capsys, scored, "--view", "over", "--document", 30, *sizes)
    assert "score: 30" in out
    assert "meta: {'n': 0}" in out
    assert "counts 1 time in view over" in out
    assert "seen in epoch 0" in out
    out = shown(capsys, scored, "--view", "under", "--document", 30, *sizes)
    assert "counts 0 times in view under" in out
    assert "not seen" in out


def test_what_a_state_does_not_know_of_views_is_said(scored, capsys, tmp_path):
    with RowLoader(scored, view="over", batch_size=2, seq_len=64) as loader:
        while not loader.epoch:
            next(loader)
        next(loader)
        (tmp_path / "state.json").write_text(json.dumps(without_log(loader.state_dict())))
    sizes = ("--batch-size", 2, "--world-size", 1, "--seq-len", 64)
    out = shown(capsys, scored, "--document", 30, "--until", tmp_path / "state.json", *sizes)
    assert "if an earlier epoch of this run went over another view than its present epoch" in out


def test_a_state_brings_its_view(scored, capsys, tmp_path):
    with RowLoader(scored, view="over", batch_size=2, seq_len=64) as loader:
        for _ in range(3):
            next(loader)
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
        expected = next(loader)[0].tolist()
    sizes = ("--batch-size", 2, "--world-size", 1, "--seq-len", 64)
    out = shown(capsys, scored, "--step", 3, "--since", 3, tmp_path / "state.json", *sizes[:4], "--ids")
    for row in expected:
        assert " ".join(map(str, row[:20])) in out
