"""A loop in tinygrad: python by_tinygrad.py GLUE 1 FOLDER, where a token set is. Resumes from a position as JSON."""

import json
import os
import shutil
import sys
from itertools import islice
from pathlib import Path

if shutil.which("clang") is None:
    os.environ["DEV"] = "PYTHON"  # its device for the CPU compiles with clang
import numpy as np
from record import Record, tell
from tinygrad import Tensor

from tokenmill.numpy import RowLoader

GLUE = {}
exec(Path(sys.argv[1]).read_text(), GLUE)


def train(out, steps, resume=False):
    loader, record, done = RowLoader(split="train", batch_size=2, seq_len=64), Record(), 0
    # small, as the device that needs no compiler runs each operation of each number in Python
    weight = Tensor(np.linspace(-1, 1, 64, dtype=np.float32))
    if resume:
        saved = json.loads(out.read_text())
        weight, done = Tensor(np.array(saved["weight"], np.float32)), saved["step"]
        loader.load_state_dict(saved["data"])
    for inputs, targets in islice(GLUE["batches"](loader), steps - done):
        record.add(inputs.numpy())
        error = (inputs.cast("float") / 1000 * weight).sum(-1) - targets.cast("float").mean(-1) / 1000  # (B,)
        weight = (weight - 0.01 * (error.reshape(-1, 1) * inputs.cast("float") / 1000).mean(0)).realize()
        done += 1
        if done == 7:
            saved = {"step": done, "data": loader.state_dict(), "weight": weight.numpy().tolist()}
            out.write_text(json.dumps(saved))
    return record, weight.numpy()


if __name__ == "__main__":
    out = Path(sys.argv[3]) / "saved.json"
    unbroken, weights = train(out, 12)
    resumed, again = train(out, 12, resume=True)
    assert np.array_equal(weights, again)
    tell("tinygrad", unbroken, resumed, 7, 2)
