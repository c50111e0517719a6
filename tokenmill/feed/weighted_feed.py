"""WeightedFeed: the rows of weighted sources, each from its own cursor, and a position of them all.

One token set is one source, named "". `Mixture` says which sources there are. Each source has its own cursor
(split_cursor.py), and the weights decide whose turn it is (weighted_rows.py). If a source was taken out of a mixture,
positions keep its part unchanged until it returns. weighted_checks.py has the checks of sources and positions.
"""

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from tokenmill.cached import cached_property
from tokenmill.feed.loader_config import LoaderConfig
from tokenmill.feed.mixture import ONE_SET, Mixture
from tokenmill.feed.mixture_state import (
    read_mixture_state,
    read_sources,
    rename_one_set,
    segment_tokens,
    write_mixture_state,
)
from tokenmill.feed.protocol import RankShare, Resumed, SourceUsage, worker_identity
from tokenmill.feed.split_cursor import SplitCursor
from tokenmill.feed.weighted_checks import (
    ids_fingerprint,
    manifests_of,
    name_of_set,
    require_caps,
    require_compatible,
    require_long_documents,
    require_sources,
    require_whole_conversations,
    warn_if_spread_is_over,
)
from tokenmill.feed.weighted_rows import WeightedRows
from tokenmill.feed.window_size import as_identity, window_size_of, window_size_within
from tokenmill.rows.mixed_stream import Schedule
from tokenmill.rows.order import ORDER_VERSION
from tokenmill.rows.position import (
    OF_SOURCE,
    columns,
    identity_of,
    order_version_of,
    read_position,
    require_identity,
    upgrade,
)
from tokenmill.rows.row_stream import Cursor, require_window
from tokenmill.rows.run_log import OF_SOURCE as LOGGED
from tokenmill.rows.segments import MixtureState, SegmentStart, SourceState, Turn
from tokenmill.rows.skip_rows import Skipped, by_source
from tokenmill.rows.windows import WindowSize
from tokenmill.store.token_sets import TokenSet

SEGMENTS_KEPT = 64  # of the iterations of a run: a position stays small however many there are


