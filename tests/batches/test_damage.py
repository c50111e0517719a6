"""A shard that changes on disk is a clear error, never other tokens; the next call tries again."""

import os
from itertools import islice

import numpy as np
import pytest
from making import make_token_set
from reference import make_loader, rows_of

from tokenmill.feed import table


@pytest.fixture(autouse=True)
def looked_at_for_every_batch(monkeypatch):
    """As files are looked at once a second otherwise."""
    monkeypatch.setattr(
        table.ChangeCheck,
        "require",
        lambda self, shards: [shard.require_unchanged() for shard in shards],
    )


@pytest.fixture
def own_set(tmp_path):
    """A token set of two training shards that a test may damage; a batch of 8 rows takes one shard
    and some.
    """
    return make_token_set(tmp_path / "own", train=[[17] * 10, [17] * 10], val=[[17]])


def replace(path, data):
    path.with_suffix(".new").write_bytes(data)
    path.with_suffix(".new").replace(path)


DAMAGE = {
    "deleted": lambda path: path.unlink(),
    "truncated": lambda path: os.truncate(path, 34),
    "replaced by another shard's": lambda path: replace(path, path.read_bytes()[:-34]),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("packing", ["best_fit", "concat", "nanochat"])
def test_a_shard_that_changes_under_a_running_loader_is_an_error_not_other_tokens(
    own_set, damage, packing
):
    # prefetch=0: a file that shrinks while a thread is copying from it ends the process, as with
    # every memory map
    loader = make_loader(own_set, packing=packing, batch_size=1, prefetch=0)
    expected = [
        rows_of(batch) for batch in islice(make_loader(own_set, packing=packing, batch_size=1), 40)
    ]
    dealt = [rows_of(next(loader))]
    for path in own_set.glob("shards/train_*.bin"):
        DAMAGE[damage](path)
    reasons = (
        "deleted, truncated or replaced while it was being read|no such file|expected 340 bytes|"
        "another file than"
    )
    message = rf"shards/train_\d.000.bin: ({reasons})"
    with pytest.raises((ValueError, FileNotFoundError), match=message):  # noqa: PT012
        for batch in islice(loader, 39):
            dealt.append(rows_of(batch))
    assert dealt == expected[: len(dealt)]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_after_an_error_the_next_call_tries_again_from_the_same_row(own_set, prefetch):
    expected = [rows_of(batch) for batch in islice(make_loader(own_set), 60)]
    loader = make_loader(own_set, prefetch=prefetch)
    dealt = []
    dealt += [rows_of(next(loader)) for _ in range(3)]
    hidden = [
        path.rename(path.with_suffix(".hidden")) for path in own_set.glob("shards/train_*.bin")
    ]
    message = "deleted, truncated or replaced while it was being read"
    with pytest.raises(ValueError, match=message):  # noqa: PT012
        while True:
            dealt.append(rows_of(next(loader)))
    state = loader.state_dict()
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="no such file, though the manifest lists it"):
            next(loader)
    assert (loader.step, loader.state_dict()) == (len(dealt), state)
    for path in hidden:
        path.rename(path.with_suffix(".bin"))
    assert dealt + [rows_of(next(loader)) for _ in range(60 - len(dealt))] == expected


@pytest.mark.parametrize("by", [-1, 1])
def test_one_offset_that_is_wrong_by_one_is_found_wherever_its_document_is_in_a_row(tmp_path, by):
    lengths = [5, 9, 3, 7, 4, 6, 8, 30]
    for damaged in range(1, len(lengths)):
        path = make_token_set(tmp_path / str(damaged), train=[lengths], val=[[9]])
        offsets = np.cumsum([0, *lengths]).astype("<u8")
        offsets[damaged] = int(offsets[damaged]) + by
        offsets.tofile(path / "shards" / "train_0.000.idx")
        with pytest.raises(
            ValueError, match=r"expected a document to begin with BOS \(0\), found [1-9]"
        ):
            list(make_loader(path, epochs=1, batch_size=1))
