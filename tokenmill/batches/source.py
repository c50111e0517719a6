"""One token set's split in the order of a loader's settings, from a place on: what a position of it says.

    source = Source(token_set, config)                    from its first row on
    source, place = source.following(position, None)      as a position says: rows of another length, a grown set
    source.plans()                                        the plan of each of its windows

A value: going elsewhere makes another, so a position that does not fit changes nothing. A loader of one token set has
one without a name, a mixture one of each of its sources.
"""

from dataclasses import dataclass, field, replace

from tokenmill.batches.config import LoaderConfig
from tokenmill.batches.plans import WindowPlans
from tokenmill.rows.position import Pasts, Position, begun_anew, cut_by
from tokenmill.rows.skipped import Skipped
from tokenmill.rows.stream import Place, no_such_rows
from tokenmill.rows.windows import Grain
from tokenmill.store.token_sets import TokenSet


@dataclass(frozen=True)
class Source:
    """Where a set's rows go on, beside the place: what of its windows and shards is not as in a set begun anew."""

    token_set: TokenSet
    config: LoaderConfig
    name: str = ""  # random orders are drawn from it
    skipped: Skipped = field(default_factory=dict)
    pasts: Pasts = field(default_factory=dict)  # of the windows that were begun with rows of another length
    former: tuple[int, TokenSet] | None = None  # the set as it was in an epoch that began before it grew
    grain: Grain | None = None  # of windows, where the usual ones are too large for a cache
    began: tuple[int, int] | None = None  # (epoch, row_len) where an epoch of cut rows began with another

    def plans(self) -> WindowPlans:
        """The plans of its windows."""
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
            grain=self.grain,
            **config.order,
        )

    def from_epoch(self, epoch: int) -> "Source":
        """All of an epoch and those after it, of the set as it is."""
        same_set = self.former is None or self.former[0] != epoch
        pasts = begun_anew(self.pasts, epoch if same_set else epoch + 1)
        return replace(self, pasts=pasts, former=None, began=None)

    def following(self, position: Position, skipped: Skipped | None) -> tuple["Source", Place]:
        """As a position says, where other rows are to be `skipped` with these: (source, place).

        ValueError where the position is of another token set, or of rows that are not there.
        """
        config = self.config
        position = position if skipped is None else position.skipping({})
        position = position.at_length(config.seq_len, cut=config.packing == "concat")
        if skipped is not None:  # named as rows are here
            position = position.skipping(skipped)
        source = replace(
            self,
            skipped=position.skipped,
            pasts=dict(position.pasts),
            former=self._former_set(position, skipped is not None),
            began=None if position.began is None else (position.place["epoch"], position.began + 1),
        )
        plans = source.plans()
        source.require_skipped(plans, position.window)
        for epoch, window in source.pasts:
            if window >= plans.count_windows(epoch):
                raise ValueError(f"no such window: {window} of epoch {epoch}, in the pasts of this position")
            plans.count_rows(epoch, window)  # which refuses what cannot be
        return source, Place(**position.place)

    def position(self, place: Place, tokens_seen: int) -> Position:
        """The position of a place, with what is still to come of what is told of windows."""
        former = self.former if self.former is not None and self.former[0] == place.epoch else None
        manifest = self.token_set.digest if former is None else former[1].digest
        first = cut_by(place.epoch, self.began, self.pasts) if self.config.packing == "concat" else None
        began = None if first is None or first == self.config.seq_len + 1 else first - 1
        told = (manifest, self.config.seq_len, place._asdict(), tokens_seen, self.skipped, self.pasts, began)
        return Position(*told).still_to_come()

    def require_skipped(self, plans: WindowPlans, since: tuple[int, int], leeway: int = 1) -> None:
        """ValueError where rows that are to be skipped, from a window on, are not there, nor so many times the rows."""
        for (epoch, window), ranges in self.skipped.items():
            if (epoch, window) < since:
                continue
            windows = plans.count_windows(epoch)
            rows = plans.count_rows(epoch, window) if window < windows else 0
            if ranges[-1].stop > leeway * rows:
                raise no_such_rows(epoch, window, ranges[-1], rows, self.name)

    def _former_set(self, position: Position, skips_given: bool) -> tuple[int, TokenSet] | None:
        """The set as it was, for the epoch that a position is in, where that has begun."""
        was = self.token_set.as_it_was(position.manifest, self.config.split)
        if was is self.token_set:
            return None
        epoch = position.place["epoch"]
        as_new = epoch if position.begins_epoch else epoch + 1  # from here on the grown set is gone over
        named = [] if skips_given else [*position.skipped, *position.pasts]
        if named := [window for window in named if window[0] >= as_new]:
            raise ValueError(
                f"{self.token_set.told} has grown since this position, whose skip_rows name rows of epoch "
                f"{named[0][0]}, which goes over the new shards too, so that these are other rows now; give the "
                "loader skip_rows=[...] as `tokenmill show` names them today, or [] to skip none"
            )
        return None if position.begins_epoch else (epoch, was)
