"""`--cluster ray`: units as Ray tasks, on the cluster that `ray.init` reaches.

    RAY_ADDRESS=head:6379 tokenmill prepare --cluster ray ...     or within a job: ray job submit -- tokenmill ...

Nodes need the packages of the extra `prepare`; tokenmill itself is sent to them. Source files and token sets must be in
folders that all nodes share, under the same paths.
"""

import os
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenmill.extras import naming_the_extra
from tokenmill.prepare.made import Work
from tokenmill.prepare.make import make
from tokenmill.prepare.pool import Failure, failure_of
from tokenmill.text.plan import Unit

PACKAGE = Path(__file__).resolve().parent.parent
RETRIES = 3  # of a task whose worker or node died


def run(
    units: Sequence[Unit],
    work: Work,
    on_numbers: Callable[..., None],
    on_outcome: Callable[[Any, Any], None],
    on_text: Callable[[str], None],
) -> list[Failure]:
    """Makes the units; what failed. ConnectionError if no cluster can be reached."""
    with naming_the_extra("ray"):
        import ray
    address = re.fullmatch(r"(.+):(\d+)", os.environ.get("RAY_ADDRESS", ""))
    try:
        if address and "://" not in address[0]:  # ray.init would wait forever
            socket.create_connection((address[1], int(address[2])), timeout=10).close()
        ray.init(runtime_env={"py_modules": [str(PACKAGE)]}, log_to_driver=False)
    except OSError as error:
        raise ConnectionError(
            f"--cluster ray: no cluster could be reached ({error}); check RAY_ADDRESS"
        ) from error
    try:
        task = ray.remote(_make).options(num_cpus=1, max_retries=RETRIES)
        shared, failures = ray.put(work), list[Failure]()
        running = {task.remote(unit, shared): unit for unit in units}
        while running:
            for reference in ray.wait(list(running), timeout=1.0)[0]:
                unit = running.pop(reference)
                try:
                    outcome, reported = ray.get(reference)
                except ray.exceptions.RayError as error:
                    reason = f"Ray gave it up after {RETRIES} retries: {str(error).splitlines()[0]}"
                    outcome, reported = Failure(unit, reason), []
                for values in reported:
                    (on_text if isinstance(values[0], str) else on_numbers)(*values)
                if isinstance(outcome, Failure):
                    failures.append(outcome)
                on_outcome(unit, outcome)
        return failures
    finally:
        ray.shutdown()


def _make(unit: Unit, work: Work) -> tuple[Any, list[Any]]:
    """A Ray task: the unit's record, or a Failure; and what was reported."""
    reported: list[Any] = []
    try:
        return make(work, unit, lambda *values: reported.append(values)), reported
    except Exception as error:
        return failure_of(unit, error), []
