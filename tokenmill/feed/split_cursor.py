"""SplitCursor: a token set's split in the order of a loader's settings, resumable from a position.

    split = SplitCursor(token_set, config)                starts at the first row
    split, cursor = split.resume(position, None)          continues from a position, also after the row length changed
                                                          or the set grew
    split.plans()                                         the plan of each of its windows

It is a value: moving to another place makes a new one, so a position that does not fit changes nothing.
"""

from dataclasses import dataclass, field, replace

from tokenmill.cached import cached_property
from tokenmill.feed.loader_config import LoaderConfig
from tokenmill.feed.window_plans import WindowPlans
from tokenmill.rows.order import ORDER_VERSION
from tokenmill.rows.packings import find_packing
from tokenmill.rows.position import Pasts, Position, cut_by, pasts_after_restart
from tokenmill.rows.row_stream import Cursor, no_such_rows
from tokenmill.rows.skip_rows import Skipped
from tokenmill.rows.windows import WindowSize
from tokenmill.store.token_sets import TokenSet


@dataclass(frozen=True)
class SplitCursor:
    """What determines a set's remaining rows besides the cursor: how its windows differ from those of a new run."""

    token_set: TokenSet
    config: LoaderConfig
    name: str = ""  # part of the key of random orders
    skipped: Skipped = field(default_factory=dict)
    pasts: Pasts = field(default_factory=dict)  # of windows that were begun with rows of another length
    former: tuple[int, TokenSet] | None = None  # (epoch, set as it was) if that epoch began before the set grew
    window_size: WindowSize | None = None  # if default windows are too large for the cache
    began: tuple[int, int] | None = None  # (epoch, row_len) if an epoch of `concat` began with another row length
    order_version: int = ORDER_VERSION  # 1 if the run began with tokenmill 0.3.0

    def plans(self) -> WindowPlans:
        """The plans of the split's windows."""
        config = self.config
        return WindowPlans(
            self.token_set,
            config.split,
            config.seq_len + 1,
            packing=config.packing,
            name=self.name,
            former=self.former,
            pasts=self.pasts,
            began=self.began,
            window_size=self.window_size,
            order_version=self.order_version,
            loss=config.loss,
            **config.order,
        )

    @cached_property
    def usage(self) -> WindowPlans:
        """The plans that only usage is asked of: they keep a count, and no rows."""
        return self.plans()

    def from_epoch(self, epoch: int) -> "SplitCursor":
        """The split from the first row of an epoch on, with the set as it is now."""
        same_set = self.former is None or self.former[0] != epoch
        pasts = pasts_after_restart(self.pasts, epoch if same_set else epoch + 1)
        return replace(self, pasts=pasts, former=None, began=None)

    def resume(self, position: Position, skipped: Skipped | None) -> tuple["SplitCursor", Cursor]:
        """Continues from a position, and skips `skipped` instead of the position's own rows: (split, cursor).

        With skipped=None the position's own rows are skipped. Raises ValueError if the position is of another token
        set, or names rows that do not exist.
        """
        config = self.config
        position = position if skipped is None else position.skipping({})
        position = position.at_length(config.seq_len, cut=find_packing(config.packing).cuts_epoch_once)
        if skipped is not None:  # these are named at the current row length
            position = position.skipping(skipped)
        split = replace(
            self,
            skipped=position.skipped,
            pasts=dict(position.pasts),
            former=self._former_set(position, skipped is not None),
            began=None if position.began is None else (position.place["epoch"], position.began + 1),
        )
        plans = split.plans()
        split.require_skipped(plans, position.window)
        for epoch, window in split.pasts:
            if window >= plans.count_windows(epoch):
                raise ValueError(f"no such window: {window} of epoch {epoch}, in the pasts of this position")
            plans.count_rows(epoch, window)  # raises ValueError if its past is impossible
        return split, Cursor(**position.place)

    def position(self, place: Cursor, tokens_seen: int) -> Position:
        """The position of a place, without the pasts of windows that are done."""
        former = self.former if self.former is not None and self.former[0] == place.epoch else None
        manifest = self.token_set.digest if former is None else former[1].digest
        first = (
            cut_by(place.epoch, self.began, self.pasts) if find_packing(self.config.packing).cuts_epoch_once else None
        )
        began = None if first is None or first == self.config.seq_len + 1 else first - 1
        cursor = place._asdict()
        position = Position(manifest, self.config.seq_len, cursor, tokens_seen, self.skipped, self.pasts, began)
        return position.without_done_windows()

    def require_skipped(self, plans: WindowPlans, first: tuple[int, int], leeway: int = 1) -> None:
        """Raises ValueError if rows to skip, from the window `first` on, do not exist.

        With a leeway of 2, up to twice the rows of the window are accepted.
        """
        for (epoch, window), ranges in self.skipped.items():
            if (epoch, window) < first:
                continue
            windows = plans.count_windows(epoch)
            rows = plans.count_rows(epoch, window) if window < windows else 0
            if ranges[-1].stop > leeway * rows:
                raise no_such_rows(epoch, window, ranges[-1], rows, self.name)

    def _former_set(self, position: Position, skips_given: bool) -> tuple[int, TokenSet] | None:
        """(epoch, set as it was) for the epoch that a position is in, if the set has grown since that epoch began."""
        was = self.token_set.as_it_was(position.manifest, self.config.split)
        if was is self.token_set:
            return None
        epoch = position.place["epoch"]
        as_new = epoch if position.begins_epoch else epoch + 1  # the first epoch that includes the new shards
        named = [] if skips_given else [*position.skipped, *position.pasts]
        if named := [window for window in named if window[0] >= as_new]:
            raise ValueError(
                f"{self.token_set.display_name} has grown since this position, whose skip_rows name rows of epoch "
                f"{named[0][0]}; that epoch now includes the new shards, so its rows are others; pass skip_rows=[...] "
                "as `tokenmill show` prints them now to the loader, or [] to skip none"
            )
        return None if position.begins_epoch else (epoch, was)
