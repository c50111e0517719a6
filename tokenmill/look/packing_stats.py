"""Measures what each packing does to documents, from their lengths alone: the README's table, and
the report's.

    tally(Packing(), [lengths of shard 0, lengths of shard 1], row_len=2049).dropped    0.0

Each packing is run, not estimated. A packing that joins shards runs on as many documents together
as a window has (windows.py), and the others shard by shard. nanochat's buffer (nanochat_buffer.py)
runs on one rank in its steady state, after 300,000 documents, because its share of dropped tokens
starts near 2% and climbs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import count, cycle, islice

import numpy as np

from tokenmill.rows.nanochat_buffer import REFILL_DOCUMENTS, BestFitBuffer
from tokenmill.rows.packing import RowPlan
from tokenmill.rows.plan import Content, Packing, plan_window
from tokenmill.rows.windows import DEFAULT_WINDOW_SIZE, Window

NANOCHAT_SETTLED = 300_000  # documents, before it is measured
NANOCHAT_MEASURED = 100_000  # documents
OF_TEXT = {
    "best_fit": Packing(),
    "crop": Packing(long_documents="crop"),
    "nanochat": Packing("nanochat"),
    "concat": Packing("concat"),
    "random": Packing("random"),
}
OF_CHATS = {
    "crop": Packing(long_documents="crop", keep_whole=True),
    "drop": Packing(long_documents="drop", keep_whole=True),
}


def variants(chat: bool = False) -> dict[str, Packing]:
    """The packings to compare, by label: of sets of text, or of chat sets."""
    return OF_CHATS if chat else OF_TEXT


def plan_of(
    packing: Packing,
    lengths: np.ndarray,
    row_len: int,
    seed: tuple[int, ...] = (0, 0, 0),
    first_targets: np.ndarray | None = None,
) -> RowPlan:
    """The rows of documents of these lengths, as if they were one window of one shard."""
    tokens = np.array([int(lengths.sum())])
    content = Content(lengths, Window(np.array([0]), np.array([0]), tokens), tokens, first_targets)
    return plan_window(packing, content, row_len - 1, seed)


@dataclass(frozen=True)
class Tally:
    """Counts of what became of some documents, from which shares of 1 follow.

    Tallies can be added.
    """

    tokens: int = 0  # of the documents
    kept: int = 0  # of these, those in at least one row
    row_tokens: int = 0  # of the rows
    repeated: int = 0  # of these, copies that fill a row's end, or padding
    headed: int = 0  # of these, those in a row that holds their document's beginning
    rows: int = 0
    at_start: int = 0  # of these, rows that begin where a document does
    # rows that begin with an inserted BOS: within a document that is longer than a row
    inserted: int = 0
    short: int = 0  # documents that fit a row
    short_cut: int = 0  # of these, those that are whole in no row
    tokens_of_cut: int = 0  # of all documents, short or long, that are whole in no row

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def dropped(self) -> float:
        """Share of the documents' tokens that are in no row."""
        return 1 - self.kept / self.tokens

    @property
    def filler(self) -> float:
        """Share of the rows' tokens that are copies, or padding."""
        return self.repeated / max(1, self.row_tokens)

    @property
    def begin(self) -> float:
        """Share of the rows that begin where a document does."""
        return self.at_start / max(1, self.rows)

    @property
    def begin_inserted(self) -> float:
        """Share of the rows that begin with an inserted BOS; all others begin within a document,
        without BOS.
        """
        return self.inserted / max(1, self.rows)

    @property
    def cut(self) -> float:
        """Of the documents that fit in a row, the share that is whole in none."""
        return self.short_cut / max(1, self.short)

    @property
    def tokens_in_cut(self) -> float:
        """Share of the documents' tokens that are of documents that are whole in no row."""
        return self.tokens_of_cut / self.tokens

    def shares(self) -> tuple[float, ...]:
        """The shares that tables show, in the order of report_text.MEASURES."""
        inside = (self.rows - self.at_start - self.inserted) / max(1, self.rows)
        begins = (self.begin, self.begin_inserted, inside)
        return (self.dropped, self.cut, self.filler, *begins, self.headed / max(1, self.row_tokens))


def tally(
    packing: Packing,
    shards: Sequence[np.ndarray],
    row_len: int,
    seed: int = 0,
    first_targets: Sequence[np.ndarray] | None = None,
) -> Tally:
    """What a packing does in one epoch to shards of documents of these lengths.

    Lengths include BOS. Of chats, the place of each conversation's first target says which are left
    out.
    """
    if packing.name == "nanochat":
        return _settled(np.concatenate(shards), row_len)
    groups = _windows(shards, shards) if packing.packs_documents else shards
    targets: Sequence[np.ndarray | None] = [None] * len(groups)
    if first_targets is not None:
        targets = _windows(shards, first_targets)
    total = Tally()
    for number, (lengths, first) in enumerate(zip(groups, targets, strict=True)):
        if not len(lengths):
            continue
        plan = plan_of(packing, lengths, row_len, (seed, 0, number), first)
        if packing.packs_documents:
            total += _of_documents(plan, lengths)
        else:
            total += _of_stream(plan, lengths, packing)
    return total


