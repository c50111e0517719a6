"""Whatever a run goes through, every token comes as often as it should, and a position tells what
each step had.
"""

from collections import Counter

import pytest
from loader_histories import History, small_windows


@pytest.mark.filterwarnings("ignore:.*these are left out:UserWarning")
def test_random_histories_lose_nothing_and_repeat_nothing(tmp_path):
    counts = Counter()
    for seed in range(4):
        (tmp_path / str(seed)).mkdir()
        with small_windows():
            counts += History(tmp_path / str(seed), seed).happen(25)
    assert counts["rows"] > 500
    assert counts["windows packed again"] > 10
