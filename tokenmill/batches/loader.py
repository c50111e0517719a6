"""RowLoader: batches of a token set for one rank as torch tensors, resumable to the exact row.

    loader = RowLoader("data/tokens/NAME", "train", batch_size=32, seq_len=2048, device="cuda")
    for inputs, targets in loader:
        checkpoint["data"] = loader.state_dict()      # the same dict on every rank

This module has the parameters and the device. base_loader.py has the methods, and loader_core.py makes the batches.
"""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

import torch

from tokenmill.batches.base_loader import BaseLoader
from tokenmill.batches.torch_batch import Form
from tokenmill.batches.torch_devices import find_device
from tokenmill.batches.torch_transfer import make_transfer
from tokenmill.batches.transfer import Transfer
from tokenmill.feed.loader_config import LoaderConfig, Loss, Packing, Tokens
from tokenmill.rows.packing import LongDocuments
from tokenmill.store.shards import Split

Pair = tuple[torch.Tensor, torch.Tensor]  # inputs, targets
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # and document_ids
Tensors = tuple[torch.Tensor, ...]  # either of them
if TYPE_CHECKING:
    from typing_extensions import TypeVar  # typing.TypeVar has no `default` before Python 3.13

    Item = TypeVar("Item", bound=Tensors, default=Pair)
else:
    from typing import TypeVar

    Item = TypeVar("Item")


class RowLoader(BaseLoader[Item], Generic[Item]):
    """Batches of one split for one rank: an iterator of (inputs, targets), each (B, T) int64.

    Inputs are the first `seq_len` tokens of each row, and targets the last `seq_len`. A batch stays valid for as long
    as you hold it.

    How iteration works:

    - Without `epochs`, the loader is endless: one stream of batches. A `for` after a `break` continues, as `next` does.
    - With `epochs=N`, it behaves like a DataLoader. Each `for` iterates over N epochs. The next `for`, after the end or
      a `break`, iterates over the following N epochs, in a new random order (validation repeats the same order). After
      `load_state_dict`, the first `for` is the rest of the iteration that the position is in.
    - `set_epoch(e)` moves to the first row of epoch e. Right after you load a position within epoch e it changes
      nothing, so a loop over epochs can always call it.

    Closing the loader, or leaving its `with` block, ends its threads and releases its files. So does deleting it.

    | parameter | |
    | --- | --- |
    | tokens | folder or address of a token set (docs/remote.md), a Mixture or its .toml; None: the one in data/tokens |
    | split | "train" or "val" |
    | view | the name of a view of the token set: its documents, each as often as it counts (docs/views.md) |
    | batch_size | B, the rows of this rank in each batch |
    | seq_len | T, the tokens of an input; a row has one more |
    | device | the device of the batches, as torch names it |
    | packing | how rows are made: "best_fit", "nanochat", "concat" or "random" (docs/packing.md) |
    | long_documents | with best_fit: "split" a document longer than a row, or "crop" it; of chat sets docs/chat.md |
    | shuffle | shuffle the slices of all shards; False: shards in order, the same in every epoch (docs/order.md) |
    | seed | seed of every random order, except validation's, which is fixed |
    | skip_rows | exactly the rows to leave out, as ["0:12:100-163"]; by default those that a loaded position lists |
    | epochs | the number of epochs in an iteration; by default the loader is endless |
    | drop_last | with epochs: drop the last rows if they are fewer than a global batch, or return shorter batches |
    | documents | add document_ids to batches, (B, T) int32: which document of its row each token belongs to |
    | loss | which tokens of text bear loss: "all", or "once": not filler and BOS (docs/chat.md) |
    | ignore_index | the target that stands where a token bears no loss: -100 as in torch, -1 in nanochat |
    | sources | add the number of each row's source in loader.sources to a mixture's batches, (B,) int64 |
    | prefetch | how many batches a thread makes ahead; 0 makes each batch when you ask for it |
    | rank, world_size | by default those of torch.distributed or jax.distributed, else of torchrun, else 0 of 1 |
    | mesh | or the data-parallel part of a DeviceMesh, mesh["dp"]; ranks with the same place in it get the same rows |
    | cache_dir | where to cache blocks of remote token sets: by default TOKENMILL_CACHE, or ~/.cache/tokenmill/sets |
    | cache_bytes | the size limit of that cache, as 50_000_000_000 or "50G"; by default 90% of the free space |

    With drop_last=False, the last batch of some ranks may be one row shorter than that of others, or even empty, so
    that all ranks make the same number of calls.

    A mixture has no epochs of its own. It is endless, or with on_cap="retire" it ends when all sources are used up.

    Raises FileNotFoundError if there is no token set. Raises ValueError if a setting is invalid, a file does not match
    the manifest, an iteration would have no batch, rows to skip do not exist, ranks ask for different rows, or this
    process's rank has changed. An error in a background thread is raised by the next call; the call after that tries
    again.
    """

    # fmt: off
    @overload
    def __init__(
        self: "RowLoader[Pair]", tokens: Tokens = None, split: Split = "train", *,
        batch_size: int, seq_len: int, device: str | int | torch.device = "cpu", packing: Packing = "best_fit",
        view: str | None = None, long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337,
        skip_rows: Iterable[str] | None = None, epochs: int | None = None, drop_last: bool = True,
        documents: Literal[False] = False, sources: Literal[False] = False, prefetch: int = 2,
        loss: Loss = "all", ignore_index: int = -100,
        rank: int | None = None, world_size: int | None = None, mesh: Any = None,
        cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | str | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: "RowLoader[Triple]", tokens: Tokens = None, split: Split = "train", *,
        batch_size: int, seq_len: int, device: str | int | torch.device = "cpu", packing: Packing = "best_fit",
        view: str | None = None, long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337,
        skip_rows: Iterable[str] | None = None, epochs: int | None = None, drop_last: bool = True,
        documents: Literal[True], sources: Literal[False] = False, prefetch: int = 2,
        loss: Loss = "all", ignore_index: int = -100,
        rank: int | None = None, world_size: int | None = None, mesh: Any = None,
        cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | str | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: "RowLoader[Tensors]", tokens: Tokens = None,
        split: Split = "train", *,
        batch_size: int, seq_len: int, device: str | int | torch.device = "cpu", packing: Packing = "best_fit",
        view: str | None = None, long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337,
        skip_rows: Iterable[str] | None = None, epochs: int | None = None, drop_last: bool = True,
        documents: bool = False, sources: bool = False, prefetch: int = 2,
        loss: Loss = "all", ignore_index: int = -100,
        rank: int | None = None, world_size: int | None = None, mesh: Any = None,
        cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | str | None = None,
    ) -> None: ...
    # fmt: on

    def __init__(
        self,
        tokens: Tokens = None,
        split: Split = "train",
        *,
        batch_size: int,
        seq_len: int,
        device: str | int | torch.device = "cpu",
        view: str | None = None,
        packing: Packing = "best_fit",
        long_documents: LongDocuments = "split",
        shuffle: bool = True,
        seed: int = 1337,
        skip_rows: Iterable[str] | None = None,
        epochs: int | None = None,
        drop_last: bool = True,
        documents: bool = False,
        sources: bool = False,
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

    def _find_device(self) -> torch.device:
        return find_device(self.config.device)

    def _make_transfer(self, shape: tuple[int, int], bos_id: int | None, buffers: int) -> Transfer:
        form = Form(bos_id, self.config.ignore_index)
        return make_transfer(self.device, shape, self.token_set.numpy_dtype, form, buffers)
