"""What a loader of one token set deals: planned rows, or nanochat's.

A feed says which rows come, and what a position of them is; chain.py makes batches of them. `Mixed` (mixed.py), with
the same verbs, is of several sets. Both are values: going elsewhere makes another.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tokenmill.batches.config import LoaderConfig
from tokenmill.batches.grain import grain_of, grain_within, told_of
from tokenmill.batches.nanochat_rows import NanochatRows
from tokenmill.batches.planned import PlannedRows
from tokenmill.batches.source import Source
from tokenmill.once import once
from tokenmill.rows.position import Position, identity_of, read_position
from tokenmill.rows.skipped import parse_skipped
from tokenmill.rows.stream import Place
from tokenmill.store.token_sets import TokenSet


class Gone(NamedTuple):
    """A feed that went to a position: from where, in which epoch, after how many tokens."""

    feed: Any
    place: Any
    epoch: int
    tokens_seen: int
    begins_epoch: bool


class Part(NamedTuple):
    """Whose rows a loader deals: a rank's, and of these the share of one of several DataLoader workers."""

    rank: int
    world_size: int
    worker: int = 0
    workers: int = 1


def strict_identity(config: LoaderConfig, part: Part) -> dict[str, Any]:
    """What else must match where each of several workers knows of its own batches alone: they must be the same."""
    if part.workers == 1:
        return {}
    calls = {"rows_a_call": config.batch_size * part.world_size, "worker": part.worker, "workers": part.workers}
    return {"seq_len": config.seq_len} | calls


@dataclass(frozen=True)
class OneSet:
    """The rows of one token set's split."""

    config: LoaderConfig
    part: Part
    source: Source

    @classmethod
    def of(cls, token_set: TokenSet, config: LoaderConfig, part: Part) -> "OneSet":
        """From its first row on."""
        grain = None if config.packing == "nanochat" else grain_within([token_set], config.split)
        return cls(config, part, Source(token_set, config, skipped=parse_skipped(config.skip_rows or ()), grain=grain))

    @property
    def token_set(self) -> TokenSet:
        return self.source.token_set

    @property
    def told(self) -> str:
        """What it is of, in an error."""
        return self.token_set.told

    @property
    def is_nanochat(self) -> bool:
        return self.config.packing == "nanochat"

    @once
    def identity(self) -> dict[str, Any]:
        """What must match for a position to mean the same row."""
        config = self.config
        fingerprint = self.token_set.tokenizer["fingerprint"]
        identity = identity_of(fingerprint, config.split, config.packing, {} if self.is_nanochat else config.order)
        if self.is_nanochat:
            strict = {"seq_len": config.seq_len, "world_size": self.part.world_size}
        else:
            strict = strict_identity(config, self.part)
        return identity | told_of(self.source.grain) | ({"manifest": self.token_set.digest} if strict else {}) | strict

    @property
    def followed(self) -> dict[str, Any]:
        """What the rows follow from, beside the identity and settings."""
        return {"manifest": self.token_set.digest}

    def rows(self, until: int | None, ahead: bool) -> PlannedRows | NanochatRows:
        """The rows, before an epoch; with `ahead` planned by a thread."""
        config, (rank, world_size, *_) = self.config, self.part
        if self.is_nanochat:
            return NanochatRows(self.token_set, config.split, config.seq_len + 1, rank=rank, world_size=world_size)
        return PlannedRows(
            self.source.plans(),
            rank=rank,
            world_size=world_size,
            until=until,
            skipped=self.source.skipped,
            ahead=ahead,
        )

    def begin(self, epoch: int) -> tuple["OneSet", dict[str, int]]:
        """From the first row of an epoch on: (feed, place)."""
        place = {"rows": 0} if self.is_nanochat else {"epoch": epoch, "window": 0, "row": 0}
        return replace(self, source=self.source.from_epoch(epoch)), place

    def knows(self, position: dict[str, Any]) -> bool:
        """Whether a position is of this token set."""
        return "sources" not in position and self.token_set.knows(position["manifest"])

    def following(self, state: dict[str, Any]) -> Gone:
        """From a position on. ValueError where it does not fit."""
        if "sources" in state:
            raise ValueError(
                f"this position is of a mixture of {', '.join(state['sources']['name'])}, and this loader of one token "
                "set; "
                "load it into RowLoader(Mixture(...))"
            )
        if (grain := grain_of(state, self.source.grain)) != self.source.grain:
            return replace(self, source=replace(self.source, grain=grain)).following(state)
        keys = ("rows",) if self.is_nanochat else Place._fields
        position = read_position(state, self.identity, list(keys), self.told)
        if self.is_nanochat:
            return Gone(self, position.place, 0, position.tokens_seen, begins_epoch=False)
        skips = self.config.skip_rows
        source, place = self.source.following(position, None if skips is None else parse_skipped(skips))
        begins = position.begins_epoch
        return Gone(replace(self, source=source), place._asdict(), place.epoch, position.tokens_seen, begins)

    def position(self, place: dict[str, int], tokens_seen: int) -> dict[str, Any]:
        """The position of a place: plain numbers and texts."""
        if self.is_nanochat:
            position = Position(self.token_set.digest, self.config.seq_len, place, tokens_seen, {}, {})
        else:
            position = self.source.position(Place(**place), tokens_seen)
        return position.as_dict(self.identity)

    def require_rows(self) -> None:
        """ValueError where there is nothing to deal, or where rows that are to be skipped are not there."""
        config, world_size = self.config, self.part.world_size
        if self.is_nanochat:
            self.rows(None, ahead=False)
            return  # endless wherever the rank has a document
        plans, whole = self.source.plans(), config.batch_size * world_size
        needed = whole if config.epochs is not None and config.drop_last else 1
        found = plans.count(0, up_to=needed)
        if found * (config.epochs or 1) < needed:
            raise ValueError(
                f"{self.token_set.told}: split {config.split!r} has {found} rows of {config.seq_len} + 1 "
                f"tokens, fewer than one batch of {config.batch_size} on each of {world_size} ranks; "
                "lower batch_size or seq_len, take drop_last=False, or prepare more text"
            )
        # a position may come, of a window that was packed anew: with fewer than twice the rows
        self.source.require_skipped(plans, (0, 0), leeway=2)

    def require_skipped(self, place: dict[str, int]) -> None:
        """ValueError where rows that are to be skipped, from a place on, are not there."""
        if self.source.skipped:
            self.source.require_skipped(self.source.plans(), (place["epoch"], place["window"]))
