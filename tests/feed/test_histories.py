"""Whatever a run goes through, every token comes as often as it should, and a position tells what each step had."""

from collections import Counter

import pytest
from loader_histories import History, small_windows


@pytest.mark.filterwarnings("ignore:.*these are left out:UserWarning")
def test_random_histories_lose_nothing_and_repeat_nothing(tmp_path):
    found = Counter()
    for seed in range(4):
        (tmp_path / str(seed)).mkdir()
        with small_windows():
            found += History(tmp_path / str(seed), seed).happen(25)
    assert found["rows"] > 500
    assert found["windows packed again"] > 10
