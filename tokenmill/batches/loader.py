"""RowLoader: batches of a token set for one rank, resumable to the exact row.

    loader = RowLoader("data/tokens/NAME", "train", batch_size=32, seq_len=2048, device="cuda")
    for inputs, targets in loader:
        checkpoint["data"] = loader.state_dict()      # the same dict on every rank

Here is what a user says to it and what it tells; how batches are made is chain.py's. Nothing is stored beside the
tokens: the position is (epoch, shard, row) and what must match for it to mean anything, and going there plans one
shard anew. Packings and order are told in rows/packing.py, rows/nanochat.py and rows/stream.py.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, overload

import torch

from tokenmill.batches.chain import Chain
from tokenmill.batches.config import LoaderConfig, Packing
from tokenmill.batches.notebook import draw
from tokenmill.rows.packing import LongDocuments
from tokenmill.rows.position import position_of, read_position
from tokenmill.rows.skipped import parse_skipped
from tokenmill.store.shards import Split

FEW_DOCUMENTS = 1_000_000  # whose rows are counted at once, in a tenth of a second or two

Pair = tuple[torch.Tensor, torch.Tensor]  # inputs, targets
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # and document_ids
Tensors = tuple[torch.Tensor, ...]  # either
if TYPE_CHECKING:
    from typing_extensions import TypeVar  # Python's own has no default before 3.13

    Item = TypeVar("Item", bound=Tensors, default=Pair)
else:
    from typing import TypeVar

    Item = TypeVar("Item")


class RowLoader(Chain, Iterator[Item], Generic[Item]):
    """Batches of one split for one rank: an iterator of (inputs, targets), each (B, T) int64.

    Inputs are a row's first `seq_len` tokens, targets its last. Batches stay valid for as long as they are held.

    It is endless, or ends after `epochs` epochs; `iter` on one that has ended begins anew, on any other goes on.
    Used as a context manager, or closed, it ends its thread and lets go of its files; so does dropping it.

    | parameter | |
    | --- | --- |
    | tokens | the token set's folder; by default the one token set under data/tokens |
    | split | "train" or "val" |
    | batch_size | rows of this rank at each call: B |
    | seq_len | tokens of an input: T; a row has one more |
    | device | where the batches go, as torch names it |
    | packing | how rows are made: "best_fit", "nanochat", "concat" or "random" (docs/packing.md) |
    | long_documents | best_fit: "split" a document longer than a row, or "crop" it |
    | shuffle | train: another order at every epoch; False: shards in order, every epoch the same |
    | seed | of every random order |
    | skip_rows | rows to leave out, as `tokenmill show` names them: ["0:12:100-163"] |
    | epochs | how many the iteration has; by default it is endless |
    | drop_last | with epochs: drop the last rows, fewer than a batch of all ranks, or return them in shorter batches |
    | documents | batches are (inputs, targets, document_ids): which document of its row a token is of, (B, T) int32 |
    | prefetch | batches that a thread makes ahead; 0 makes each when it is asked for |
    | rank, world_size | by default torch.distributed's, torchrun's, or 0 of 1 |

    With drop_last=False the last batch may on some ranks be shorter by a row and even empty, so that all ranks make the
    same number of calls.

    Raises FileNotFoundError where there is no token set; ValueError where a setting makes no sense, a file is not what
    the manifest says, or the split has fewer rows than one batch of all ranks. What goes wrong in the thread is raised
    by the next call; the one after tries again.
    """

    waited: float = 0.0  # seconds that `next` has waited for batches

    # fmt: off
    @overload
    def __init__(
        self: "RowLoader[Pair]", tokens: str | os.PathLike[str] | None = None, split: Split = "train", *,
        batch_size: int, seq_len: int, device: str | int | torch.device = "cpu", packing: Packing = "best_fit",
        long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337, skip_rows: Iterable[str] = (),
        epochs: int | None = None, drop_last: bool = True, documents: Literal[False] = False, prefetch: int = 2,
        rank: int | None = None, world_size: int | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: "RowLoader[Triple]", tokens: str | os.PathLike[str] | None = None, split: Split = "train", *,
        batch_size: int, seq_len: int, device: str | int | torch.device = "cpu", packing: Packing = "best_fit",
        long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337, skip_rows: Iterable[str] = (),
        epochs: int | None = None, drop_last: bool = True, documents: Literal[True], prefetch: int = 2,
        rank: int | None = None, world_size: int | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: "RowLoader[Tensors]", tokens: str | os.PathLike[str] | None = None,
        split: Split = "train", *,
        batch_size: int, seq_len: int, device: str | int | torch.device = "cpu", packing: Packing = "best_fit",
        long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337, skip_rows: Iterable[str] = (),
        epochs: int | None = None, drop_last: bool = True, documents: bool, prefetch: int = 2,
        rank: int | None = None, world_size: int | None = None,
    ) -> None: ...
    # fmt: on

    def __init__(
        self,
        tokens: str | os.PathLike[str] | None = None,
        split: Split = "train",
        *,
        batch_size: int,
        seq_len: int,
        device: str | int | torch.device = "cpu",
        packing: Packing = "best_fit",
        long_documents: LongDocuments = "split",
        shuffle: bool = True,
        seed: int = 1337,
        skip_rows: Iterable[str] = (),
        epochs: int | None = None,
        drop_last: bool = True,
        documents: bool = False,
        prefetch: int = 2,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self._set_up(LoaderConfig.of(locals()))

    @classmethod
    def of(cls, config: LoaderConfig, worker: tuple[int, int] = (0, 1)) -> Self:
        """A loader of these settings; the k-th of n DataLoader workers makes every n-th batch, from the k-th on."""
        loader = cls.__new__(cls)
        loader._set_up(config, worker)
        return loader

    # ------------------------------------------------------------------------ what a loader tells

    @property
    def epoch(self) -> int:
        """The epoch of the next row, from 0; with nanochat, that in which this rank reads documents."""
        return self._epoch

    @property
    def tokens_seen(self) -> int:
        """Input tokens that all ranks together were given since the first row, resumed positions included.

        Where an iteration that ended begins anew, it counts from 0 again, as the position does.
        """
        if self._seen_at_start is None:  # an older position did not say
            rows = self._make_rows(ahead=False).rows_before(self._start, self._skipped_at_start)
            self._seen_at_start = rows * self.config.seq_len
        return self._seen_at_start + self._passed * self.config.seq_len

    @property
    def vocab_size(self) -> int:
        """How many ids the tokenizer has: all tokens are below."""
        return int(self.token_set.tokenizer["vocab_size"])

    @cached_property
    def rows(self) -> int | None:
        """Rows of one epoch, of all ranks, with those to skip; None with nanochat, whose rows do not end with an epoch.

        With best_fit all lengths of the split are read and packed once: about 10 ms for 60,000 documents.
        """
        return None if self.config.packing == "nanochat" else self._make_plans().count()

    def batches_per_epoch(self, world_size: int | None = None) -> int | None:
        """Calls in which `world_size` ranks (by default as many as there are) take an epoch's rows."""
        return None if self.rows is None else self._calls(self.rows, world_size or self.world_size)

    def __len__(self) -> int:
        """Batches of a whole iteration, where `epochs` are counted; TypeError for an endless loader."""
        epochs = self.config.epochs
        if epochs is None or self.rows is None:
            raise TypeError("this loader is endless and has no len(); give epochs=, or ask for batches_per_epoch()")
        skipped = sum(len(rows) for (epoch, _), many in self._skipped.items() if epoch < epochs for rows in many)
        return self._calls(max(0, self.rows * epochs - skipped), self.world_size)

    def __bool__(self) -> bool:
        return True  # and not whether it has a len

    def _calls(self, rows: int, world_size: int) -> int:
        rows_a_call = self.config.batch_size * world_size
        return rows // rows_a_call if self.config.drop_last else -(-rows // rows_a_call)

    def __repr__(self) -> str:
        config, counted = self.config, self._counted_rows()
        place = ", ".join(f"{name} {value:,}" for name, value in self._position.items())
        return (
            f"RowLoader({str(self.token_set.path)!r}, {config.split!r}: {counted} of {config.seq_len:,} + 1 tokens, "
            f"{config.packing}; batches of {config.batch_size:,} for rank {self.rank} of {self.world_size}; "
            f"next: {place}{'; closed' * self._closed})"
        )

    def _repr_html_(self) -> str:
        """The rows of the next batch, drawn, in a notebook."""
        rows = self._make_rows(ahead=False)
        rows.seek(self._position)
        return draw(repr(self), rows.pieces(self.config.batch_size))

    def _counted_rows(self) -> str:
        """How many rows an epoch has, or about so many where counting would take long."""
        entries = self.token_set.split(self.config.split)
        if self.config.packing == "nanochat":
            return "endless rows"
        if "rows" in vars(self) or sum(entry.documents for entry in entries) <= FEW_DOCUMENTS:
            with contextlib.suppress(OSError, ValueError):  # a file that is gone is told where rows are asked for
                return f"{self.rows:,} rows"
        return f"about {sum(entry.tokens for entry in entries) // self.config.seq_len:,} rows"

    # ------------------------------------------------------------------------ iterating

    def __iter__(self) -> Self:
        if self._ended:
            self._begin()
        return self

    def __next__(self) -> Item:
        asked = time.perf_counter()
        try:
            batch, (self._position, self._epoch, self._passed) = next(self._running())
        except BaseException as error:
            self._ended = isinstance(error, StopIteration)
            self._stop()
            if self._closed:
                self._raise_closed()  # by another thread, in the middle
            raise
        finally:
            self.waited += time.perf_counter() - asked
        return batch.receive()  # type: ignore[return-value]  # of two or three tensors, as `documents` says

    def close(self) -> None:
        """Ends the thread and lets go of the files; the position can still be asked for. Again, it does nothing."""
        self._closed = True  # first: a `next` of another thread that is ended now asks why
        self._stop()
        self._rows = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ------------------------------------------------------------------------ the position

    def state_dict(self) -> dict[str, Any]:
        """The position after the batch that was returned last: plain numbers and strings, the same on every rank."""
        seen = self.tokens_seen if self._says_seen else None
        return position_of(self.identity, self._position, self._skipped, seen)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with exactly the next row, on this number of ranks or, but for nanochat, another.

        Rows that the position knows to be skipped stay so; this loader's own skip_rows are skipped from here on too.
        ValueError, naming both values, where the position is of another token set or other settings.
        """
        if self._closed:
            self._raise_closed()
        position = read_position(state, self.identity, self._position, self.token_set.path)
        before, skipped = self._skipped, parse_skipped([*position.skip_rows, *self.config.skip_rows])
        if skipped == before:
            self._go_to(position.place, position.tokens_seen)
        else:
            self._stop()
            self._skipped, self._rows = skipped, None
            try:
                self._go_to(position.place, position.tokens_seen)
            except BaseException:
                self._skipped, self._rows = before, None  # a position that is refused changes nothing
                raise
        self._skipped_at_start = parse_skipped(position.skip_rows)
