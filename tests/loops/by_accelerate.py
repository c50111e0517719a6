"""Accelerate: python by_accelerate.py GLUE RANKS FOLDER, where a token set is.

Saves its state, and goes on from it.
"""

import gc
import sys
from itertools import islice
from pathlib import Path

import torch
import torch.distributed.nn.functional  # noqa: F401 (see docs/resuming.md#ranks)
from accelerate import Accelerator
from record import Record, say, tell
from torch.utils.data import DataLoader

from tokenmill import PackedRows, RowLoader

SETTINGS = {"split": "train", "batch_size": 2, "seq_len": 64}


def train(accelerator, folder, save=None, resume=None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(1000, 4), torch.nn.Linear(4, 1000))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    glue = {"accelerator": accelerator, "model": model, "optimizer": optimizer}
    exec(Path(sys.argv[1]).read_text(), glue)
    model = glue["model"]
    optimizer = glue["optimizer"]
    record = Record()
    if resume is not None:
        accelerator.load_state(f"{folder}/{resume}")
    for step, (inputs, targets) in enumerate(islice(glue["loader"], 14 - (resume or 0)), 1):
        record.add(inputs)
        loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if save is not None and step % save == 0:
            accelerator.save_state(f"{folder}/{step}")
    for kept in ("_models", "_optimizers", "_custom_objects"):
        getattr(accelerator, kept).clear()
    return record


if __name__ == "__main__":
    accelerator = Accelerator(cpu=True)
    folder = sys.argv[3]
    unbroken = train(accelerator, folder, save=5)
    for step in (5, 10):
        resumed = train(accelerator, folder, resume=step)
        tell(f"register_for_checkpointing, after {step}", unbroken, resumed, step, 2)
    if accelerator.num_processes == 1:
        rows = DataLoader(PackedRows(**SETTINGS), batch_size=None)
        prepared = [inputs for inputs, _ in islice(accelerator.prepare(rows), 5)]
        expected = (inputs for inputs, _ in RowLoader(**SETTINGS))
        say(f"prepared: {all(map(torch.equal, prepared, expected))}")
    gc.collect()  # DDP goes before its process group does (docs/resuming.md#ranks)
    accelerator.end_training()
