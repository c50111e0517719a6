"""A column from outside the package is computed while preparing, in workers, and goes where the tokens go."""

from dataclasses import replace

import numpy as np
import pytest
from making import make_text, tree
from toy_column import DISTANCE, distance

from tokenmill import PrepareConfig, RowLoader, TokenSet, prepare
from tokenmill.look.verify import verify
from tokenmill.store.columns import COLUMNS, Column, register_column


@pytest.fixture
def registered():
    register_column(DISTANCE)
    yield
    del COLUMNS[DISTANCE.suffix]


@pytest.fixture
def config(tmp_path, tokenizer_json):
    for number in range(3):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{number}.txt").write_text("\n\n".join(make_text(40, seed=number)))
    settings = {"source": str(tmp_path / "in"), "document_separator": "\\n\\n", "shard_text_bytes": 1000, "workers": 2}
    return PrepareConfig(**settings, tokenizer=str(tokenizer_json), tokens_root=tmp_path / "tokens")


def require_distances(token_set):
    assert len(token_set.entries) > 4, "several shards"
    for entry in token_set.entries:
        shard = token_set.open(entry)
        expected = distance(np.array(shard.read(0, entry.tokens)), shard.lengths)
        assert np.array_equal(shard.column("distance"), expected)


def test_it_is_written_by_workers_and_verified(registered, config):
    folder = prepare(config).folder
    require_distances(TokenSet(folder))
    assert verify(folder) == {}
    before = tree(folder)
    prepare(config)
    assert tree(folder) == before, "everything is made"
    assert len(next(RowLoader(folder, batch_size=2, seq_len=16))[0]) == 2


def test_shards_made_without_it_are_made_again_with_the_same_tokens(config):
    folder = prepare(config).folder
    plain = {name: data for name, data in tree(folder).items() if name.endswith((".bin", ".idx"))}
    digest = TokenSet(folder).digest
    register_column(DISTANCE)
    try:
        assert prepare(config).folder == folder
        require_distances(TokenSet(folder))
    finally:
        del COLUMNS[DISTANCE.suffix]
    assert {name: data for name, data in tree(folder).items() if name.endswith((".bin", ".idx"))} == plain
    assert TokenSet(folder).digest != digest
    before = tree(folder)
    prepare(config)
    assert tree(folder) == before, "a column that nobody registers any more stays"


def test_a_position_of_before_a_column_was_added_still_loads(config):
    folder = prepare(config).folder
    loader = RowLoader(folder, batch_size=2, seq_len=16)
    next(loader)
    state, expected = loader.state_dict(), next(loader)
    register_column(DISTANCE)
    try:
        prepare(config)
    finally:
        del COLUMNS[DISTANCE.suffix]
    again = RowLoader(folder, batch_size=2, seq_len=16)
    again.load_state_dict(state)
    assert next(again)[0].equal(expected[0])


def test_a_column_of_another_type_is_made_again(registered, config):
    folder = prepare(config).folder
    del COLUMNS[DISTANCE.suffix]
    register_column(replace(DISTANCE, dtype="uint16"))
    prepare(config)
    token_set = TokenSet(folder)
    assert {token_set.open(entry).column("distance").dtype for entry in token_set.entries} == {np.dtype("<u2")}


def test_shards_with_and_without_a_column_are_no_set(config, tmp_path):
    register_column(DISTANCE)
    try:
        prepare(config)
    finally:
        del COLUMNS[DISTANCE.suffix]
    (tmp_path / "in" / "3.txt").write_text("one more\n\nand another")
    with pytest.raises(ValueError, match="do not have the same columns: distance; register these columns and prepare"):
        prepare(config)


def test_a_function_that_workers_cannot_import_is_refused():
    for function in (
        lambda tokens, lengths: tokens,
        type("main", (), {"__module__": "__main__", "__qualname__": "f"})(),
    ):
        with pytest.raises(
            ValueError, match="of_tokens must be a function of a module that worker processes can import"
        ):
            Column("mine", "uint8", "token", of_tokens=function)
