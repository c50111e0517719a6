"""NanochatFeed: nanochat's rows as a feed. Each rank has its own order, so a position is valid for one number of ranks.

nanochat_rows.py makes the rows. A position has the same columns as any other (rows/position.py): one source, whose
cursor counts the rows of each rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.cached import cached_property
from tokenmill.feed.loader_config import LoaderConfig
from tokenmill.feed.mixture import ONE_SET
from tokenmill.feed.mixture_state import read_sources
from tokenmill.feed.nanochat_rows import NanochatPlace, NanochatRows
from tokenmill.feed.protocol import RankShare, Resumed, SourceUsage
from tokenmill.feed.window_plans import require_whole
from tokenmill.rows.packings import find_packing
from tokenmill.rows.position import (
    OF_SOURCE,
    Documents,
    Position,
    columns,
    identity_of,
    read_position,
    require_identity,
    upgrade,
)
from tokenmill.store.token_sets import TokenSet


@dataclass(frozen=True)
class NanochatFeed:
    """The rows of one token set's split, as nanochat gives them to a rank."""

    config: LoaderConfig
    share: RankShare
    token_set: TokenSet

    @classmethod
    def of(cls, config: LoaderConfig, share: RankShare) -> "NanochatFeed":
        """The feed at the first row. Raises what opening the token set raises."""
        token_set = config.open_sets()[ONE_SET]
        require_whole(token_set, find_packing(config.packing))
        return cls(config, share, token_set)

    @property
    def display_name(self) -> str:
        return self.token_set.display_name

    @property
    def names(self) -> tuple[str, ...]:
        return (ONE_SET,)

    @property
    def is_masked(self) -> bool:
        return False

    @cached_property
    def identity(self) -> dict[str, Any]:
        config, fingerprint = self.config, self.token_set.tokenizer["fingerprint"]
        strict = {"seq_len": config.seq_len, "world_size": self.share.world_size, "mixture": self.token_set.digest}
        return identity_of(fingerprint, config.split, config.packing, {"order_version": 1}) | strict

    @property
    def order_inputs(self) -> dict[str, Any]:
        return {"manifest": self.token_set.digest}

    def rows(self, until: int | None, ahead: bool) -> NanochatRows:
        config, (rank, world_size, *_) = self.config, self.share
        return NanochatRows(self.token_set, config.split, config.seq_len + 1, rank=rank, world_size=world_size)

    def begin(self, epoch: int, since: NanochatPlace | None = None) -> tuple["NanochatFeed", NanochatPlace]:
        return self, NanochatPlace(0)

    def position(self, place: NanochatPlace, tokens_seen: int) -> dict[str, Any]:
        cursor = {"epoch": 0, "window": 0, "row": place.rows}
        part = Position(
            (Documents(0, self.token_set.digest),), self.config.seq_len, cursor, tokens_seen, {}, {}
        ).as_dict()
        own = {"name": ONE_SET, "drawn_from": "", "rows": place.rows * self.share.world_size, "segment_tokens": 0}
        run = {"tokens_seen": tokens_seen, "turns": 0, "asked": "", "segments": {}}
        return self.identity | run | {"sources": columns(OF_SOURCE, [own | part])}

    def resume(self, state: dict[str, Any]) -> Resumed["NanochatFeed"]:
        state = upgrade(state)
        require_identity(state, self.identity, self.display_name)
        parts = read_sources(state)
        if list(parts) != [ONE_SET]:
            raise ValueError(
                f"this position is of a mixture of {', '.join(parts)}, but this loader reads one token set"
            )
        position = read_position(parts[ONE_SET])
        return Resumed(self, NanochatPlace(position.place["row"]), 0, position.tokens_seen, begins_epoch=False)

    def logged(self, place: NanochatPlace) -> list[list[Any]]:
        return []  # its rows have no places that a log could name

    def renamed(self, state: dict[str, Any]) -> str:
        return ""

    def knows(self, state: dict[str, Any]) -> bool:
        parts = read_sources(upgrade(state))
        return list(parts) == [ONE_SET] and self.token_set.knows(str(parts[ONE_SET]["manifest"]))

    def epoch(self, place: NanochatPlace) -> int:
        """The epoch of the documents that this rank is reading."""
        return place.epoch

    def describe(self, place: NanochatPlace, tokens_seen: int) -> str:
        return f"rows {place.rows:,}"

    def used(self, place: NanochatPlace) -> Mapping[str, SourceUsage]:
        raise AssertionError("only mixtures have a usage per source")

    def count_rows(self, epoch: int) -> None:
        return None

    def count_skipped(self, epochs: range) -> int:
        return 0

    def require_rows(self) -> None:
        self.rows(None, ahead=False)  # raises ValueError if the rank has no document; else the rows are endless

    def require_skipped(self, place: NanochatPlace) -> None:
        """Does nothing, because this feed cannot skip rows."""
