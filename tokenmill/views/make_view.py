"""From a rule to a view: every document is evaluated once, some shards at a time, and written as it
goes.

    facts = make_view(token_set, "good", Rule(where="score >= 3"))    makes views/good.json

A document that is to count 1.5 times counts 1 or 2 times, by a random number that its shard's name
and its place there decide. So a view that is made again, for a set that has grown or by a rule that
gives larger numbers, counts each document as often as before, or more often. The slices that
training shuffles are cut here, once, so that opening a view reads no offsets.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from tokenmill.remote.token_set import RemoteTokenSet
from tokenmill.rows.order import random_bits
from tokenmill.rows.windows import DEFAULT_WINDOW_SIZE, cut_slices
from tokenmill.store.columns import KNOWN
from tokenmill.store.files import AtomicFile
from tokenmill.store.json_files import checksum_of, header, write_json
from tokenmill.store.shards import SPLITS, ShardEntry, Split
from tokenmill.store.token_sets import TokenSet
from tokenmill.store.views import FOLDER, MOST, NAME, VIEW_ARRAYS
from tokenmill.views.documents import DocumentTables
from tokenmill.views.rule import Evaluator, Rule


def make_view(token_set: TokenSet, name: str, rule: Rule) -> dict[str, Any]:
    """Makes a view, or makes it again, and returns its facts (store/views.py).

    Raises ValueError for a name or rule that is not valid, or a rule that keeps nothing.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(
            "--name must be 1 to 100 letters, digits, '.', '_' or '-', and not 16 hex digits, not "
            f"{ascii(name)[:120]}"
        )
    if isinstance(token_set, RemoteTokenSet):
        raise ValueError(
            f"{token_set.display_name}: views are made of sets on this disk; pull it, and push it "
            "again"
        )
    columns = [*KNOWN, *DocumentTables(token_set).columns]
    evaluator = Evaluator(rule, columns)
    expressions = {key: value for key, value in vars(rule).items() if value is not None}
    return write_view(token_set, name, expressions, _repeats(token_set, evaluator))


def _repeats(token_set: TokenSet, evaluator: Evaluator) -> Iterator[tuple[ShardEntry, np.ndarray]]:
    """Each shard, with how often its documents count by a rule."""
    for entries, rows in DocumentTables(token_set).batches(evaluator.columns):
        shown = f"{token_set.display_name}, shards {entries[0].name} to {entries[-1].name}"
        times = evaluator.times(rows, shown)
        ends = np.cumsum([entry.documents for entry in entries])
        for entry, of_shard in zip(entries, np.split(times, ends[:-1]), strict=True):
            yield entry, rounded(entry.name, of_shard)


def rounded(shard: str, times: np.ndarray) -> np.ndarray:
    """How often each document of a shard counts, (documents,) uint8, of numbers with fractions."""
    coins = (random_bits(len(times), "view", shard) >> np.uint64(11)) * 2.0**-53  # from 0 to 1
    floors = np.floor(times)
    is_rounded_up = coins < times - floors
    return (floors + is_rounded_up).astype(np.uint8)


class _Sums:
    """What a view keeps of each split, and how many documents count how often."""

    def __init__(self) -> None:
        self.splits = {split: {"documents": 0, "copies": 0, "tokens": 0} for split in SPLITS}
        self.times = np.zeros(MOST + 1, np.int64)

    def add(self, split: Split, counts: np.ndarray, lengths: np.ndarray) -> None:
        """Adds the documents of a shard: how often each counts, and its tokens."""
        sums = self.splits[split]
        sums["documents"] += int(np.count_nonzero(counts))
        sums["copies"] += int(counts.sum(dtype=np.int64))
        sums["tokens"] += int(lengths @ counts.astype(np.int64))
        self.times += np.bincount(counts, minlength=MOST + 1)


class _Arrays(NamedTuple):
    """The two arrays of a view: its digest, and the size and checksums of each file."""

    digest: str
    facts: dict[str, Any]


def write_view(
    token_set: TokenSet,
    name: str,
    rule: dict[str, Any],
    counted: Iterable[tuple[ShardEntry, np.ndarray]],
    slice_tokens: int = DEFAULT_WINDOW_SIZE.slice,
) -> dict[str, Any]:
    """Writes a view and returns its facts.

    `counted` has each shard, in the manifest's order, with how often its documents count. Nothing
    counts before the file with the view's name is written. ValueError if no document does.
    """
    sums, files = _write_arrays(token_set, name, counted, slice_tokens)
    facts = header("view") | {
        "name": name,
        "digest": files.digest,
        "manifest": token_set.digest,
        "rule": rule,
        "slice_tokens": slice_tokens,
        "splits": sums.splits,
        **files.facts,
        "times": {str(number): count for number, count in enumerate(sums.times.tolist()) if count},
    }
    facts["checksum"] = checksum_of(facts)
    folder = token_set.path / FOLDER
    copy = folder / f"{files.digest}.json"
    if not copy.exists():
        write_json(copy, facts)
    write_json(folder / f"{name}.json", facts)
    return facts


def _write_arrays(
    token_set: TokenSet,
    name: str,
    counted: Iterable[tuple[ShardEntry, np.ndarray]],
    slice_tokens: int,
) -> tuple[_Sums, _Arrays]:
    """Writes a view's two arrays, called after its digest. ValueError if no document counts."""
    folder = token_set.path / FOLDER
    folder.mkdir(exist_ok=True)
    sums = _Sums()
    with (
        AtomicFile(folder / "new.counts") as counts_file,
        AtomicFile(folder / "new.slices") as slices_file,
    ):
        progress = tqdm(counted, "shards", len(token_set.entries), leave=False, disable=None)
        for number, (entry, repeats) in enumerate(progress):
            counts = np.ascontiguousarray(repeats, np.uint8)
            shard = token_set.open(entry)
            slices = cut_slices(number, np.asarray(shard.offsets), counts, slice_tokens)
            counts_file.write(counts.data)
            slices_file.write(slices.tobytes())
            sums.add(entry.split, counts, shard.lengths)
        if not sums.times[1:].any():
            documents = token_set.manifest["documents"]
            raise ValueError(
                f"{token_set.display_name}: view {name!r} keeps none of its {documents:,} "
                "documents; check the rule"
            )
        content = (token_set.digest, slice_tokens, counts_file.facts()["sha256"])
        digest = hashlib.sha256(repr(content).encode()).hexdigest()[:16]
        facts = {}
        for kind, file in zip(VIEW_ARRAYS, (counts_file, slices_file), strict=True):
            file.path = folder / f"{digest}.{kind}"
            facts[kind] = file.commit()
    return sums, _Arrays(digest, facts)
