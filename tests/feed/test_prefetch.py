"""A thread runs ahead just as far as it should."""

import time
from itertools import count

from making import wait_until

from tokenmill.feed.prefetch import Prefetch, Stop


def test_no_more_than_depth_items_are_made_before_they_are_asked_for():
    made = []
    ahead = Prefetch((made.append(number) or number for number in count()), 3, Stop())
    for taken in range(5):
        wait_until(lambda taken=taken: len(made) == taken + 3)
        time.sleep(0.02)  # in which another one might be made
        assert len(made) == taken + 3
        assert next(ahead) == taken
    ahead.stop()
