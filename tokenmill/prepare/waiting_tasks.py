"""Which waiting task a worker does next.

    chains   a: a0 a1 a2 a3   b: b0 b1      tasks without a chain: x y
    worker 1: a0 a1 a2 ...    worker 2: b0 b1, then x, y, then a3

The shards of one compressed file are a chain: who makes the next one continues decompressing, and everybody else begins
at the file's start. So a worker stays on its chain; then it takes a chain that nobody has begun, then a task without a
chain, and last a task of the chain with the most left.
"""

from collections import deque
from collections.abc import Hashable


class WaitingTasks:
    """Tasks by their numbers, each with the chain that it belongs to, or None."""

    def __init__(self) -> None:
        self._chain_of: dict[int, Hashable | None] = {}
        self._waiting: dict[Hashable | None, deque[int]] = {None: deque()}
        self._unbegun: dict[Hashable, None] = {}  # chains, in the order in which they came
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, task: int, chain: Hashable | None) -> None:
        """Adds a task after the others of its chain."""
        if chain is not None and chain not in self._waiting:
            self._waiting[chain] = deque()
            self._unbegun[chain] = None
        self._chain_of[task] = chain
        self._waiting[chain].append(task)
        self._count += 1

    def put_back(self, task: int) -> None:
        """Makes a task that was taken the next one of its chain."""
        self._waiting[self._chain_of[task]].appendleft(task)
        self._count += 1

    def take(self, last: int | None) -> int:
        """The next task for a worker whose last one was `last`. IndexError if none is waiting."""
        own = self._chain_of[last] if last is not None else None
        chain = own if own is not None and self._waiting[own] else self._another()
        self._unbegun.pop(chain, None)
        task = self._waiting[chain].popleft()
        self._count -= 1
        return task

    def _another(self) -> Hashable | None:
        if self._unbegun:
            return next(iter(self._unbegun))
        if self._waiting[None]:
            return None
        return max(self._waiting, key=lambda chain: len(self._waiting[chain]))

    def first(self) -> int:
        """Any waiting task."""
        return next(tasks[0] for tasks in self._waiting.values() if tasks)

    def clear(self) -> None:
        """Forgets all waiting tasks."""
        for tasks in self._waiting.values():
            tasks.clear()
        self._unbegun.clear()
        self._count = 0
