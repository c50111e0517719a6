"""Makes the shards that are missing: plans, fetches what is still to come, and hands units to workers.

files that are there -> units -> workers
files to be fetched  -> a thread: fetched, planned -> workers, while these do the others

A part takes every N-th unit. Of a hub's files, and of large compressed ones, it takes every N-th with all its units:
so it fetches and decompresses no others.
"""

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import replace
from typing import TypeVar

from tokenmill.prepare import cluster, workers
from tokenmill.prepare.config import PrepareConfig
from tokenmill.prepare.elsewhere import make_and_send
from tokenmill.prepare.inventory import Inventory, is_costly
from tokenmill.prepare.make import Made, load_encoder, make_shard
from tokenmill.prepare.origin import Source
from tokenmill.prepare.outcomes import Failure, failure_of
from tokenmill.prepare.progress import Bars, Meter
from tokenmill.prepare.workers import Feed
from tokenmill.text.lots import Lot
from tokenmill.text.units import SourceFile, Unit

Item = TypeVar("Item")
REQUESTS = 32  # files at addresses that are looked at side by side: each waits for answers
Failures = list[tuple[str, Failure]]


def make_missing(stock: Inventory, source: Source, config: PrepareConfig, bars: Bars) -> Failures:
    """Makes what is missing of this part: (what, why) of each file and shard that failed.

    ValueError where no file at all can be read.
    """
    lots = stock.lots(source.files)
    whole = [lot for lot in lots if source.downloads is not None or is_costly(lot)]  # to be dealt so, and not by unit
    part, parts = config.part_of_all
    mine = set() if config.finish else set(whole[part - 1 :: parts])
    here = [lot for lot in lots if all(map(source.is_there, lot))]
    absent = [lot for lot in lots if lot not in here and not stock.note_made(lot, source.size_of_absent)]
    costly_here = list(filter(is_costly, here))
    known = {lot for lot, made in _in_threads(lambda lot: _is_made(stock, lot), costly_here, REQUESTS) if made.result()}
    wanted = [lot for lot in here if lot not in known and (lot in mine or not is_costly(lot))]
    if costly := sum(map(is_costly, wanted)):
        bars.say(f"looking through {costly:,} compressed files, to plan them; what this tells is kept")
    units, failures = _plan(stock, wanted, config.workers)
    absent = [lot for lot in absent if lot in mine]
    if failures and not units and not absent and not known:
        raise ValueError(failures[0][1].reason)
    mine_first, shared = {lot[0] for lot in mine}, {lot[0] for lot in lots} - {lot[0] for lot in whole}
    by_unit = [] if config.finish else [unit for unit in units if unit.files[0] in shared][part - 1 :: parts]
    units = by_unit + [unit for unit in units if unit.files[0] in mine_first]
    units = sorted((unit for unit in units if unit.name not in stock.records), key=lambda unit: -unit.text_bytes)
    planned = len({name for names in stock.shards.values() for name in names})
    shards = [f"{len(stock.records)} of {planned} shards are there, {len(units)} to make"] if planned else []
    files = [f"{sum(map(len, absent))} files to fetch first"] if absent else []
    bars.say(f"{', and '.join(shards + files)}: {stock.folder}")
    if units or absent:
        failures += _make(stock, source, units, absent, config, bars)
    if not config.keep_raw:
        _delete_done(stock, source, source.files)
    return failures


def _is_made(stock: Inventory, lot: Lot) -> bool:
    try:
        return stock.note_made(lot)
    except ValueError:
        return False  # damaged; planning says how


def _plan(stock: Inventory, lots: list[Lot], count: int) -> tuple[list[Unit], Failures]:
    """The units of lots that are there, and the files that cannot be planned."""
    units: list[Unit] = []
    failures: Failures = []
    far = any(isinstance(file.path, str) for lot in lots for file in lot)
    for lot, future in _in_threads(stock.plan, lots, REQUESTS if far else count):
        try:
            found = future.result()
            stock.take(found)
        except (ValueError, OSError, MemoryError) as error:
            failures.append((lot[0].name, _with_those_that_wait(failure_of(error), lot)))
        else:
            units += found
    return units, failures


def _with_those_that_wait(failure: Failure, files: Sequence[SourceFile]) -> Failure:
    """The same, and how many other small files share the shard, and are not done either."""
    if len(files) == 1:
        return failure
    told = f"{failure.reason}. {len(files) - 1:,} more files share its shard and wait for it, {files[0].name} to "
    return replace(failure, reason=f"{told}{files[-1].name}")


