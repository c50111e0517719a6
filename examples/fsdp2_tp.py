"""FSDP2 and tensor parallelism: ranks that work on one row get the same row, the others get others.

    torchrun --nproc-per-node 4 examples/fsdp2_tp.py data/tokens/NAME --tp 2

The loader is given the data-parallel part of the DeviceMesh, and nothing else changes. In torchtitan that part is the
mesh that its own dataloader gets its rank from, as `parallel_dims.world_mesh["dp"]`. The position is the same on every
rank, so any one may save it.
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # in a clone, where tokenmill is not installed

from tokenmill import RowLoader

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("tokens", help="a token set's folder")
parser.add_argument("--tp", type=int, default=2, help="ranks that share a row")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--seq-len", type=int, default=64)


def train(arguments: argparse.Namespace, device: str) -> None:
    mesh = init_device_mesh(
        device, (dist.get_world_size() // arguments.tp, arguments.tp), mesh_dim_names=("dp", "tp")
    )
    settings = {"batch_size": arguments.batch_size, "seq_len": arguments.seq_len, "device": device}
    loader = RowLoader(arguments.tokens, **settings, mesh=mesh["dp"])
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(loader.vocab_size, 64),
        torch.nn.Linear(64, 256),
        torch.nn.GELU(),
        torch.nn.Linear(256, 64),
        torch.nn.Linear(64, loader.vocab_size),
    ).to(device)
    parallelize_module(model, mesh["tp"], {"1": ColwiseParallel(), "3": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(arguments.steps):
        inputs, targets = next(loader)
        loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        told = f"step {step} rank {dist.get_rank()} place {mesh.get_coordinate()} rows {int(inputs.sum())}"
        print(
            f"{told} loss {loss.item():.4f}\n", end="", flush=True
        )  # in one piece, as all ranks write here


if __name__ == "__main__":
    arguments, device = parser.parse_args(), "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    train(arguments, device)
    dist.destroy_process_group()
