"""Document boundaries in a batch: document ids, position ids, and what attention kernels need.

Every piece of a document begins with BOS, its own or an inserted one, and BOS appears nowhere else.
So everything here is computed from the tokens, on their device and without synchronization. With
BOS 0 and a batch of one row:

    inputs         0 7 8 0 5 0 6 9
    document_ids   0 0 0 1 1 2 2 2
    position_ids   0 1 2 0 1 0 1 2        rotary embeddings that restart at each document
    cu_seqlens     0 3 5 8 8 8 ...        FlashAttention's varlen call, padded to a fixed length

If a `concat` row begins inside a document, that document also has number 0.
"""

from collections.abc import Callable

import torch

Mask = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def document_ids(inputs: torch.Tensor, bos_id: int) -> torch.Tensor:
    """Numbers the documents of each row from 0: inputs (B, T) -> (B, T) int32."""
    begins = inputs == bos_id
    ids = begins.cumsum(1, dtype=torch.int32)
    return ids - begins[:, :1].int()


def _begins(document_ids: torch.Tensor) -> torch.Tensor:
    """Marks the first token of each document in each row: (B, T) bool."""
    begins = torch.ones_like(document_ids, dtype=torch.bool)
    begins[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    return begins


def position_ids(document_ids: torch.Tensor) -> torch.Tensor:
    """Positions that restart at each document: (B, T) int32 -> (B, T) int64."""
    places = torch.arange(document_ids.shape[1], device=document_ids.device)
    places = places.expand_as(document_ids)
    begins = torch.where(_begins(document_ids), places, 0)
    return places - begins.cummax(1).values


def cu_seqlens(document_ids: torch.Tensor, max_documents: int) -> torch.Tensor:
    """Cumulative sequence lengths of documents, for varlen attention: (max_documents + 1,) int32.

    The B * T tokens of `document_ids`, (B, T) int32, are one sequence. Unused entries are B * T,
    for empty documents, so that `torch.compile` does not recompile. Pass T as the call's
    max_seqlen.

    ValueError on the CPU if the batch has more than `max_documents` documents; a device-side
    assertion on CUDA, so that nothing waits for the device; a RuntimeError in compiled code.
    """
    device = document_ids.device
    begins = _begins(document_ids).flatten()
    number = begins.cumsum(0)  # documents that begin up to and including each token
    count = begins.sum()  # 0 in an empty batch
    is_eager = not torch.compiler.is_compiling()
    if is_eager and device.type == "cpu" and count > max_documents:
        raise ValueError(
            f"expected at most {max_documents} documents in a batch, found {count}; "
            "raise max_documents"
        )
    # with a message: compilers drop an assertion without one
    torch._assert_async(
        count <= max_documents, "a batch has more than max_documents documents; raise max_documents"
    )
    starts = torch.full((max_documents + 2,), len(begins), dtype=torch.int32, device=device)
    places = torch.arange(len(begins), dtype=torch.int32, device=device)
    # tokens that do not begin a document all write to the last entry, which is cut off
    entries = torch.where(begins, number - 1, max_documents + 1)
    return starts.scatter_(0, entries, places)[: max_documents + 1]


def document_mask(document_ids: torch.Tensor) -> Mask:
    """A mask function for FlexAttention: causal, and within one document.

    `document_ids` is (B, T) int32.

    mask = create_block_mask(document_mask(document_ids), B, None, T, T, device=...)
    out = flex_attention(query, key, value, block_mask=mask)
    """

    def mask(
        batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        return (query >= key) & (document_ids[batch, query] == document_ids[batch, key])

    return mask
