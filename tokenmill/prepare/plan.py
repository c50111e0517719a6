"""What is missing of a part: units that are planned, and files that are to be fetched before they can be.

A part takes every N-th unit. Of a hub's files, and of large compressed ones, it takes every N-th with all its units:
so it fetches and decompresses no others.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from tokenmill.amounts import counted
from tokenmill.prepare.config import PrepareConfig
from tokenmill.prepare.inventory import Inventory, is_costly
from tokenmill.prepare.origin import Source
from tokenmill.prepare.outcomes import Failure, failure_of
from tokenmill.prepare.outlook import Outlook
from tokenmill.prepare.progress import Bars
from tokenmill.text.lots import Lot, about_text_bytes
from tokenmill.text.units import SourceFile, Unit

Item = TypeVar("Item")
REQUESTS = 32  # files at addresses that are looked at side by side: each waits for answers
Failures = list[tuple[str, Failure]]


@dataclass(frozen=True)
class Missing:
    """What of this part is to be made."""

    units: list[Unit]  # planned; the longest first, so that all end together
    absent: list[Lot]  # files to be fetched, and then planned
    unread: list[Lot]  # compressed files that were not looked through, as nothing is to be made
    failures: Failures  # (what, why) of files that cannot be planned

    def __len__(self) -> int:
        """Shards, and files that are not planned yet."""
        return len(self.units) + sum(map(len, self.absent + self.unread))

    def outlook(self, source: Source, config: PrepareConfig, itemsize: int) -> Outlook:
        """What making it takes."""
        files = [file for lot in self.absent for file in lot]
        guessed = [file for lot in self.unread for file in lot] + files
        known = all(file.bytes is not None for file in guessed)
        text = sum(unit.text_bytes for unit in self.units) + sum(map(about_text_bytes, guessed))
        return Outlook(
            files=len(source.files),
            absent=len(files),
            fetch_bytes=sum(map(source.size, files)),
            text_bytes=text if known else None,
            itemsize=itemsize,
            raw=Path(config.raw_dir) if source.downloads is None else source.downloads.folder,
            tokens=config.here if config.elsewhere is None else None,
            keep_raw=config.keep_raw,
        )


def find_missing(stock: Inventory, source: Source, config: PrepareConfig, bars: Bars) -> Missing:
    """Plans this part. ValueError where no file at all can be read."""
    lots = stock.lots(source.files)
    whole = [lot for lot in lots if source.downloads is not None or is_costly(lot)]  # to be dealt so, and not by unit
    part, parts = config.part_of_all
    mine = set() if config.finish else set(whole[part - 1 :: parts])
    here = [lot for lot in lots if all(map(source.is_there, lot))]
    absent = [lot for lot in lots if lot not in here and not stock.note_made(lot, source.size_of_absent)]
    costly_here = list(filter(is_costly, here))
    known = {lot for lot, made in _in_threads(lambda lot: _is_made(stock, lot), costly_here, REQUESTS) if made.result()}
    wanted = [lot for lot in here if lot not in known and (lot in mine or not is_costly(lot))]
    unread = list(filter(is_costly, wanted)) if config.dry_run else []
    if costly := sum(map(is_costly, wanted)) - len(unread):
        bars.say(f"looking through {counted(costly, 'compressed file')}, to plan; what this tells is kept")
    units, failures = _plan(stock, [lot for lot in wanted if lot not in unread], config.workers)
    absent = [lot for lot in absent if lot in mine]
    if failures and not (units or absent or known or unread):
        raise ValueError(failures[0][1].reason)
    mine_first, shared = {lot[0] for lot in mine}, {lot[0] for lot in lots} - {lot[0] for lot in whole}
    by_unit = [] if config.finish else [unit for unit in units if unit.files[0] in shared][part - 1 :: parts]
    units = by_unit + [unit for unit in units if unit.files[0] in mine_first]
    units = sorted((unit for unit in units if unit.name not in stock.records), key=lambda unit: -unit.text_bytes)
    planned = len({name for names in stock.shards.values() for name in names})
    told = [f"{len(stock.records):,} of {planned:,} shards are there, {len(units):,} to make"] * bool(planned)
    if absent:
        told.append(f"{counted(sum(map(len, absent)), 'file')} to fetch first")
    if told:
        bars.say(f"{', and '.join(told)}: {stock.elsewhere.address if stock.elsewhere else stock.folder}")
    return Missing(units, absent, unread, failures)


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
            failures.append((lot[0].name, with_those_that_wait(failure_of(error), lot)))
        else:
            units += found
    return units, failures


def with_those_that_wait(failure: Failure, files: Sequence[SourceFile]) -> Failure:
    """The same, and how many other small files share the shard, and are not done either."""
    if len(files) == 1:
        return failure
    told = f"{failure.reason}. Its shard has {len(files):,} files, which all wait for it, {files[0].name} to "
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
