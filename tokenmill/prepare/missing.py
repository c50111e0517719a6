"""Makes the shards that are missing: plans, fetches what is still to come, and hands units to workers.

files that are there -> units -> workers
files to be fetched  -> a thread: fetched, planned -> workers, while these do the others
"""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed

from tokenmill.prepare import cluster, workers
from tokenmill.prepare.config import PrepareConfig
from tokenmill.prepare.inventory import Inventory
from tokenmill.prepare.make import Made, load_encoder, make_shard
from tokenmill.prepare.origin import Source
from tokenmill.prepare.outcomes import Failure, failure_of
from tokenmill.prepare.progress import Bars, Meter
from tokenmill.prepare.workers import Feed
from tokenmill.text.sources import plan_units
from tokenmill.text.units import SourceFile, Unit


def make_missing(stock: Inventory, source: Source, config: PrepareConfig, bars: Bars) -> list[tuple[str, Failure]]:
    """Makes what is missing of this part: (what, why) of each file and shard that failed.

    ValueError where no file at all can be read.
    """
    there = {file: source.is_there(file) for file in source.files}
    absent = [file for file in source.files if not there[file] and not _is_done_without(stock, source, file)]
    units, failures = _plan(stock, [file for file in source.files if there[file]], config)
    if failures and not units and not absent:
        raise ValueError(failures[0][1].reason)
    units, absent = _of_this_part(source, units, absent, config)
    units = sorted((unit for unit in units if unit.name not in stock.records), key=lambda unit: -unit.text_bytes)
    planned = sum(map(len, stock.shards.values()))
    shards = [f"{len(stock.records)} of {planned} shards are there, {len(units)} to make"] if planned else []
    files = [f"{len(absent)} files to fetch first"] if absent else []
    bars.say(f"{', and '.join(shards + files)}: {stock.folder}")
    if units or absent:
        failures += _make(stock, source, units, absent, config, bars)
    if not config.keep_raw:
        _delete_done(stock, source, source.files)
    return failures


def _plan(
    stock: Inventory, files: list[SourceFile], config: PrepareConfig
) -> tuple[list[Unit], list[tuple[str, Failure]]]:
    """The units of files that are there, and the files that cannot be planned."""
    units, failures = [], []
    with ThreadPoolExecutor(config.workers) as pool:  # a compressed file is read whole
        planned = [(file, pool.submit(plan_units, file, config.reading, config.shard_text_bytes)) for file in files]
    for file, future in planned:
        try:
            found = future.result()
        except ValueError as error:
            failures.append((file.name, failure_of(error)))
        else:
            stock.take(file, found)
            units += found
    return units, failures


def _is_done_without(stock: Inventory, source: Source, file: SourceFile) -> bool:
    return stock.note_without_file(file, source.size(file))


def look_again(stock: Inventory, source: Source) -> None:
    """Takes note of what other parts have made since, of files too that are only there for them."""
    stock.look_again()
    for file in source.files:
        if source.is_fetched(file) and file.name not in stock.shards:
            _is_done_without(stock, source, file)


def _of_this_part(source: Source, units: list[Unit], absent: list[SourceFile], config: PrepareConfig):
    """Every N-th of the units; of a hub's, those of every N-th file, so that each part fetches its own."""
    part, parts = config.part_of_all
    if config.finish:
        return [], []
    if source.downloads is None:
        return units[part - 1 :: parts], []
    files = set(source.files[part - 1 :: parts])
    return [unit for unit in units if unit.file in files], [file for file in absent if file in files]


def _make(
    stock: Inventory, source: Source, units: list[Unit], absent: list[SourceFile], config: PrepareConfig, bars: Bars
) -> list[tuple[str, Failure]]:
    """Makes shards in worker processes, those of absent files as they arrive. (what, why) of what failed."""
    failures, made = [], []

    def settle(unit: Unit, outcome: Made | Failure) -> None:
        if isinstance(outcome, Failure):
            failures.append((f"shard {unit.name}", outcome))
            return
        made.append(outcome)
        stock.note(unit)
        if not config.keep_raw:
            _delete_done(stock, source, [unit.file])

    feed = Feed()
    feed.add(units)  # the longest first, so that all end together
    with Meter(bars, "preparing", sum(unit.text_bytes for unit in units)) as meter:
        feeding = (feed, stock, source, absent, meter, failures)
        threading.Thread(target=_feed, args=feeding, daemon=True, name="tokenmill-feed").start()
        folder = stock.folder.absolute()
        make, setup = functools.partial(make_shard, folder), functools.partial(load_encoder, folder, config.engine)
        run_tasks = cluster.run_tasks if config.cluster else workers.run_tasks
        run_tasks(make, feed, setup, config.workers, meter.add, settle)
    makers = "Ray" if config.cluster else f"{min(config.workers, len(feed.tasks))} workers"
    engines = " and ".join(sorted({shard.engine for shard in made}))
    bars.say(f"made {meter.rates()} in {meter.seconds:.1f} s with {makers} and {engines}")
    for shard in {(shard.engine, shard.why): shard for shard in made if shard.why}.values():
        bars.say(f"tokenized with {shard.engine}: {shard.why}")
    if referred := sum(shard.referred for shard in made):
        bars.say(f"{referred:,} documents have characters that {engines} classes otherwise; tiktoken encoded them")
    return failures


def _feed(feed: Feed, stock: Inventory, source: Source, absent: list[SourceFile], meter: Meter, failures: list) -> None:
    """Fetches the absent files, and gives the units of each to the workers as soon as it is there."""
    try:
        futures = source.fetch(absent)
        left = sum(source.size(file) for file in absent)
        fetched, known, there = 0, 0, meter.total
        for future in as_completed(futures):
            file = futures[future]
            try:
                future.result()
                units = stock.plan(file)
            except Exception as error:
                failures.append((file.name, failure_of(error)))
                continue
            size, missing = source.size(file), [unit for unit in units if unit.name not in stock.records]
            left, fetched, known = left - size, fetched + size, known + sum(unit.text_bytes for unit in missing)
            meter.total = there + known + known * left / fetched  # files that are to come have as much in a byte
            feed.add(missing)
    finally:
        feed.close()


def _delete_done(stock: Inventory, source: Source, files: list[SourceFile]) -> None:
    """Deletes the hub's files whose shards are all there."""
    for file in files:
        if not stock.missing([file]):
            source.delete(file)
