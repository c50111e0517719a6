"""From a rule to a view: every document is evaluated once, some shards at a time.

    facts = make_view(token_set, "good", Rule(where="score >= 3"))       and views/good.json is there

A byte a document is held. What a document counts depends on what is known of it, on its shard's name and on its place
there; so a view that is made again for a set that has grown counts the old documents as before, but for single ones
that fractions round.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tokenmill.remote.token_set import RemoteTokenSet
from tokenmill.rows.windows import DEFAULT_WINDOW_SIZE
from tokenmill.store.shards import SPLITS, ShardEntry
from tokenmill.store.token_sets import TokenSet
from tokenmill.store.views import NAME
from tokenmill.views.documents import DocumentTables
from tokenmill.views.rounding import Rounding
from tokenmill.views.rule import Evaluator, Rule
from tokenmill.views.write_view import write_view


def make_view(
    token_set: TokenSet,
    name: str,
    rule: Rule,
    on_documents: Callable[[int], None] = lambda documents: None,
    slice_tokens: int = DEFAULT_WINDOW_SIZE.slice,
) -> dict[str, Any]:
    """Makes a view, or makes it again, and returns its facts (store/views.py).

    `on_documents` is called with the progress: each document passes twice.

    Raises ValueError for a name or rule that is not valid, or a rule that keeps nothing.
    """
    if not NAME.fullmatch(name):
        raise ValueError(
            f"--name must be 1 to 100 letters, digits, '.', '_' or '-', and not 16 hex digits, not {ascii(name)[:120]}"
        )
    if isinstance(token_set, RemoteTokenSet):
        raise ValueError(f"{token_set.display_name}: views are made of sets on this disk; pull it, and push it again")
    tables = DocumentTables(token_set)
    evaluator = Evaluator(rule, tables.names)
    counts, firsts = _evaluate(token_set, tables, evaluator, on_documents)

    def of_shard(entry: ShardEntry, lengths: np.ndarray) -> np.ndarray:
        return counts[firsts[entry.name] : firsts[entry.name] + entry.documents]

    return write_view(token_set, name, rule.as_dict(), of_shard, on_documents, slice_tokens)


def _evaluate(
    token_set: TokenSet, tables: DocumentTables, evaluator: Evaluator, on_documents: Callable[[int], None]
) -> tuple[np.ndarray, dict[str, int]]:
    """How often each document counts, (documents,) uint8, and the place of each shard's first one."""
    counts = np.zeros(sum(entry.documents for entry in token_set.entries), np.uint8)
    rounding, firsts, first = {split: Rounding() for split in SPLITS}, dict[str, int](), 0
    for entries, rows in tables.batches(evaluator.columns):
        where = f"{token_set.display_name}, shards {entries[0].name} to {entries[-1].name}"
        times, done = evaluator.times(rows, where), 0
        for entry in entries:
            own = times[done : done + entry.documents]
            counts[first : first + entry.documents] = rounding[entry.split].round(entry.name, own, first)
            firsts[entry.name] = first
            first, done = first + entry.documents, done + entry.documents
            on_documents(entry.documents)
    for split in SPLITS:
        up, down = rounding[split].corrections()
        counts[up] += 1
        counts[down] -= 1
    return counts, firsts
