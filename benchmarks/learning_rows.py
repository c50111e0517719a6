"""The rows that benchmarks/learning.py compares, each variant's from the same documents.

    rows = make_rows("previous", text, row_len=1025, need=25_600, epochs=1, seed=0)
    rows.tokens      (25,600, 1,025): inputs are all but the last of a row, targets all but the first
    rows.in_loss     (25,600, 1,024): which targets are in the loss
    rows.piece       (25,600, 1,024): the number of the piece in its row that each input is in

The package plans: `plan_rows` and the buffer of nanochat's rule. A variant changes what is planned,
or what stands where a piece continues a document. There, best_fit has an inserted BOS:

    best_fit       BOS p q r             p is the document's next token
    previous         o p q r             o is the document's token before p
    unlearned_16   BOS p q r             the first 16 targets after it are not in the loss
    marker           | p q r             | is a token that stands nowhere else
    context        BOS m n o p q r       m n o were in the piece before, and are not in the loss

Every epoch shuffles the documents anew. Rows of `nanochat` come in the order of its buffer; those
of all others are shuffled.
"""

from collections.abc import Iterator
from itertools import count, islice
from typing import NamedTuple

import numpy as np

from tokenmill.rows.nanochat_buffer import REFILL_DOCUMENTS, BestFitBuffer
from tokenmill.rows.packing import RowPlan, plan_rows
from tokenmill.store.token_sets import TokenSet

VARIANTS = {
    "best_fit": "tokenmill's default",
    "nanochat": "nanochat's rows: the rest of a document that fits into no row is dropped",
    "concat": "consecutive rows of one stream of documents (llm.c)",
    "random": "rows from random places of that stream (nanoGPT); some tokens come twice",
    "crop": 'best_fit with long_documents="crop": one row of a document, at most',
    "two_pieces": "best_fit with two pieces of a document, at most",
    "previous": "the document's token before a piece, in place of the inserted BOS",
    "unlearned_1": "no loss on the first target after an inserted BOS",
    "unlearned_16": "no loss on the first 16 targets after it",
    "unlearned_64": "no loss on the first 64 targets after it",
    "marker": "a token of its own in place of the inserted BOS",
    "context": "an eighth of a row of the piece before, without loss, after the inserted BOS",
}
CONTEXT = 8  # a row has so many contexts


