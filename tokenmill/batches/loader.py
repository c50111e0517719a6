"""RowLoader: batches of a token set for one rank as torch tensors, resumable to the exact row.

loader = RowLoader("data/tokens/NAME", "train", batch_size=32, seq_len=2048, device="cuda")
for inputs, targets in loader:
    checkpoint["data"] = loader.state_dict()      # the same on every rank
"""

import os
from typing import Any

import torch

from tokenmill.batches.base_loader import BaseLoader
from tokenmill.batches.torch_arrays import StreamArrays, TorchArrays, arrays_for, find_device
from tokenmill.feed.config import LoaderConfig, PackingName, Tokens
from tokenmill.feed.table import Loss
from tokenmill.rows.packing import LongDocuments
from tokenmill.store.shards import Split


class RowLoader(BaseLoader[tuple[torch.Tensor, torch.Tensor]]):
    """Batches of one split for one rank: an iterator of (inputs, targets), each (B, T) int64.

    Inputs are the first `seq_len` tokens of each row, and targets the last `seq_len`.

    How iteration works:

    - Without `epochs`, the loader is endless: one stream of batches. A `for` after a `break`
      continues, as `next` does.
    - With `epochs=N`, it behaves like a DataLoader. Each `for` (or `iter`, or `list`) iterates over
      N epochs. The next one, after the end, a `break` or an error, iterates over the following N
      epochs, in a new random order (validation repeats the same order). After `load_state_dict`,
      the first `for` is the rest of the position's iteration, or the next one if no batch is left.
    - `set_epoch(e)` moves to the first row of epoch e. Right after you load a position within epoch
      e it changes nothing, so a loop over epochs can always call it.

    Closing or deleting the loader, or leaving its `with` block, ends its threads and releases its
    files. Use a loader from one thread at a time.

    | parameter | |
    | --- | --- |
    | tokens | a token set's folder or address, a Mixture, its .toml; None: the set in data/tokens |
    | split | "train" or "val" |
    | view | the name of a view of the token set: how often each document counts (docs/views.md) |
    | batch_size | B, the rows of this rank in each batch |
    | seq_len | T, the tokens of an input; a row has one more |
    | device | the device of the batches, as torch names it |
    | packing | how rows are made: "best_fit", "nanochat", "concat", "random" (docs/packing.md) |
    | long_documents | longer than a row, with best_fit: "split" or "crop"; chats: docs/chat.md |
    | shuffle | the slices of all shards; False: shards in order in every epoch (docs/order.md) |
    | seed | seed of every random order, except validation's, which is fixed; nanochat has none |
    | epochs | the number of epochs in an iteration; by default the loader is endless |
    | drop_last | drop last rows that are fewer than a global batch, or return shorter batches; |
    |   | without an end, as without `epochs`, there are none |
    | loss | which tokens of text are targets: "all"; "once": not filler and BOS; "skip_cuts": not |
    |   | the first 16 after an inserted BOS (docs/packing.md); the last two with best_fit |
    | ignore_index | the target where a token is not in the loss: -100 as in torch, -1 in nanochat |
    | prefetch | how many batches a thread makes ahead; 0 makes each batch when you ask for it |
    | rank, world_size | by default those of torch.distributed, jax.distributed, torchrun, or 0, 1 |
    | mesh | or the data-parallel part of a DeviceMesh, as mesh["dp"]; one place in it is one rank |
    | cache_dir | of remote token sets: by default TOKENMILL_CACHE, or ~/.cache/tokenmill/remote |
    | cache_bytes | the limit of that cache, as "50G"; by default 90% of what is free or its own |

    With drop_last=False, the last batch of some ranks may be one row shorter than that of others,
    or even empty, so that all ranks make the same number of calls.

    A mixture ends when the sources of its last stage are used up, if all of these have max_epochs.
    If it has chat sets, `long_documents` is about these alone.

    `loader.targets` is the number of targets of the global batch that was returned last that are in
    the loss, the same on every rank: divide the sum of the losses of all ranks by it.
    `loader.row_sources` has the number of each of its rows' source in `loader.sources`, (B,).
    `loader.pieces` says which documents their tokens are of, and `loader.column(name)` what a kept
    column says of each (docs/mixtures.md). `loader.waited` is the seconds spent in `next`.

    FileNotFoundError if there is no token set. ValueError if a setting is invalid, a file does not
    match the manifest, an iteration would have no batch, ranks ask for different rows, or this
    process's rank has changed. The next call raises an error of a background thread; the call after
    that tries again.
    """

    def __init__(
        self,
        tokens: Tokens = None,
        split: Split = "train",
        *,
        batch_size: int,
        seq_len: int,
        device: str | int | torch.device = "cpu",
        view: str | None = None,
        packing: PackingName = "best_fit",
        long_documents: LongDocuments = "split",
        shuffle: bool = True,
        seed: int = 1337,
        epochs: int | None = None,
        drop_last: bool = True,
        loss: Loss = "all",
        ignore_index: int = -100,
        prefetch: int = 2,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
    ) -> None:
        self._set_up(LoaderConfig.of(locals()))

    def _make_arrays(self) -> TorchArrays | StreamArrays:
        self.device = find_device(self.config.device)
        return arrays_for(self.device, self.config.ignore_index)
