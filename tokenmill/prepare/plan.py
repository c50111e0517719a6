"""What is missing of a part: units that are planned, and files that must be fetched before they can be.

A part takes every N-th unit. Of a hub's files, and of large compressed ones, it takes every N-th file with all its
units, so it fetches and decompresses no others.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeVar

from tokenmill.humanize import counted
from tokenmill.prepare.input_files import InputFiles
from tokenmill.prepare.inventory import Inventory, is_costly
from tokenmill.prepare.outcomes import Failure, failure_of
from tokenmill.prepare.prepare_config import PrepareConfig
from tokenmill.text.file_groups import FileGroup
from tokenmill.text.sources import plan_units
from tokenmill.text.units import SourceFile, Unit

Item = TypeVar("Item")
REQUESTS = 32  # files at URLs that are planned at the same time: each waits for answers
Failures = list[tuple[str, Failure]]


@dataclass(frozen=True)
class Missing:
    """What this part has to make."""

    units: list[Unit]  # planned; the longest first, so that all workers end together
    absent: list[FileGroup]  # files to be fetched, and then planned
    unread: list[FileGroup]  # compressed files that a dry run does not look through
    failures: Failures  # (what, why) of files that cannot be planned

    def __len__(self) -> int:
        """Shards, and files that are not planned yet."""
        return len(self.units) + sum(map(len, self.absent + self.unread))


def find_missing(
    inventory: Inventory, inputs: InputFiles, config: PrepareConfig, is_dry: bool, say: Callable[[str], None]
) -> Missing:
    """Plans this part. ValueError if no file at all can be read."""
    groups = inventory.groups(inputs.files)
    by_group = [group for group in groups if inputs.downloads is not None or is_costly(group)]
    mine = {group[0] for group in by_group[config.part_number - 1 :: config.parts]}
    here = [group for group in groups if all(map(inputs.is_there, group))]
    is_here = {group[0] for group in here}
    absent = [g for g in groups if g[0] not in is_here and not inventory.note_made(g, inputs.size_of_absent)]
    costly_here = list(filter(is_costly, here))
    looked_up = _in_threads(lambda group: _is_made(inventory, group), costly_here, REQUESTS)
    known = {group[0] for group, made in looked_up if made.result()}
    wanted = [group for group in here if group[0] not in known and (group[0] in mine or not is_costly(group))]
    unread = list(filter(is_costly, wanted)) if is_dry else []
    if costly := sum(map(is_costly, wanted)) - len(unread):
        say(f"looking through {counted(costly, 'compressed file')}, to plan; what this tells is kept")
    units, failures = _plan(inventory, [g for g in wanted if not (unread and is_costly(g))], config.workers)
    if is_dry:
        failures += _unreadable(units)
    absent = [group for group in absent if group[0] in mine]
    if failures and not (units or absent or known or unread):
        raise ValueError(failures[0][1].reason)
    shared = {group[0] for group in groups} - {group[0] for group in by_group}
    by_unit = [unit for unit in units if unit.parts[0].file in shared]
    units = by_unit[config.part_number - 1 :: config.parts] + [unit for unit in units if unit.parts[0].file in mine]
    units = sorted((unit for unit in units if unit.name not in inventory.records), key=lambda unit: -unit.text_bytes)
    planned = len({name for names in inventory.shards.values() for name in names})
    lines = [f"{len(inventory.records):,} of {planned:,} shards are there, {len(units):,} to make"] * bool(planned)
    if absent:
        lines.append(f"{counted(sum(map(len, absent)), 'file')} to fetch first")
    if lines:
        say(f"{', and '.join(lines)}: {inventory.upload.address if inventory.upload else inventory.folder}")
    return Missing(units, absent, unread, failures)


def _is_made(inventory: Inventory, group: FileGroup) -> bool:
    try:
        return inventory.note_made(group)
    except ValueError:
        return False  # damaged; planning says how


def _plan(inventory: Inventory, groups: list[FileGroup], threads: int) -> tuple[list[Unit], Failures]:
    """The units of groups that are here, and the files that cannot be planned."""
    units: list[Unit] = []
    failures: Failures = []
    far = not all(file.is_local for group in groups for file in group)
    for group, future in _in_threads(inventory.plan, groups, REQUESTS if far else threads):
        try:
            found = future.result()
            inventory.take(found)
        except (ValueError, OSError, MemoryError) as error:
            failures.append((group[0].name, naming_files_that_wait(failure_of(error), group)))
        else:
            units += found
    return units, failures


def _unreadable(units: list[Unit]) -> Failures:
    """The small files that cannot be planned alone: planning a shard of several does not open them."""
    failures: Failures = []
    for unit in units:
        for part in unit.parts:
            try:
                _ = part.identity or plan_units(part.file, part.options, unit.text_bytes)
            except (ValueError, OSError, MemoryError) as error:
                failures.append((part.file.name, naming_files_that_wait(failure_of(error), unit.files)))
    return failures


def naming_files_that_wait(failure: Failure, files: Sequence[SourceFile]) -> Failure:
    """The same failure; if small files share the shard, it also says how many have to wait."""
    if len(files) == 1:
        return failure
    reason = f"{failure.reason}. Its shard has {len(files):,} files, which all wait for it, {files[0].name} to "
    return replace(failure, reason=f"{reason}{files[-1].name}")


def _in_threads(function: Callable, items: Iterable[Item], count: int) -> list[tuple[Item, Future]]:
    """Each item and the Future of function(item). The threads are daemons, so Ctrl-C ends them."""
    futures: list[tuple[Item, Future]] = [(item, Future()) for item in items]
    left = iter(futures)  # each `next` is one thread's, as the interpreter runs it whole

    def work() -> None:
        for item, future in left:
            try:
                future.set_result(function(item))
            except BaseException as error:
                future.set_exception(error)

    for _ in range(min(count, len(futures))):
        threading.Thread(target=work, daemon=True, name="tokenmill-plan").start()
    return futures
