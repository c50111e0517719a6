"""Bars for the report's charts: a plain table -> heights in percent of the plot, which the template draws."""

from collections.abc import Sequence
from typing import Any

STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0)  # between gridlines
TICKS = 7  # labels below a chart, about


def bars(title: str, rows: Sequence[tuple[str, int]], what: str, marked: int | None = None) -> dict[str, Any]:
    """A bar for each (label, count), as a share of all; `marked` is the number of a bar at which a line is drawn."""
    total = max(1, sum(count for _, count in rows))
    shares = [count / total for _, count in rows]
    top = max(max(shares) * 1.05, 1e-9)
    step = next(step for step in STEPS if top / step <= 4 or step == STEPS[-1])
    lines = [{"at": 100 * k * step / top, "label": f"{100 * k * step:g}%"} for k in range(1, int(top / step) + 1)]
    places = [100 * (number + 0.5) / len(rows) for number in range(len(rows))]
    drawn = [
        {"title": f"{label}: {count:,} {what}, {share:.2%}", "height": round(100 * share / top, 3)}
        for (label, count), share in zip(rows, shares, strict=True)
    ]
    ticks = [{"at": at, "label": label} for at, (label, _) in zip(places, rows, strict=True)][:: 1 + len(rows) // TICKS]
    highest = shares.index(max(shares))
    said = f"{title}. The highest bar is {rows[highest][0]}, with {shares[highest]:.1%}."
    mark = None if marked is None else places[marked]
    return {"title": title, "label": said, "bars": drawn, "lines": lines, "ticks": ticks, "mark": mark}
