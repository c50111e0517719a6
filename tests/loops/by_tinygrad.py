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
from tinygrad import Tensor, nn

from tokenmill.numpy import RowLoader

GLUE = {}
exec(Path(sys.argv[1]).read_text(), GLUE)


def train(out, steps, resume=False):
    loader, record, done = RowLoader(split="train", batch_size=2, seq_len=64), Record(), 0
    model = nn.Embedding(1000, 4)
    model.weight = Tensor(np.linspace(-1, 1, 4000, dtype=np.float32).reshape(1000, 4))
    if resume:
        saved = json.loads(out.read_text())
        model.weight, done = Tensor(np.array(saved["weight"], np.float32)), saved["step"]
        loader.load_state_dict(saved["data"])
    for inputs, targets in islice(GLUE["batches"](loader), steps - done):
        record.add(inputs.numpy())
        change = (model(inputs).sum(-1) - targets.cast("float") / 1000).mean()  # of all targets
        model.weight = (model.weight - 0.01 * change).realize()
        done += 1
        if done == 7:
            weight = model.weight.numpy().tolist()
            out.write_text(json.dumps({"step": done, "data": loader.state_dict(), "weight": weight}))
    return record, model.weight.numpy()


if __name__ == "__main__":
    out = Path(sys.argv[3]) / "saved.json"
    unbroken, weights = train(out, 12)
    resumed, again = train(out, 12, resume=True)
    assert np.array_equal(weights, again)
    tell("tinygrad", unbroken, resumed, 7, 2)
