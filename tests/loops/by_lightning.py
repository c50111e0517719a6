"""Lightning: python by_lightning.py GLUE RANKS FOLDER, where a token set is.

Resumes from ModelCheckpoint's files.
"""

import sys
import warnings
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from record import Record, tell
from torch.utils.data import DataLoader

from tokenmill import PackedRows, RowLoader

GLUE = {}
exec(Path(sys.argv[1]).read_text(), GLUE)
STEPS = 14
EVERY = 3
SETTINGS = {"split": "train", "batch_size": 2, "seq_len": 64}


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Embedding(1000, 4), torch.nn.Linear(4, 1000))
        self.record = Record()

    def training_step(self, batch, _):
        inputs, targets = batch
        self.record.add(inputs)
        return torch.nn.functional.cross_entropy(self.net(inputs).flatten(0, 1), targets.flatten())

    def validation_step(self, batch, _):
        self.net(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Of(L.LightningDataModule):
    """Whatever makes the loader, where the ranks are known; validation beside it."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def train_dataloader(self):
        return self.make()

    def val_dataloader(self):
        return DataLoader(
            PackedRows(split="val", batch_size=1, seq_len=64, epochs=1), batch_size=None
        )


def fit(data, folder, resume=None, every=EVERY, **more):
    torch.manual_seed(0)
    saving = ModelCheckpoint(
        dirpath=folder, filename="{step}", every_n_train_steps=every, save_top_k=-1
    )
    settings = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        "num_sanity_val_steps": 1,
        "limit_val_batches": 2,
        "val_check_interval": 4,
        "max_steps": STEPS,
        "check_val_every_n_epoch": None,
        "callbacks": [saving],
        "max_epochs": -1,
        "devices": "auto",
    }
    model = Model()
    L.Trainer(**settings | more).fit(model, datamodule=data, ckpt_path=resume)
    return model.record


def resumes_exactly(name, make, every=EVERY, **more):
    folder = Path(sys.argv[3], name)
    unbroken = fit(make(), folder, every=every, **more)
    accumulated = more.get("accumulate_grad_batches", 1)
    for step in range(2 * every, STEPS, every)[:2]:
        resumed = fit(make(), folder / f"after {step}", folder / f"step={step}.ckpt", every, **more)
        tell(f"{name}, after {step}", unbroken, resumed, step * accumulated, 2)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=PendingDeprecationWarning)
    limit = {"limit_train_batches": 5}
    resumes_exactly("the recipe", GLUE["Rows"], **limit)
    resumes_exactly("at an epoch's end", GLUE["Rows"], every=5, **limit)
    resumes_exactly("accumulating", GLUE["Rows"], limit_train_batches=10, accumulate_grad_batches=2)
    resumes_exactly("with a worker", GLUE["RowsOfAWorker"])
    resumes_exactly("epochs", lambda: Of(lambda: RowLoader(**SETTINGS, epochs=1)))
