"""Small files that follow each other share a shard; what is there stays as it is; every file is in one lot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.text.file_groups import group_files
from tokenmill.text.units import SourceFile


def files_of(sizes, val=()):
    return [
        SourceFile(f"{n:03d}.txt", f"/{n}.txt", "val" if n in val else "train", size) for n, size in enumerate(sizes)
    ]


def names(groups):
    return [[int(file.name[:3]) for file in group] for group in groups]


def test_small_files_of_one_split_share_a_shard_up_to_its_size():
    assert names(group_files(files_of([3, 5, 900, 2, 4, 3], val={4}), {}, 160)) == [[0, 1], [2], [3, 5], [4]]
    assert names(group_files(files_of([10] * 5), {}, 160)) == [[0, 1, 2, 3, 4]]
    assert names(group_files(files_of([10] * 33), {}, 160)) == [list(range(16)), list(range(16, 32)), [32]]
    assert names(group_files(files_of([11, 11]), {}, 160)) == [[0], [1]], "a shard has no room for sixteen of them"


def test_files_whose_shards_are_there_stay_together_and_new_ones_share_new_ones():
    known = dict.fromkeys(("001.txt", "003.txt"), ("001.txt", "003.txt"))
    assert names(group_files(files_of([1] * 6), known, 160)) == [[0], [1, 3], [2, 4, 5]]
    assert names(group_files(files_of([1] * 6), {"002.txt": ("002.txt",)}, 160)) == [[0, 1], [2], [3, 4, 5]]


def test_a_file_that_shares_its_shard_with_files_that_train_cannot_validate():
    known = dict.fromkeys(("000.txt", "001.txt"), ("000.txt", "001.txt"))
    with pytest.raises(ValueError, match=r"001\.txt: is to validate.* shares a shard with 1 other files, which train"):
        group_files(files_of([1, 1], val={1}), known, 160)


@given(st.lists(st.integers(0, 300), max_size=30), st.sets(st.integers(0, 29)), st.integers(16, 2000), st.data())
def test_every_file_is_in_one_lot_in_order_and_a_second_plan_after_growth_keeps_the_first(sizes, val, limit, data):
    files = files_of(sizes, val)
    early = [file for file in files if data.draw(st.booleans())]
    first = group_files(early, {}, limit)
    known = {file.name: tuple(other.name for other in lot) for lot in first for file in lot}
    for found, given_files in ((first, early), (group_files(files, known, limit), files)):
        assert sorted(file.name for lot in found for file in lot) == [file.name for file in given_files]
        for lot in found:
            assert [file.name for file in lot] == sorted(file.name for file in lot)
            assert len({file.split for file in lot}) == 1
            assert len(lot) == 1 or sum(file.bytes for file in lot) <= limit
    grown = group_files(files, known, limit)
    assert set(first) <= set(grown)
    made = [lot for lot in grown if data.draw(st.booleans())]  # by parts in any order, or before a kill
    known |= {file.name: tuple(other.name for other in lot) for lot in made for file in lot}
    assert group_files(files, known, limit) == grown, "what is made already does not change the rest of the plan"
