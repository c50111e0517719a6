"""The windows that are needed, planned when they are asked for or, expected, by threads before.

    windows = Windows({"web": web_plans, "code": code_plans}, threads=2)
    windows.expect("web", 0, 4)       that window 4 of epoch 0 will be needed: planned, and read ahead by the kernel
    windows.rows("web", 0, 4)         its rows, as soon as they are planned

Each source belongs to one thread, which plans its windows in the order in which they are expected: a plan's caches are
never used by two threads. Holds no reference to who asks. A loader of one token set has one source, without a name.
"""

from collections.abc import Generator, Iterable, Mapping
from functools import partial
from typing import Any

from tokenmill.batches.ahead import PAUSE, Ahead
from tokenmill.batches.elsewhere import Order
from tokenmill.batches.plans import WindowPlans
from tokenmill.batches.window_rows import WindowRows

Key = tuple[str, int, int]  # source, epoch, window


class Windows:
    """Windows of `plans`, by source. Threads begin when something is expected; without `threads` none does."""

    def __init__(self, plans: Mapping[str, WindowPlans], threads: int):
        self.plans = plans
        self._orders = {source: order for source, own in plans.items() if (order := own.order()) is not None}
        self._count = min(threads, len(plans))
        self._threads: list[Ahead[Any]] = []
        self._of: dict[str, int] = {}  # which thread each source belongs to, as they are expected first
        self._expected: set[Key] = set()
        self._held: dict[Key, WindowRows] = {}

    def expect_now(self, keys: Iterable[Key]) -> None:
        """Has windows planned that will be asked for at once, in this order, and read when all of them are."""
        new = [key for key in keys if self._ask("plan", key)]
        for key in new:
            self._ask("read", key)

    def expect(self, source: str, epoch: int, window: int) -> None:
        """Has a window planned, and read, that will be asked for."""
        if self._ask("plan", (source, epoch, window)):
            self._ask("read", (source, epoch, window))

    def rows(self, source: str, epoch: int, window: int) -> WindowRows:
        """The rows of a window."""
        key = (source, epoch, window)
        if key not in self._held and not self._threads:
            self._held[key] = self.plans[source].rows(epoch, window)
            self._held[key].need(lambda: 0)
            self._held[key].read_ahead()
        elif key not in self._held and key not in self._expected:
            self._ask("plan", key)
        while key not in self._held:
            try:
                came, rows = next(self._threads[self._of[source]])
            except BaseException:
                self.stop()
                raise
            if came in self._expected:
                self._held[came] = rows
                self._expected.remove(came)
        return self._held[key]

    def count_rows(self, source: str, epoch: int, window: int) -> int:
        """How many rows a window has."""
        return self.rows(source, epoch, window).num_rows

    def known_rows(self, source: str, epoch: int, window: int) -> int | None:
        """How many rows a window has, where it came already."""
        held = self._held.get((source, epoch, window))
        return None if held is None else held.num_rows

    def forget_before(self, source: str, epoch: int, window: int) -> None:
        """Lets go of the windows of a source before one."""
        if source in self._orders:
            self._orders[source].at = (epoch, window)
        for key in [key for key in self._held if key[0] == source and key[1:] < (epoch, window)]:
            self._held.pop(key).let_go()

    def interrupt(self) -> None:
        """Ends the threads, from any other: who waits for a window has an error. Nothing is to be asked any more."""
        for thread in list(self._threads):
            thread.stop()

    def stop(self) -> None:
        """Ends the threads, and lets go of all windows."""
        threads, self._threads = self._threads, []
        self._expected.clear()
        for rows in list(self._held.values()):
            rows.let_go()
        self._held.clear()
        self._of.clear()
        for thread in threads:
            thread.stop()

    def _ask(self, what: str, key: Key) -> bool:
        """Asks the source's thread for something; False where a window came, or was asked for, already."""
        if not self._count or (what == "plan" and (key in self._held or key in self._expected)):
            return False
        if not self._threads:
            for _ in range(self._count):
                planning = _planning(self.plans, self._orders)
                next(planning)
                self._threads.append(Ahead(planning))
        if what == "plan":
            self._expected.add(key)
        number = self._of.setdefault(key[0], len(self._of) % self._count)
        self._threads[number].ask((what, key))
        return True


def _planning(plans: Mapping[str, WindowPlans], orders: Mapping[str, Order]) -> Generator[Any, Any, None]:
    """Answers what it is sent with (key, rows): ("plan", key) at once, ("read", key) when the kernel has read them."""
    asked = yield PAUSE
    while True:
        what, (source, epoch, window) = asked
        rows = plans[source].rows(epoch, window)
        if source in orders:
            rows.need(partial(orders[source].windows_until, epoch, window))
        if what == "read":
            for _ in rows.reading():
                yield PAUSE
        asked = yield (source, epoch, window), rows
