"""A set of any size costs few open files and the same memory."""

import gc
import os
import subprocess
import sys

from making import ROOT, make_token_set, wait_until
from reference import SEQ_LEN, make_loader, rows_of


def test_few_files_are_open_at_once_however_many_shards_there_are(tmp_path):
    many = make_token_set(tmp_path / "many", train=[[9, 9, 9]] * 60, val=[[9]])
    before = len(os.listdir("/proc/self/fd"))
    for packing in ("best_fit", "concat", "nanochat"):
        loader = make_loader(many, packing=packing)
        for _ in range(100):
            next(loader)
            assert len(os.listdir("/proc/self/fd")) - before < 40
        del loader
        gc.collect()


def test_offsets_are_not_read_before_they_are_needed(tmp_path):
    many = make_token_set(tmp_path / "many", train=[[90, 9, 9]] * 20, val=[[9]])
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert int(done.stdout) < 2_000, "kB after 5,000 batches and hundreds of epochs"


def test_the_next_shard_is_planned_while_one_is_read(tmp_path):
    three = make_token_set(tmp_path / "three", train=[[17] * 200] * 3, val=[[9]])
    loader = make_loader(three, batch_size=1)
    next(loader)
    wait_until(lambda: len(loader.token_set._stamps) == 2)  # opened: the shard at hand, and the next
    assert loader.state_dict()["shard"] == 0
