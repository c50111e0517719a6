"""Weights of a mixture as shares of targets, the tokens that bear loss, instead of shares of tokens.

    Mixture({"data/tokens/web": 1, "data/tokens/chats": 1}, weights_by="targets")

If a quarter of the chats' tokens bear loss, chats get four of five rows, so that half of the targets are theirs: a
weight is divided by the source's targets per token. In a set of text every token counts as a target. Padding, filler
and loss="once" are not taken into account; they are about 1% or less.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Literal, get_args

from tokenmill.rows.segments import Stage
from tokenmill.rows.weights import whole_weights
from tokenmill.store.token_sets import TokenSet

WeightsBy = Literal["tokens", "targets"]
WEIGHTS_BY = get_args(WeightsBy)


def weights_of_targets(stages: tuple[Stage, ...], sets: Mapping[str, TokenSet]) -> tuple[Stage, ...]:
    """Stages with weights that are shares of tokens, from stages with weights that are shares of targets."""
    share = {name: _targets_per_token(token_set) for name, token_set in sets.items()}
    return tuple(_whole(Stage(begin, {name: some[name] / share[name] for name in some})) for begin, some in stages)


def _whole(stage: Stage) -> Stage:
    return stage._replace(weights={name: Fraction(weight) for name, weight in whole_weights(stage.weights).items()})


def _targets_per_token(token_set: TokenSet) -> Fraction:
    """The share of the training tokens that bear loss."""
    if not token_set.is_chat:
        return Fraction(1)
    targets = tokens = 0
    for entry in token_set.split("train"):
        shard, times = token_set.open(entry), token_set.times_of(entry)
        targets += int(shard.target_counts.astype("int64") @ times)
        tokens += int(shard.lengths @ times)
    if not targets:
        raise ValueError(f"{token_set.display_name}: no token of its training split bears loss; weight it by tokens")
    return Fraction(targets, tokens)
