"""Where documents begin in a batch: ids, positions, and what attention kernels want of them.

A piece of a document begins with BOS, its own or an inserted one, and BOS is nowhere else, so everything
follows from the tokens, on their device and without waiting for it. With BOS 0, a batch of one row:

    inputs         0 7 8 0 5 0 6 9
    document_ids   0 0 0 1 1 2 2 2
    position_ids   0 1 2 0 1 0 1 2        rotary embeddings that restart at each document
    cu_seqlens     0 3 5 8 8 8 ...        FlashAttention's varlen call, padded to a fixed length

In a `concat` row that begins inside a document, that document is 0 too.
"""

from collections.abc import Callable

import torch

Mask = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def document_ids(inputs: torch.Tensor, bos_id: int) -> torch.Tensor:
    """Numbers the documents of each row, 0, 1, 2 ...: inputs (B, T) -> (B, T) int32."""
    begins = inputs == bos_id
    ids = begins.cumsum(1, dtype=torch.int32)
    return ids - begins[:, :1].int()


def _begins(document_ids: torch.Tensor) -> torch.Tensor:
    """Where a document's stretch of a row begins: (B, T) bool."""
    begins = torch.ones_like(document_ids, dtype=torch.bool)
    begins[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    return begins


def position_ids(document_ids: torch.Tensor) -> torch.Tensor:
    """Positions that restart at each document: (B, T) int32 -> (B, T) int64."""
    places = torch.arange(document_ids.shape[1], device=document_ids.device).expand_as(document_ids)
    return places - torch.where(_begins(document_ids), places, 0).cummax(1).values


def cu_seqlens(document_ids: torch.Tensor, max_documents: int) -> torch.Tensor:
    """Where each document of a batch laid end to end begins, for a varlen attention call: (max_documents + 1,) int32.

    `document_ids` (B, T) int32 are taken as B * T tokens in one line; no document crosses a row. What is
    left is filled with B * T, documents of no tokens, so that the shape is the same at every step and
    `torch.compile` does not compile again. Give T as the call's max_seqlen.

    Raises ValueError on the CPU where there are more documents; on CUDA that is a device-side assertion, so that
    nothing waits for the device, and in compiled code, which may not branch on a number, a RuntimeError.
    """
    begins = _begins(document_ids).flatten()
    number = begins.cumsum(0)  # of documents up to here
    eager = not torch.compiler.is_compiling()
    if eager and document_ids.device.type == "cpu" and number[-1] > max_documents:
        raise ValueError(
            f"expected at most {max_documents} documents in a batch, found {number[-1]}; raise max_documents"
        )
    torch._assert_async(number[-1] <= max_documents)
    starts = torch.full((max_documents + 2,), len(begins), dtype=torch.int32, device=document_ids.device)
    places = torch.arange(len(begins), dtype=torch.int32, device=document_ids.device)
    # tokens that begin nothing all write to the last place, which is cut off
    return starts.scatter_(0, torch.where(begins, number - 1, max_documents + 1), places)[: max_documents + 1]


def document_mask(document_ids: torch.Tensor) -> Mask:
    """A mask function for FlexAttention: causal, and within a document. `document_ids` is (B, T) int32.

    mask = create_block_mask(document_mask(document_ids), B, None, T, T, device=...)
    out = flex_attention(query, key, value, block_mask=mask)
    """

    def mask(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (query >= key) & (document_ids[batch, query] == document_ids[batch, key])

    return mask
