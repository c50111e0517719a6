"""Rows to leave out of training, for example because of a loss spike.

    RowLoader(..., skip_rows=["0:12:100-163"])      rows 100 to 163 of window 12 of epoch 0

A row is named by its place, as in positions: epoch, window of that epoch, row of that window, all from 0. In a mixture,
the name of the source comes first: "web/0:12:100-163". `tokenmill show` prints the places of the rows that it shows.
All other rows keep their order and move up.
"""

import re
import reprlib
from collections.abc import Collection, Iterable

Skipped = dict[tuple[int, int], list[range]]  # (epoch, window of the epoch) -> ranges that ascend and do not touch


def parse_skipped(places: Iterable[str]) -> Skipped:
    """Parses strings "epoch:window:row" or "epoch:window:first-last". Raises ValueError for any other."""
    if isinstance(places, str):
        raise ValueError(f"skip_rows must be a list of places, not the string {places!r}; write [{places!r}]")
    found: Skipped = {}
    for place in places:
        match = re.fullmatch(r"(\d{1,15}):(\d{1,15}):(\d{1,15})(?:-(\d{1,15}))?", str(place))
        if not match or int(match[4] or match[3]) < int(match[3]):
            raise ValueError(
                f"skip_rows must name rows as 'epoch:window:first-last', as '0:12:100-163', not {place!r}; "
                "`tokenmill show` prints such places"
            )
        epoch, window, first = map(int, match.groups()[:3])
        found.setdefault((epoch, window), []).append(range(first, int(match[4] or first) + 1))
    return {key: _merged(ranges) for key, ranges in sorted(found.items())}


def by_source(places: Iterable[str], names: Collection[str]) -> dict[str, Skipped]:
    """Parses strings "source/epoch:window:rows", by source; without the source's name if that is "".

    Raises ValueError if a source is not one of `names`.
    """
    if isinstance(places, str):
        raise ValueError(f"skip_rows must be a list of places, not the string {places!r}; write [{places!r}]")
    if list(names) == [""]:
        own = parse_skipped(places)
        return {"": own} if own else {}
    found: dict[str, list[str]] = {}
    for place in places:
        name, slash, rows = str(place).rpartition("/")
        if not slash or name not in names:
            raise ValueError(
                f"skip_rows of a mixture must name rows as 'source/epoch:window:first-last', with a source of "
                f"{', '.join(names)}, not {place!r}; `tokenmill show` prints such places"
            )
        found.setdefault(name, []).append(rows)
    return {name: parse_skipped(rows) for name, rows in sorted(found.items())}


def format_by_source(skipped: dict[str, Skipped]) -> list[str]:
    """The places, as `by_source` reads them."""
    return [
        f"{name}/{place}" if name else place for name, rows in sorted(skipped.items()) for place in format_skipped(rows)
    ]


def format_skipped(skipped: Skipped) -> list[str]:
    """The places, as `parse_skipped` reads them, in order."""
    return [format_rows(epoch, window, rows) for (epoch, window), ranges in skipped.items() for rows in ranges]


def format_rows(epoch: int, window: int, rows: range) -> str:
    """The place of consecutive rows of a window."""
    return f"{epoch}:{window}:{format_ranges([rows])[0]}"


def format_ranges(ranges: Iterable[range]) -> list[str]:
    """Rows of one window, as 7 or 100-163."""
    return [f"{rows[0]}-{rows[-1]}" if len(rows) > 1 else str(rows[0]) for rows in ranges]


def parse_ranges(texts: Iterable[str]) -> list[range]:
    """The inverse of `format_ranges`."""
    found = []
    for text in texts:
        match = re.fullmatch(r"(\d{1,15})(?:-(\d{1,15}))?", str(text))
        if not match:
            raise ValueError(f"rows must be written as '100-163', not {reprlib.repr(text)}")
        found.append(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found


def _merged(ranges: list[range]) -> list[range]:
    """The ranges in order, with those that touch or overlap joined."""
    joined: list[range] = []
    for rows in sorted(ranges, key=lambda rows: rows.start):
        if joined and rows.start <= joined[-1].stop:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, rows.stop))
        else:
            joined.append(rows)
    return joined
