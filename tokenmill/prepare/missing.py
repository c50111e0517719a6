"""Makes the shards that are missing: fetches what is still to come, and hands units to workers.

files that are there -> units -> workers
files to be fetched  -> a thread: fetched, planned -> workers, while these do the others
"""

import functools
import threading
from collections import Counter
from concurrent.futures import as_completed

from tokenmill.amounts import counted
from tokenmill.prepare import cluster, workers
from tokenmill.prepare.config import PrepareConfig
from tokenmill.prepare.elsewhere import make_and_send
from tokenmill.prepare.inventory import Inventory
from tokenmill.prepare.make import Made, load_encoder, make_shard
from tokenmill.prepare.origin import Source
from tokenmill.prepare.outcomes import Failure, failure_of
from tokenmill.prepare.outlook import after_first
from tokenmill.prepare.plan import Failures, Missing, with_those_that_wait
from tokenmill.prepare.progress import Bars, Meter
from tokenmill.prepare.workers import Feed
from tokenmill.text.lots import Lot
from tokenmill.text.units import Unit


def make_missing(stock: Inventory, source: Source, missing: Missing, config: PrepareConfig, bars: Bars) -> Failures:
    """Makes what is missing of this part: (what, why) of each file and shard that failed."""
    failures = missing.failures + (_make(stock, source, missing, config, bars) if missing else [])
    if not config.keep_raw:
        _delete_done(stock, source, source.files)
    return failures


def _make(stock: Inventory, source: Source, missing: Missing, config: PrepareConfig, bars: Bars) -> Failures:
    """Makes shards in worker processes, those of absent files as they arrive. (what, why) of what failed."""
    failures: Failures = []
    made: list[Made] = []

    def settle(unit: Unit, outcome: Made | Failure) -> None:
        if isinstance(outcome, Failure):
            failures.append((f"shard {unit.name}", with_those_that_wait(outcome, unit.files)))
            return
        made.append(outcome)
        if len(made) == 1 and meter.seconds_left:
            bars.say(after_first(meter, outcome.itemsize))
        stock.note(unit)
        if not config.keep_raw:
            _delete_done(stock, source, unit.files)

    feed = Feed()
    feed.add(missing.units)
    with Meter(bars, "preparing", sum(unit.text_bytes for unit in missing.units)) as meter:
        feeding = (feed, stock, source, missing.absent, meter, failures)
        threading.Thread(target=_feed, args=feeding, daemon=True, name="tokenmill-feed").start()
        folder = stock.folder.absolute()
        make, setup = functools.partial(make_shard, folder), functools.partial(load_encoder, folder, config.engine)
        if stock.elsewhere is not None:
            make = functools.partial(make_and_send, make_shard, folder, stock.elsewhere.address)
        run_tasks = cluster.run_tasks if config.cluster else workers.run_tasks
        run_tasks(make, feed, setup, config.workers, meter.add, settle)
    if left := len(feed.tasks) - len(made) - sum(what.startswith("shard ") for what, _ in failures):
        bars.say(f"{counted(left, 'shard')} not begun: {next(f.reason for _, f in failures if f.is_for_all)}")
    makers = "Ray" if config.cluster else counted(min(config.workers, len(feed.tasks)), "worker")
    engines = " and ".join(sorted({shard.engine for shard in made}))
    if made:
        bars.say(f"made {meter.rates()} in {meter.seconds:.1f} s with {makers} and {engines}")
    for shard in {(shard.engine, shard.why): shard for shard in made if shard.why}.values():
        bars.say(f"tokenized with {shard.engine}, which is slower and gives the same ids: {shard.why}")
    if referred := sum(shard.referred for shard in made):
        bars.say(
            f"{counted(referred, 'document')} with characters that {engines} classes otherwise: encoded by the slower "
            "reference"
        )
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
                failures.append((futures[future].name, with_those_that_wait(failure_of(error), lot)))
                continue
            new = [unit for unit in units if unit.name not in stock.records]
            left, fetched = left - sizes[lot], fetched + sizes[lot]
            known += sum(unit.text_bytes for unit in new)
            meter.total = (
                there + known + known * left / max(1, fetched)
            )  # files that are to come have as much in a byte
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
