"""Checks of settings, for every wing: each returns the setting in one normal form, or raises
ValueError.
"""

import operator
import os
import re
import reprlib
from collections.abc import Collection
from typing import Any

LARGEST = 1 << 62  # upper limit of all counts
BYTES = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)B?", re.IGNORECASE)
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
LONGEST_ROW = 1 << 26  # tokens of an input; packing keeps a counter for each length


def whole_number(name: str, value: Any, smallest: int | None = None, largest: int = LARGEST) -> int:
    """A whole number of any library as a Python int, np.int64(3) as 3.

    ValueError for others, and if out of range.
    """
    at_least = "" if smallest is None else f" of at least {smallest}"
    problem = f"{name} must be a whole number{at_least}, not {reprlib.repr(value)}"
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(problem) from None
    if number > largest:
        raise ValueError(f"{name} must be at most {largest:,}, not {reprlib.repr(value)}")
    if isinstance(value, bool) or (smallest is not None and number < smallest):
        raise ValueError(problem)
    return number


def bytes_of(name: str, amount: Any) -> int:
    """Parses a number of bytes: 50_000_000_000, "50G", "1.5T". ValueError for anything else."""
    if isinstance(amount, str):
        match = BYTES.fullmatch(amount.strip())
        if match is None:
            raise ValueError(
                f"{name} must be a number of bytes, as 50_000_000_000 or '50G', not {amount!r}"
            )
        number, unit = match.groups()
        amount = int(float(number) * UNITS[unit.upper()])
    return whole_number(name, amount, 1)


def truth(name: str, value: Any) -> bool:
    """True or False of Python or NumPy as a Python bool.

    ValueError for others: the string "False" would be true.
    """
    if type(value).__name__ not in ("bool", "bool_"):
        raise ValueError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def text_of(name: str, value: Any) -> str:
    """A text, or a path as one. ValueError for others."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(text, str):
        raise ValueError(f"{name} must be a text, not {reprlib.repr(value)}")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} must be a text that UTF-8 has, not {value!a}") from error
    return text


def one_of(name: str, value: Any, known: Collection[str]) -> None:
    """Raises ValueError if a setting is not one of the known values."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(str, known))}, not {value!r}")
