"""What a loader asks of the two orders of rows, whichever it has.

    dealer = dealer_of(sets, order)
    dealer.require_rows(run, rank)
    for batch, targets, run in dealer.deal(run, rank):
        ...

Dealer has the order of mixed_rows.py, which is counted: any point of it is found from lengths, on
any number of ranks. NanochatDealer has nanochat's, which each rank has for itself: to find a point,
its rows are picked again from the first one.
"""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tokenmill.feed.batch import Batch
from tokenmill.feed.conversations import require_conversations
from tokenmill.feed.mixed_rows import advance, mixed_rows, next_batch, past_empty_windows
from tokenmill.feed.mixture import ONE_SET
from tokenmill.feed.nanochat_rows import nanochat_rows
from tokenmill.feed.order import Order
from tokenmill.feed.prefetch import Stop
from tokenmill.feed.source import Source
from tokenmill.feed.turns import count_rows
from tokenmill.rows.run import Run, Setting, past_of
from tokenmill.store.token_sets import TokenSet

Sets = Mapping[str, TokenSet]
Rows = Iterator[tuple[Batch, int, Run]]
THREADS = 4  # that plan windows, at most


class Dealer:
    """Deals the rows of mixed_rows.py."""

    def __init__(self, sets: Sets, order: Order):
        self._sets = sets
        self._order = order

    def deal(self, run: Run, rank: int, stop: Stop, in_threads: bool) -> Rows:
        """A rank's part of each global batch from a run on, the targets of all, and the run then.

        Windows are planned ahead `in_threads`, until `stop`.
        """
        pool = None
        if in_threads:
            pool = ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "tokenmill")
        sources = self._sources(run, pool=pool, stop=stop)
        # here, as malloc is slower with arrays of this size in other threads
        for name, source in sources.items():
            source.documents(run.now.cursors[name].epoch)
        return mixed_rows(sources, run, rank)

    def skip(self, run: Run, batches: int) -> Run:
        """The run without its next global batches. ValueError if it ends before."""
        global_batch = run.setting.global_batch
        sources = self.sources(run)
        start = past_empty_windows(sources, run)
        turns, after = advance(sources, start, batches * global_batch)
        batches_left = count_rows(turns) // global_batch
        if batches_left < batches:
            raise ValueError(f"skip({batches}): only {batches_left:,} batches are left")
        here = run.now
        moved = after.now._replace(step=here.step, tokens=here.tokens, rows=here.rows)
        return run.go_on(run.setting, moved)

    def has_batch(self, run: Run) -> bool:
        """Whether an iteration of `epochs` has another batch."""
        sources = self.sources(run)
        turns, _ = next_batch(sources, past_empty_windows(sources, run))
        return bool(turns)

    def sources(self, run: Run) -> dict[str, Source]:
        """The sources of a run, which only count rows."""
        return self._sources(run, counts_only=True)

    def _sources(self, run: Run, **options: Any) -> dict[str, Source]:
        sources = {}
        for number, (name, token_set) in enumerate(self._sets.items()):
            sources[name] = Source(name, token_set, self._order, run.legs, number=number, **options)
        return sources

    def epoch(self, run: Run) -> int | None:
        """The epoch of the next row, of the source that is last; None if epochs are not counted."""
        return min(run.now.cursors[name] for name in self._sets).epoch

    @property
    def has_epochs(self) -> bool:
        """Whether the rows are those of an epoch, then of the next: a loader may begin at one."""
        return tuple(self._sets) == (ONE_SET,)

    def require_supported(self, seq_len: int) -> None:
        """ValueError if the sets cannot have these rows."""
        packing = self._order.packing
        if packing.packs_documents:
            return
        for token_set in self._sets.values():
            _require_plain_text(token_set, packing.name)
            for entry in token_set.split(self._order.split):
                if 0 < entry.tokens <= seq_len:
                    raise ValueError(
                        f"{token_set.display_name}: packing {packing.name!r} would leave out shard "
                        f"{entry.name}, which has fewer tokens than a row, {entry.tokens}; use "
                        "packing='best_fit' or a smaller seq_len"
                    )

    def require_rows(self, run: Run, rank: int) -> None:
        """ValueError if a set cannot give what is asked for: rows, or enough of them."""
        setting = run.setting
        epochs = setting.epochs or 1
        is_dropped = setting.epochs is not None and setting.drop_last
        needed = setting.global_batch if is_dropped else 1
        for name, source in self.sources(run).items():
            if self._tokens_in_rows(source) // (setting.seq_len + 1) >= needed:
                continue
            has_shards = source.token_set.split(self._order.split)
            num_rows = source.count(0, up_to=needed) if has_shards else 0
            if num_rows * epochs < needed:
                raise ValueError(
                    _too_few_rows(name, source.token_set, self._order, setting, num_rows)
                )

    def _tokens_in_rows(self, source: Source) -> int:
        """Tokens that are surely in rows, known without planning them."""
        token_set = source.token_set
        split = self._order.split
        if token_set.is_chat:
            row_len = source.seq_len + 1
            return require_conversations(token_set, split, row_len, self._order.long_chats)
        if token_set.view is None and self._order.packing.long_documents == "split":
            return sum(entry.tokens for entry in token_set.split(split))
        return 0

    def require_place(self, run: Run, former_seq_len: int) -> None:
        """ValueError if there is no such place as that of a position that was loaded."""
        packing = self._order.packing
        seq_len = run.setting.seq_len
        for name, source in self.sources(run).items():
            epoch, window, row = run.now.cursors[name]
            if window >= source.count_windows(epoch):
                raise ValueError(
                    f"{source.token_set.display_name} has no window {window} in epoch {epoch}, "
                    "where this position is"
                )
            is_within = window > 0 or row > 0
            if is_within and seq_len != former_seq_len and not packing.packs_documents:
                raise ValueError(
                    f"rows of packing {packing.name!r} cannot change their length within an epoch, "
                    f"from {former_seq_len} to {seq_len}; begin an epoch with set_epoch, or use "
                    "the same seq_len"
                )
            past, _ = past_of(run.legs, name, epoch, window)
            if past:
                source.rows_of_window(epoch, window)  # ValueError if these rows do not exist

    def must_match(self, setting: Setting) -> dict[str, Any]:
        """What of the setting cannot change in a run."""
        return {}