@dataclass(frozen=True)
class WeightedFeed:
    """The rows of a mixture's sources, each from its own cursor."""

    config: LoaderConfig
    share: RankShare
    mixture: Mixture
    sources: Mapping[str, SplitCursor]
    removed: Mapping[str, Any] = field(default_factory=dict)  # the position's parts of sources that were taken out

    @classmethod
    def of(cls, config: LoaderConfig, share: RankShare) -> "WeightedFeed":
        """The feed at the first row of each source. Raises ValueError if the sources do not fit together."""
        mixture = config.mixture
        sets = config.open_sets()
        require_compatible(sets)
        require_long_documents(config, sets)
        if config.split == "val" and len(mixture.stages) > 1:
            raise ValueError(
                f"this mixture has {len(mixture.stages)} stages, but validation uses the same weights at all times: "
                "pass mixture.at(0), or mixture.at('900B'), the weights of one moment"
            )
        size = window_size_within(sets.values(), config.split)
        skipped = by_source(config.skip_rows or (), mixture.names)
        return cls(config, share, mixture, _from_first_row(sets, config, skipped, size))

    # ------------------------------------------------------------------------ sources and identity

    @property
    def token_set(self) -> TokenSet:
        return next(iter(self.sources.values())).token_set

    @property
    def window_size(self) -> WindowSize | None:
        """The window size of all sources; None for the default."""
        return next(iter(self.sources.values())).window_size

    @property
    def order_version(self) -> int:
        """The version of the order of rows, the same for all sources."""
        return next(iter(self.sources.values())).order_version

    @property
    def display_name(self) -> str:
        if not self.mixture.is_one_set:
            return f"a mixture of {', '.join(self.sources)}"
        view = self.token_set.view
        return self.token_set.display_name + ("" if view is None else f", view {view.name}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.sources)

    @property
    def is_masked(self) -> bool:
        return self.config.loss == "once" or any(source.token_set.is_chat for source in self.sources.values())

    @property
    def only(self) -> SplitCursor | None:
        """The source, if there is exactly one, else None."""
        return next(iter(self.sources.values())) if len(self.sources) == 1 else None

    @cached_property
    def schedule(self) -> Schedule:
        """What decides whose turn it is. Caps apply to training only; validation may repeat a source."""
        mixture = self.mixture
        caps = dict(mixture.max_epochs) if self.config.split == "train" else {}
        return Schedule(mixture.stages, caps, mixture.on_cap, mixture.tokens)

    @cached_property
    def identity(self) -> dict[str, Any]:
        config, fingerprint = self.config, ids_fingerprint(self.token_set)
        identity = identity_of(fingerprint, config.split, config.packing, config.order) | as_identity(self.window_size)
        identity |= {"order_version": self.order_version}
        strict = worker_identity(config, self.share)
        return identity | ({"mixture": self._digest(), **strict} if strict else {})

    def _digest(self) -> str:
        if self.mixture.is_one_set:
            return "/".join(filter(None, (self.token_set.digest, self.token_set.view_digest)))
        return hashlib.sha256(json.dumps(self.order_inputs, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def order_inputs(self) -> dict[str, Any]:
        views = {name: token_set.view_digest for name, token_set in sorted(self._sets.items()) if token_set.view}
        if self.mixture.is_one_set:
            return {"manifest": self.token_set.digest} | ({"view": views[ONE_SET]} if views else {})
        manifests = {name: token_set.digest for name, token_set in sorted(self._sets.items())}
        return {"mixture": self.mixture.description | {"manifests": manifests} | ({"views": views} if views else {})}

    @property
    def _sets(self) -> dict[str, TokenSet]:
        return {name: source.token_set for name, source in self.sources.items()}

    # ------------------------------------------------------------------------ rows

    def rows(self, until: int | None, ahead: bool) -> WeightedRows:
        schedule = self.schedule
        if until is not None:
            (name,) = self.sources
            schedule = Schedule(schedule.stages, {name: Fraction(until)}, "retire")
        return WeightedRows(
            {name: source.plans() for name, source in self.sources.items()},
            {name: source.skipped for name, source in self.sources.items()},
            schedule,
            rank=self.share.rank,
            world_size=self.share.world_size,
            calls=1 if self.share.workers > 1 else None,
            ahead=ahead,
        )

    def begin(self, epoch: int, since: MixtureState | Turn | None = None) -> tuple["WeightedFeed", MixtureState]:
        sources = {name: source.from_epoch(epoch) for name, source in self.sources.items()}
        feed = replace(self, sources=sources)
        if since is None:
            return feed, MixtureState({name: SourceState(Cursor(epoch)) for name in sources})
        (name,) = sources  # a mixture of several sources has no epochs to begin
        was = since.mixture_state()
        if was.sources[name].place == Cursor(epoch):
            return feed, was  # no row is left out: the segment continues
        served = was.sources[name]._replace(place=Cursor(epoch))
        before = [line for line in was.segments if line.tokens < was.tokens_seen][-SEGMENTS_KEPT:]
        line = SegmentStart(was.tokens_seen, self.config.seq_len, {name: 1}, {name: served.place})
        return feed, MixtureState({name: served}, was.tokens_seen, segments=(*before, line) if before else ())

    def count_rows(self, epoch: int) -> int | None:
        return None if self.only is None else self.only.plans().count(epoch)

    def count_skipped(self, epochs: range) -> int:
        skipped = [] if self.only is None else self.only.skipped.items()
        return sum(len(rows) for (epoch, _), many in skipped if epoch in epochs for rows in many)

    # ------------------------------------------------------------------------ the position

    def position(self, place: MixtureState | Turn, tokens_seen: int) -> dict[str, Any]:
        mixture_state = place.mixture_state()
        used = segment_tokens(mixture_state)
        parts = []
        for name, served in mixture_state.sources.items():
            source = self.sources[name]
            own = {"name": name, "drawn_from": source.name, "rows": served.rows, "segment_tokens": used.get(name, 0)}
            parts.append(own | source.position(served.place, served.tokens).as_dict())
        sources = columns(OF_SOURCE, [*parts, *copy.deepcopy([*self.removed.values()])])  # a caller may edit it
        return self.identity | {"seq_len": self.config.seq_len, "sources": sources} | write_mixture_state(mixture_state)

    def logged(self, place: MixtureState | Turn) -> list[list[Any]]:
        found = []
        for name, served in place.mixture_state().sources.items():
            source = self.sources[name]
            own = {"name": name, "drawn_from": source.name}
            own |= {"set_manifest": source.token_set.digest, "set_view": source.token_set.view_digest}
            part = own | source.position(served.place, 0).as_dict()
            found.append([part[key] for key in LOGGED])
        return found

    def renamed(self, state: dict[str, Any]) -> str:
        parts = read_sources(upgrade(state))
        return name_of_set(parts[ONE_SET], self.mixture, self._sets) if list(parts) == [ONE_SET] else ""

    def knows(self, state: dict[str, Any]) -> bool:
        parts = read_sources(upgrade(state))
        if self.mixture.is_one_set or list(parts) == [ONE_SET]:
            same_kind = list(parts) == [ONE_SET] and self.mixture.is_one_set
            return same_kind and all(map(self.token_set.knows, manifests_of(parts[ONE_SET])))
        return parts.keys() <= {*self.sources, *self.mixture.removed}

    def resume(self, state: dict[str, Any]) -> Resumed["WeightedFeed"]:
        state = upgrade(state)
        order = window_size_of(state, self.window_size), order_version_of(state)
        if order != (self.window_size, self.order_version):
            size, version = order
            sources = {
                name: replace(source, window_size=size, order_version=version) for name, source in self.sources.items()
            }
            return replace(self, sources=sources).resume(state)
        require_identity(state, self.identity, self.display_name)
        parts = read_sources(state)
        if list(parts) == [ONE_SET]:
            name = name_of_set(parts[ONE_SET], self.mixture, self._sets)
            state = rename_one_set(state, name)
            parts = read_sources(state)
        require_sources(parts, self.mixture, self._sets)
        removed = {name: part for name, part in parts.items() if name not in self.sources}
        skips = self.config.skip_rows
        skipped = None if skips is None else by_source(skips, self.mixture.names)
        # a source that the position lacks starts over, even if this feed was resumed before
        sources = _from_first_row(self._sets, self.config, skipped or {}, *order)
        served, begins = {name: SourceState() for name in sources}, True
        for name in parts.keys() - removed.keys():
            own = None if skipped is None else skipped.get(name, {})
            sources[name], served[name], begins = self._resume_source(name, parts[name], own)
        mixture_state = read_mixture_state(state, parts, served)
        feed = replace(self, sources=sources, removed=removed)
        warn_if_spread_is_over(self.schedule, mixture_state)
        require_caps(self.schedule, feed.sources, mixture_state)
        return Resumed(feed, mixture_state, feed.epoch(mixture_state), mixture_state.tokens_seen, begins)

    def _resume_source(
        self, name: str, part: dict[str, Any], skipped: Skipped | None
    ) -> tuple[SplitCursor, SourceState, bool]:
        """(split, what was used, whether no row of its epoch was used) of a source at its part of a position."""
        try:
            position = read_position(part)
            source = replace(self.sources[name], name=str(part["drawn_from"]))
            source, place = source.resume(position, skipped)
            require_window(place, source.plans().count_windows)
        except ValueError as error:
            raise error if name == ONE_SET else ValueError(f"source {name!r} of the position: {error}") from error
        return source, SourceState(place, part["rows"], position.tokens_seen), position.begins_epoch

    # ------------------------------------------------------------------------ facts about a place

    def epoch(self, place: MixtureState | Turn) -> int:
        return min(served.place.epoch for served in place.mixture_state().sources.values())

    def describe(self, place: MixtureState | Turn, tokens_seen: int) -> str:
        if not self.mixture.is_one_set:
            return f"after {tokens_seen:,} tokens"
        epoch, window, row = place.mixture_state().sources[ONE_SET].place
        return f"epoch {epoch:,}, window {window:,}, row {row:,}"

    def used(self, place: MixtureState | Turn) -> dict[str, SourceUsage]:
        served = place.mixture_state().sources
        epochs = {name: float(source.usage.epochs_at(served[name].place)) for name, source in self.sources.items()}
        return {name: SourceUsage(served[name].tokens, served[name].rows, epochs[name]) for name in self.sources}

    # ------------------------------------------------------------------------ checks

    def require_rows(self) -> None:
        config, world_size = self.config, self.share.world_size
        needed = config.batch_size * world_size if config.epochs is not None and config.drop_last else 1
        for name, source in self.sources.items():
            plans = source.plans()
            require_whole_conversations(plans)
            found = plans.count(0, up_to=needed)
            if found * (config.epochs or 1) < needed:
                where = (
                    source.token_set.display_name
                    if name == ONE_SET
                    else f"source {name!r}, {source.token_set.display_name}"
                )
                if source.token_set.view is not None:
                    where += f", view {source.token_set.view.name!r}"
                hint = "" if len(self.sources) == 1 else "leave it out of this mixture, "
                raise ValueError(
                    f"{where}: split {config.split!r} has {found} rows of {config.seq_len} + 1 tokens, fewer than one "
                    f"batch of {config.batch_size} on each of {world_size} ranks; {hint}lower batch_size or seq_len, "
                    "pass drop_last=False, or prepare more text"
                )
            # the loader may load a position of a window that was packed again: it has fewer than twice the rows
            source.require_skipped(plans, (0, 0), leeway=2)

    def require_skipped(self, place: MixtureState | Turn) -> None:
        for name, source in self.sources.items():
            if source.skipped:
                source.require_skipped(source.plans(), place.mixture_state().sources[name].place[:2])


def _from_first_row(
    sets: Mapping[str, TokenSet],
    config: LoaderConfig,
    skipped: Mapping[str, Skipped],
    size: WindowSize | None,
    version: int = ORDER_VERSION,
) -> dict[str, SplitCursor]:
    """The sources, each at its first row."""
    return {
        name: SplitCursor(
            token_set, config, name, skipped=skipped.get(name, {}), window_size=size, order_version=version
        )
        for name, token_set in sets.items()
    }
