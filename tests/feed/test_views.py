"""A view's documents come as often as they count, and another view holds from the next epoch on."""

from collections import Counter

import numpy as np
import pytest
from making import BOS, make_token_set
from making_views import make_view

from tokenmill import Mixture
from tokenmill.numpy import RowLoader
from tokenmill.store.token_sets import TokenSet

LENGTHS = {
    "train": [
        [5, 3, 40, 7, 2, 9, 16, 17, 1, 12],
        [3] * 20,
        [100, 33, 50],
        [12, 6, 25, 31, 8, 9] * 4,
    ],
    "val": [[4, 8, 30, 6]],
}
SOME = {
    "train_0.000": [3, 0, 1, 2, 0, 1, 1, 0, 1, 5],
    "train_1.000": [2] * 20,
    "train_2.000": [0, 4, 1],
}
IS_LONG = {}
for number, lengths in enumerate(LENGTHS["train"]):
    IS_LONG[f"train_{number}.000"] = [int(length >= 16) for length in lengths]


def numbered_set(folder, train=LENGTHS["train"], val=LENGTHS["val"]):
    """A token set in which every token but BOS, 0, is another number."""
    make_token_set(folder, train, val, vocab=65_536)
    number = 1
    for entry in TokenSet(folder).entries:
        path = folder / "shards" / f"{entry.name}.bin"
        tokens = np.fromfile(path, np.uint16)
        tokens[tokens != BOS] = np.arange(number, number + (tokens != BOS).sum())
        number = int(tokens.max()) + 1
        path.write_bytes(tokens.tobytes())  # of the same size; nothing here asks for the checksum
    return folder


def documents_of(folder):
    """(shard, document) of each token of the training split."""
    counts = {}
    token_set = TokenSet(folder)
    for entry in token_set.split("train"):
        shard = token_set.open(entry)
        for document in range(entry.documents):
            begin, end = (int(offset) for offset in shard.offsets[document : document + 2])
            counts.update(
                dict.fromkeys(shard.tokens[begin + 1 : end].tolist(), (entry.name, document))
            )
    return counts


def make(folder, view=None, seq_len=16, state=None, **more):
    epochs = None if isinstance(folder, Mixture) else 1
    settings = {"batch_size": 1, "seq_len": seq_len, "loss": "once", "epochs": epochs} | more
    loader = RowLoader(folder, view=view, **settings)
    if state is not None:
        loader.load_state_dict(state)
    return loader


def rest_of_epoch(loader):
    """How often each token is a target from here to the end of the epoch. With loss="once", filler
    is none.
    """
    counted = Counter()
    for _, targets in loader:
        counted.update(targets[targets >= 0].tolist())
    return counted


def times(folder, counts):
    """How often each token should be a target: as often as its document counts, once if it is not
    among these.
    """
    found = {}
    for token, (shard, document) in documents_of(folder).items():
        found[token] = counts[shard][document] if shard in counts else 1
    return Counter({token: number for token, number in found.items() if number})


@pytest.fixture
def folder(tmp_path, small_windows):
    """A token set with views."""
    folder = numbered_set(tmp_path / "set")
    make_view(folder, "all", {})
    make_view(folder, "some", SOME)
    make_view(folder, "long", IS_LONG)
    make_view(
        folder,
        "short",
        {shard: [1 - is_long for is_long in flags] for shard, flags in IS_LONG.items()},
    )
    return folder


def mixture_of(folder, **views):
    return Mixture(dict.fromkeys(views, 1), sources=dict.fromkeys(views, folder), views=views)


# ---------------------------------------------------------------------------- one view


def test_every_document_comes_as_often_as_it_counts(tmp_path, windows):
    folder = numbered_set(tmp_path / "set")
    make_view(folder, "some", SOME)
    loader = make(folder, "some")
    for _ in range(2):
        assert rest_of_epoch(loader) == times(folder, SOME)


# ---------------------------------------------------------------------------- mixtures


def test_views_of_one_set_are_sources_of_one_mixture(folder):
    loader = make(mixture_of(folder, a="short", b="long"))
    documents = documents_of(folder)
    seen = {0: set(), 1: set()}
    for _ in range(60):
        _, targets = next(loader)
        seen[int(loader.row_sources[0])].update(
            documents[token] for token in targets[targets >= 0].tolist()
        )
    assert all(seen.values())
    for number, is_long in enumerate((0, 1)):
        assert all(IS_LONG[shard][document] == is_long for shard, document in seen[number])


def test_a_position_of_one_view_continues_as_that_view_in_a_mixture(folder):
    loader = make(folder, "long")
    next(loader)
    mixed = make(mixture_of(folder, a="short", b="long"), state=loader.state_dict())
    assert {name: usage.rows for name, usage in mixed.seen().items()} == {"a": 0, "b": 1}
    with pytest.raises(ValueError, match="2 sources of the mixture"):
        make(mixture_of(folder, a="short", b="some"), state=loader.state_dict())


# ---------------------------------------------------------------------------- what is refused


def test_views_that_make_no_sense_are_refused(folder):
    make_view(folder, "none", {shard: [0] * len(flags) for shard, flags in IS_LONG.items()})
    make_view(folder, "again", IS_LONG)
    for ask, message in [
        (lambda: make(folder, "long", packing="concat", loss="all"), "packing 'concat'.* view"),
        (lambda: make(folder, "none"), r"view 'none': split 'train' has 0 rows of 16 \+ 1 tokens"),
        (
            lambda: make(mixture_of(folder, a="long", b="long")),
            "sources 'a' and 'b' have the same documents",
        ),
        (lambda: make(mixture_of(folder, a="long", b="again")), "have the same documents"),
        (
            lambda: Mixture({"a": 1}, sources={"a": folder}, views={"c": "long"}),
            "views names 'c', which is not a sou",
        ),
        (lambda: make(mixture_of(folder, a="long"), "long"), r"view='long' is for one token set"),
    ]:
        with pytest.raises(ValueError, match=message):
            ask()
    with pytest.raises(
        FileNotFoundError, match="expected a view 'nope', found again, all, long, none, short, some"
    ):
        make(mixture_of(folder, a="nope"))
