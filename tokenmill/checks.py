"""Checks of what a user says, known by every wing: settings in one form, whatever way they were said."""

import operator
from collections.abc import Collection
from typing import Any


def whole_number(name: str, value: Any, smallest: int | None = None) -> int:
    """A whole number of any library as Python's own, np.int64(3) as 3. ValueError for others, and below `smallest`."""
    at_least = "" if smallest is None else f" of at least {smallest}"
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or (smallest is not None and number < smallest):
        raise ValueError(f"{name} must be a whole number{at_least}, not {value!r}")
    return number


def truth(name: str, value: Any) -> bool:
    """True or False of any library as Python's own. ValueError for others: "False" would be true."""
    if value not in (True, False):
        raise ValueError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def one_of(name: str, value: Any, known: Collection[str]) -> None:
    """ValueError where a setting is none of those that there are."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