def _windows(shards: Sequence[np.ndarray], columns: Sequence[np.ndarray]) -> list[np.ndarray]:
    """A column of shards of documents of these lengths, in groups of about a window's tokens."""
    tokens = np.array([lengths.sum() for lengths in shards])
    window_of = (np.cumsum(tokens) - tokens) // DEFAULT_WINDOW_SIZE.window
    groups: dict[int, list[np.ndarray]] = {}
    for window, column in zip(window_of.tolist(), columns, strict=True):
        groups.setdefault(window, []).append(column)
    return [np.concatenate(group) for group in groups.values()]


def _of_documents(plan: RowPlan, lengths: np.ndarray) -> Tally:
    """The tally of rows made of pieces of documents."""
    is_kept = ~plan.filler
    document = plan.document[is_kept]
    is_whole = np.zeros(len(lengths), bool)
    is_whole[document[plan.length[is_kept] == lengths[document]]] = True
    is_short = lengths <= plan.row_len
    first_pieces = plan.row_offsets[:-1]
    return Tally(
        tokens=int(lengths.sum()),
        kept=int(plan.length[is_kept].sum()),
        row_tokens=plan.num_rows * plan.row_len,
        repeated=int(plan.length[plan.filler].sum()),
        headed=int(plan.length[plan.start == 0].sum()),
        rows=plan.num_rows,
        at_start=int((plan.start[first_pieces] == 0).sum()),
        inserted=int(plan.bos[first_pieces].sum()),
        short=int(is_short.sum()),
        short_cut=int((is_short & ~is_whole).sum()),
        tokens_of_cut=int(lengths[~is_whole].sum()),
    )


def _of_stream(plan: RowPlan, lengths: np.ndarray, packing: Packing) -> Tally:
    """The tally of rows cut from the stream of all documents."""
    row_len = plan.row_len
    starts = np.sort(plan.start)
    ends = np.cumsum(lengths)
    begins = ends - lengths
    kept = int(np.minimum(np.diff(starts), row_len).sum())
    if len(starts):
        kept += row_len
    # a token that two rows share is a target of the first and an input of the second: no copy
    shared = max(0, len(starts) - 1) if packing.name == "concat" else 0
    row_tokens = len(starts) * row_len
    is_short = lengths <= row_len
    is_cut = ~_is_whole_in_a_row(begins, ends, starts, row_len)
    return Tally(
        tokens=int(ends[-1]),
        kept=kept,
        row_tokens=row_tokens,
        repeated=row_tokens - kept - shared,
        headed=row_tokens - _count_headless(begins, ends, starts, row_len),
        rows=len(starts),
        at_start=int(np.isin(starts, begins).sum()),
        short=int(is_short.sum()),
        short_cut=int((is_short & is_cut).sum()),
        tokens_of_cut=int(lengths[is_cut].sum()),
    )


def _is_whole_in_a_row(
    begins: np.ndarray, ends: np.ndarray, starts: np.ndarray, row_len: int
) -> np.ndarray:
    """Whether each document is in one row: (documents,) bool. `starts` of rows ascend.

    The first row that reaches its end must not start after its beginning.
    """
    first_row_to_end = np.searchsorted(starts, ends - row_len, side="left")
    first_row_after_begin = np.searchsorted(starts, begins, side="right")
    return np.asarray(first_row_to_end < first_row_after_begin)


def _count_headless(begins: np.ndarray, ends: np.ndarray, starts: np.ndarray, row_len: int) -> int:
    """The tokens at the beginnings of rows whose document begins before the row."""
    inside = starts[~np.isin(starts, begins)]
    document = np.searchsorted(ends, inside, side="right")
    return int(np.minimum(ends[document] - inside, row_len).sum())


def _settled(lengths: np.ndarray, row_len: int) -> Tally:
    """The tally of nanochat's buffer on one rank, which reads the documents again and again."""
    buffer = BestFitBuffer(_refills_without_end(lengths.tolist()), row_len)
    settled = 0
    while settled <= NANOCHAT_SETTLED:
        row = buffer.next_row()
        settled += len(row)
    pieces = list(row)
    rows = 1
    while len(pieces) < NANOCHAT_MEASURED:
        pieces += buffer.next_row()
        rows += 1
    place, taken = np.array(pieces).T
    length = lengths[place % len(lengths)]
    is_short = length <= row_len
    is_cut = taken < length
    kept = int(taken.sum())
    return Tally(
        tokens=int(length.sum()),
        kept=kept,
        row_tokens=kept,
        headed=kept,
        rows=rows,
        at_start=rows,
        short=int(is_short.sum()),
        short_cut=int((is_short & is_cut).sum()),
        tokens_of_cut=int(length[is_cut].sum()),
    )


def _refills_without_end(lengths: list[int]) -> Iterator[list[tuple[int, int]]]:
    """(length, place) of documents, over and over, with places that grow."""
    documents = zip(cycle(lengths), count(), strict=False)
    while True:
        yield list(islice(documents, REFILL_DOCUMENTS))
