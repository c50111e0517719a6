"""Lightning Fabric: python by_fabric.py GLUE RANKS FOLDER, where a token set is. Saves its state, and resumes."""

import os
import sys
from pathlib import Path

import lightning as L
import torch
from record import Record, tell

STEPS, SAVE = 14, 5
GLUE = {}
exec(Path(sys.argv[1]).read_text(), GLUE)


def train(fabric, path, num_workers, resume=False):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(1000, 4), torch.nn.Linear(4, 1000))
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
    loader = GLUE["make_loader"](fabric, num_workers)
    state, record = {"model": model, "optimizer": optimizer, "loader": loader, "step": 0}, Record()
    if resume:
        fabric.load(path, state)
    for inputs, targets in loader:
        record.add(inputs)
        loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        state["step"] += 1
        if state["step"] == SAVE and not resume:
            fabric.save(path, state)
        if state["step"] == STEPS:
            break
    return record


if __name__ == "__main__":
    several = int(sys.argv[2]) > 1
    fabric = L.Fabric(
        accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", 1)), strategy="ddp" if several else "auto"
    )
    fabric.launch()
    for workers in (0, 1):
        path = f"{sys.argv[3]}/{workers}.ckpt"
        unbroken = train(fabric, path, workers)
        resumed = train(fabric, path, workers, resume=True)
        tell("in this process" if not workers else "a worker", unbroken, resumed, SAVE, 2)
