"""Whatever a run goes through, every token comes as often as it should, and a position tells what
each step had.
"""

from collections import Counter

import pytest
from loader_histories import History, small_windows
from making import some_slow


@pytest.mark.parametrize("seeds", some_slow([(4, 5), (0, 1, 2, 3)], quick=[(4, 5)]))
@pytest.mark.filterwarnings("ignore:.*these are left out:UserWarning")
def test_random_histories_lose_nothing_and_repeat_nothing(tmp_path, seeds):
    counts = Counter()
    for seed in seeds:
        (tmp_path / str(seed)).mkdir()
        with small_windows():
            counts += History(tmp_path / str(seed), seed).happen(25)
    assert counts["rows"] > 500
    assert counts["windows packed again"] > 10
