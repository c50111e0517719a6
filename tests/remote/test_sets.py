"""Rows of a set that lies elsewhere: the local set's, whatever happens on the way; and each block fetched once."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import warm
from elsewhere import MIB, WINDOW, Watcher, batches, begin, digest_of, lengths, read_code, same, size, told, used
from file_server import FileServer
from making import ROOT, make_token_set, tree, wait_until

from tokenmill import Mixture, RowLoader, TokenSet, cli, get_batch
from tokenmill.remote.sets import Kept, open_set

# ---------------------------------------------------------------------------- the same rows


@pytest.mark.parametrize("packing", ["best_fit", "concat", "random", "nanochat"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_rows_are_the_local_set_s(folder, server, small_windows, tmp_path, packing, prefetch):
    more = {"packing": packing, "prefetch": prefetch, "count": 500}
    more |= {"epochs": None} if packing == "nanochat" else {}
    found = batches(f"{server.url}/set", cache_dir=tmp_path, **more)
    assert same(found, batches(folder, **more))


@pytest.mark.parametrize("world_size", [1, 3, 8])
def test_rows_of_every_rank_are_the_local_set_s_and_each_block_comes_once(
    folder, server, small_windows, tmp_path, world_size
):
    for rank in range(world_size):
        more = {"rank": rank, "world_size": world_size}
        assert same(batches(f"{server.url}/set", cache_dir=tmp_path, **more), batches(folder, **more))
    assert server.tokens_served() == size(folder), "each block once"
    assert batches(f"{server.url}/set", cache_dir=tmp_path)
    assert server.tokens_served() == size(folder), "a second run fetches nothing"


def test_a_position_is_gone_on_from_there_and_here(folder, server, small_windows, tmp_path):
    with RowLoader(f"{server.url}/set", batch_size=8, seq_len=512, cache_dir=tmp_path) as loader:
        for _ in range(300):
            next(loader)
        state = loader.state_dict()
        after = [next(loader)[0] for _ in range(20)]
    for tokens in (folder, f"{server.url}/set"):
        with RowLoader(tokens, batch_size=8, seq_len=512, cache_dir=tmp_path / "b") as loader:
            loader.load_state_dict(state)
            assert same([next(loader)[0] for _ in range(20)], after)


def test_a_mixture_of_which_half_lies_elsewhere(folder, server, small_windows, tmp_path):
    math = make_token_set(tmp_path / "math", train=[lengths(900_000, 77)], val=[[50] * 40], seed=5)
    mixed = [Mixture({str(tokens): 3, math: 1}, sources=None) for tokens in (folder, f"{server.url}/set")]
    mixed[1] = Mixture({"web": 3, "math": 1}, sources={"web": f"{server.url}/set", "math": math})
    more = {"count": 300, "epochs": None, "seq_len": 256}
    assert same(batches(mixed[1], cache_dir=tmp_path / "cache", **more), batches(mixed[0], **more))


def test_get_batch_and_packed_rows_take_addresses(folder, server, tmp_path):
    from torch.utils.data import DataLoader

    from tokenmill import PackedRows

    address = f"{server.url}/set"
    here = batches(folder, 6)
    more = {"tokens": address, "cache_dir": tmp_path}
    assert same([get_batch("train", 8, 512, **more)[0] for _ in range(3)], here[:3])
    more["tokens"] = f"{server.url}//set/"  # the same, spelled otherwise
    assert same([get_batch("train", 8, 512, **more)[0] for _ in range(3)], here[3:]), "one loader"
    rows = PackedRows(address, batch_size=8, seq_len=512, cache_dir=tmp_path)
    found = list(itertools.islice(DataLoader(rows, batch_size=None, num_workers=1), 6))
    assert same([inputs for inputs, _ in found], here)


def test_a_fork_reads_on(folder, server, small_windows, tmp_path):
    here = batches(folder, 60)
    loader = RowLoader(f"{server.url}/set", batch_size=8, seq_len=512, epochs=1, cache_dir=tmp_path)
    for number in range(20):
        assert torch.equal(next(loader)[0], here[number])
    child = os.fork()
    if not child:
        right = all(torch.equal(next(loader)[0], rows) for rows in here[20:60])
        os._exit(0 if right else 1)
    assert all(torch.equal(next(loader)[0], rows) for rows in here[20:60])
    assert os.waitpid(child, 0)[1] == 0
    loader.close()


# ---------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("fault", ["drop", "flip", "503", "429", "short", "stall"])
def test_rows_are_right_through_faults_that_pass(folder, server, small_windows, tmp_path, impatient, fault):
    for path in server.files:
        server.faults[path] = [fault] if path.endswith((".bin", ".idx")) else []
    assert same(batches(f"{server.url}/set", 200, cache_dir=tmp_path), batches(folder, 200))


def test_a_block_that_is_wrong_three_times_is_an_error_with_both_sums_and_never_skipped(
    folder, server, small_windows, tmp_path, impatient
):
    server.always["train_2.000.bin"] = "flip"
    told = r"train_2.000.bin: bytes [\d,]+ to [\d,]+ \(block \d+\): expected CRC-32 [0-9a-f]{8}, found [0-9a-f]{8}, 3 t"
    with RowLoader(f"{server.url}/set", batch_size=8, seq_len=512, epochs=1, cache_dir=tmp_path) as loader:
        with pytest.raises(OSError, match=told):
            list(loader)
        server.always.clear()
        assert same([inputs for inputs, _ in loader], batches(folder)), "the call after tries again"


@pytest.mark.parametrize("suffix", ["bin", "idx", "json"])
def test_a_file_that_is_gone_is_an_error_with_its_address(server, small_windows, tmp_path, impatient, suffix):
    del server.files[f"set/shards/train_0.000.{suffix}"]
    with pytest.raises(FileNotFoundError, match=rf"/set/shards/train_0.000.{suffix}: no such file"):
        batches(f"{server.url}/set", cache_dir=tmp_path)


def test_an_object_that_is_replaced_midway_is_noticed(server, small_windows, tmp_path, impatient):
    with RowLoader(f"{server.url}/set", batch_size=8, seq_len=512, epochs=1, cache_dir=tmp_path) as loader:
        next(loader)
        for path, data in server.files.items():
            if path.endswith(".bin"):
                server.files[path] = data[::-1]
        with pytest.raises(OSError, match="damaged there, or replaced since"):
            list(loader)


def test_a_record_or_offsets_of_another_shard_are_refused(server, small_windows, tmp_path, impatient):
    files = server.files
    right = files["set/shards/train_0.000.idx"]
    files["set/shards/train_0.000.idx"] = right[:-8] + bytes(8)
    with pytest.raises(OSError, match="train_0.000.idx: expected SHA-256"):
        batches(f"{server.url}/set", cache_dir=tmp_path / "a")
    files["set/shards/train_0.000.idx"] = right
    files["set/shards/train_0.000.json"] = files["set/shards/train_1.000.json"]
    with pytest.raises(ValueError, match="expected the record of the shard that the manifest lists"):
        batches(f"{server.url}/set", cache_dir=tmp_path / "b")


def test_no_set_at_an_address_is_told(server, tmp_path):
    with pytest.raises(FileNotFoundError, match="/nothing: expected a finished token set, found no manifest.json"):
        open_set(f"{server.url}/nothing", Kept(tmp_path))


def test_blocks_of_before_the_machine_was_started_are_checked_again(
    folder, server, small_windows, tmp_path, monkeypatch
):
    here = batches(folder)
    assert same(batches(f"{server.url}/set", cache_dir=tmp_path), here)
    (cached,) = tmp_path.iterdir()
    path = cached / "shards" / "train_0.000.bin"
    with open(path, "r+b") as file:  # as a power cut leaves it
        file.write(bytes([7, 1]) * (MIB // 2))
    head = cached / "blocks"
    data = bytearray(head.read_bytes())
    data[8:16] = bytes(8)  # another start of the machine
    head.write_bytes(data)
    code = read_code(server, tmp_path)
    done = warm.run("-c", code)
    assert done.returncode == 0, done.stderr
    assert server.tokens_served() == size(folder) + MIB, "one block anew"
    assert path.read_bytes() == (folder / "shards" / "train_0.000.bin").read_bytes()


# ---------------------------------------------------------------------------- several processes, and killed ones


@pytest.mark.slow
def test_eight_processes_share_a_cache_and_each_block_comes_once(folder, server, small_windows, tmp_path):
    running = [begin(read_code(server, tmp_path)) for _ in range(8)]
    found = [told(process) for process in running]
    assert {out.strip() for out, _ in found} == {digest_of(folder)}, [error for _, error in found]
    assert server.tokens_served() == size(folder)


def test_where_locks_do_nothing_rows_are_right(folder, server, small_windows, tmp_path):
    lying = "import fcntl; fcntl.lockf = lambda *_: None; fcntl.flock = lambda *_: None"
    running = [begin(read_code(server, tmp_path, setup=lying)) for _ in range(3)]
    found = [told(process) for process in running]
    assert {out.strip() for out, _ in found} == {digest_of(folder)}, [error for _, error in found]


@pytest.mark.slow
def test_a_killed_run_s_next_fetches_only_what_is_missing_and_leaves_nothing_over(
    folder, server, small_windows, tmp_path
):
    rng = np.random.default_rng(3)
    server.delay, kills = 0.005, 25
    for _ in range(kills):
        process = begin(read_code(server, tmp_path))
        time.sleep(float(rng.uniform(0.02, 0.6)))
        process.kill()
    out, error = told(begin(read_code(server, tmp_path)))
    assert out.strip() == digest_of(folder), error
    assert server.tokens_served() <= size(folder) + kills * 16 * MIB  # what was on its way at each kill
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in left if path.name.endswith(".tmp")]
    (cached,) = tmp_path.iterdir()
    states = np.fromfile(cached / "blocks", np.uint32, offset=24) & 3
    assert set(states.tolist()) <= {0, 2}, "nothing is on its way any more"


def test_a_stopped_process_holds_nobody_up_for_good(folder, server, small_windows, tmp_path):
    """One that is stopped keeps its claims; another goes on with the others, and with these once it is killed."""
    server.delay = 0.05
    stopped = begin(read_code(server, tmp_path))
    wait_until(lambda: server.tokens_served() > MIB)
    stopped.send_signal(signal.SIGSTOP)
    other = begin(read_code(server, tmp_path))
    time.sleep(2)
    stopped.kill()
    out, error = told(other)
    assert out.strip() == digest_of(folder), error


# ---------------------------------------------------------------------------- the budget


@pytest.mark.parametrize("windows", [2, 3])
def test_a_budget_is_held_and_rows_are_the_same(folder, server, small_windows, tmp_path, windows):
    tmp_path.mkdir(exist_ok=True)
    with Watcher(tmp_path) as watcher:
        found = batches(f"{server.url}/set", cache_dir=tmp_path, cache_bytes=windows * WINDOW, epochs=2)
    assert same(found, batches(folder, epochs=2))
    assert MIB < watcher.most <= windows * WINDOW


def test_a_budget_that_is_too_small_is_an_error_at_the_start_with_both_numbers(server, small_windows, tmp_path):
    with pytest.raises(
        ValueError,
        match=r"blocks may take 1,048,576 bytes there, but rows need [\d,]+: 2 windows",
    ):
        RowLoader(f"{server.url}/set", batch_size=8, seq_len=512, cache_dir=tmp_path, cache_bytes=MIB)


def test_two_jobs_in_other_orders_share_a_tight_budget(folder, server, small_windows, tmp_path):
    tight = f", cache_bytes={3 * WINDOW}"
    with Watcher(tmp_path) as watcher:
        running = [begin(read_code(server, tmp_path, more=f"{tight}, seed={seed}")) for seed in (1, 2)]
        found = [told(process) for process in running]
    for seed, (out, error) in zip((1, 2), found, strict=True):
        assert out.strip() == digest_of(folder, seed=seed), error
    assert watcher.most <= 3 * WINDOW


def test_a_second_epoch_fetches_what_the_budget_does_not_hold(tmp_path, small_windows):
    """Shards of a slice each, so that no document goes on in another block."""
    train = [lengths(MIB // 2, seed) for seed in range(40)]
    folder = make_token_set(tmp_path / "set", train=train, val=[[50] * 40])
    with FileServer.of(folder) as server:
        blocks = sum(-(-path.stat().st_size // MIB) for path in folder.rglob("shards/train*.bin"))
        budget = blocks // 2 * MIB
        more = {"batch_size": 8, "seq_len": 512, "cache_dir": tmp_path / "c", "cache_bytes": budget}
        with RowLoader(f"{server.url}/set", epochs=1, **more) as loader:
            for _ in loader:
                pass
            first = server.tokens_served()
            for _ in loader:
                pass
            second = server.tokens_served() - first
    total = size(folder)
    assert first == pytest.approx(total, rel=0.12), "and some of the next epoch's first window"
    assert second == pytest.approx(total - budget, rel=0.12)


@pytest.fixture
def disk(tmp_path):
    """Makes a disk of so many MiB."""
    made = []

    def make(mib: int) -> Path:
        folder = tmp_path / f"disk{mib}"
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", folder]
        if subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("no tmpfs may be mounted here")
        made.append(folder)
        return folder

    yield make
    for folder in made:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_disk_that_fills_up_gives_blocks_back(folder, server, small_windows, disk):
    small, more = disk(18), f", cache_bytes={100 * MIB}"  # of a set of 27 MiB
    out, error = told(begin(read_code(server, small, more=more)))
    assert out.strip() == digest_of(folder), error
    left = os.statvfs(small)
    (small / "filler").write_bytes(bytes(left.f_bavail * left.f_frsize))
    out, error = told(begin(read_code(server, small, more=more + ", seed=9")))
    assert out.strip() == digest_of(folder, seed=9), error


def test_a_disk_that_stays_full_is_an_error_in_time(server, small_windows, disk):
    out, error = told(begin(read_code(server, disk(4), more=f", cache_bytes={100 * MIB}")))
    assert not out
    assert "cannot be written (No space left on device), and blocks that are there are all needed" in error


def test_a_pull_onto_a_disk_that_is_full_keeps_the_shards_that_fit(tmp_path, disk, capsys):
    """It evicts nothing of what it has fetched, and the next pull goes on with the rest."""
    folder = make_token_set(tmp_path / "set", train=[lengths(3 * MIB, seed) for seed in range(3)], val=[[50] * 40])
    small = disk(14)
    with FileServer.of(folder) as server:
        for _ in range(2):
            assert cli.main(["pull", f"{server.url}/set", str(small / "set")]) == 1
            assert "cannot be written (No space left on device)" in capsys.readouterr().err
        kept = {path.name for path in (small / "set" / "shards").glob("train*.json")}
        assert kept == {"train_0.000.json", "train_1.000.json"}
        assert server.tokens_served() < 2 * size(folder), "and not all again"


def test_what_nobody_reads_any_more_is_given_back_first(folder, server, small_windows, tmp_path):
    assert batches(f"{server.url}/set", cache_dir=tmp_path)
    other = make_token_set(tmp_path / "other", train=[lengths(3_000_000, 50)], val=[[50] * 40])
    with FileServer.of(other) as theirs:
        out, error = told(begin(read_code(theirs, tmp_path, more=f", cache_bytes={8 * MIB}")))
        assert out.strip() == digest_of(other), error
    assert used(tmp_path / TokenSet(folder).digest) < size(folder)


# ---------------------------------------------------------------------------- what is told


def test_nothing_that_lies_elsewhere_is_loaded_for_a_local_set(folder):
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}]\nfrom tokenmill import RowLoader\n"
        f"next(RowLoader({str(folder)!r}, batch_size=2, seq_len=64))\n"
        "assert not {'urllib3', 'boto3', 'fsspec'} & set(sys.modules), 'training loads numpy and torch alone'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_path_that_an_address_was_made_to_is_that_address(server, tmp_path):
    assert open_set(Path(f"{server.url}/set"), Kept(tmp_path)).display_name == f"{server.url}/set"


def test_fetched_blocks_are_those_that_rows_need(folder, server, small_windows, tmp_path):
    """A few batches of validation fetch no training."""
    assert same(batches(f"{server.url}/set", 3, split="val", cache_dir=tmp_path), batches(folder, 3, split="val"))
    assert not [path for path in server.served if "train" in path]


# ---------------------------------------------------------------------------- looking at it


@pytest.fixture(scope="module")
def whole(prepared, tmp_path_factory):
    """A set with a tokenizer, served."""
    with FileServer.of(prepared[1]) as server:
        yield prepared[1], server


def sanitize(capsys, *words) -> str:
    status = cli.main([str(word) for word in words])
    said = capsys.readouterr()
    assert status == 0, said.err
    return said.out


@pytest.mark.parametrize(
    "asked", [["--row", "3"], ["--document", "7"], ["--step", "2", "--batch-size", "2", "--world-size", "1"]]
)
def test_show_shows_the_same(whole, tmp_path, capsys, asked):
    folder, server = whole
    here = sanitize(capsys, "show", folder, *asked, "--seq-len", "128")
    here = here.replace(str(folder), f"{server.url}/set").replace(folder.name, "set")
    there = sanitize(capsys, "show", f"{server.url}/set", *asked, "--seq-len", "128", "--cache-dir", tmp_path)
    assert there == here


def test_a_report_says_the_same(whole, tmp_path, capsys):
    folder, server = whole
    page = tmp_path / "page.html"
    here = sanitize(capsys, "report", folder, "--out", page).replace(folder.name, "set")
    there = sanitize(capsys, "report", f"{server.url}/set", "--out", page, "--cache-dir", tmp_path / "c")
    assert there == here


def test_verify_reads_what_lies_there_and_keeps_nothing(whole, tmp_path, capsys, monkeypatch, impatient):
    folder, server = whole
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path))
    assert "0 bad, read in full" in sanitize(capsys, "verify", f"{server.url}/set")
    assert not list(tmp_path.iterdir())
    name = next(path for path in server.files if path.endswith(".bin"))
    right = server.files[name]
    server.files[name] = bytes([right[0] ^ 4]) + right[1:]
    try:
        assert cli.main(["verify", f"{server.url}/set"]) == 1
    finally:
        server.files[name] = right
    said = capsys.readouterr().out
    assert "1 bad" in said
    assert "expected CRC-32" in said
    assert f"tokenmill push FOLDER {server.url}/set --again" in said
    assert cli.main(["verify", f"{server.url}/set", "--drop-bad"]) == 1


def test_a_set_elsewhere_is_written_as_others_files(whole, tmp_path, capsys, monkeypatch):
    folder, server = whole
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    for tokens, out in ((folder, "here"), (f"{server.url}/set", "there")):
        sanitize(capsys, "convert", "out", "llm.c", tokens, tmp_path / out)
    assert tree(tmp_path / "here") == tree(tmp_path / "there")


def test_a_mixture_file_names_addresses(folder, server, tmp_path):
    path = tmp_path / "mixture.toml"
    path.write_text(f'[sources.web]\npath = "{server.url}/set"\n[weights]\nweb = 1\n')
    one = Mixture({"web": 1}, sources={"web": folder})
    assert same(batches(path, 50, epochs=None, cache_dir=tmp_path / "c"), batches(one, 50, epochs=None))
