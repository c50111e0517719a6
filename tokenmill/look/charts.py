"""Computes bars and lines for the report's charts, in percent of the plot, for the template to draw.

A histogram of lengths has one bar for each bin (token_stats.py), so its axis is a log scale with four bars an octave.
Gridlines are at round shares.
"""

import math
from collections.abc import Mapping

import numpy as np

from tokenmill.look.token_stats import Bin

LABEL_HEIGHT = 9  # percent of the plot
HIDDEN = 3  # percent of the plot: lines that are nearer than that hide each other


def length_charts(bins: list[Bin], seq_len: int) -> list[dict]:
    """A histogram of lengths, by documents and by tokens."""
    edges = [(one.first, one.last) for one in bins]
    at = _axis_position(seq_len, edges)
    mark = None if at is None else {"at": at, "label": f"seq_len {seq_len:,}"}
    ticks = [
        {"at": 100 * i / len(bins), "label": f"{one.first:,}" if one.first < 1000 else f"{one.first // 1024}k"}
        for i, one in enumerate(bins)
        if one.first & (one.first - 1) == 0 and one.first.bit_length() % 3 == 1
    ]
    return [
        chart(f"Share of {what}, by length", edges, [getattr(one, what) for one in bins], what, ticks, mark)
        for what in ("documents", "tokens")
    ]


def token_chart(uses: np.ndarray, token_bytes: np.ndarray) -> dict:
    """A histogram of the tokens of the text by their length in bytes."""
    sizes = np.bincount(np.minimum(token_bytes, 16), weights=uses, minlength=17)[1:]
    edges = [(size, size) for size in range(1, 17)]
    ticks = [{"at": 100 * (size - 0.5) / 16, "label": f"{size}{'+' * (size == 16)} B"} for size in (1, 4, 8, 12, 16)]
    return chart("Share of tokens, by the bytes they stand for", edges, sizes, "tokens", ticks, None)


def stretches_chart(conversations: np.ndarray, most: int) -> dict:
    """A histogram of conversations by how many stretches of them bear loss: 0, 1, 2 ... `most` and more."""
    edges = [(number, number) for number in range(len(conversations))]
    ticks = [
        {"at": 100 * (number + 0.5) / len(edges), "label": f"{number}{'+' * (number == most)}"}
        for number in range(0, len(edges), 1 + len(edges) // 9)
    ]
    title = "Share of conversations, by stretches that bear loss"
    return chart(title, edges, conversations, "conversations", ticks, None)


def line_chart(what: str, shares: Mapping[str, Mapping[int, float]], seq_len: int) -> dict:
    """Shares by variant and seq_len, with a line for each variant. Lines that coincide are drawn in several widths."""
    lengths = sorted(next(iter(shares.values())))
    first, last = math.log2(lengths[0]), math.log2(lengths[-1])
    across = {length: 100 * (math.log2(length) - first) / (last - first) for length in lengths}
    top, lines = _scale(max(max(share.values()) for share in shares.values()))
    drawn = [
        {
            "name": name,
            "number": number,
            "points": [
                {
                    "x": round(across[n], 2),
                    "y": round(100 * dropped[n] / top, 2),
                    "title": f"{name}, {n:,}: {dropped[n]:.2%}",
                }
                for n in lengths
            ],
        }
        for number, (name, dropped) in enumerate(shares.items())
    ]
    _widen_where_hidden(drawn)
    values = ", ".join(f"{name} {dropped[seq_len]:.1%}" for name, dropped in shares.items())
    return {
        "title": f"Share of {what}, by seq_len",
        "label": f"Share of {what}, by seq_len, a line for each. At {seq_len:,}: {values}.",
        "drawn": drawn,
        "labels": _labels(drawn),
        "lines": lines,
        "ticks": [
            {"at": across[n], "label": f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else f"{n:,}"} for n in lengths
        ],
        "mark": {"at": across[seq_len], "label": f"seq_len {seq_len:,}"},
    }


def _widen_where_hidden(drawn: list[dict]) -> None:
    """Gives each line a width: 0, or one more than that of a line that is drawn over it, where they coincide."""
    for number, line in enumerate(drawn):
        over = [one["width"] for one in drawn[:number] if _coincide(one["points"], line["points"])]
        line["width"] = max(over, default=-1) + 1


def _coincide(one: list[dict], other: list[dict]) -> bool:
    return all(abs(a["y"] - b["y"]) < HIDDEN for a, b in zip(one, other, strict=True))


def _labels(drawn: list[dict]) -> list[dict]:
    """Names at the right ends of lines, moved up (or, at the top of the plot, down) until none hides another."""
    ends = sorted(((line["points"][-1]["y"], line["name"], line["number"]) for line in drawn), key=lambda end: end[0])
    places: list[float] = []
    for place, *_ in ends:
        places.append(max([place, *(place + LABEL_HEIGHT for place in places[-1:])]))
    for i, _ in enumerate(places):
        places[-1 - i] = min(places[-1 - i], 100 - i * LABEL_HEIGHT)
    return [{"at": at, "name": name, "number": number} for at, (_, name, number) in zip(places, ends, strict=True)]


def _scale(highest: float) -> tuple[float, list[dict]]:
    """The share at which a plot ends, slightly above the highest, and gridlines at round shares."""
    top = max(highest * 1.05, 1e-9)
    step = next(
        s for s in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0) if top / s <= 4 or s == 1.0
    )
    lines = [{"at": 100 * k * step / top, "label": f"{100 * k * step:g}%"} for k in range(1, int(top / step) + 1)]
    return top, lines


def chart(title: str, edges: list[tuple[int, int]], values, what: str, ticks: list[dict], mark: dict | None) -> dict:
    """Bars for the template, with heights in percent of the plot, which ends slightly above the highest bar."""
    shares = np.asarray(values, dtype=float) / max(1, np.sum(values))
    top, lines = _scale(shares.max())
    bars = [
        {"title": f"{span(*edge)}: {int(value):,} {what}, {part:.2%}", "height": round(100 * part / top, 3)}
        for edge, value, part in zip(edges, values, shares, strict=True)
    ]
    highest = int(np.argmax(shares))
    label = f"{title}. The highest bar is {span(*edges[highest])}, with {shares[highest]:.1%}."
    return {"title": title, "label": label, "bars": bars, "lines": lines, "ticks": ticks, "mark": mark}


def span(first: int, last: int) -> str:
    """The range of a bin in words."""
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _axis_position(length: int, edges: list[tuple[int, int]]) -> float | None:
    """The position of a length on the axis of the bins, in percent; None if it is outside the bins."""
    for index, (first, last) in enumerate(edges):
        if first <= length <= last:
            return 100 * (index + math.log(length / first) / math.log((last + 1) / first)) / len(edges)
    return None
