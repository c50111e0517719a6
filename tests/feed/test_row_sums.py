"""Rows never change: a position names them by their number."""

import pytest
import row_sums


@pytest.mark.filterwarnings("ignore:.*are longer than a row:UserWarning")
def test_rows_of_every_kind_are_those_that_were_written_down():
    assert row_sums.differing() == []
