"""A small GPT in plain JAX, trained on a token set, on one process or on several:

    python examples/train_gpt_jax.py --tokens data/tokens/NAME --checkpoint checkpoints/jax

    for process in 0 1 2 3; do      # or `--distributed` on a cluster that JAX knows: SLURM, TPU, GKE ...
        python examples/train_gpt_jax.py ... --coordinator localhost:12321 --processes 4 --process $process &
    done; wait

The batch is split over all devices of all processes, and the model is on each of them. Orbax saves the model, the
optimizer and the position in the data. If the run is killed, run it again, on any number of processes: it continues
after the last checkpoint with exactly the rows that an undisturbed run gets. `--checksums` prints a checksum of every
step's rows, so that you can compare runs.

It needs jax, optax, orbax-checkpoint and tyro, and no torch.
"""

import math
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import tyro
from jax.sharding import NamedSharding, PartitionSpec

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # a clone's tokenmill, if none is installed

from tokenmill.jax import RowLoader


@dataclass(frozen=True)
class TrainConfig:
    """Trains a small GPT on a token set with JAX."""

    tokens: Path | None = None  # the token set's folder; by default the one under data/tokens
    layers: int = 4  # transformer blocks
    width: int = 192  # of the residual stream
    heads: int = 4  # of attention
    seq_len: int = 256  # tokens of an input
    total_rows: int = 16  # of one step, over all processes
    steps: int = 180  # of the whole run, including those of the run that it continues
    learning_rate: float = 2e-3  # at its highest; then down to a tenth along a cosine
    warmup: int = 20  # steps
    val_every: int = 60  # steps between validations, which take val_batches batches
    val_batches: int = 8  # of one validation
    # a folder of checkpoints; the run continues from the last one in it
    checkpoint: Path | None = None
    save_every: int = 20  # steps between checkpoints
    checksums: bool = False  # print a checksum of every step's rows, to compare runs by
    seed: int = 1337  # of the model's first weights
    distributed: bool = False  # several processes of a cluster that JAX knows
    coordinator: str | None = None  # or the first process's host:port, with processes and process
    processes: int = 1  # how many there are
    process: int = 0  # which one this is


# ---------------------------------------------------------------------------- the model


def init(config: TrainConfig, vocab_size: int) -> dict:
    """Its first weights, the same on every process."""
    width, keys = (
        config.width,
        iter(jax.random.split(jax.random.key(config.seed), 2 + 4 * config.layers)),
    )
    small = 0.02 / math.sqrt(2 * config.layers)

    def normal(rows: int, columns: int, std: float = 0.02) -> jax.Array:
        return std * jax.random.normal(next(keys), (rows, columns))

    blocks = [
        {
            "qkv": normal(width, 3 * width),
            "out": normal(width, width, small),
            "up": normal(width, 4 * width),
            "down": normal(4 * width, width, small),
        }
        for _ in range(config.layers)
    ]
    return {
        "embedding": normal(vocab_size, width),
        "blocks": blocks,
        "head": normal(width, vocab_size),
    }


def norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6)


def rotate(x: jax.Array) -> jax.Array:
    """Rotary positions (Su et al., 2021), halves paired: (B, T, heads, width of a head)."""
    half = x.shape[-1] // 2
    angles = jnp.outer(jnp.arange(x.shape[1]), 10_000.0 ** (-jnp.arange(half) / half))[
        :, None
    ]  # (T, 1, half)
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate(
        [a * jnp.cos(angles) - b * jnp.sin(angles), a * jnp.sin(angles) + b * jnp.cos(angles)], -1
    )


def logits_of(weights: dict, inputs: jax.Array, heads: int) -> jax.Array:
    """(B, T) -> (B, T, vocab_size)."""
    x = weights["embedding"][inputs]
    for block in weights["blocks"]:
        q, k, v = jnp.split(
            (norm(x) @ block["qkv"]).reshape(*x.shape[:2], 3 * heads, -1), 3, axis=2
        )
        mixed = jax.nn.dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        x = x + mixed.reshape(x.shape) @ block["out"]
        x = x + jnp.square(jax.nn.relu(norm(x) @ block["up"])) @ block["down"]
    return norm(x) @ weights["head"]


