"""Adds columns to the shards of a set that is there: `prepare --keep-columns` again, with more columns than before.

Workers read the source as they did when they made the shards, a unit each, and tokenize nothing. Files of a hub that
are no longer here are fetched again, and deleted again if they are not kept.
"""

import functools
import threading
from concurrent.futures import as_completed

from tokenmill.humanize import counted
from tokenmill.prepare import cluster, workers
from tokenmill.prepare.input_files import InputFiles
from tokenmill.prepare.inventory import Inventory
from tokenmill.prepare.metadata import add_metadata, no_setup
from tokenmill.prepare.outcomes import Failure, failure_of
from tokenmill.prepare.plan import Failures
from tokenmill.prepare.prepare_config import Makers, Share
from tokenmill.prepare.progress import Bars, Meter
from tokenmill.prepare.workers import TaskQueue
from tokenmill.text.units import SourceFile, Unit


def add_missing_metadata(
    inventory: Inventory, inputs: InputFiles, share: Share, makers: Makers, bars: Bars
) -> Failures:
    """Adds the columns that shards of this part lack: (what, why) of each shard, or file, that failed."""
    files = {file.name: file for file in inputs.files}
    lacking = {record["name"]: record for record in inventory.lacking_metadata()}
    mine = [] if share.finish else sorted(inventory.records)[share.part - 1 :: share.parts]  # whatever others have done
    units = [inventory.unit_of(lacking[name], files) for name in mine if name in lacking]
    if not units:
        return []
    bars.say(f"{counted(len(units), 'shard')} of {inventory.folder} to add columns to; nothing is tokenized again")
    failures: Failures = []
    queue, done = TaskQueue(), 0

    def settle(unit: Unit, outcome: int | Failure) -> None:
        nonlocal done
        if isinstance(outcome, Failure):
            failures.append((f"columns of shard {unit.name}", outcome))
            return
        done += 1
        inventory.note(unit)
        if not inputs.keep_raw:
            for file in unit.files:
                left = (other for other in units if lacks(inventory, other))
                if not any(file.path == one.path for other in left for one in other.files):
                    inputs.delete(file)

    with Meter(bars, "reading", sum(unit.text_bytes for unit in units)) as meter:
        threading.Thread(target=_add_when_there, args=(queue, units, inputs, failures), daemon=True).start()
        address = None if inventory.upload is None else inventory.upload.address
        run = cluster.run_tasks if makers.cluster else workers.run_tasks
        add = functools.partial(add_metadata, inventory.folder.absolute(), address)
        run(add, queue, no_setup, num_workers=makers.workers, on_progress=meter.add, on_outcome=settle)
    if done:
        bars.say(f"added columns of {counted(meter.documents, 'document')} to {counted(done, 'shard')}")
    return failures


def lacks(inventory: Inventory, unit: Unit) -> bool:
    """Whether a unit's shard still lacks columns."""
    return any(record["name"] == unit.name for record in inventory.lacking_metadata())


def _add_when_there(queue: TaskQueue, units: list[Unit], inputs: InputFiles, failures: Failures) -> None:
    """Gives units to the workers as soon as their files are here; those of a hub are fetched."""
    try:
        absent: dict[SourceFile, list[Unit]] = {}
        waits: dict[str, int] = {}
        for unit in units:
            away = [file for file in dict.fromkeys(unit.files) if not inputs.is_there(file)]
            waits[unit.name] = len(away)
            for file in away:
                absent.setdefault(file, []).append(unit)
        queue.add([unit for unit in units if not waits[unit.name]])
        futures = inputs.fetch(list(absent))
        for future in as_completed(futures):
            try:
                future.result()
            except Exception as error:
                failures.append((futures[future].name, failure_of(error)))
                continue
            for unit in absent[futures[future]]:
                waits[unit.name] -= 1
            queue.add([unit for unit in absent[futures[future]] if not waits[unit.name]])
    except Exception as error:
        failures.append(("the source", failure_of(error)))
    finally:
        queue.close()
