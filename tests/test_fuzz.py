"""Whatever is damaged, every reader does its work or says in words what is wrong: a seeded while of `make fuzz`."""

from fuzz import fuzz, make_all

CASES = 120  # about half a minute


def test_damage_at_random_ends_in_no_traceback_no_signal_and_touches_nothing_else(tmp_path):
    make_all(tmp_path / "base")
    counts, wrongs = fuzz(tmp_path / "base", seed=16, numbers=range(CASES))
    assert wrongs == [], "python tests/fuzz.py --only SEED:NUMBER shows one"
    assert counts["refused"] > CASES // 3, "most damage is seen"
    assert counts["done"] > CASES // 10, "some is harmless"
