"""Rows of a set at an address are the local set's: every packing, views, chats, mixtures,
positions, processes.
"""

import pytest
import warm
from elsewhere import MIB, batches, digest_of, lengths, read_code, same, size
from file_server import FileServer
from making import make_chat_set, make_token_set, tree

from tokenmill import Documents, Mixture, RowLoader, cli

PACKINGS = [
    {},
    {"packing": "concat"},
    {"packing": "random", "epochs": None},
    {"packing": "nanochat", "epochs": None},
    {"long_documents": "crop"},
    {"loss": "once", "prefetch": 0},
    {"rank": 1, "world_size": 3},
    {"split": "val"},
]


@pytest.mark.parametrize("settings", PACKINGS, ids=str)
def test_rows_are_the_local_set_s(folder, server, tmp_path, settings):
    here = batches(folder, 200, **settings)
    for _ in range(2):  # cold, and from the cache
        assert same(batches(f"{server.url}/set", 200, cache_dir=tmp_path, **settings), here)
    if settings.get("split") == "val":
        assert not [path for path in server.served if "train" in path], "nothing else is fetched"


def test_rows_of_wide_ids_of_views_and_of_chats(prepared, tmp_path):
    wide = make_token_set(
        tmp_path / "wide", train=[lengths(MIB // 2, 3)] * 2, val=[[9]], vocab=100_000
    )
    chats = make_chat_set(tmp_path / "chats", train=[[30, 9, 12, 5] * 6_000] * 2, val=[[9]])
    for name, rule in (("few", "number % 7 = 0"), ("twice", "2 * (number % 3)")):
        what = "--where" if name == "few" else "--repeat"
        assert (
            cli.main(["view", str(wide), "--name", name, what, rule.replace("number", "tokens")])
            == 0
        )
    with FileServer.of(wide) as server:
        for view in (None, "few", "twice"):
            there = batches(f"{server.url}/set", view=view, cache_dir=tmp_path / "c")
            assert same(there, batches(wide, view=view))
    how = {"long_documents": "crop", "seq_len": 16, "batch_size": 64}
    with FileServer.of(chats) as server:
        assert same(
            batches(f"{server.url}/set", cache_dir=tmp_path / "c", **how), batches(chats, **how)
        )


def test_rows_of_a_mixture_of_which_half_lies_elsewhere(folder, server, tmp_path):
    math = make_token_set(tmp_path / "math", train=[lengths(900_000, 77)], val=[[50] * 40], seed=5)
    here, there = ({"web": tokens, "math": math} for tokens in (folder, f"{server.url}/set"))
    more = {"epochs": None, "seq_len": 256}
    expected = batches(Mixture({"web": 3, "math": 1}, sources=here), 300, **more)
    mixture = Mixture({"web": 3, "math": 1}, sources=there)
    assert same(batches(mixture, 300, cache_dir=tmp_path / "c", **more), expected)


def test_a_position_is_continued_there_and_here(folder, server, tmp_path):
    with RowLoader(f"{server.url}/set", batch_size=8, seq_len=512, cache_dir=tmp_path) as loader:
        for _ in range(300):
            next(loader)
        state = loader.state_dict()
        after = [next(loader)[0] for _ in range(20)]
    for tokens in (folder, f"{server.url}/set"):
        with RowLoader(tokens, batch_size=8, seq_len=512, cache_dir=tmp_path / "b") as loader:
            loader.load_state_dict(state)
            assert same([next(loader)[0] for _ in range(20)], after)


def test_three_processes_share_a_cache_and_each_part_comes_once(folder, server, tmp_path):
    running = [warm.Command("-c", read_code(f"{server.url}/set", tmp_path)) for _ in range(3)]
    ended = [process.done(240) for process in running]
    errors = [done.stderr for done in ended]
    assert {done.stdout.strip() for done in ended} == {digest_of(folder)}, errors
    assert server.tokens_served() == size(folder)


# ---------------------------------------------------------------------------- looking at it


@pytest.fixture(scope="module")
def whole(prepared):
    """A set with a tokenizer, served."""
    with FileServer.of(prepared[1]) as server:
        yield prepared[1], server


def says(capsys, *words) -> str:
    status = cli.main([str(word) for word in words])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    return printed.out


@pytest.mark.parametrize(
    "asked",
    [
        ["--row", "3"],
        ["--document", "7"],
        ["--step", "2", "--batch-size", "2", "--world-size", "1"],
    ],
)
def test_show_shows_the_same(whole, tmp_path, capsys, asked):
    folder, server = whole
    here = says(capsys, "show", folder, *asked, "--seq-len", "128")
    here = here.replace(str(folder), f"{server.url}/set").replace(folder.name, "set")
    assert (
        says(
            capsys, "show", f"{server.url}/set", *asked, "--seq-len", "128", "--cache-dir", tmp_path
        )
        == here
    )


def test_report_convert_and_documents_read_what_lies_there(whole, tmp_path, capsys, monkeypatch):
    folder, server = whole
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tokenmill.look.packing_stats.NANOCHAT_SETTLED", 3000)
    address = f"{server.url}/set"
    page = tmp_path / "page.html"
    here = says(capsys, "report", folder, "--out", page).replace(folder.name, "set")
    assert says(capsys, "report", address, "--out", page) == here
    for tokens, out in ((folder, "here"), (address, "there")):
        says(capsys, "convert", "out", "llm.c", tokens, tmp_path / out)
    assert tree(tmp_path / "here") == tree(tmp_path / "there")
    texts = [document.text for document in Documents(folder)[:5]]
    assert [document.text for document in Documents(address)[:5]] == texts
    assert cli.main(["verify", address]) == 1
    assert (
        "verify reads sets on this disk; pull it, which compares every checksum"
        in capsys.readouterr().err
    )
