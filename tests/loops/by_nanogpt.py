"""A loop of nanoGPT's shape, which nanochat's has too: python by_nanogpt.py GLUE RANKS FOLDER,
where a token set is.

The next batch is fetched before the position is taken, the master alone evaluates and saves, passes
are accumulated. With the lines of the diffs in docs/clients.md.
"""

import os
import sys

import torch
import torch.distributed as dist
from record import Record, tell

import tokenmill

eval_interval = 4
eval_iters = 3
batch_size = 2
block_size = 64
device = "cpu"
gradient_accumulation_steps = 4 // int(sys.argv[2])
ddp = int(sys.argv[2]) > 1
master_process = int(os.environ.get("RANK", 0)) == 0
packing = "best_fit"


def get_batch(split, purpose='train'):  # fmt: skip
    global data
    # before this batch, which is fetched ahead
    if purpose == 'train': data = tokenmill.state_dict()  # fmt: skip  # noqa: E701
    return tokenmill.get_batch(
        split, batch_size, block_size, device, purpose=purpose, packing=packing
    )


@torch.no_grad()
def estimate_loss(model):
    for split in ["train", "val"]:
        for _ in range(eval_iters):
            X, _ = get_batch(split, purpose='eval')  # fmt: skip
            model(X)


def train(out, max_iters, resume=False):
    tokenmill.load_state_dict({"get_batch": "[]"})
    model = torch.nn.Embedding(1000, 4)
    iter_num = 0
    record = Record()
    if resume:
        checkpoint = torch.load(out)
        iter_num = checkpoint['iter_num']  # fmt: skip
        tokenmill.load_state_dict(checkpoint['data'])  # fmt: skip
    X, Y = get_batch("train")
    while True:
        if iter_num % eval_interval == 0 and master_process:
            estimate_loss(model)
            torch.save({'iter_num': iter_num, 'data': data}, out)  # fmt: skip
        for _ in range(gradient_accumulation_steps):
            record.add(X)
            loss = model(X).sum() + Y.sum()
            X, Y = get_batch("train")
            loss.backward()
        if ddp:
            dist.all_reduce(model.weight.grad)
        iter_num += 1
        if iter_num > max_iters:
            return record


if __name__ == "__main__":
    if ddp:
        dist.init_process_group("gloo")
    for packing in ("best_fit", "nanochat"):
        unbroken = train(f"{sys.argv[3]}/whole.pt", 11)
        train(f"{sys.argv[3]}/stopped.pt", 6)
        resumed = train(f"{sys.argv[3]}/stopped.pt", 11, resume=True)
        tell(packing, unbroken, resumed, 4 * gradient_accumulation_steps, batch_size)
    if ddp:
        dist.destroy_process_group()