def loss_of(weights: dict, inputs: jax.Array, targets: jax.Array, heads: int) -> jax.Array:
    """The mean over the targets of the global batch that are in the loss, in nats: all of them in a set of text."""
    in_loss = targets >= 0
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits_of(weights, inputs, heads), jnp.maximum(targets, 0)
    )
    return jnp.sum(losses * in_loss) / jnp.maximum(1, jnp.sum(in_loss))


# ---------------------------------------------------------------------------- training


def make_optimizer(config: TrainConfig) -> optax.GradientTransformation:
    peak, warmup = config.learning_rate, max(1, min(config.warmup, config.steps // 2))
    rate = optax.warmup_cosine_decay_schedule(peak / warmup, peak, warmup, config.steps, peak / 10)
    return optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(rate, b1=0.9, b2=0.95, weight_decay=0.1)
    )


@partial(jax.jit, static_argnames=("optimizer", "heads"), donate_argnames="state")
def step(
    state: dict, inputs: jax.Array, targets: jax.Array, optimizer, heads: int
) -> tuple[dict, jax.Array]:
    """JAX adds up the gradients of all devices, as the batch is split over them and the weights are not."""
    loss, gradients = jax.value_and_grad(loss_of)(state["weights"], inputs, targets, heads)
    updates, optimizer_state = optimizer.update(gradients, state["optimizer"], state["weights"])
    return {
        "weights": optax.apply_updates(state["weights"], updates),
        "optimizer": optimizer_state,
    }, loss


@jax.jit
def checksum(inputs: jax.Array) -> jax.Array:
    """Of a global batch's rows, in whatever order: each is hashed, and the hashes are added up, modulo 2^32."""
    places = jnp.arange(inputs.shape[1], dtype=jnp.uint32)
    hashed = (inputs.astype(jnp.uint32) + 1) * (places * jnp.uint32(2654435761) + 1)
    rows = jnp.sum(hashed, axis=1, dtype=jnp.uint32)
    return jnp.sum((rows ^ (rows >> 15)) * jnp.uint32(2246822519), dtype=jnp.uint32)


def make_loader(config: TrainConfig, split: str) -> RowLoader:
    """A loader of `total_rows` a step, split over all devices."""
    batch_size, rest = divmod(config.total_rows, jax.process_count())
    if rest or not batch_size:
        raise SystemExit(
            f"--total-rows {config.total_rows} is no multiple of {jax.process_count()} processes"
        )
    try:
        return RowLoader(config.tokens, split, batch_size=batch_size, seq_len=config.seq_len)
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error


def bits_per_byte(weights: dict, config: TrainConfig) -> float:
    """The loss on the first validation batches, in bits a byte of text: comparable whatever the tokenizer."""
    with make_loader(config, "val") as loader:
        token_bytes = jnp.asarray(np.load(loader.token_set.path / "token_bytes.npy"))
        sums = np.zeros(2)  # nats, bytes
        for _ in range(config.val_batches):
            sums += np.asarray(nats_and_bytes(weights, *next(loader), token_bytes, config.heads))
    return sums[0] / sums[1] / math.log(2)


@partial(jax.jit, static_argnames="heads")
def nats_and_bytes(
    weights: dict, inputs: jax.Array, targets: jax.Array, token_bytes: jax.Array, heads: int
):
    counts = token_bytes[jnp.maximum(targets, 0)] * (targets >= 0)  # 0 for special tokens
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits_of(weights, inputs, heads), jnp.maximum(targets, 0)
    )
    return jnp.stack([jnp.sum(losses * (counts > 0)), jnp.sum(counts).astype(jnp.float32)])


def open_checkpoints(config: TrainConfig) -> ocp.CheckpointManager | None:
    """Orbax writes a checkpoint whole or not at all, in the background."""
    if config.checkpoint is None:
        return None
    options = ocp.CheckpointManagerOptions(max_to_keep=2, save_interval_steps=1)
    return ocp.CheckpointManager(config.checkpoint.absolute(), options=options)


