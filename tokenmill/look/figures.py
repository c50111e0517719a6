"""What each packing does to documents, from their lengths alone: the README's table, and the report's.

    tally("best_fit", [lengths of shard 0, lengths of shard 1], row_len=2049).dropped      0.0

Each packing is run, not estimated: best_fit on as many documents together as a window has (windows.py), concat and
random shard by shard, and nanochat's buffer (nanochat.py) on one rank in its steady state, after 300,000 documents, as
it starts near 2% dropped and climbs.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import count

import numpy as np

from tokenmill.rows.cuts import starts
from tokenmill.rows.nanochat import REFILL_DOCUMENTS, BestFitBuffer
from tokenmill.rows.packing import LongDocuments, plan_rows
from tokenmill.rows.windows import GRAIN

PACKINGS = ("best_fit", "best_fit, crop", "nanochat", "concat", "random")
NANOCHAT_SETTLED, NANOCHAT_MEASURED = 300_000, 100_000  # documents


@dataclass(frozen=True)
class Tally:
    """Counts of what became of some documents; shares of 1 follow. Tallies add up."""

    tokens: int = 0  # of the documents
    kept: int = 0  # of these, in at least one row
    row_tokens: int = 0  # of the rows
    repeated: int = 0  # of these, copies of tokens that are in another place too
    headed: int = 0  # of these, in a row that holds their document's beginning
    rows: int = 0
    rows_on_bos: int = 0
    pieces: int = 0  # stretches of one document in one row
    short: int = 0  # documents that fit a row
    broken: int = 0  # of these, whole in no row

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def dropped(self) -> float:
        """Share of the documents' tokens that are in no row."""
        return 1 - self.kept / self.tokens

    @property
    def filler(self) -> float:
        """Share of the rows' tokens that are copies."""
        return self.repeated / max(1, self.row_tokens)

    @property
    def on_bos(self) -> float:
        """Share of the rows that begin with BOS."""
        return self.rows_on_bos / max(1, self.rows)

    @property
    def cut(self) -> float:
        """Share of the documents that would fit a row and are whole in none."""
        return self.broken / max(1, self.short)

    @property
    def with_beginning(self) -> float:
        """Share of the rows' tokens whose row holds their document's beginning."""
        return self.headed / max(1, self.row_tokens)

    def shares(self) -> tuple[float, ...]:
        """What tables show of it, as words.MEASURES names them."""
        return self.dropped, self.filler, self.on_bos, self.cut, self.with_beginning

    @property
    def pieces_a_row(self) -> float:
        return self.pieces / max(1, self.rows)


def tally(packing: str, shards: Sequence[np.ndarray], row_len: int, seed: int = 0) -> Tally:
    """What one of PACKINGS does to shards of documents of these lengths (BOS counted) in one epoch."""
    if packing == "nanochat":
        return _nanochat(np.concatenate(shards), row_len)
    one = {"best_fit": _best_fit, "best_fit, crop": _crop, "concat": _concat, "random": _random}[packing]
    if packing not in ("concat", "random"):
        shards = _windows(shards)
    tallies = (one(lengths, row_len, (seed, 0, number)) for number, lengths in enumerate(shards) if len(lengths))
    return sum(tallies, Tally())


def _windows(shards: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Shards side by side, together about as many tokens as a window."""
    tokens = np.array([lengths.sum() for lengths in shards])
    number = (np.cumsum(tokens) - tokens) // GRAIN.window
    return [np.concatenate([shards[i] for i in np.flatnonzero(number == n).tolist()]) for n in np.unique(number)]


def _best_fit(lengths: np.ndarray, row_len: int, seed: tuple, long_documents: LongDocuments = "split") -> Tally:
    plan = plan_rows(lengths, row_len, long_documents=long_documents, seed=seed)
    kept = ~plan.filler
    whole = lengths[plan.document[kept]]
    return Tally(
        tokens=int(lengths.sum()),
        kept=int(plan.length[kept].sum()),
        row_tokens=plan.num_rows * row_len,
        repeated=int(plan.length[plan.filler].sum()),
        headed=int(plan.length[plan.start == 0].sum()),
        rows=plan.num_rows,
        rows_on_bos=plan.num_rows,  # a piece begins with its document's BOS or an inserted one
        pieces=len(plan.document),
        short=int((lengths <= row_len).sum()),
        broken=int(((whole <= row_len) & (plan.length[kept] < whole)).sum()),
    )


def _crop(lengths: np.ndarray, row_len: int, seed: tuple) -> Tally:
    return _best_fit(lengths, row_len, seed, "crop")


def _concat(lengths: np.ndarray, row_len: int, seed: tuple) -> Tally:
    begins = starts(int(lengths.sum()), row_len)
    # each row starts on the last token of the one before, a target there and an input here: that is no copy
    return _cut(lengths, begins, row_len, shared=max(0, len(begins) - 1))


def _random(lengths: np.ndarray, row_len: int, seed: tuple) -> Tally:
    return _cut(lengths, starts(int(lengths.sum()), row_len, seed), row_len)


def _cut(lengths: np.ndarray, starts: np.ndarray, row_len: int, shared: int = 0) -> Tally:
    """Rows cut from the documents' stream at ascending `starts`."""
    ends = np.cumsum(lengths)
    begins = ends - lengths
    kept = int(np.minimum(np.diff(starts), row_len).sum()) + (row_len if len(starts) else 0)
    on_bos = np.isin(starts, begins)
    first = np.searchsorted(ends, starts, side="right")  # the document that each row begins in
    last = np.searchsorted(ends, starts + row_len - 1, side="right")
    headless = np.where(on_bos, 0, np.minimum(ends[first] - starts, row_len))
    # a document is whole in a row that starts from its end - row_len to its beginning
    holding = np.searchsorted(starts, begins, side="right") - np.searchsorted(starts, ends - row_len, side="left")
    short = lengths <= row_len
    return Tally(
        tokens=int(ends[-1]),
        kept=kept,
        row_tokens=len(starts) * row_len,
        repeated=len(starts) * row_len - kept - shared,
        headed=len(starts) * row_len - int(headless.sum()),
        rows=len(starts),
        rows_on_bos=int(on_bos.sum()),
        pieces=int((last - first + 1).sum()),
        short=int(short.sum()),
        broken=int((short & (holding <= 0)).sum()),
    )


def _nanochat(lengths: np.ndarray, row_len: int) -> Tally:
    """The documents again and again, as its epochs are, on one rank."""
    known = lengths.tolist()
    refill = lambda at: [(known[place % len(known)], place) for place in range(at, at + REFILL_DOCUMENTS)]  # noqa: E731
    buffer = BestFitBuffer(map(refill, count(step=REFILL_DOCUMENTS)), row_len)
    settled = 0
    while settled <= NANOCHAT_SETTLED:
        row = buffer.next_row()
        settled += len(row)
    pieces, rows = [*row], 1
    while len(pieces) < NANOCHAT_MEASURED:
        pieces += buffer.next_row()
        rows += 1
    place, taken = np.array(pieces).T
    length = lengths[place % len(lengths)]
    short, kept = length <= row_len, int(taken.sum())
    return Tally(
        tokens=int(length.sum()),
        kept=kept,
        row_tokens=kept,
        headed=kept,
        rows=rows,
        rows_on_bos=rows,
        pieces=len(pieces),
        short=int(short.sum()),
        broken=int((short & (taken < length)).sum()),
    )
