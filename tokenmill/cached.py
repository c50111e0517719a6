"""cached_property: a property that is computed once, without a lock that a fork could find held.

    @cached_property
    def lengths(self): ...

In Python 3.11, functools.cached_property has one lock for all instances of a class. If a process forks while a thread
computes such a property, for example when a DataLoader starts workers while a window is planned, the child waits
forever. Without a lock, two threads may compute the same value, and either value is used. Python 3.12 works this way.
"""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

Value = TypeVar("Value")


class cached_property(Generic[Value]):  # noqa: N801  # as property is
    """A property whose value is computed at the first access and then stored in the instance."""

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
        value = vars(instance)[self._name] = self._make(instance)  # later accesses find it there
        return value