def shape_of(config: TrainConfig, vocab_size: int) -> dict[str, int]:
    """What a checkpoint's model must have in common with the one that continues from it."""
    return {name: asdict(config)[name] for name in ("layers", "width", "heads")} | {
        "vocab_size": vocab_size
    }


def resume(checkpoints, state: dict, loader: RowLoader, shape: dict[str, int]) -> tuple[int, dict]:
    """The steps that are done, and the state after them: that of the last checkpoint, if there is one."""
    last = None if checkpoints is None else checkpoints.latest_step()
    if last is None:
        return 0, state
    there = checkpoints.restore(last, args=ocp.args.Composite(shape=ocp.args.JsonRestore()))[
        "shape"
    ]
    if there != shape:
        raise SystemExit(
            f"{checkpoints.directory}: is of a model with {there}, this one has {shape}"
        )
    like = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
    found = checkpoints.restore(
        last,
        args=ocp.args.Composite(state=ocp.args.StandardRestore(like), data=ocp.args.JsonRestore()),
    )
    loader.load_state_dict(found["data"])  # the exact next row
    return last, found["state"]


def save(checkpoints, done: int, state: dict, loader: RowLoader, shape: dict[str, int]) -> None:
    items = {"data": ocp.args.JsonSave(loader.state_dict()), "shape": ocp.args.JsonSave(shape)}
    checkpoints.save(done, args=ocp.args.Composite(state=ocp.args.StandardSave(state), **items))


def train(config: TrainConfig) -> None:
    if config.distributed:
        jax.distributed.initialize()
    elif config.coordinator:
        jax.distributed.initialize(config.coordinator, config.processes, config.process)
    elif config.processes > 1 or config.process:
        raise SystemExit(
            "--processes and --process need --coordinator HOST:PORT, the address of the first process"
        )
    say = partial(print, flush=True) if jax.process_index() == 0 else lambda *_: None
    with make_loader(config, "train") as loader:
        everywhere = NamedSharding(loader.sharding.mesh, PartitionSpec())
        optimizer, shape = make_optimizer(config), shape_of(config, loader.vocab_size)

        @partial(jax.jit, out_shardings=everywhere)
        def begin() -> dict:
            weights = init(config, loader.vocab_size)
            return {"weights": weights, "optimizer": optimizer.init(weights)}

        checkpoints = open_checkpoints(config)
        first, state = resume(checkpoints, begin(), loader, shape)
        size = sum(array.size for array in jax.tree.leaves(state["weights"]))
        devices = f"{jax.device_count()} devices of {jax.process_count()} processes"
        say(f"{size / 1e6:.1f}M parameters, {devices}, from step {first} to {config.steps}")
        if first >= config.steps:
            say(
                f"{config.checkpoint} has all of these steps; give more --steps, or another --checkpoint"
            )
        started, waited = time.perf_counter(), loader.waited
        for done in range(first + 1, config.steps + 1):
            inputs, targets = next(loader)
            state, loss = step(state, inputs, targets, optimizer, config.heads)
            facts = [f"step {done:4}", f"loss {float(loss):.6f}"]  # waits for the step
            spent, started = time.perf_counter() - started, time.perf_counter()
            facts += [f"{config.total_rows * config.seq_len / spent:,.0f} tokens/s"]
            facts += [f"waited for data {(loader.waited - waited) / spent:.2%}"]
            waited = loader.waited
            say(
                "  ".join(
                    [*facts, *([f"rows {int(checksum(inputs)):08x}"] if config.checksums else [])]
                )
            )
            if done % config.val_every == 0 or done == config.steps:
                say(
                    f"step {done:4}  validation {bits_per_byte(state['weights'], config):.4f} bits per byte"
                )
            if checkpoints and (done % config.save_every == 0 or done == config.steps):
                save(checkpoints, done, state, loader, shape)
        if checkpoints:
            checkpoints.close()  # waits until the last one is written


if __name__ == "__main__":
    train(tyro.cli(TrainConfig))
