"""Makes the shards that are missing: fetches files that are still on the hub, and gives units to workers.

files that are here  -> units -> workers
files to be fetched  -> a thread: fetched, planned -> workers, while these make the others
"""

import functools
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import as_completed

from tokenmill.humanize import counted
from tokenmill.prepare import cluster, workers
from tokenmill.prepare.estimate import after_first
from tokenmill.prepare.fork_server import ForkServer
from tokenmill.prepare.input_files import InputFiles
from tokenmill.prepare.inventory import Inventory
from tokenmill.prepare.make import Made, load_encoder, make_shard
from tokenmill.prepare.outcomes import Failure, failure_of
from tokenmill.prepare.plan import Failures, Missing, naming_files_that_wait
from tokenmill.prepare.prepare_config import PrepareConfig
from tokenmill.prepare.progress import Bars, Meter
from tokenmill.prepare.workers import TaskQueue
from tokenmill.text.document_split import both_splits
from tokenmill.text.file_groups import FileGroup
from tokenmill.text.units import SourceFile, Unit
from tokenmill.tokenize.tokenizer import Tokenizer

LITTLE_TEXT = 1 << 20  # bytes; a faster engine takes a quarter of a second to be made and proven


def make_missing(
    inventory: Inventory,
    inputs: InputFiles,
    missing: Missing,
    tokenizer: Tokenizer,
    config: PrepareConfig,
    bars: Bars,
    server: ForkServer | None,
) -> Failures:
    """Makes what is missing of this part: (what, why) of each file and shard that failed.

    `server` is None, or starts workers on this machine.
    """
    failures = missing.failures
    if missing:
        setup = functools.partial(load_encoder, tokenizer, engine_for(missing, config.engine))
        run = (
            cluster.run_tasks
            if config.cluster
            else functools.partial(workers.run_tasks, server=server, chain_of=_file_to_decompress)
        )
        failures += _make(inventory, inputs, missing, functools.partial(run, setup=setup), config, bars)
    if not inputs.keep_raw:
        _delete_done(inventory, inputs, inputs.files)
    return failures


def _file_to_decompress(unit: Unit) -> str | None:
    """The large compressed file that a unit is a part of."""
    return unit.parts[0].file.name if unit.units > 1 and unit.parts[0].file.compression else None


def engine_for(missing: Missing, asked: str) -> str:
    """The engine to use: of `auto`, tiktoken if it is done with the text before a faster engine is proven."""
    is_little = not missing.absent and sum(unit.text_bytes for unit in missing.units) < LITTLE_TEXT
    return "tiktoken" if asked == "auto" and is_little else asked


def _make(
    inventory: Inventory, inputs: InputFiles, missing: Missing, run_tasks: Callable, config: PrepareConfig, bars: Bars
) -> Failures:
    """Makes shards in worker processes, those of absent files as they arrive. (what, why) of what failed."""
    failures: Failures = []
    made: list[Made] = []

    def settle(unit: Unit, outcome: Made | Failure) -> None:
        if isinstance(outcome, Failure):
            failures.append((f"shard {unit.name}", naming_files_that_wait(outcome, unit.files)))
            return
        made.append(outcome)
        if len(made) == 1 and meter.seconds_left:
            bars.say(after_first(meter, outcome.itemsize))
        inventory.note(unit)
        if not inputs.keep_raw:
            _delete_done(inventory, inputs, unit.files)

    queue = TaskQueue()
    queue.add(missing.units)
    with Meter(bars, "preparing", sum(unit.text_bytes for unit in missing.units)) as meter:
        arguments = (queue, inventory, inputs, missing.absent, meter, failures)
        threading.Thread(target=_add_fetched, args=arguments, daemon=True, name="tokenmill-fetch").start()
        folder = inventory.folder.absolute()
        make = functools.partial(make_shard, folder, inventory.shard_text_bytes)
        if inventory.upload is not None:
            from tokenmill.prepare.upload import make_and_upload

            make = functools.partial(make_and_upload, make, folder, inventory.upload.address)
        run_tasks(make, queue, num_workers=config.workers, on_progress=meter.add, on_outcome=settle)
    if left := len(queue.tasks) - len(made) - sum(what.startswith("shard ") for what, _ in failures):
        bars.say(f"{counted(left, 'shard')} not begun: {next(f.reason for _, f in failures if f.is_for_all)}")
    if made:
        by = "Ray" if config.cluster else counted(min(config.workers, len(queue.tasks)), "worker")
        _summarize(made, meter, by, bars)
    return failures


def _summarize(made: list[Made], meter: Meter, by: str, bars: Bars) -> None:
    engines = " and ".join(sorted({shard.engine for shard in made}))
    bars.say(f"made {meter.rates()} in {meter.seconds:.1f} s with {by} and {engines}")
    for shard in {(shard.engine, shard.why): shard for shard in made if shard.why}.values():
        bars.say(f"tokenized with {shard.engine}, which is slower and gives the same ids: {shard.why}")
    if referred := sum(shard.referred for shard in made):
        bars.say(
            f"{counted(referred, 'document')} with characters that {engines} classes otherwise: encoded by the slower "
            "reference"
        )


def _add_fetched(
    queue: TaskQueue,
    inventory: Inventory,
    inputs: InputFiles,
    absent: list[FileGroup],
    meter: Meter,
    failures: Failures,
) -> None:
    """Fetches the absent files, and gives the units of each group to the workers as soon as all its files are here."""
    try:
        group_of = {file: group for group in absent for file in group}
        sizes = {group: sum(map(inputs.size, group)) for group in absent}
        futures, failed = inputs.fetch(list(group_of)), set()
        missing = Counter(group_of[file] for file in futures.values())
        left, fetched, known, planned_before = sum(sizes.values()), 0, 0, meter.total
        for future in as_completed(futures):
            group = group_of[futures[future]]
            missing[group] -= 1
            try:
                future.result()
                if missing[group] or group in failed:
                    continue
                units = inventory.plan(group)
                inventory.take(units)
            except Exception as error:
                failed.add(group)
                failures.append((futures[future].name, naming_files_that_wait(failure_of(error), group)))
                continue
            new = [unit for unit in units if unit.name not in inventory.records]
            left, fetched = left - sizes[group], fetched + sizes[group]
            known += sum(unit.text_bytes for unit in new)
            # assumes that a byte of the files to come holds as much text
            meter.total = planned_before + known + known * left / max(1, fetched)
            queue.add(new)
    except Exception as error:  # that stops all of them: the folder to fetch into belongs to someone else
        failures.append(("the source", failure_of(error)))
    finally:
        queue.close()


def _delete_done(inventory: Inventory, inputs: InputFiles, files: list[SourceFile]) -> None:
    """Deletes the hub's files whose shards are all made."""
    for file in files:
        if not inventory.missing(both_splits(file)):
            inputs.delete(file)
