"""Chat sets in Lightning: python chat_by_lightning.py GLUE RANKS FOLDER. Resumes from ModelCheckpoint's files."""

import os
import sys
import warnings
from pathlib import Path

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from record import Record, say, tell

GLUE = {}
exec(Path(sys.argv[1]).read_text(), GLUE)
STEPS, EVERY, RANKS = 8, 3, int(sys.argv[2])


class Model(GLUE["FineTuned"]):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Embedding(1000, 4), torch.nn.Linear(4, 1000))
        self.record, self.losses, self.right = Record(), [], True

    def training_step(self, batch, number):
        self.record.add(batch[0])
        loss = super().training_step(batch, number)
        share = torch.tensor([float(loss.detach()), float((batch[1] != -100).sum())])
        if dist.is_initialized():
            dist.all_reduce(share)
        self.losses.append(float(share[0]) / self.trainer.world_size)
        self.right &= int(share[1]) == self.trainer.train_dataloader.targets
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(folder, resume=None):
    torch.manual_seed(0)
    saving = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=EVERY, save_top_k=-1)
    told = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    told |= {"max_steps": STEPS, "callbacks": [saving], "max_epochs": -1, "limit_train_batches": 5}
    told |= {"devices": RANKS, "strategy": "ddp" if RANKS > 1 else "auto"}
    model = Model()
    L.Trainer(**told).fit(model, datamodule=GLUE["Chats"](), ckpt_path=resume)
    return model


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=PendingDeprecationWarning)
    folder = Path(sys.argv[3])
    unbroken = fit(folder)
    resumed = fit(folder / "resumed", folder / f"step={EVERY}.ckpt")
    tell("Lightning", unbroken.record, resumed.record, EVERY, 2)
    rank = int(os.environ.get("LOCAL_RANK", 0))
    same = torch.allclose(torch.tensor(unbroken.losses[EVERY:]), torch.tensor(resumed.losses), rtol=1e-6)
    say(f"targets: {'exact' if unbroken.right and resumed.right else 'differ'}")
    say(f"losses: {'exact' if same else f'differ {unbroken.losses[EVERY:]} {resumed.losses} on {rank}'}")
