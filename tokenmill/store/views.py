"""A view of a token set: how often each document counts, 0 to 255 times, as files beside the set's
shards.

    views/<name>.json          the rule, what it counted, and the digest of the view
    views/<digest>.json        the same, kept for positions when the name stands for another view
    views/<digest>.counts      uint8, one for each document of the set, in the manifest's order
    views/<digest>.slices      the slices of its copies (rows/windows.py), which training shuffles

Reading a view takes numpy alone: the counts are memory-mapped, and the rule is only shown.
tokenmill/views/ evaluates rules. A view belongs to one manifest; if the set has grown since, it is
made again (`tokenmill view --update`).
"""

import re
from typing import Any

import numpy as np

from tokenmill.store.json_files import read_json
from tokenmill.store.shards import ShardEntry, map_numbers
from tokenmill.threads import cached_property

FOLDER = "views"
VIEW_ARRAYS = ("counts", "slices")
DIGEST = re.compile("[0-9a-f]{16}")
NAME = re.compile(r"(?![0-9a-f]{16}$)\w[\w.-]{0,99}")  # a name cannot be mistaken for a digest
MOST = 255  # times that a document can count


class View:
    """A view of a TokenSet, from its facts. `name` is the name that it was made under."""

    def __init__(self, token_set: Any, facts: dict[str, Any]):
        self._entries = list(token_set.entries)
        self.path_of = token_set.view_file
        self.facts = facts
        self.name: str = facts["name"]
        self.digest: str = facts["digest"]
        self.slice_tokens: int = facts["slice_tokens"]
        self._first: dict[str, int] = {}  # the number of each shard's first document in the set
        self._documents = 0
        for entry in self._entries:
            self._first[entry.name] = self._documents
            self._documents += entry.documents

    @cached_property
    def counts(self) -> np.ndarray:
        """How often each document of the set counts: (documents,) uint8, mapped."""
        return self._map("counts", np.dtype("u1"), self._documents)

    def repeats_of(self, entry: ShardEntry) -> np.ndarray:
        """How often each document of a shard counts: (documents,) uint8."""
        first = self._first[entry.name]
        repeats: np.ndarray = self.counts[first : first + entry.documents]
        return repeats

    def slices_of(self, split: str, dtype: np.dtype[Any]) -> np.ndarray:
        """The slices of a split, with `shard` as the shard's number in it: (num_slices,) of
        `dtype`.
        """
        slices = self._map("slices", dtype, self.facts["slices"]["bytes"] // dtype.itemsize)
        is_in = np.array([entry.split == split for entry in self._entries], bool)
        numbers = np.cumsum(is_in) - 1  # of the set's shards, in the split
        chosen = np.array(slices[is_in[slices["shard"]]])
        chosen["shard"] = numbers[chosen["shard"]]
        return chosen

    def tokens(self, split: str) -> int:
        """How many tokens an epoch of the split has."""
        return int(self.facts["splits"][split]["tokens"])

    def _map(self, kind: str, dtype: np.dtype[Any], count: int) -> np.ndarray:
        """A file of the view. ValueError if it has another size."""
        path = self.path_of(f"{self.digest}.{kind}", self.facts[kind])
        again = f"tokenmill view {path.parent.parent} --name {self.name} --update"
        return map_numbers(path, dtype, count, f"the view is damaged: make it again by `{again}`")


def read_view(token_set: Any, name: str) -> View:
    """A TokenSet's view of this name, or with this digest.

    FileNotFoundError with the names that there are; ValueError if it is of another manifest.
    """
    shown = token_set.display_name
    is_name = isinstance(name, str) and (DIGEST.fullmatch(name) or NAME.fullmatch(name))
    if not is_name:
        raise ValueError(f"view must be the name of a view of {shown}, not {ascii(name)[:100]}")
    try:
        facts = read_json(token_set.view_file(f"{name}.json"), "view")
    except FileNotFoundError as error:
        known = ", ".join(token_set.view_names()) or "none"
        raise FileNotFoundError(
            f"{shown}: expected a view {name!r}, found {known}; make it by `tokenmill view FOLDER "
            f"--name {name} --where ...` on this disk (and push it), or, if it is a digest that a "
            "position names, put its file back"
        ) from error
    if DIGEST.fullmatch(name) and name != facts["digest"]:
        raise ValueError(
            f"{shown}: views/{name}.json: expected this view, found {facts['digest']}; put it back"
        )
    if facts["manifest"] != token_set.digest:
        raise ValueError(
            f"{shown}: view {name!r} is of manifest {facts['manifest']}, and the set has grown or "
            f"changed since, to {token_set.digest}; run `tokenmill view {shown} --name {name} "
            "--update`"
        )
    return View(token_set, facts)
