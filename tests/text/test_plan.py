"""A plan follows from names and bytes alone, holds every file once, and grows at its end."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.text.formats import ReadOptions
from tokenmill.text.plan import LARGEST, SMALLEST, Unit, part_of, plan, shard_size
from tokenmill.text.source_file import HubSource, SourceFile

MB = 1 << 20
NAMES = ("a.parquet", "b.jsonl", "c.csv", "d.jsonl.zst", "e.txt", "f.arrow")
files = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.integers(0, 40 * MB) | st.integers(0, MB),
        st.sampled_from([0.0, 0.01, 1.0]),
    ),
    max_size=20,
).map(
    lambda some: [
        SourceFile(f"{n:02d}{name}", f"/{n:02d}{name}", size, val)
        for n, (name, size, val) in enumerate(some)
    ]
)


def names_of(files):
    return [file.name for file in files]


@given(files, st.sampled_from([MB, 8 * MB]), st.sampled_from([None, b"\n"]))
def test_every_part_of_every_file_is_in_one_unit(files, size, separator):
    units = plan(files, ReadOptions(document_separator=separator), size)
    begun = [unit.files for unit in units if unit.k == 0]
    assert list(chain.from_iterable(begun)) == files, "in their order"
    for unit in units:
        assert [(sibling.k, sibling.n) for sibling in units if sibling.files == unit.files] == [
            (k, unit.n) for k in range(unit.n)
        ]
        assert len({file.val_share for file in unit.files}) == 1
        is_uncut = (
            unit.files[0].format.name in ("csv", "txt" if separator is None else "")
            or unit.files[0].compression
        )
        assert unit.n == 1 or not is_uncut
        text = sum(file.text_bytes for file in unit.files) / unit.n
        assert len(unit.files) == 1 or text <= size
        assert is_uncut or text <= 1.5 * size
    assert sum(unit.bytes for unit in units) == sum(file.bytes for file in files)
    for parts in (1, 3):
        by_part = [part_of(units, part + 1, parts) for part in range(parts)]
        assert sorted(sum(by_part, []), key=units.index) == units


@given(files, st.data())
def test_what_was_together_stays_together_when_files_come(files, data):
    first = [file for file in files if data.draw(st.booleans())]
    before = plan(first, ReadOptions(), MB)
    groups = [names_of(unit.files) for unit in before]
    after = plan(files, ReadOptions(), MB, groups)
    assert after[: len(before)] == before
    added = chain.from_iterable(unit.files for unit in after[len(before) :])
    assert set(added) == set(files) - set(first)


def test_a_part_takes_whole_files_of_the_hub_so_that_it_fetches_no_others():
    hub = HubSource("owner/name", "a" * 40, "/raw", None, None)
    units = plan(
        [SourceFile(f"{n}.jsonl", f"/{n}.jsonl", 30 * MB, hub=hub) for n in range(5)],
        ReadOptions(),
        8 * MB,
    )
    assert len(units) == 20
    assert {unit.files[0].name for unit in part_of(units, 2, 2)} == {"1.jsonl", "3.jsonl"}
    assert len(part_of(units, 2, 2)) == 8


@pytest.mark.parametrize(("gb", "expected"), [(0, 8), (0.04, 8), (20, 32), (1000, 256)])
def test_a_shard_has_about_a_512th_of_the_corpus(gb, expected):
    size = shard_size([SourceFile("a.jsonl", "/a.jsonl", int(gb * 1e9))])
    assert size == expected * MB
    assert SMALLEST <= size <= LARGEST


def test_names_of_shards_are_short_and_of_one_file():
    with pytest.raises(
        ValueError, match=r"/a\.jsonl: a path of over 200 bytes in the source; shorten it"
    ):
        plan([SourceFile("x" * 100 + "/" + "é" * 100 + ".jsonl", "/a.jsonl", 1)], ReadOptions(), MB)
    assert Unit((SourceFile("web/a.jsonl.gz", "/a", 1),), 7, 9).name == "web--a.007"
    with pytest.raises(
        ValueError, match="copies of one text\\? Both would write shards named a--b; take one"
    ):
        plan(
            [SourceFile("a--b.jsonl", "/1", MB), SourceFile("a/b.jsonl", "/2", MB)],
            ReadOptions(),
            MB,
        )