class Text(NamedTuple):
    """Documents one after the other, each beginning with BOS."""

    stream: np.ndarray  # (tokens,)
    lengths: np.ndarray  # (documents,) int64
    bos_id: int
    vocab_size: int

    @classmethod
    def read(cls, tokens: str, split: str) -> "Text":
        """A split of a token set."""
        token_set = TokenSet(tokens)
        shards = [token_set.open(entry) for entry in token_set.split(split)]
        stream = np.concatenate([shard.tokens for shard in shards])
        lengths = np.concatenate([shard.lengths for shard in shards])
        return cls(stream, lengths, token_set.bos_id, token_set.tokenizer["vocab_size"])

    @property
    def offsets(self) -> np.ndarray:
        """Where each document begins: (documents + 1,)."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def first(self, tokens: int) -> "Text":
        """The first documents that have at most so many tokens together."""
        ends = self.offsets[1:]
        count = int(np.searchsorted(ends, tokens, side="right"))
        return self._replace(stream=self.stream[: ends[count - 1]], lengths=self.lengths[:count])


class Rows(NamedTuple):
    """Rows of T + 1 tokens."""

    tokens: np.ndarray  # (num_rows, T + 1)
    in_loss: np.ndarray  # (num_rows, T) bool
    piece: np.ndarray  # (num_rows, T) int16


def make_rows(
    variant: str, text: Text, *, row_len: int, need: int | None, epochs: int | None, seed: int
) -> Rows:
    """The first `need` rows of a variant, or all of its epochs. ValueError if there are fewer."""
    if variant == "nanochat":
        return _of_nanochat(text, row_len, need, epochs, seed)
    parts = []
    num_rows = 0
    epoch = 0
    while need is None or num_rows < need:
        if epoch == epochs:
            break
        rows = _epoch(variant, text, row_len, (seed, epoch))
        parts.append(rows)
        num_rows += len(rows.tokens)
        epoch += 1
    _require(num_rows, need, variant, epochs)
    tokens, in_loss, piece = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return Rows(tokens[:need], in_loss[:need], piece[:need])


def _require(num_rows: int, need: int | None, variant: str, epochs: int | None) -> None:
    if need is not None and num_rows < need:
        raise ValueError(f"{variant} has {num_rows:,} rows in {epochs} epochs, {need:,} are needed")


def _epoch(variant: str, text: Text, row_len: int, seed: tuple[int, int]) -> Rows:
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(text.lengths))
    if variant in ("concat", "random"):
        return _of_stream(variant, text, row_len, order, rng)
    if variant == "context":
        return _with_context(text, row_len, seed)
    if variant == "crop":
        plan = plan_rows(text.lengths, row_len, long_documents="crop", seed=seed)
        return _fill(text, plan)
    if variant == "two_pieces":
        most = 2 * row_len - 1  # the second piece begins with an inserted BOS
        return _fill(text, plan_rows(np.minimum(text.lengths, most), row_len, seed=seed))
    plan = plan_rows(text.lengths, row_len, seed=seed)
    rows = _fill(text, plan)
    if variant == "previous":
        return rows._replace(tokens=_gather(text, plan))
    if variant == "marker":
        rows.tokens.reshape(-1)[_begins(plan)[plan.bos]] = text.vocab_size
    if variant.startswith("unlearned_"):
        _mask_after_bos(rows.in_loss, plan, int(variant.removeprefix("unlearned_")))
    return rows


# ---------------------------------------------------------------------------- rows of a plan


def _fill(text: Text, plan: RowPlan) -> Rows:
    """The rows of a plan, with BOS where a piece continues a document."""
    tokens = _gather(text, plan)
    tokens.reshape(-1)[_begins(plan)[plan.bos]] = text.bos_id
    in_loss = np.ones((plan.num_rows, plan.row_len - 1), bool)
    return Rows(tokens, in_loss, _piece_numbers(plan))


def _gather(text: Text, plan: RowPlan) -> np.ndarray:
    """The rows of a plan; where BOS would be inserted stands the document's token before."""
    sizes = plan.length + plan.bos
    first = text.offsets[plan.document] + plan.start - plan.bos
    places = np.repeat(first - _begins(plan), sizes) + np.arange(sizes.sum())
    return text.stream[places].reshape(plan.num_rows, plan.row_len)


def _begins(plan: RowPlan) -> np.ndarray:
    """Where each piece begins in all rows, one after the other."""
    sizes = (plan.length + plan.bos).astype(np.int64)
    return np.cumsum(sizes) - sizes


def _piece_numbers(plan: RowPlan) -> np.ndarray:
    """The number of each input's piece in its row: (num_rows, T)."""
    pieces = np.diff(plan.row_offsets)
    number = np.arange(len(plan.length)) - np.repeat(plan.row_offsets[:-1], pieces)
    per_token = np.repeat(number.astype(np.int16), plan.length + plan.bos)
    return per_token.reshape(plan.num_rows, plan.row_len)[:, :-1]


def _mask_after_bos(in_loss: np.ndarray, plan: RowPlan, most: int) -> None:
    """Takes up to `most` targets after each inserted BOS out of the loss."""
    targets = np.minimum(plan.length[plan.bos], most)
    _mask(in_loss, _begins(plan)[plan.bos], targets)


def _mask(in_loss: np.ndarray, begins: np.ndarray, targets: np.ndarray) -> None:
    """Takes so many targets after the tokens at `begins` out of the loss; all are in their rows."""
    num_rows, seq_len = in_loss.shape
    has_target = np.ones((num_rows, seq_len + 1), bool)  # of each token: the next is a target
    has_target.reshape(-1)[_ranges(begins, targets)] = False
    in_loss &= has_target[:, :-1]


