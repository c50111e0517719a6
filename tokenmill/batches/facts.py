"""LoaderFacts: what a loader tells of where it stands, and of its rows.

    loader.step, loader.tokens_seen, loader.epoch       since training began
    loader.sources, loader.row_sources, loader.seen()   of a mixture
    loader.rows, len(loader)                            of an epoch, and of an iteration of `epochs`

All of it follows from the run and the sets: nothing is counted while batches are made.
"""

from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from tokenmill.batches.batch_pieces import BatchPieces, KeptColumn, kept_columns, pieces_with_shards
from tokenmill.feed.batch import Batch
from tokenmill.feed.config import LoaderConfig
from tokenmill.feed.dealers import Dealer, Sets
from tokenmill.feed.mixture import ONE_SET
from tokenmill.feed.source import Source
from tokenmill.rows.run import Run, past_of
from tokenmill.store.token_sets import TokenSet

Parts = tuple[list[tuple[int, int]], Any]  # a batch's sources, and the places of their rows
NO_PARTS: Parts = ([], slice(None))
NO_BATCH = Batch([], slice(None))


class SourceUsage(NamedTuple):
    """How much of a source all ranks together have used since training began."""

    tokens: int
    rows: int
    epochs: float  # including a fraction of the current epoch


# what decides whether `for` continues an iteration of `epochs`
IterationState = Literal[
    "fresh",  # it stands where an iteration begins, or has ended
    "resumed",  # a position was loaded: `for` continues its iteration, if that has a batch left
    "kept",  # after that, set_epoch asked for this iteration: `for` continues it, even at its end
    "begun",  # a batch was returned: `for` goes to the next iteration
]


class LoaderFacts:
    """What a loader tells."""

    config: LoaderConfig
    run: Run
    rank: int
    world_size: int
    token_set: TokenSet
    waited: float = 0.0  # seconds spent waiting in `next`
    targets: int = 0  # of the global batch that was returned last, those in the loss
    _sets: Sets
    _dealer: Dealer
    _iteration: IterationState
    _parts: Parts = NO_PARTS  # of the rows that were returned last
    _batch: Batch | None = None  # that was returned last, until the loader is moved
    _columns: dict[str, list[KeptColumn]]  # by name, of each source
    _counted: dict[int, int]  # rows of epochs, which take time to count

    @property
    def epoch(self) -> int | None:
        """The epoch of the next row, from 0; of a mixture, of the source that is last.

        None with nanochat.
        """
        return self._dealer.epoch(self.run)

    @property
    def step(self) -> int:
        """The global batches that were returned since training began."""
        return self.run.now.step

    @property
    def tokens_seen(self) -> int:
        """Input tokens that all ranks have received since the first row.

        Those before a resumed position count.
        """
        return self.run.now.tokens

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of a mixture's sources, in the order in which `row_sources` numbers them.

        () for one token set.
        """
        return tuple(name for name in self._sets if name)

    @property
    def row_sources(self) -> np.ndarray:
        """The number in `sources` of each row that was returned last: (B,) int64.

        Zeros for one token set.
        """
        parts, places = self._parts
        counts = [count for _, count in parts]
        sources = np.empty(sum(counts), np.int64)
        sources[places] = np.repeat([number for number, _ in parts], counts)
        return sources

    @property
    def pieces(self) -> BatchPieces:
        """Which documents the tokens of the batch are of that was returned last.

        It has arrays with a value for each piece of a document. They are empty where there is no
        such batch, as after `load_state_dict` or the end.
        """
        pieces, _ = pieces_with_shards(self._batch or NO_BATCH)
        return pieces

    def column(self, name: str) -> list[Any]:
        """What a column that --keep-columns kept says of the document of each of `pieces`.

        None where a source lacks it. ValueError if all do.
        """
        if name not in self._columns:
            self._columns[name] = kept_columns(self._sets.values(), name)
        columns = self._columns[name]
        pieces, entries = pieces_with_shards(self._batch or NO_BATCH)
        places = zip(pieces.source.tolist(), entries, pieces.document.tolist(), strict=True)
        values = []
        for source, entry, document in places:
            of_shard = columns[source].of(entry)
            values.append(None if of_shard is None else of_shard[document].as_py())
        return values

    def seen(self) -> dict[str, SourceUsage]:
        """(tokens, rows, about how many epochs) that all ranks have used, by source.

        ValueError for one token set.
        """
        if not self.sources:
            raise ValueError(
                "seen() is for a mixture; for one token set, use tokens_seen and epoch"
            )
        return {
            name: _usage(source, self.run)
            for name, source in self._dealer.sources(self.run).items()
        }

    @property
    def vocab_size(self) -> int:
        """The number of token ids of the tokenizer; all tokens are below it."""
        return int(self.token_set.tokenizer["vocab_size"])

    @property
    def bos_id(self) -> int:
        """The id of the token that every row and every document begins with, for `document_ids`."""
        return self.token_set.bos_id

    @property
    def rows(self) -> int | None:
        """Rows of this epoch, of all ranks; others may have a few more or fewer.

        None with nanochat, or a mixture.
        """
        if not self._dealer.has_epochs:
            return None
        return self._rows_of(self.run.now.cursors[ONE_SET].epoch)

    def _rows_of(self, epoch: int) -> int:
        if epoch not in self._counted:
            self._counted[epoch] = self._dealer.sources(self.run)[ONE_SET].count(epoch)
        return self._counted[epoch]

    def __len__(self) -> int:
        """Batches of the whole iteration of `epochs`, skipped ones too; after its end, of the next.

        TypeError if the loader is endless.
        """
        end = self.run.now.until
        epochs = self.config.epochs
        if epochs is None or end is None:
            raise TypeError(
                "this loader is endless and has no len(); pass epochs=, or use loader.rows"
            )
        if self.run.has_ended and self._iteration != "begun":
            end += epochs
        num_rows = sum(self._rows_of(epoch) for epoch in range(end - epochs, end))
        global_batch = self.run.setting.global_batch
        if self.config.drop_last:
            return num_rows // global_batch
        return -(-num_rows // global_batch)

    def __bool__(self) -> bool:
        return True  # otherwise Python would call __len__

    def __repr__(self) -> str:
        config = self.config
        point = self.run.now
        name = self.sources or self.token_set.display_name
        return (
            f"RowLoader({name!r}, {config.split!r}: {config.batch_size:,} rows of "
            f"{config.seq_len:,} + 1 tokens, {config.packing}; rank {self.rank} of "
            f"{self.world_size}; {point.step:,} steps and {point.tokens:,} tokens on)"
        )


def _usage(source: Source, run: Run) -> SourceUsage:
    name = source.name
    tokens = 0
    points = [*(leg.begin for leg in run.legs), run.now]
    for leg, (begin, end) in zip(run.legs, pairwise(points), strict=True):
        num_rows = end.rows.get(name, 0) - begin.rows.get(name, 0)
        tokens += num_rows * leg.setting.seq_len
    epoch, window, row = run.now.cursors[name]
    past, before = past_of(run.legs, name, epoch, window)
    inputs = (row - before) * source.seq_len + sum(seq_len * rows for seq_len, rows in past)
    windows = source.documents(epoch).windows.tokens.tolist()
    # of this window, as many tokens as its rows have inputs
    done = sum(windows[:window]) + min(windows[window], inputs)
    return SourceUsage(tokens, run.now.rows[name], epoch + done / max(1, sum(windows)))
