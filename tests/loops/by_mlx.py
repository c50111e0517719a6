"""A loop in MLX: python by_mlx.py GLUE 1 FOLDER, where a token set is. Resumes from weights and a position as JSON."""

import json
import sys
from itertools import islice
from pathlib import Path

import mlx.core as mx
import numpy as np
from record import Record, tell

from tokenmill.numpy import RowLoader

GLUE = {}
exec(Path(sys.argv[1]).read_text(), GLUE)


def loss_of(table, inputs, targets):
    logits = table[inputs] @ table.T
    return mx.mean(mx.logsumexp(logits, -1) - mx.take_along_axis(logits, targets[..., None], -1)[..., 0])


def train(out, steps, resume=False):
    loader, record = RowLoader(split="train", batch_size=2, seq_len=64), Record()
    table, done = mx.random.normal((1000, 4), key=mx.random.key(0)), 0
    if resume:
        saved = json.loads((out / "data.json").read_text())
        table, done = mx.load(str(out / "model.npz"))["table"], saved["step"]
        loader.load_state_dict(saved["data"])
    for inputs, targets in islice(GLUE["batches"](loader), steps - done):
        assert (inputs.dtype, inputs.shape) == (mx.int32, (2, 64))
        record.add(np.asarray(inputs))
        table = table - 0.1 * mx.grad(loss_of)(table, inputs, targets)
        done += 1
        if done == 7:
            mx.savez(str(out / "model.npz"), table=table)
            (out / "data.json").write_text(json.dumps({"step": done, "data": loader.state_dict()}))
    return record, np.asarray(table)


if __name__ == "__main__":
    unbroken, weights = train(Path(sys.argv[3]), 12)
    resumed, again = train(Path(sys.argv[3]), 12, resume=True)
    assert np.array_equal(weights, again)
    tell("mlx", unbroken, resumed, 7, 2)
