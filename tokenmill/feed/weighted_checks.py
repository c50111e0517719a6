"""Checks of weighted sources: whether they fit together, and whether a position fits them.

    require_compatible(sets)                       one tokenizer, and no token set twice
    require_sources(parts, mixture, sets)          every source of a position is in the mixture, or was removed
    require_caps(schedule, sources, state)         no source is past its max_epochs

Each raises ValueError with what is wrong and what to do about it.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from tokenmill.feed.loader_config import LoaderConfig
from tokenmill.feed.mixture import ONE_SET, Mixture
from tokenmill.feed.split_cursor import SplitCursor
from tokenmill.feed.window_plans import WindowPlans
from tokenmill.rows.mixed_stream import Schedule
from tokenmill.rows.packing import CUTS
from tokenmill.rows.position import documents_of
from tokenmill.rows.segments import MixtureState
from tokenmill.store.columns import TARGETS
from tokenmill.store.token_sets import TokenSet

Parts = Mapping[str, dict[str, Any]]  # a position's columns for each source, by name


def require_compatible(sets: Mapping[str, TokenSet]) -> None:
    """Raises ValueError if token sets have different tokenizers, or if two of them have the same documents as often."""
    (first, one), *others = sets.items()
    for name, other in others:
        if (ids_fingerprint(other), other.dtype, other.bos_id) != (ids_fingerprint(one), one.dtype, one.bos_id):
            raise ValueError(
                f"the sources of a mixture must have the same tokenizer, found {first!r} with {_tokenizer(one)}, "
                f"{name!r} with {_tokenizer(other)}; prepare one of them again with the tokenizer of the other"
            )
    digests: dict[tuple[str, str], str] = {}
    for name, token_set in sets.items():
        same = digests.setdefault((token_set.digest, token_set.view_digest), name)
        if same != name:
            what = "shards" if token_set.view is None else "documents, each as often"
            raise ValueError(
                f"sources {same!r} and {name!r} hold the same {what}, {token_set.display_name}; keep only one of them"
            )


def ids_fingerprint(token_set: TokenSet) -> str:
    """The fingerprint of the tokenizer that gives text its ids: of a chat set, without its template and the special
    tokens that it has added. So chat and text that share a tokenizer can be mixed.
    """
    chat = token_set.tokenizer.get("chat")
    return str(token_set.tokenizer["fingerprint"] if chat is None else chat["text_fingerprint"])


def require_long_documents(config: LoaderConfig, sets: Mapping[str, TokenSet]) -> None:
    """Raises ValueError if `long_documents` is for chat sets alone, and there is none."""
    if config.long_documents not in CUTS and not any(token_set.is_chat for token_set in sets.values()):
        raise ValueError(
            f"long_documents={config.long_documents!r} is for chat sets, whose conversations stay whole; with text "
            "use 'split' or 'crop'"
        )


def require_whole_conversations(plans: WindowPlans) -> None:
    """Raises ValueError if conversations are longer than a row, and `long_documents` says nothing of them."""
    token_set = plans.token_set
    if not token_set.is_chat or plans.long_documents != "split":
        return
    entries = token_set.split(plans.split)
    token_set.bring(entries)
    many = longest = lost = targets = 0
    for entry in entries:
        shard = token_set.open(entry)
        own = np.where(token_set.times_of(entry) > 0, shard.column(TARGETS.suffix), 0)
        lengths = np.where(token_set.times_of(entry) > 0, shard.lengths, 0)  # of those that the view has
        is_long = lengths > plans.row_len
        many, longest = many + int(is_long.sum()), max(longest, int(lengths.max(initial=0)))
        lost, targets = lost + int(own[is_long].sum()), targets + int(own.sum())
    if many:
        raise ValueError(
            f"{token_set.display_name}: {many:,} of {sum(entry.documents for entry in entries):,} conversations are "
            f"longer than a row of {plans.row_len - 1:,} + 1 tokens, the longest with {longest:,}; they have "
            f"{lost / max(1, targets):.1%} of the tokens that bear loss. Use a larger seq_len, or "
            "long_documents='window' (overlapping windows: every such token is a target once), 'crop' (keeps the "
            "beginning) or 'drop'"
        )


def _tokenizer(token_set: TokenSet) -> str:
    return f"{token_set.tokenizer['name']}, {token_set.tokenizer['fingerprint']} ({token_set.dtype})"


def manifests_of(part: Mapping[str, Any]) -> list[str]:
    """The digests of the manifests that a source's part of a position names."""
    return [documents.manifest for documents in documents_of(part["manifest"])]


