"""How far the other ranks are, for a rank that takes a position alone.

    rank 0, after 8 steps of 4 batches and an evaluation of 200 by itself     232 batches
    ranks 1 to 7                                                               32, and told so a moment ago

Where every rank takes the position they are compared exactly (ranks.py). Many programs save on rank 0 alone, and it
cannot wait for the others. So each rank tells, now and then, how many tokens it was dealt, and who takes a position
warns of those that are far behind: further than the micro-batches of a step, and the time since they told, explain.

Telling is a write of a few bytes into torch.distributed's store, by a connection of its own.
"""

import contextlib
import hashlib
import json
import time
from collections import Counter
from typing import Any, Self

import torch.distributed as dist

from tokenmill.batches.callers import warn
from tokenmill.batches.ranks import store_of_ranks

SECONDS = 0.05  # between two tellings, at least; of many ranks a millisecond each
CALLS_BEHIND = 32  # that ranks in step may be apart
_made: Counter[str] = Counter()  # loaders of the same rows in this process


class Progress:
    """Tokens that each rank's loader was dealt: told by each, and asked for by one."""

    def __init__(self, store: dist.Store, name: str, rank: int, world_size: int):
        self._store: dist.Store | None = store
        self.name, self._rank, self._world_size = name, rank, world_size
        self._seconds = max(SECONDS, 0.001 * world_size)
        self._due = self._told = self._before = 0.0

    @classmethod
    def of(cls, followed: dict[str, Any]) -> Self | None:
        """That of a loader whose rows follow from this; None where there is no other rank."""
        store = store_of_ranks()
        if store is None or dist.get_world_size() == 1:
            return None
        name = hashlib.sha256(json.dumps(followed, sort_keys=True, default=repr).encode()).hexdigest()[:16]
        _made[name] += 1
        return cls(_own_connection(store), f"{name}/{_made[name]}", dist.get_rank(), dist.get_world_size())

    def tell(self, tokens: int) -> None:
        """Tells the others, if it is time to."""
        now = time.monotonic()
        if now < self._due or self._store is None or store_of_ranks() is None:
            return
        self._before, self._told, self._due = self._told, tokens, now + self._seconds
        try:
            self._store.set(self._key(self._rank), str(tokens))
        except RuntimeError:  # the store is gone: training may go on without
            self._store = None

    def warn_of_others(self, tokens: int, tokens_a_call: int) -> None:
        """Warns where another rank, of those that have told, is far behind `tokens`."""
        if self._store is None or store_of_ranks() is None:
            return
        with contextlib.suppress(RuntimeError):
            recently = max(self._told - self._before, tokens - self._told)
            apart = CALLS_BEHIND * tokens_a_call * self._world_size + 2 * recently
            behind = {rank: seen for rank, seen in self._others().items() if tokens - seen > apart}
            if behind:
                warn(
                    f"rank {self._rank} takes a position after {tokens:,} tokens of all ranks, and "
                    + ", ".join(f"rank {rank} stood at {seen:,}" for rank, seen in list(behind.items())[:8])
                    + " a moment ago: batches that one rank alone takes, as for an evaluation, are lost to the others "
                    "after a resume. Evaluate with get_batch(..., purpose='eval') or a RowLoader of its own, and call "
                    "state_dict() on every rank, so that they are compared",
                )

    def _others(self) -> dict[int, int]:
        """What the other ranks told last, of those that did."""
        assert self._store is not None, "asked for where there is one"
        others = [rank for rank in range(self._world_size) if rank != self._rank]
        if not self._store.check(list(map(self._key, others))):  # some never did
            others = [rank for rank in others if self._store.check([self._key(rank)])]
        return dict(zip(others, map(int, self._store.multi_get(list(map(self._key, others)))), strict=True))

    def _key(self, rank: int) -> str:
        return f"tokenmill/progress/{self.name}/{rank}"


def _own_connection(store: dist.Store) -> dist.Store:
    """The same store by another connection, where it is one over TCP, whose connections wait for one another.

    A FileStore counts its users in its file: one that a fork collects would be counted out for its parent's.
    """
    under = store
    while isinstance(under, dist.PrefixStore):
        under = under.underlying_store
    if not isinstance(under, dist.TCPStore) or not hasattr(store, "clone"):  # an older torch
        return store
    own: dist.Store = store.clone()
    return own
