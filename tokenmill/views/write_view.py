"""Writes a view from how often each document of each shard counts.

    write_view(token_set, "good", rule, counts)       counts(entry, lengths) -> (documents,) uint8, shard after shard

The slices that training shuffles are cut here, once, so that opening a view reads no offsets. Nothing counts before the
JSON file with the view's name is written.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tokenmill.rows.windows import DEFAULT_WINDOW_SIZE, cut_slices
from tokenmill.store.files import AtomicFile, header, write_json
from tokenmill.store.shards import SPLITS, ShardEntry
from tokenmill.store.token_sets import TokenSet
from tokenmill.store.views import FOLDER, MOST, VIEW_ARRAYS

Counts = Callable[[ShardEntry, np.ndarray], np.ndarray]


def write_view(
    token_set: TokenSet,
    name: str,
    rule: dict[str, Any],
    counts_of: Counts,
    on_shard: Callable[[int], None] = lambda documents: None,
    slice_tokens: int = DEFAULT_WINDOW_SIZE.slice,
) -> dict[str, Any]:
    """Writes the view and returns its facts; calls `on_shard(documents)` after each shard.

    Raises ValueError if no document of the training split counts, as nothing could be trained on.
    """
    folder, times = token_set.path / FOLDER, np.zeros(MOST + 1, np.int64)
    splits = {split: {"documents": 0, "copies": 0, "tokens": 0} for split in SPLITS}
    folder.mkdir(exist_ok=True)
    with AtomicFile(folder / "new.counts") as counted, AtomicFile(folder / "new.slices") as sliced:
        for number, entry in enumerate(token_set.entries):
            shard, sums = token_set.open(entry), splits[entry.split]
            counts = np.ascontiguousarray(counts_of(entry, shard.lengths), np.uint8)
            counted.write(counts.data)
            sliced.write(cut_slices(number, np.asarray(shard.offsets), counts, slice_tokens).tobytes())
            sums["documents"] += int(np.count_nonzero(counts))
            sums["copies"] += int(counts.sum(dtype=np.int64))
            sums["tokens"] += int(shard.lengths @ counts.astype(np.int64))
            times += np.bincount(counts, minlength=MOST + 1)
            on_shard(entry.documents)
        if not sum(sums["documents"] for sums in splits.values()):
            raise ValueError(
                f"{token_set.display_name}: view {name!r} keeps none of its {token_set.manifest['documents']:,} "
                "documents; check the rule"
            )
        what = (token_set.digest, slice_tokens, counted.facts()["sha256"])
        digest, written = hashlib.sha256(repr(what).encode()).hexdigest()[:16], dict[str, Any]()
        for kind, file in zip(VIEW_ARRAYS, (counted, sliced), strict=True):
            file.path = folder / f"{digest}.{kind}"
            written[kind] = file.commit()
    facts = header("view") | {"name": name, "digest": digest, "manifest": token_set.digest, "rule": rule}
    facts |= {"slice_tokens": slice_tokens, "splits": splits, **written}
    facts["times"] = {str(number): int(many) for number, many in enumerate(times) if many}
    if not (folder / f"{digest}.json").exists():
        write_json(folder / f"{digest}.json", facts)
    write_json(folder / f"{name}.json", facts)
    return facts
