"""Rules for values that come from JSON, and the error that says where one is broken.

    check_rule({"name": TEXT, "crc32?": [whole(0)]}, value, "")
    ValueError: crc32[3]: expected a whole number, 0 to 10, found 'x'

In a table, {"key": rule} is an object with these keys, of which those that end with `?` may be
missing, {Is: rule} an object whose keys are data, and [rule] a list. Keys that a table does not
name are let through.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tokenmill.checks import LARGEST

Table = dict[Any, Any]


class Is(NamedTuple):
    """A rule for one value: what an error calls it, and its test."""

    expected: str
    test: Callable[[Any], bool]


def whole(least: int, most: int = LARGEST) -> Is:
    def is_right(value: Any) -> bool:
        return type(value) is int and least <= value <= most

    return Is(f"a whole number, {least:,} to {most:,}", is_right)


def hexadecimal(digits: int) -> Is:
    matches = re.compile(f"[0-9a-f]{{{digits}}}").fullmatch

    def is_right(value: Any) -> bool:
        return type(value) is str and matches(value) is not None

    return Is(f"{digits} hex digits", is_right)


def one_of(*texts: str) -> Is:
    return Is(" or ".join(texts), texts.__contains__)


def check_rule(rule: Any, value: Any, where: str) -> None:
    """ValueError if a value, which is at `where` in the file, breaks a rule.

    Nearly all values are right, so many are tested at once before one is looked for that is not.
    """
    if isinstance(rule, Is):
        require(rule.test(value), where, rule.expected, value)
    elif isinstance(rule, list):
        require(type(value) is list, where, "a list", value)
        _check_items(rule[0], value, where)
    else:
        require(type(value) is dict, where, "an object", value)
        for key, below in rule.items():
            if isinstance(key, Is):
                _check_entries(key, below, value, where)
            else:
                _check_key(key, below, value, where)


def _check_items(rule: Any, items: list[Any], where: str) -> None:
    if _are_right(rule, items):
        return
    for number, item in enumerate(items):
        check_rule(rule, item, f"{where}[{number}]")


def _check_entries(key_rule: Is, rule: Any, entries: Table, where: str) -> None:
    """An object whose keys are data."""
    if _are_right(key_rule, entries) and _are_right(rule, entries.values()):
        return
    for key, value in entries.items():
        shown = ascii(key)[1:-1]
        check_rule(key_rule, key, f"{where}, a key")
        check_rule(rule, value, f"{where}.{shown}")


def _check_key(key: str, rule: Any, entries: Table, where: str) -> None:
    """One key of an object, optional if it ends with `?`."""
    name = key.removesuffix("?")
    if name not in entries:
        require(name != key, f"{where}.{key}", "a value", None)
        return
    value = entries[name]
    is_right = type(rule) is Is and rule.test(value)
    if not is_right:
        check_rule(rule, value, f"{where}.{name}")


def _are_right(rule: Any, values: Iterable[Any]) -> bool:
    return isinstance(rule, Is) and all(map(rule.test, values))


def require(is_right: bool, where: str, expected: str, actual: object) -> None:
    if is_right:
        return
    shown = ascii(actual)[:100]
    if isinstance(actual, dict | list):
        shown = f"a {type(actual).__name__}"
    path = where.lstrip(".")
    raise ValueError(f"{path}: expected {expected}, found {shown}")