def name_of_set(part: Mapping[str, Any], mixture: Mixture, sets: Mapping[str, TokenSet]) -> str:
    """The name that the token set of a one-set position has here. `part` is the position's part for it.

    If several sources are views of that set, it is the one with the position's view.
    """
    if mixture.is_one_set:
        return ONE_SET
    digest, view = documents_of(part["manifest"])[-1][1:]
    known = [name for name, token_set in sets.items() if token_set.knows(digest)]
    if same := [name for name in known if sets[name].view_digest == view] or (known if len(known) == 1 else []):
        return same[0]
    if known:
        raise ValueError(
            f"this position is of a token set with view {view or 'none'}, and the sources {', '.join(known)} are other "
            "views of that set; load it into one of these alone"
        )
    raise ValueError(
        f"this position is of a token set with manifest {digest}, but no source of the mixture has or had that "
        f"manifest: {', '.join(sets)}"
    )


def require_sources(parts: Parts, mixture: Mixture, sets: Mapping[str, TokenSet]) -> None:
    """Raises ValueError if a source of a position is missing here, or has another name."""
    if mixture.is_one_set and list(parts) != [ONE_SET]:
        raise ValueError(
            f"this position is of a mixture of {', '.join(parts)}, but this is one token set; load it into "
            "RowLoader(Mixture(...)), or name a mixture's TOML file that has sources of these names, as "
            f"[sources.{next(iter(parts))}]"
        )
    _require_same_names(parts, sets)
    missing = [name for name in parts if name not in sets and name not in mixture.removed]
    if missing:
        raise ValueError(
            f"this position has a source {missing[0]!r}, but the mixture has only {', '.join(sets)}; add it to the "
            f"mixture, or, to take it out, list it in removed=[{missing[0]!r}]"
        )


def _require_same_names(parts: Parts, sets: Mapping[str, TokenSet]) -> None:
    """Raises ValueError if a token set of the position has another name here, because its rows would start over."""
    new = [name for name in sets if name not in parts]
    for name in [name for name in parts if name not in sets]:
        _, digest, view = documents_of(parts[name]["manifest"])[-1]
        for other in new:
            if sets[other].knows(digest) and sets[other].view_digest == view:
                raise ValueError(
                    f"source {name!r} of this position is the token set that the mixture calls {other!r}, and the "
                    f"order of its rows depends on its name; keep the name: "
                    f"sources={{{name!r}: '{sets[other].display_name}'}}"
                )


def require_caps(schedule: Schedule, sources: Mapping[str, SplitCursor], state: MixtureState) -> None:
    """Raises ValueError if a source is already past its cap."""
    for name, cap in schedule.caps.items():
        plans, place = sources[name].plans(), state.sources[name].place
        end = plans.end(cap)
        beyond = place[:2] > end[:2]
        if place[:2] == end[:2]:
            rows = plans.count_rows(*end[:2]) if end.share > 0 else 0
            beyond = end.share < 0 or place.row > int(rows * end.share)
        if beyond:
            raise ValueError(
                f"source {name!r} has given {float(plans.epochs_at(place)):.3f} epochs in this position, more than its "
                f"max_epochs of {float(cap):g}; raise max_epochs, or take the source out: removed=[{name!r}]"
            )


def warn_if_spread_is_over(schedule: Schedule, state: MixtureState) -> None:
    """Warns if a position is past the tokens that on_cap="spread" spreads capped sources over."""
    end = schedule.tokens
    if schedule.caps and schedule.on_cap == "spread" and end is not None and state.tokens_seen >= end:
        warnings.warn(
            f"this position is at {state.tokens_seen:,} tokens, but the mixture is spread over the first {end:,}: "
            "from there on, only sources without a cap continue; raise the mixture's tokens",
            stacklevel=2,
        )