class NanochatDealer(Dealer):
    """Deals nanochat's rows, of one token set."""

    def deal(self, run: Run, rank: int, stop: Stop, in_threads: bool) -> Rows:
        return self._rows(run, rank)

    def _rows(self, run: Run, rank: int) -> Rows:
        return nanochat_rows(self._sets[ONE_SET], self._order.split, run, rank)

    def skip(self, run: Run, batches: int) -> Run:
        raise ValueError("skip is not supported with packing='nanochat'; use packing='best_fit'")

    def epoch(self, run: Run) -> int | None:
        return None

    @property
    def has_epochs(self) -> bool:
        return False

    def require_supported(self, seq_len: int) -> None:
        _require_plain_text(self._sets[ONE_SET], "nanochat")

    def require_rows(self, run: Run, rank: int) -> None:
        next(self._rows(run, rank))

    def require_place(self, run: Run, former_seq_len: int) -> None:
        """Does nothing: all places exist."""

    def must_match(self, setting: Setting) -> dict[str, Any]:
        return {
            "seq_len": setting.seq_len,
            "world_size": setting.world_size,
            "manifest": self._sets[ONE_SET].digest,
        }


def dealer_of(sets: Sets, order: Order) -> Dealer:
    """The dealer of the rows of token sets."""
    is_nanochat = order.packing.name == "nanochat"
    return NanochatDealer(sets, order) if is_nanochat else Dealer(sets, order)


def _require_plain_text(token_set: TokenSet, packing: str) -> None:
    if token_set.is_chat or token_set.view is not None:
        kind = "chat sets" if token_set.is_chat else "views"
        raise ValueError(
            f"{token_set.display_name}: packing {packing!r} is not for {kind}; use 'best_fit'"
        )


def _too_few_rows(
    name: str, token_set: TokenSet, order: Order, setting: Setting, num_rows: int
) -> str:
    source = f"source {name!r}, " if name else ""
    view = f", view {token_set.view.name!r}" if token_set.view else ""
    smaller = "batch_size or seq_len, pass drop_last=False" if num_rows else "seq_len"
    return (
        f"{source}{token_set.display_name}{view}: split {order.split!r} has {num_rows} rows of "
        f"{setting.seq_len} + 1 tokens, fewer than a batch of {setting.batch_size} on "
        f"{setting.world_size} ranks; lower {smaller}, or prepare more text (for val, with a "
        "larger --val-fraction)"
    )
