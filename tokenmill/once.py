"""A property that is computed once, without a lock that a fork may find held.

    @once
    def lengths(self): ...

functools.cached_property of Python 3.11 has one lock for all instances of a class. A process that forks while a thread
computes one, as a DataLoader's workers are made while a window is planned, leaves its child waiting for ever. Without
a lock two threads may compute the same value, and either's is taken; so has Python 3.12 it.
"""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

Value = TypeVar("Value")


class once(Generic[Value]):  # noqa: N801  # as property is
    """See above."""

    def __init__(self, make: Callable[[Any], Value]):
        self._make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...
    def __get__(self, instance: object | None, owner: type) -> Self | Value:
        if instance is None:
            return self
        value = vars(instance)[self._name] = self._make(instance)  # from now on found there, before this is asked
        return value
