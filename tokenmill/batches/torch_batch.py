"""What a batch of a torch loader consists of, and how it is made on a device from rows that were copied there.

torch supports few operations on unsigned integers, so uint16 is copied as int16, 2 bytes a token; after widening to
int64, `& 0xFFFF` removes the sign.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from tokenmill.batches.documents import document_ids

SIGNED = {2: torch.int16, 4: torch.int32}  # by bytes per token


class TorchBatch(NamedTuple):
    """A batch. `receive()` returns its tensors: (inputs, targets[, document_ids][, sources])."""

    receive: Callable[[], tuple[torch.Tensor, ...]]


class Form(NamedTuple):
    """What batches consist of: with a `bos_id` also document_ids. Targets that bear no loss are `ignore_index`."""

    bos_id: int | None
    ignore_index: int = -100

    def widen(
        self, narrow: torch.Tensor, sources: torch.Tensor | None, without: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        """Makes a batch of rows on their device: (B, T + 1) int16 or int32.

        `sources` is (B,) int64, and `without`, (B, T + 1) bool, marks the tokens that bear no loss.
        """
        targets = widen(narrow[:, 1:])  # (B, T)
        if without is not None:
            targets.masked_fill_(without[:, 1:], self.ignore_index)
        return self.join(widen(narrow[:, :-1]), targets, sources)

    def join(
        self, inputs: torch.Tensor, targets: torch.Tensor, sources: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        """The tensors of a batch, from inputs and targets of int64."""
        ids = () if self.bos_id is None else (document_ids(inputs, self.bos_id),)
        return (inputs, targets, *ids) if sources is None else (inputs, targets, *ids, sources)


def widen(narrow: torch.Tensor) -> torch.Tensor:
    """Unsigned numbers that are held as signed ones of as many bytes, as int64 in contiguous memory."""
    mask = (1 << 8 * narrow.element_size()) - 1
    return narrow.to(torch.int64, memory_format=torch.contiguous_format).bitwise_and_(mask)
