"""A loop of the shape of nanochat's chat_sft.py: python chat_by_nanochat.py GLUE RANKS FOLDER, where a chat set is.

The next batch is fetched before the position is taken, and passes are accumulated. With the lines of docs/clients.md.
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from conversations import conversations, whole_ones
from record import Record, say, tell

from tokenmill import RowLoader as Loader
from tokenmill import TokenSet

GLUE = Path(sys.argv[1]).read_text()
device, ddp_world_size, grad_accum_steps = "cpu", int(sys.argv[2]), 2
master_process = int(os.environ.get("RANK", 0)) == 0


def train(out, num_iterations=-1, save_every=5, resuming=False):
    torch.manual_seed(0)
    args = SimpleNamespace(device_batch_size=2, max_seq_len=64, num_iterations=num_iterations)
    loop = {"args": args, "device": device, "ddp_world_size": ddp_world_size, "grad_accum_steps": grad_accum_steps}
    loop |= {"last_step": False, "approx_progress": 0.0, "current_epoch": 1}
    exec(GLUE, loop)
    rows, record, step, model = loop["rows"], Record(), 0, torch.nn.Embedding(1000, 1000)
    train_loader = loop["train_batches"]()
    if resuming:
        meta = torch.load(out)
        rows.load_state_dict(meta['rows'])  # fmt: skip
        model.load_state_dict(meta["model"])
        step = meta["step"]
    x, y = next(train_loader)
    while True:
        if step == save_every and not resuming:
            if master_process:
                position = loop["position"]
                torch.save({"step": step, "model": model.state_dict(),
                    "rows": position, # before x, y, which are not trained on
                }, out)  # fmt: skip
            if ddp_world_size > 1:
                dist.barrier()
        if loop["last_step"]:
            return record, loop
        for _ in range(grad_accum_steps):
            record.add(x)
            loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-1)
            loss.backward()
            x, y = next(train_loader)
        step += 1


def rows_are_nanochat_s():
    """Targets, and inputs up to the padding, are those that its loader makes of the same conversations."""
    bos, known = TokenSet("data/tokens/CHATS").bos_id, conversations(ignore_index=-1)
    sizes = {"batch_size": 4, "seq_len": 64, "ignore_index": -1, "long_documents": "drop"}
    for batch in Loader("data/tokens/CHATS", split="train", epochs=1, **sizes):
        for inputs, targets in zip(*batch, strict=True):
            row, mask = [], []
            for ids, labels in whole_ones(inputs[None], known, bos):
                row, mask = row + ids, mask + labels
            content, padding = row[:64], inputs.tolist()[len(row) :]  # nanochat's padding is BOS throughout
            if inputs.tolist()[: len(row)] != content or padding[:1] not in ([], [bos]):
                return False
            if targets.tolist() != (mask + [-1] * (65 - len(mask)))[1:]:
                return False
    return True


if __name__ == "__main__":
    if ddp_world_size > 1:
        dist.init_process_group("gloo")
    out = Path(sys.argv[3]) / "saved.pt"
    unbroken, ended = train(out)
    resumed, _ = train(out, resuming=True)
    tell("nanochat", unbroken, resumed, 5 * grad_accum_steps, 2)
    batches = ended["rows"].rows // (2 * ddp_world_size) if ended["rows"].epoch == 0 else None
    trained = len(unbroken.rows) // 2
    whole = batches is None or 0 <= trained - batches < grad_accum_steps
    say(f"an epoch: {'exact' if whole and ended['approx_progress'] == 1 else (trained, batches)}")
    if ddp_world_size == 1:
        say(f"rows: {rows_are_nanochat_s()}")
    if ddp_world_size > 1:
        dist.destroy_process_group()
