"""A set of any size costs few open files and the same memory."""

import contextlib
import gc
import json
import os
from pathlib import Path

import pytest
import warm
from making import ROOT, make_token_set, of_shards, wait_until
from reference import SEQ_LEN, make_loader, of_source, rows_of

from tokenmill.feed.window_plans import WindowPlans
from tokenmill.feed.window_rows import WindowRows


def open_files(folder: Path) -> list[str]:
    """The files below a folder that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since, by another thread
            found.append(os.readlink(descriptor))
    return [name for name in found if name.startswith(str(folder))]


def test_no_file_stays_open_however_many_shards_there_are(tmp_path, windows):
    many = make_token_set(tmp_path / "many", train=[[9, 9, 9]] * 60, val=[[9]])
    for packing in ("best_fit", "concat", "nanochat"):
        for prefetch in (0, 2):
            loader = make_loader(many, packing=packing, prefetch=prefetch)
            for _ in range(100):
                next(loader)
            wait_until(lambda: not open_files(many))
            del loader
            gc.collect()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_few_shards_are_mapped_at_once_however_many_there_are(tmp_path, small_windows, prefetch):
    many = make_token_set(tmp_path / "many", train=[[9, 9, 9]] * 200, val=[[9]])  # a window has two or three
    loader = make_loader(many, prefetch=prefetch)
    for _ in range(200):
        next(loader)
        mapped = Path("/proc/self/maps").read_text().count(f"{many}/shards/train_")
        assert mapped < 2 * 3 * 8, "files of a few windows: those at hand, ahead, and held as plans"


@pytest.mark.slow
def test_20_000_shards_under_a_limit_of_256_open_files(tmp_path):
    """Of links to the files of one, as the number of shards alone matters."""
    one = make_token_set(tmp_path / "one", train=[[40] * 25], val=[[9]])
    (tmp_path / "many" / "shards").mkdir(parents=True)
    manifest = json.loads((one / "manifest.json").read_text())
    train, val = manifest["shards"]
    shards = [train | {"name": f"{number:05}"} for number in range(20_000)] + [val]
    (tmp_path / "many" / "manifest.json").write_text(json.dumps(of_shards(manifest, shards)))
    for number in range(20_000):
        for suffix in ("bin", "idx"):
            os.link(one / "shards" / f"train_0.000.{suffix}", tmp_path / "many" / "shards" / f"{number:05}.{suffix}")
    code = f"""
import resource, sys; sys.path.insert(0, {str(ROOT)!r})
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from tokenmill import RowLoader
loaders = [RowLoader({str(tmp_path / "many")!r}, batch_size=64, seq_len=512, prefetch=p) for p in (0, 2)]
for _ in range(100):
    first, second = (next(loader)[0] for loader in loaders)
    assert first.equal(second)
print("dealt")
"""
    done = warm.run("-c", code)
    assert (done.stdout, done.stderr) == ("dealt\n", "")


def test_offsets_are_not_read_before_they_are_needed(tmp_path, small_windows):
    many = make_token_set(tmp_path / "many", train=[[60]] * 20, val=[[9]])
    for path in sorted(many.glob("shards/train_*.idx"))[1:]:
        path.unlink()
    loader = make_loader(many, shuffle=False, prefetch=0)
    assert rows_of(next(loader))


def test_memory_stays_flat(token_set):
    code = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from tokenmill import RowLoader
def private():
    return int(next(line for line in open('/proc/self/status') if line.startswith('RssAnon')).split()[1])
loader = RowLoader({str(token_set)!r}, batch_size=8, seq_len={SEQ_LEN}, documents=True)
for step in range(6000):
    next(loader)
    if step == 1000:
        before = private()
print(private() - before)
"""
    done = warm.run("-c", code)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2_000, "kB after 5,000 batches and hundreds of epochs"


def test_the_next_window_is_planned_and_read_ahead_while_one_is_read(tmp_path, small_windows, monkeypatch):
    planned, read = [], []
    plan, reading = WindowPlans._plan, WindowRows.reading
    monkeypatch.setattr(WindowPlans, "_plan", lambda *asked: (planned.append(asked[1:]), plan(*asked))[1])
    monkeypatch.setattr(WindowRows, "reading", lambda rows: (read.append(rows), reading(rows))[1])
    loader = make_loader(make_token_set(tmp_path / "set", train=[[17] * 200] * 3, val=[[9]]), batch_size=1)
    next(loader)
    wait_until(lambda: len(read) == 2)
    assert planned == [(0, 0), (0, 1)]
    assert of_source(loader.state_dict(), "window") == 0
