"""Chooses the feed for a loader's settings: weighted sources, or nanochat's per-rank order (see protocol.py)."""

from tokenmill.feed.loader_config import LoaderConfig
from tokenmill.feed.nanochat_feed import NanochatFeed
from tokenmill.feed.protocol import Feed, RankShare
from tokenmill.feed.weighted_feed import WeightedFeed
from tokenmill.rows.packings import find_packing


def make_feed(config: LoaderConfig, share: RankShare) -> Feed:
    """The feed of these settings, at the first row. Raises what opening a token set raises."""
    if find_packing(config.packing).per_rank:
        return NanochatFeed.of(config, share)
    return WeightedFeed.of(config, share)
