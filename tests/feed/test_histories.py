"""Whatever a run goes through, every token comes as often as it should, and a position tells what each step had."""

import loader_histories
import pytest


@pytest.mark.filterwarnings("ignore:.*these are left out:UserWarning")
@pytest.mark.parametrize("first", [0, 4, 8])
def test_random_histories_lose_nothing_and_repeat_nothing(first):
    found = loader_histories.main(first, 4)
    assert found["rows"] > 500
    assert found["windows packed again"] > 10
