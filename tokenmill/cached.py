"""cached_property: functools' without its lock, which a fork could find held.

In Python 3.11, functools.cached_property has one lock for all instances of a class. If a process forks while a thread
computes such a property, for example when a DataLoader starts workers while a window is planned, the child waits
forever. Without a lock, two threads may compute the same value, and either value is used. Python 3.12 works this way.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:  # noqa: N801  # as property is
        """A property whose value is computed at the first access and then stored in the instance."""

        def __init__(self, make: Any):
            self._make, self.__doc__ = make, make.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type) -> Any:
            if instance is None:
                return self
            value = vars(instance)[self._name] = self._make(instance)  # later accesses find it there
            return value
