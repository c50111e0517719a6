"""`--cluster ray`: units as Ray tasks, on the cluster that `ray.init` reaches.

    RAY_ADDRESS=head:6379 tokenmill prepare --cluster ray ...
    ray job submit -- tokenmill prepare --cluster ray ...          within a job

Nodes need the packages of the extra `prepare`; tokenmill itself is sent to them. Source files and
token sets must be in folders that all nodes share, under the same paths.
"""

import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenmill.extras import naming_the_extra
from tokenmill.messages import first_line
from tokenmill.prepare.failures import Failure, failure_of
from tokenmill.prepare.made import Work
from tokenmill.prepare.make import make
from tokenmill.prepare.pool import OnNumbers, OnOutcome, OnText
from tokenmill.text.plan import Unit

PACKAGE = Path(__file__).resolve().parent.parent
RETRIES = 3  # of a task whose worker or node died
CONNECT_SECONDS = 10
POLL_SECONDS = 1.0

Report = tuple[Any, ...]  # a text, or numbers


def run(
    units: Sequence[Unit],
    work: Work,
    on_numbers: OnNumbers,
    on_outcome: OnOutcome,
    on_text: OnText,
) -> list[Failure]:
    """Makes the units; what failed. ConnectionError if no cluster can be reached."""
    with naming_the_extra("ray"):
        import ray
    try:
        _require_head()
        ray.init(runtime_env={"py_modules": [str(PACKAGE)]}, log_to_driver=False)
    except OSError as error:
        raise ConnectionError(
            f"--cluster ray: no cluster could be reached ({error}); check RAY_ADDRESS"
        ) from error
    failures: list[Failure] = []
    try:
        task = ray.remote(_make_and_report).options(num_cpus=1, max_retries=RETRIES)
        shared_work = ray.put(work)
        running = {task.remote(unit, shared_work): unit for unit in units}
        while running:
            finished, _ = ray.wait(list(running), timeout=POLL_SECONDS)
            for reference in finished:
                unit = running.pop(reference)
                outcome, reports = _outcome_of(reference, unit)
                for values in reports:
                    if isinstance(values[0], str):
                        on_text(*values)
                    else:
                        on_numbers(*values)
                if isinstance(outcome, Failure):
                    failures.append(outcome)
                on_outcome(unit, outcome)
                if isinstance(outcome, Failure) and outcome.is_for_all:
                    return failures
        return failures
    finally:
        ray.shutdown()


def _outcome_of(reference: Any, unit: Unit) -> tuple[Any, list[Report]]:
    """What a task returns; a Failure for one whose workers died."""
    import ray

    try:
        outcome, reports = ray.get(reference)
        return outcome, reports
    except ray.exceptions.RayError as error:
        reason = f"Ray gave it up after {RETRIES} retries: {first_line(error)}"
        return Failure(unit, reason), []


def _require_head() -> None:
    """OSError if nobody answers at the host and port of RAY_ADDRESS: ray.init would wait."""
    address = re.fullmatch(r"(.+):(\d+)", os.environ.get("RAY_ADDRESS", ""))
    if address and "://" not in address[0]:
        host, port = address.groups()
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


def _make_and_report(unit: Unit, work: Work) -> tuple[Any, list[Report]]:
    """A Ray task: the unit's record, or a Failure; and what was reported."""
    reports: list[Report] = []
    try:
        return make(work, unit, lambda *values: reports.append(values)), reports
    except Exception as error:
        return failure_of(unit, error), []
