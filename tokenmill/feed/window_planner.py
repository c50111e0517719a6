"""WindowPlanner: plans windows when they are asked for, or ahead of time in threads.

    windows = WindowPlanner({"web": web_plans, "code": code_plans}, threads=2)
    windows.expect("web", 0, 4)       window 4 of epoch 0 will be needed: a thread plans it and reads it ahead
    windows.rows("web", 0, 4)         its rows, as soon as they are planned

Each source belongs to one thread, which plans its windows in the order in which they are expected, so that two threads
never use the caches of one plan. The planner holds no reference to its user. If a loader reads one token set, there is
one source, without a name.
"""

from collections.abc import Generator, Iterable, Mapping
from functools import partial
from typing import Any

from tokenmill.feed.background import PAUSE, BackgroundIterator
from tokenmill.feed.remote_rows import BlockOrder
from tokenmill.feed.window_plans import WindowPlans
from tokenmill.feed.window_rows import WindowRows

Key = tuple[str, int, int]  # source, epoch, window


class WindowPlanner:
    """The windows of `plans`, by source. Threads start when a window is expected; with threads=0 there are none."""

    def __init__(self, plans: Mapping[str, WindowPlans], threads: int):
        self.plans = plans
        self._orders = {source: order for source, own in plans.items() if (order := own.block_order()) is not None}
        self._count = min(threads, len(plans))
        self._threads: list[BackgroundIterator[Any]] = []
        self._thread_of: dict[str, int] = {}  # the number of each source's thread, in the order of first use
        self._expected: set[Key] = set()
        self._held: dict[Key, WindowRows] = {}

    def expect_now(self, keys: Iterable[Key]) -> None:
        """Plans windows that are needed at once, in this order, and reads them ahead when all are planned."""
        new = [key for key in keys if self._submit("plan", key)]
        for key in new:
            self._submit("read", key)

    def expect(self, source: str, epoch: int, window: int) -> None:
        """Plans a window that will be needed, and reads it ahead."""
        if self._submit("plan", (source, epoch, window)):
            self._submit("read", (source, epoch, window))

    def rows(self, source: str, epoch: int, window: int) -> WindowRows:
        """The rows of a window; waits for the plan."""
        key = (source, epoch, window)
        if key not in self._held and not self._threads:
            self._held[key] = self.plans[source].rows(epoch, window)
            self._held[key].request_blocks(lambda: 0)
            self._held[key].read_ahead()
        elif key not in self._held and key not in self._expected:
            self._submit("plan", key)
        while key not in self._held:
            try:
                planned, rows = next(self._threads[self._thread_of[source]])
            except BaseException:
                self.stop()
                raise
            if planned in self._expected:
                self._held[planned] = rows
                self._expected.remove(planned)
        return self._held[key]

    def count_rows(self, source: str, epoch: int, window: int) -> int:
        """The number of rows of a window; waits for the plan."""
        return self.rows(source, epoch, window).num_rows

    def known_rows(self, source: str, epoch: int, window: int) -> int | None:
        """The number of rows of a window if it is planned already, else None."""
        held = self._held.get((source, epoch, window))
        return None if held is None else held.num_rows

    def release_before(self, source: str, epoch: int, window: int) -> None:
        """Releases the windows of a source before this one."""
        if source in self._orders:
            self._orders[source].at = (epoch, window)
        for key in [key for key in self._held if key[0] == source and key[1:] < (epoch, window)]:
            self._held.pop(key).release_blocks()

    def interrupt(self) -> None:
        """Ends the threads, called from another one. A caller that waits for a window gets an error. No call may
        follow.
        """
        for thread in list(self._threads):
            thread.stop()

    def stop(self) -> None:
        """Ends the threads and releases all windows."""
        threads, self._threads = self._threads, []
        self._expected.clear()
        for rows in list(self._held.values()):
            rows.release_blocks()
        self._held.clear()
        self._thread_of.clear()
        for thread in threads:
            thread.stop()

    def _submit(self, action: str, key: Key) -> bool:
        """Sends a request to the source's thread; False if the window is planned or expected already."""
        if not self._count or (action == "plan" and (key in self._held or key in self._expected)):
            return False
        if not self._threads:
            for _ in range(self._count):
                planning = _planning(self.plans, self._orders)
                next(planning)
                self._threads.append(BackgroundIterator(planning))
        if action == "plan":
            self._expected.add(key)
        number = self._thread_of.setdefault(key[0], len(self._thread_of) % self._count)
        self._threads[number].submit((action, key))
        return True


def _planning(plans: Mapping[str, WindowPlans], orders: Mapping[str, BlockOrder]) -> Generator[Any, Any, None]:
    """Answers requests with (key, rows): ("plan", key) at once, ("read", key) when the kernel has read the tokens."""
    request = yield PAUSE
    while True:
        action, (source, epoch, window) = request
        rows = plans[source].rows(epoch, window)
        if source in orders:
            rows.request_blocks(partial(orders[source].windows_until, epoch, window))
        if action == "read":
            for _ in rows.reading():
                yield PAUSE
        request = yield (source, epoch, window), rows
