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
from tokenmill.prepare.failures import Failure
from tokenmill.prepare.made import Work
from tokenmill.text.plan import Unit

PACKAGE = Path(__file__).resolve().parent.parent
RETRIES = 3  # of a task whose worker or node died
AT_ONCE = 4  # tasks for each CPU that Ray has at a time


def run(
    units: Sequence[Unit],
    work: Work,
    on_progress: Callable[..., None],
    on_outcome: Callable[[Any, Any], None],
    on_ready: Callable[[Any], None],
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
        raise ConnectionError(f"--cluster ray: no cluster could be reached ({error}); check RAY_ADDRESS") from error
    try:
        task = ray.remote(_make).options(num_cpus=1, max_retries=RETRIES)
        shared, waiting, failures = ray.put(work), list(reversed(units)), list[Failure]()
        running: dict[Any, Unit] = {}
        while waiting or running:
            while waiting and len(running) < AT_ONCE * max(1, int(ray.cluster_resources().get("CPU", 1))):
                unit = waiting.pop()
                running[task.remote(unit, shared)] = unit
            for reference in ray.wait(list(running), timeout=1.0)[0]:
                unit = running.pop(reference)
                try:
                    told, result, failure = ray.get(reference)
                except ray.exceptions.RayError as error:
                    failure = Failure(unit, f"Ray gave it up after {RETRIES} retries: {str(error).splitlines()[0]}")
                if failure is not None:
                    failures.append(failure._replace(task=unit))
                    on_outcome(unit, failures[-1])
                    continue
                on_ready(told)
                on_progress(result.documents, result.tokens, result.text_bytes, unit.bytes)
                on_outcome(unit, result)
        return failures
    finally:
        ray.shutdown()


def _make(unit: Unit, work: Work) -> tuple[Any, Any, Failure | None]:
    """A Ray task: (engine and why no faster one, what was made, None), or what failed."""
    from tokenmill.prepare.failures import failure_of

    try:
        from tokenmill.prepare.make import make
        from tokenmill.prepare.worker import encoder_of

        encoder, told = encoder_of(work.destination.folder / "tokenizer.json", work.engine)
        return told, make(work, encoder, unit, lambda *numbers: None), None
    except Exception as error:
        return None, None, failure_of(None, error)
