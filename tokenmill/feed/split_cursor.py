"""SplitCursor: a token set's split in the order of a loader's settings, resumable from a position.

    split = SplitCursor(token_set, config)                starts at the first row
    split, cursor = split.resume(position, None)          continues from a position, also after the row length changed
                                                          or the set grew
    split.plans()                                         the plan of each of its windows

It is a value: moving to another place makes a new one, so a position that does not fit changes nothing.
"""

from dataclasses import dataclass, field, replace

from tokenmill.cached import cached_property
from tokenmill.feed.epoch_documents import EpochPart, Former, parts_of
from tokenmill.feed.loader_config import LoaderConfig
from tokenmill.feed.window_plans import WindowPlans
from tokenmill.rows.order import ORDER_VERSION
from tokenmill.rows.packings import find_packing
from tokenmill.rows.position import Documents, Pasts, Position, cut_by, pasts_after_restart
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
    former: Former | None = None  # what an epoch goes over that began before the set grew, or with another view
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

    @property
    def former_of_views(self) -> Former | None:
        """The former epoch if its view changed on the way; what went before in that epoch then depends on it."""
        return self.former if self.former is not None and len(self.former[1]) > 1 else None

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
            former=self._former(position, skipped is not None),
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
        parts = parts_of(place.epoch, self.token_set, self.former)
        documents = tuple(Documents(part.begin, part.token_set.digest, part.token_set.view_digest) for part in parts)
        first = (
            cut_by(place.epoch, self.began, self.pasts) if find_packing(self.config.packing).cuts_epoch_once else None
        )
        began = None if first is None or first == self.config.seq_len + 1 else first - 1
        cursor = place._asdict()
        position = Position(documents, self.config.seq_len, cursor, tokens_seen, self.skipped, self.pasts, began)
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

    def _former(self, position: Position, skips_given: bool) -> Former | None:
        """What the epoch that a position is in goes over, if that is not the set as it is.

        A set that has grown continues as it was until the epoch ends. Another view holds from the next window on, with
        the shards that were added since.
        """
        epoch, now = position.place["epoch"], self.token_set
        if position.begins_epoch:  # the set as it is, whatever went before
            was_known = self.token_set.as_it_was(position.documents[-1].manifest, self.config.split)
            if was_known.digest != now.digest or position.documents[-1].view != now.view_digest:
                self._require_named_before(position, (epoch, 0), skips_given)
            return None
        was = [EpochPart(part.begin, self.as_it_was(part)) for part in position.documents]
        if len(was) == 1 and was[0].token_set.documents_are_those_of(now):
            return None
        changes_view = any(part.token_set.view is not None for part in (*was, EpochPart(0, now)))
        is_same = was[-1].token_set.documents_are_those_of(now)
        as_new = (epoch + 1, 0)  # the first window of the set as it is
        if changes_view and not is_same:
            as_new = (epoch, position.place["window"] + self._is_begun(position))
        self._require_named_before(position, as_new, skips_given)
        if is_same or not changes_view:
            return epoch, tuple(was)
        begun = [part for part in was if part.begin < as_new[1]]
        return epoch, (*begun, EpochPart(as_new[1], now))

    def as_it_was(self, part: Documents) -> TokenSet:
        """The set with a manifest and a view that a position names."""
        was = self.token_set.as_it_was(part.manifest, self.config.split)
        return was if part.view == was.view_digest else was.viewed(part.view)

    @staticmethod
    def _is_begun(position: Position) -> bool:
        """Whether rows of the window that a position is in were used."""
        return bool(position.place["row"]) or any(past.used for past in position.pasts.get(position.window, ()))

    def _require_named_before(self, position: Position, as_new: tuple[int, int], skips_given: bool) -> None:
        """Raises ValueError if a position skips rows of windows that now have other documents."""
        changed = "has grown" if position.documents[-1].view == self.token_set.view_digest else "has another view"
        named = [] if skips_given else [*position.skipped, *position.pasts]
        if named := [window for window in named if window >= as_new]:
            raise ValueError(
                f"{self.token_set.display_name} {changed} since this position, whose skip_rows name rows of epoch "
                f"{named[0][0]}, window {named[0][1]}; that window now has other documents, so its rows are others; "
                "pass skip_rows=[...] as `tokenmill show` prints them now to the loader, or [] to skip none"
            )
