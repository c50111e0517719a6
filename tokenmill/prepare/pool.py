"""Tasks -> worker processes here. A worker that dies or stands still costs its task one retry.

    with Pool(workers=8) as pool:
        pool.start("tokenmill.prepare.make")    optional: a module that workers begin with
        failures = pool.run(function, tasks)    what on_outcome was given that is a Failure

    function(task, report)     runs in a worker; `report` passes texts to on_text, and numbers to
                               on_numbers

A Failure is one line that says why a task has no result. workers.py has the processes.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from multiprocess import connection

from tokenmill.checks import whole_number
from tokenmill.prepare.failures import Failure
from tokenmill.prepare.workers import Begin, Function, Worker, WorkerSource, nothing

TRIES = 2
SILENT_SECONDS = 600  # after which a worker is taken for dead; it reports something every few MB
POLL_SECONDS = 0.5

OnNumbers = Callable[..., None]
OnOutcome = Callable[[Any, Any], None]
OnText = Callable[[str], None]
StateOf = Callable[[Any], bool | str]


class Pool:
    """Worker processes. What they are forked from is `source`, or starts with `start` or `run`."""

    def __init__(self, workers: int, source: WorkerSource | None = None):
        self.workers = whole_number("workers", workers, 1)
        self._source = source or WorkerSource()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *error: object) -> None:
        self._source.kill()

    def start(self, *modules: str) -> None:
        """Begins to import the modules that workers need."""
        self._source.start(modules)

    def call_early(self, early: Begin) -> None:
        """Begins to make what workers may share, while the caller goes on."""
        self._source.call(early)

    def run(
        self,
        function: Function,
        tasks: Sequence[Any],
        on_numbers: OnNumbers = lambda *numbers: None,
        on_outcome: OnOutcome = lambda task, outcome: None,
        on_text: OnText = lambda text: None,
        state_of: StateOf = lambda task: True,
        begin: Begin = nothing,
    ) -> list[Failure]:
        """Runs all tasks; what failed.

        `begin` is called once, in the process that workers are forked from. `state_of` says whether
        a task may begin yet, or why it never can. Numbers of a worker that died are taken back.
        Raises what the callbacks raise.
        """
        most_deaths = TRIES * self.workers
        run = _Run(tasks, self._source, most_deaths, on_numbers, on_outcome, on_text, state_of)
        try:
            while run.waiting or run.num_busy:
                if not self._source.is_ready:
                    self._source.begin(function, begin)
                wanted = min(self.workers, len(run.waiting) + run.num_busy)
                for _ in range(wanted - len(run.workers)):
                    run.workers.append(Worker(self._source))
                run.give_tasks()
                run.hear()
            return run.failures
        finally:
            for worker in run.workers:
                worker.kill()


class _Run:
    """The tasks of a call, and who does them."""

    def __init__(
        self,
        tasks: Sequence[Any],
        source: WorkerSource,
        most_deaths: int,  # of workers at their start
        on_numbers: OnNumbers,
        on_outcome: OnOutcome,
        on_text: OnText,
        state_of: StateOf,
    ):
        self.tasks = tasks
        self.workers: list[Worker] = []
        self.waiting = deque(range(len(tasks)))
        self.failures: list[Failure] = []
        self._source = source
        self._most_deaths = most_deaths
        self._deaths = Counter[int | None]()  # by the number of the task; None: without one
        self._on_numbers = on_numbers
        self._on_outcome = on_outcome
        self._on_text = on_text
        self._state_of = state_of

    @property
    def num_busy(self) -> int:
        return sum(worker.number is not None for worker in self.workers)

    def give_tasks(self) -> None:
        """Gives a task to each worker that has none, and ends those that say nothing."""
        for worker in list(self.workers):
            if worker.is_free:
                self._give_task(worker)
            elif time.monotonic() - worker.heard > SILENT_SECONDS:
                self._bury(worker, f"the worker reported nothing for {SILENT_SECONDS} s")

    def hear(self) -> None:
        """What workers report, within POLL_SECONDS."""
        ready = connection.wait([worker.pipe for worker in self.workers], POLL_SECONDS)
        for worker in [worker for worker in self.workers if worker.pipe in ready]:
            try:
                is_done, *values = worker.pipe.recv()
            except (EOFError, ConnectionResetError):
                self._bury(
                    worker, "the worker died, perhaps for want of memory (use fewer --workers)"
                )
                continue
            worker.heard = time.monotonic()
            if worker.pid is None:
                (worker.pid,) = values
            elif is_done and worker.number is not None:
                number = worker.number
                worker.number = None
                worker.sums = []
                self._settle(number, *values)
            elif isinstance(values[0], str):
                self._on_text(*values)
            else:
                worker.add(values)
                self._on_numbers(*values)

    def _give_task(self, worker: Worker) -> None:
        for number in list(self.waiting):
            state = self._state_of(self.tasks[number])
            if not state:
                continue
            self.waiting.remove(number)
            if state is True:
                worker.do(number, self.tasks[number])
                return
            self._settle(number, Failure(self.tasks[number], state))

    def _settle(self, number: int, outcome: Any) -> None:
        if isinstance(outcome, Failure):
            self.failures.append(outcome)
            if outcome.is_for_all:
                self.waiting.clear()
        self._on_outcome(self.tasks[number], outcome)

    def _bury(self, worker: Worker, reason: str) -> None:
        worker.kill()
        self.workers.remove(worker)
        if worker.sums:
            self._on_numbers(*(-number for number in worker.sums))
        number = worker.number
        self._deaths[number] += 1
        if number is None:  # it died before it had a task
            self._source.kill()
            if self._deaths[None] > self._most_deaths:
                raise OSError(
                    f"{self._deaths[None]} workers died at their start; what they printed may say "
                    "why"
                )
        elif self._deaths[number] < TRIES:
            self.waiting.appendleft(number)
        else:
            self._settle(number, Failure(self.tasks[number], f"{reason}, {TRIES} times"))
