"""What a loader of a mixture deals: each source's rows from where it stands, and what a position of them all is.

A position, beside what must match (fingerprint, split, packing, seed ...):

    tokens_seen 25165824
    seq_len 2048, turns 12288, asked 83ab...                of the segment: how far, and what its weights followed from
    segments {tokens, seq_len, weights, places}             a list each: since training began, the last at hand
    sources {name, manifest, seq_len, epoch, window, row, ..., rows, tokens_seen, segment_tokens}           a list each

Each source's part is a position of its own (rows/position.py). A source that was taken out keeps its part, word for
word, until it comes back.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

from tokenmill.batches.callers import warn
from tokenmill.batches.config import LoaderConfig
from tokenmill.batches.grain import grain_of, grain_within, told_of
from tokenmill.batches.ledger import columns, lines_of, read_standing, segment_tokens, told_standing
from tokenmill.batches.mixed_rows import MixedRows
from tokenmill.batches.mixture import Mixture
from tokenmill.batches.one_set import Gone, Part, strict_identity
from tokenmill.batches.source import Source
from tokenmill.checks import whole_number
from tokenmill.once import once
from tokenmill.remote.sets import open_set
from tokenmill.rows.position import identity_of, read_position, require_identity
from tokenmill.rows.segments import Served, Standing, Turn
from tokenmill.rows.skipped import Skipped, by_source
from tokenmill.rows.stream import Place, require_window
from tokenmill.rows.windows import Grain
from tokenmill.store.token_sets import TokenSet

# what a position tells of each source: its own position, and what it was dealt
OWN = ("manifest", "seq_len", *Place._fields, "began", "pasts", "skip_rows", "tokens_seen")
PART = ("name", *OWN, "drawn_from", "rows", "segment_tokens")


class Seen(NamedTuple):
    """What of a source was dealt since training began, to all ranks together."""

    tokens: int
    rows: int
    epochs: float  # how far it is in its documents


@dataclass(frozen=True)
class Mixed:
    """The rows of a mixture's sources, from where each stands."""

    config: LoaderConfig
    part: Part
    mixture: Mixture
    sources: Mapping[str, Source]
    kept: Mapping[str, Any] = field(default_factory=dict)  # the parts of sources that were taken out

    @classmethod
    def of(cls, mixture: Mixture, config: LoaderConfig, part: Part) -> "Mixed":
        """From the first row of each source on. ValueError where they do not go together."""
        sets = {name: open_set(path, config.kept) for name, path in mixture.paths.items()}
        require_one_kind(sets)
        grain = grain_within(sets.values(), config.split)
        skipped = by_source(config.skip_rows or (), mixture.names)
        sources = {
            name: Source(token_set, config, name, skipped=skipped.get(name, {}), grain=grain)
            for name, token_set in sets.items()
        }
        if config.split == "val" and len(mixture.stages) > 1:
            raise ValueError(
                f"this mixture has {len(mixture.stages)} stages, and validation one mixture at all times: give the "
                "loader mixture.at(0), or mixture.at('900B'), the weights of one moment"
            )
        return cls(config, part, mixture, sources)

    @property
    def token_set(self) -> TokenSet:
        """The first source's: all have one tokenizer."""
        return next(iter(self.sources.values())).token_set

    @property
    def grain(self) -> Grain | None:
        """Of all sources' windows, where it is not the usual one."""
        return next(iter(self.sources.values())).grain

    @property
    def told(self) -> str:
        """What it is of, in an error."""
        return f"a mixture of {', '.join(self.sources)}"

    @once
    def caps(self) -> dict[str, Fraction]:
        """Of training: validation repeats as it likes."""
        return dict(self.mixture.max_epochs) if self.config.split == "train" else {}

    @once
    def identity(self) -> dict[str, Any]:
        """What must match for a position to mean the same rows."""
        config = self.config
        fingerprint = self.token_set.tokenizer["fingerprint"]
        identity = identity_of(fingerprint, config.split, config.packing, config.order)
        strict = strict_identity(config, self.part)
        identity |= told_of(self.grain)
        told = hashlib.sha256(json.dumps(self.followed, sort_keys=True).encode()).hexdigest()[:16]
        return identity | ({"mixture": told, **strict} if strict else {})

    @property
    def followed(self) -> dict[str, Any]:
        """What the rows follow from, beside the identity and settings."""
        manifests = {name: source.token_set.digest for name, source in sorted(self.sources.items())}
        return {"mixture": self.mixture.told | {"manifests": manifests}}

    def rows(self, until: int | None, ahead: bool) -> MixedRows:
        """The rows; with `ahead` planned by threads."""
        assert until is None, "a mixture has no epochs"
        part = self.part
        return MixedRows(
            {name: source.plans() for name, source in self.sources.items()},
            {name: source.skipped for name, source in self.sources.items()},
            self.mixture,
            self.caps,
            rank=part.rank,
            world_size=part.world_size,
            calls=1 if part.workers > 1 else None,
            ahead=ahead,
        )

    def begin(self, epoch: int) -> tuple["Mixed", Standing]:
        """From the first row of all sources on: (feed, place)."""
        assert epoch == 0, "a mixture has no epochs"
        sources = {name: source.from_epoch(0) for name, source in self.sources.items()}
        return replace(self, sources=sources), Standing({name: Served() for name in sources})

    # ------------------------------------------------------------------------ the position

    def position(self, place: Standing | Turn, tokens_seen: int) -> dict[str, Any]:
        """The position of a place: plain numbers and texts."""
        standing = place.standing()
        dealt = segment_tokens(standing)
        parts = []
        for name, served in standing.sources.items():
            source = self.sources[name]
            told = source.position(served.place, served.tokens).as_dict({"name": name, "drawn_from": source.name})
            parts.append(told | {"rows": served.rows, "segment_tokens": dealt.get(name, 0)})
        sources = columns(PART, [*parts, *self.kept.values()])
        return self.identity | {"seq_len": self.config.seq_len, "sources": sources} | told_standing(standing)

    def knows(self, position: dict[str, Any]) -> bool:
        """Whether a position is of sources that this mixture has, or had."""
        known = {*self.sources, *self.mixture.removed}
        return "sources" in position and set(position["sources"]["name"]) <= known

    def following(self, state: dict[str, Any]) -> Gone:
        """From a position on, of this mixture or another. ValueError where it does not fit."""
        if (grain := grain_of(state, self.grain)) != self.grain:
            sources = {name: replace(source, grain=grain) for name, source in self.sources.items()}
            return replace(self, sources=sources).following(state)
        require_identity(state, self.identity, self.told)
        state = state if "sources" in state else self._of_one_set(state)
        told = _parts_of(state)
        parts, kept = self._parts(told)
        skips = self.config.skip_rows
        skipped = None if skips is None else by_source(skips, self.mixture.names)
        # a source that the position has not begins anew, whatever position was gone to before
        sources = {
            name: Source(source.token_set, self.config, name, skipped=(skipped or {}).get(name, {}), grain=self.grain)
            for name, source in self.sources.items()
        }
        served = {name: Served() for name in sources}
        for name, part in parts.items():
            sources[name], served[name] = self._follow(name, part, None if skipped is None else skipped.get(name, {}))
        standing = read_standing(state, told, served)
        feed = replace(self, sources=sources, kept=kept)
        end = self.mixture.tokens
        if self.caps and self.mixture.on_cap == "spread" and end is not None and standing.tokens_seen >= end:
            warn(
                f"this position is of {standing.tokens_seen:,} tokens, and the mixture is spread over the first "
                f"{end:,}: from there on sources without a cap go on alone; raise its tokens",
            )
        feed._require_caps(standing)
        return Gone(feed, standing, 0, standing.tokens_seen, begins_epoch=False)

    def _follow(self, name: str, part: dict[str, Any], skipped: Skipped | None) -> tuple[Source, Served]:
        where = f"source {name!r} of the position"
        try:
            position = read_position(part, {}, Place._fields, self.sources[name].token_set.told)
            source = replace(self.sources[name], name=str(part["drawn_from"]))
            source, place = source.following(position, skipped)
            require_window(place, source.plans().count_windows)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        return source, Served(place, whole_number(f"rows of {where}", part["rows"], 0), position.tokens_seen)

    def _parts(self, told: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The parts of sources that there are, and of those that were taken out on purpose."""
        self._require_names(told)
        lacking = [name for name in told if name not in self.sources and name not in self.mixture.removed]
        if lacking:
            raise ValueError(
                f"this position has a source {lacking[0]!r}, and the mixture has {', '.join(self.sources)} alone; "
                f"name it in the mixture, or, to take it out, in its removed=[{lacking[0]!r}]"
            )
        parts = {name: part for name, part in told.items() if name in self.sources}
        return parts, {name: part for name, part in told.items() if name not in self.sources}

    def _require_names(self, told: dict[str, Any]) -> None:
        """ValueError where a token set of the position has another name here: its rows would begin anew."""
        new = [name for name in self.sources if name not in told]
        for name in [name for name in told if name not in self.sources]:
            digest = str(told[name]["manifest"])
            for other in new:
                if self.sources[other].token_set.knows(digest):
                    raise ValueError(
                        f"source {name!r} of this position is the token set that the mixture calls {other!r}, and the "
                        f"order of its rows is drawn from its name; keep that: "
                        f"sources={{{name!r}: '{self.sources[other].token_set.told}'}}"
                    )

    def _of_one_set(self, state: dict[str, Any]) -> dict[str, Any]:
        """The position of a loader of one token set, as that of a mixture of this set alone."""
        digest = str(state.get("manifest"))
        names = [name for name, source in self.sources.items() if source.token_set.knows(digest)]
        if not names:
            raise ValueError(
                f"this position is of a token set with manifest {digest}, and no source of the mixture is, or was, "
                f"that: {', '.join(self.sources)}"
            )
        told = {key: state.get(key) for key in OWN} | {"name": names[0], "drawn_from": "", "segment_tokens": 0}
        tokens = whole_number("tokens_seen of the position", state.get("tokens_seen"), 0)
        rows = tokens // whole_number("seq_len of the position", state.get("seq_len"), 1)
        return state | {"sources": columns(PART, [told | {"rows": rows}]), "turns": 0, "segments": {}, "asked": ""}

    # ------------------------------------------------------------------------ what it tells

    def epoch(self, place: Standing | Turn) -> int:
        """The epoch of the source that is furthest behind."""
        return min(served.place.epoch for served in place.standing().sources.values())

    def seen(self, place: Standing | Turn) -> dict[str, Seen]:
        """What of each source was dealt by a place."""
        served = place.standing().sources
        shares = {name: float(source.plans().share(served[name].place)) for name, source in self.sources.items()}
        return {name: Seen(served[name].tokens, served[name].rows, shares[name]) for name in self.sources}

    # ------------------------------------------------------------------------ what must be

    def require_rows(self) -> None:
        """ValueError where a source has no rows, or where rows that are to be skipped are not there."""
        for name, source in self.sources.items():
            plans = source.plans()
            if not plans.count(0, up_to=1):
                raise ValueError(
                    f"source {name!r}: split {self.config.split!r} of {source.token_set.told} has no row of "
                    f"{self.config.seq_len} + 1 tokens; leave it out of this mixture, lower seq_len, or prepare more"
                )
            source.require_skipped(plans, (0, 0), leeway=2)

    def require_skipped(self, place: Standing | Turn) -> None:
        """ValueError where rows that are to be skipped, from a place on, are not there."""
        for name, source in self.sources.items():
            if source.skipped:
                source.require_skipped(source.plans(), place.standing().sources[name].place[:2])

    def _require_caps(self, standing: Standing) -> None:
        """ValueError where a source was dealt more than its cap already."""
        for name, cap in self.caps.items():
            plans, place = self.sources[name].plans(), standing.sources[name].place
            end = plans.end(cap)
            beyond = place[:2] > end[:2]
            if place[:2] == end[:2]:
                rows = plans.count_rows(*end[:2]) if end.share > 0 else 0
                beyond = end.share < 0 or place.row > int(rows * end.share)
            if beyond:
                raise ValueError(
                    f"source {name!r} was dealt {float(plans.share(place)):.3f} epochs by this position, more than its "
                    f"max_epochs of {float(cap):g}; raise that, or take the source out: removed=[{name!r}]"
                )


def _parts_of(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a mixture's position tells of its sources, by name."""
    parts = lines_of(state["sources"])
    if set(state["sources"]) != set(PART):
        raise ValueError(f"expected a mixture's position, as state_dict made it, found {state['sources']!r}")
    names = [str(part["name"]) for part in parts]
    if len(set(names)) < len(names):
        raise ValueError(
            f"expected a mixture's position, as state_dict made it, found sources {names}, one of them twice"
        )
    for part in parts:
        for key in ("tokens_seen", "segment_tokens", "rows"):
            whole_number(f"{key} of source {part['name']!r} of the position", part[key], 0)
    return dict(zip(names, parts, strict=True))


def require_one_kind(sets: Mapping[str, TokenSet]) -> None:
    """ValueError where token sets are of several tokenizers, or two of them the same."""
    (first, one), *others = sets.items()
    for name, other in others:
        if (other.tokenizer["fingerprint"], other.dtype) != (one.tokenizer["fingerprint"], one.dtype):
            raise ValueError(
                f"the sources of a mixture must be of one tokenizer, found {first!r} of {_tokenizer(one)}, {name!r} "
                f"of {_tokenizer(other)}; prepare one of them anew with the other's"
            )
    digests: dict[str, str] = {}
    for name, token_set in sets.items():
        same = digests.setdefault(token_set.digest, name)
        if same != name:
            raise ValueError(f"sources {same!r} and {name!r} hold the same shards, {token_set.told}; name one of them")


def _tokenizer(token_set: TokenSet) -> str:
    return f"{token_set.tokenizer['name']}, {token_set.tokenizer['fingerprint']} ({token_set.dtype})"
