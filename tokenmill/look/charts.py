"""The numbers of a bar chart, which templates/report.html draws.

    bars("Share of documents, by length", [("1", 3), ("2 to 3", 1)], "documents")

Heights and places are in percent. A chart has at most four gridlines, and below it at most seven
labels, which have room on a phone.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any

# between gridlines of a chart
STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0)
TICKS = 7  # labels below a chart, at most
ROOM = 42  # characters that fit side by side below a chart on a phone of 390 pixels


def bars(
    title: str, rows: Sequence[tuple[str, int]], what: str, marked: int | None = None
) -> dict[str, Any]:
    """A bar for each (label, count), as a share of all.

    `marked` is the number of a bar at which a line is drawn.
    """
    total = max(1, sum(count for _, count in rows))
    shares = [count / total for _, count in rows]
    places = [100 * (number + 0.5) / len(rows) for number in range(len(rows))]
    top = max(max(shares) * 1.05, 1e-9)
    drawn = []
    ticks: list[dict[str, Any]] = []
    for (label, count), share, place in zip(rows, shares, places, strict=True):
        bar_title = f"{label}: {count:,} {what}, {share:.2%}"
        drawn.append({"title": bar_title, "height": round(100 * share / top, 3)})
        first, _, _ = label.partition(" to ")  # of a range, which has no room on a phone
        ticks.append({"at": place, "label": first})
    longest = max(len(tick["label"]) for tick in ticks)
    most_ticks = min(TICKS, ROOM // (longest + 1))
    highest = shares.index(max(shares))
    highest_label, _ = rows[highest]
    return {
        "title": title,
        "label": f"{title}. The highest bar is {highest_label}, with {shares[highest]:.1%}.",
        "bars": drawn,
        "lines": _gridlines(top),
        "ticks": ticks[:: ceil(len(ticks) / most_ticks)],
        "mark": None if marked is None else places[marked],
    }


def _gridlines(top: float) -> list[dict[str, Any]]:
    """At most four lines below the share `top`."""
    step = STEPS[-1]
    for candidate in reversed(STEPS):
        if top / candidate <= 4:
            step = candidate
    lines = []
    for number in range(1, int(top / step) + 1):
        percent = 100 * number * step
        lines.append({"at": percent / top, "label": f"{percent:g}%"})
    return lines
