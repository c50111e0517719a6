"""Feed: the interface between a loader and the rows that it reads, and what a position of them is.

There are two feeds: weighted sources, one to many (weighted_feed.py), and nanochat's per-rank order (nanochat_feed.py).
A loader (batches/loader_core.py) uses only this interface:

    feed = make_feed(config, RankShare(rank=0, world_size=1))
    feed, place = feed.begin(epoch=0)
    rows = feed.rows(until=None, ahead=False)
    rows.seek(place)
    taken = rows.take(32)
    rows.read(taken)                                      (32, 2049) of uint16
    feed.position(rows.position, tokens_seen)             a dict for a checkpoint

A place is the in-memory form of a position, which only its feed understands.
"""

from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from tokenmill.feed.loader_config import LoaderConfig
from tokenmill.feed.pieces import Piece
from tokenmill.store.token_sets import TokenSet


class RankShare(NamedTuple):
    """Whose rows a feed returns: those of one rank, or the share of one of several DataLoader workers of that rank."""

    rank: int
    world_size: int
    worker: int = 0
    workers: int = 1


class SourceUsage(NamedTuple):
    """How much of a source all ranks together have used since training began."""

    tokens: int
    rows: int
    epochs: float  # including a fraction of the current epoch


class RowCounts(NamedTuple):
    """What some rows of one source held."""

    rows: int = 0
    tokens: int = 0  # of the inputs
    filler: int = 0  # tokens that are copies of others, which fill the ends of rows
    pieces: int = 0  # documents, or parts of them, without filler; with concat and random, the rows


class LoaderStats(NamedTuple):
    """What a loader has returned to this rank since it was made, in all and by source."""

    waited: float  # seconds in `next`
    batches: int
    rows: int
    tokens: int
    filler: int
    pieces: int
    sources: Mapping[str, RowCounts]  # by name; "" for one token set


AnyFeed = TypeVar("AnyFeed", covariant=True)


class Resumed(NamedTuple, Generic[AnyFeed]):
    """A feed at a position: the place to continue from, its epoch, and the tokens before it."""

    feed: AnyFeed
    place: Any
    epoch: int
    tokens_seen: int
    begins_epoch: bool  # whether no row of the epoch was used


class RankRows(Protocol):
    """The rows of one rank, in order."""

    world_size: int

    @property
    def position(self) -> Any:
        """The place of the next row, the same on every rank (with nanochat, for one number of ranks)."""

    @property
    def passed(self) -> int:
        """Rows of all ranks that were taken or skipped since the last seek."""

    def seek(self, position: Any) -> None:
        """Moves to a place. Starts no thread, because the process may fork next. ValueError if there is no such row."""

    def skip(self, count: int) -> None:
        """Moves past the next `count` rows of every rank."""

    def take(self, count: int) -> Any:
        """Takes this rank's part of the next `count` rows of every rank, without reading tokens, and moves past them.

        The result has a `total`, the number of rows of all ranks, and `targets`, how many targets in them bear loss;
        near the end there are fewer rows. `count` must be the same at every call.
        """

    def read(self, taken: Any) -> np.ndarray:
        """The rows that were taken: (number of rows, seq_len + 1) in the tokens' dtype."""

    def loss_mask(self, taken: Any, rows: np.ndarray) -> np.ndarray | None:
        """Which tokens of the rows that were taken and read bear loss: (number of rows, seq_len + 1) bool.

        None if all of them do.
        """

    def sources(self, taken: Any) -> np.ndarray:
        """The number of each row's source: (number of rows,) int64."""

    def counts(self, taken: Any) -> np.ndarray:
        """What the rows that were taken hold, by source: (sources, 4) int64 of rows, filler, pieces, tokens."""

    def pieces(self, count: int) -> list[list[Piece]]:
        """The pieces of this rank's next `count` rows, for display; moves past them."""

    def interrupt(self) -> None:
        """Ends the threads that plan ahead; can be called from any thread. These rows must not be used afterwards."""


class Feed(Protocol):
    """The rows that a loader's settings give to one rank. A feed is a value: another place is another feed."""

    @property
    def config(self) -> LoaderConfig:
        """The settings that it was made from."""

    @property
    def token_set(self) -> TokenSet:
        """The token set, or the first of several; all have the same tokenizer."""

    @property
    def display_name(self) -> str:
        """A name for messages."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources, in the order that `RankRows.sources` numbers them; "" for one token set."""

    @property
    def is_masked(self) -> bool:
        """Whether there may be targets that bear no loss, so that `RankRows.loss_mask` is not None."""

    @property
    def identity(self) -> dict[str, Any]:
        """What must match for a position to mean the same rows."""

    @property
    def order_inputs(self) -> dict[str, Any]:
        """What the order of rows depends on besides the identity and the settings: manifests and weights."""

    def rows(self, until: int | None, ahead: bool) -> RankRows:
        """The rows, without end or before epoch `until`. With `ahead`, threads plan windows ahead."""

    def begin(self, epoch: int, since: Any = None) -> tuple[Self, Any]:
        """The first row of an epoch: (feed, place). `since` is the place of the run so far, if it has begun."""

    def position(self, place: Any, tokens_seen: int) -> dict[str, Any]:
        """The position of a place, for a checkpoint: plain numbers, strings and lists (rows/position.py)."""

    def resume(self, state: dict[str, Any]) -> Resumed[Self]:
        """Moves to a position. If it does not fit, raises ValueError with both values, and changes nothing."""

    def logged(self, place: Any) -> list[list[Any]]:
        """The sources at a place as the log of a run keeps them (rows/run_log.py); [] if their rows have no places."""

    def renamed(self, state: dict[str, Any]) -> str:
        """The name here of the only source of a position of one token set; "" for others, and if it is "" too."""

    def knows(self, state: dict[str, Any]) -> bool:
        """Whether a position is of these token sets."""

    def epoch(self, place: Any) -> int:
        """The epoch of a place; with several sources, of the one that is furthest behind."""

    def describe(self, place: Any, tokens_seen: int) -> str:
        """A place in words."""

    def used(self, place: Any) -> Mapping[str, SourceUsage]:
        """How much of each source was used before a place."""

    def count_rows(self, epoch: int) -> int | None:
        """The rows of an epoch, of all ranks, including skipped ones; None if rows are not counted by epoch."""

    def count_skipped(self, epochs: range) -> int:
        """The number of rows to skip in these epochs."""

    def require_rows(self) -> None:
        """Raises ValueError if there is not one batch, or if rows to skip do not exist."""

    def require_skipped(self, place: Any) -> None:
        """Raises ValueError if rows to skip, from a place on, do not exist."""


def worker_identity(config: LoaderConfig, share: RankShare) -> dict[str, Any]:
    """What else must match if each of several DataLoader workers knows only its own batches."""
    if share.workers == 1:
        return {}
    calls = {"rows_a_call": config.batch_size * share.world_size, "worker": share.worker, "workers": share.workers}
    return {"seq_len": config.seq_len} | calls