def _in_threads(function: Callable, items: Iterable[Item], count: int) -> list[tuple[Item, Future]]:
    """Each item and the Future of function(item), by some threads that do not outlive the process: Ctrl-C ends them."""
    asked: list[tuple[Item, Future]] = [(item, Future()) for item in items]
    left = iter(asked)  # each `next` is one thread's, as the interpreter runs it whole

    def work() -> None:
        for item, future in left:
            try:
                future.set_result(function(item))
            except BaseException as error:
                future.set_exception(error)

    for _ in range(min(count, len(asked))):
        threading.Thread(target=work, daemon=True, name="tokenmill-plan").start()
    return asked


def _make(
    stock: Inventory, source: Source, units: list[Unit], absent: list[Lot], config: PrepareConfig, bars: Bars
) -> Failures:
    """Makes shards in worker processes, those of absent files as they arrive. (what, why) of what failed."""
    failures: Failures = []
    made: list[Made] = []

    def settle(unit: Unit, outcome: Made | Failure) -> None:
        if isinstance(outcome, Failure):
            failures.append((f"shard {unit.name}", _with_those_that_wait(outcome, unit.files)))
            return
        made.append(outcome)
        stock.note(unit)
        if not config.keep_raw:
            _delete_done(stock, source, unit.files)

    feed = Feed()
    feed.add(units)  # the longest first, so that all end together
    with Meter(bars, "preparing", sum(unit.text_bytes for unit in units)) as meter:
        feeding = (feed, stock, source, absent, meter, failures)
        threading.Thread(target=_feed, args=feeding, daemon=True, name="tokenmill-feed").start()
        folder = stock.folder.absolute()
        make, setup = functools.partial(make_shard, folder), functools.partial(load_encoder, folder, config.engine)
        if stock.elsewhere is not None:
            make = functools.partial(make_and_send, make_shard, folder, stock.elsewhere.address)
        run_tasks = cluster.run_tasks if config.cluster else workers.run_tasks
        run_tasks(make, feed, setup, config.workers, meter.add, settle)
    if left := len(feed.tasks) - len(made) - sum(what.startswith("shard ") for what, _ in failures):
        bars.say(f"{left:,} shards were not begun: {next(f.reason for _, f in failures if f.is_for_all)}")
    makers = "Ray" if config.cluster else f"{min(config.workers, len(feed.tasks))} workers"
    engines = " and ".join(sorted({shard.engine for shard in made}))
    if made:
        bars.say(f"made {meter.rates()} in {meter.seconds:.1f} s with {makers} and {engines}")
    for shard in {(shard.engine, shard.why): shard for shard in made if shard.why}.values():
        bars.say(f"tokenized with {shard.engine}, which is slower and gives the same ids: {shard.why}")
    if referred := sum(shard.referred for shard in made):
        bars.say(f"{referred:,} documents have characters that {engines} classes otherwise; tiktoken encoded them")
    return failures


def _feed(feed: Feed, stock: Inventory, source: Source, absent: list[Lot], meter: Meter, failures: Failures) -> None:
    """Fetches the absent files, and gives the units of each lot to the workers as soon as it is there."""
    try:
        lot_of = {file: lot for lot in absent for file in lot}
        sizes = {lot: sum(map(source.size, lot)) for lot in absent}
        futures, failed = source.fetch(list(lot_of)), set()
        missing = Counter(lot_of[file] for file in futures.values())
        left, fetched, known, there = sum(sizes.values()), 0, 0, meter.total
        for future in as_completed(futures):
            lot = lot_of[futures[future]]
            missing[lot] -= 1
            try:
                future.result()
                if missing[lot] or lot in failed:
                    continue
                units = stock.plan(lot)
                stock.take(units)
            except Exception as error:
                failed.add(lot)
                failures.append((futures[future].name, _with_those_that_wait(failure_of(error), lot)))
                continue
            new = [unit for unit in units if unit.name not in stock.records]
            left, fetched = left - sizes[lot], fetched + sizes[lot]
            known += sum(unit.text_bytes for unit in new)
            meter.total = there + known + known * left / fetched  # files that are to come have as much in a byte
            feed.add(new)
    except Exception as error:  # of all of them, as where the folder to fetch into is somebody else's
        failures.append(("the source", failure_of(error)))
    finally:
        feed.close()


def _delete_done(stock: Inventory, source: Source, files: list) -> None:
    """Deletes the hub's files whose shards are all there."""
    for file in files:
        if not stock.missing([file]):
            source.delete(file)