# ---------------------------------------------------------------------------- other variants


def _with_context(text: Text, row_len: int, seed: tuple[int, int]) -> Rows:
    """Long documents are cut before they are planned: later pieces begin with BOS and a context."""
    context = (row_len - 1) // CONTEXT
    body = row_len - 1 - context  # the new tokens of a later piece
    begins = []  # of each part in the stream: BOS, or the token before the context
    lengths = []
    is_later = []
    for begin, length in zip(text.offsets.tolist(), text.lengths.tolist(), strict=False):
        begins.append(begin)
        lengths.append(min(length, row_len))
        is_later.append(False)
        for done in range(row_len, length, body):
            begins.append(begin + done - context - 1)
            lengths.append(1 + context + min(body, length - done))
            is_later.append(True)
    firsts = np.array(begins)
    sizes = np.array(lengths)
    parts = Text(text.stream[_ranges(firsts, sizes)], sizes, text.bos_id, text.vocab_size)
    later = np.array(is_later)
    parts.stream[parts.offsets[:-1][later]] = text.bos_id
    plan = plan_rows(sizes, row_len, seed=seed)
    rows = _fill(parts, plan)
    has_context = later[plan.document] & (plan.start == 0)
    targets = np.minimum(plan.length[has_context] - 1, context)
    _mask(rows.in_loss, _begins(plan)[has_context], targets)
    return rows


def _of_nanochat(text: Text, row_len: int, need: int | None, epochs: int | None, seed: int) -> Rows:
    """Full rows by nanochat's rule, whose buffer goes on from epoch to epoch."""
    buffer = BestFitBuffer(_shuffled(text.lengths, epochs, seed), row_len)
    rows = list(islice(_until_empty(buffer), need))
    _require(len(rows), need, "nanochat", epochs)
    pieces = np.array([piece for row in rows for piece in row], int).reshape(-1, 2)
    document = pieces[:, 0]
    no = np.zeros(len(pieces), bool)
    row_offsets = np.cumsum([0, *map(len, rows)])
    plan = RowPlan(row_len, row_offsets, document, np.zeros_like(document), pieces[:, 1], no, no)
    return _fill(text, plan)


def _shuffled(
    lengths: np.ndarray, epochs: int | None, seed: int
) -> Iterator[list[tuple[int, int]]]:
    """(length, document) of all documents, so many at a time."""
    for epoch in count() if epochs is None else range(epochs):
        order = np.random.default_rng((seed, epoch)).permutation(len(lengths))
        documents = list(zip(lengths[order].tolist(), order.tolist(), strict=True))
        for begin in range(0, len(documents), REFILL_DOCUMENTS):
            yield documents[begin : begin + REFILL_DOCUMENTS]


def _until_empty(buffer: BestFitBuffer) -> Iterator[list[tuple[int, int]]]:
    while True:
        try:
            row = buffer.next_row()
        except StopIteration:
            return
        yield row


def _of_stream(
    variant: str, text: Text, row_len: int, order: np.ndarray, rng: np.random.Generator
) -> Rows:
    """Rows of the shuffled documents' stream, wherever they fall; row k + 1 begins with the last token of row k."""
    stream = text.stream[_ranges(text.offsets[:-1][order], text.lengths[order])]
    num_rows = (len(stream) - 1) // (row_len - 1)
    begins = rng.permutation(num_rows) * (row_len - 1)
    if variant == "random":
        begins = rng.integers(0, len(stream) - row_len + 1, num_rows)
    tokens = np.stack([stream[begin : begin + row_len] for begin in begins.tolist()])
    piece = np.cumsum(tokens[:, :-1] == text.bos_id, axis=1, dtype=np.int16)
    return Rows(tokens, np.ones((num_rows, row_len - 1), bool), piece)


def _ranges(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """All places of some ranges, one after the other."""
    return np.repeat(begins - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
