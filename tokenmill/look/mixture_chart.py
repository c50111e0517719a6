"""Draws a mixture's run: the share of each source over the tokens of the run. Areas are proportional to tokens.

    draw(chart_of(forecast), "light")       a run that is ahead
    draw(chart_of_run(history), "dark")     a run so far, with the ranks and batch sizes that it had

The picture is an SVG of plain boxes and text. It needs no library, and comes in colors for a light or a dark page.
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenmill.feed.forecast import Forecast
from tokenmill.humanize import counted
from tokenmill.look.report_text import short
from tokenmill.look.run_history import Calls, History

SCHEMES = {"light": ("#222", "#777", 60), "dark": ("#ddd", "#999", 52)}  # ink, faint ink, lightness of the boxes in %
LEFT, TOP, WIDTH, HEIGHT, LEGEND = 46, 12, 540, 220, 200
STRIP, LETTER = 20, 6.2  # pixels: the height of the strip of calls, the width of a letter, about


class Box(NamedTuple):
    """The share of a source from token `begin` to `end`."""

    begin: int
    end: int
    source: str
    share: float
    tooltip: str


@dataclass(frozen=True)
class Chart:
    """What is drawn."""

    boxes: Sequence[Box]  # from the beginning of the run to its end; those of one segment from the top down
    legend: Mapping[str, str]  # words about each source, by name
    label: str  # the picture in words
    calls: Sequence[Calls] = ()


def chart_of(found: Forecast) -> Chart:
    """The chart of a run that is ahead."""
    boxes = [
        Box(line.begin, line.end, line.source, line.share, f"{line.tokens:,} tokens, {line.epochs:.2f} epochs by then")
        for line in found.lines
    ]
    legend = {name: f"{short(tokens)}, {epochs:.2f} epochs" for name, (tokens, epochs) in found.totals.items()}
    return Chart(boxes, legend, label(found.tokens, {name: tokens for name, (tokens, _) in found.totals.items()}))


def chart_of_run(found: History) -> Chart:
    """The chart of a run so far."""
    boxes = [Box(part.begin, part.end, part.source, part.share, f"{part.tokens:,} tokens") for part in found.parts]
    legend = {name: short(tokens) for name, tokens in found.totals.items()}
    return Chart(boxes, legend, label(found.tokens, found.totals), found.calls)


def hue(number: int) -> int:
    """A color for each source, far from those before it."""
    return (210 + number * 137) % 360


def draw(chart: Chart, scheme: str = "light") -> str:
    """The picture as an SVG."""
    ink, faint, light = SCHEMES[scheme]
    end = max((box.end for box in chart.boxes), default=1)
    names = list(chart.legend)
    bottom = TOP + HEIGHT + (STRIP + 10 if chart.calls else 0)
    parts = []

    def text(x: float, y: float, words: str, anchor: str = "start", colour: str = ink) -> None:
        escaped = html.escape(words)
        parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" fill="{colour}" text-anchor="{anchor}">{escaped}</text>'
        )

    segments = _segments(chart.boxes)
    for begin, boxes in segments.items():
        below = 0.0
        for box in boxes:
            x, width = LEFT + WIDTH * begin / end, WIDTH * (box.end - begin) / end
            y, height = TOP + HEIGHT * below, HEIGHT * box.share
            fill = f"hsl({hue(names.index(box.source))} 55% {light}%)"
            tooltip = html.escape(f"{box.source}: {box.share:.2%}, {box.tooltip}")
            parts.append(
                f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{fill}">'
                f"<title>{tooltip}</title></rect>"
            )
            below += box.share
    for calls in chart.calls:
        x, width = LEFT + WIDTH * calls.begin / end, WIDTH * (calls.end - calls.begin) / end
        words = _in_words(calls)
        place = f'x="{x:.2f}" y="{TOP + HEIGHT + 6}" width="{width:.2f}" height="{STRIP}"'
        parts.append(f'<rect {place} fill="none" stroke="{faint}"><title>{html.escape(words)}</title></rect>')
        if len(words) * LETTER < width:
            text(x + width / 2, TOP + HEIGHT + 20, words, "middle")
    for share in (0, 0.5, 1):
        text(LEFT - 6, TOP + HEIGHT * (1 - share) + 4, f"{share:.0%}", "end", faint)
    ticks = sorted({*segments, *(calls.begin for calls in chart.calls), end})
    last = -100.0
    for tick in ticks:
        x = LEFT + WIDTH * tick / end
        parts.append(
            f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{TOP}" y2="{bottom + 4}" stroke="{faint}" stroke-width="0.7"/>'
        )
        if x - last > 44:
            text(x, bottom + 18, short(tick), "middle", faint)
            last = x
    text(LEFT + WIDTH, bottom + 36, "tokens of the run", "end", faint)
    for number, name in enumerate(names):
        y = TOP + 6 + 20 * number
        fill = f"hsl({hue(number)} 55% {light}%)"
        parts.append(f'<rect x="{LEFT + WIDTH + 16}" y="{y}" width="12" height="12" fill="{fill}"/>')
        text(LEFT + WIDTH + 34, y + 10, f"{name}: {chart.legend[name]}")
    width, height = LEFT + WIDTH + LEGEND + 60, max(bottom + 44, TOP + 20 * len(names) + 12)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'role="img" aria-label="{html.escape(chart.label)}" font-family="system-ui, sans-serif">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def label(tokens: int, totals: Mapping[str, int]) -> str:
    """The picture in words."""
    by_source = ", ".join(f"{name} {short(some)} tokens" for name, some in totals.items())
    return f"The share of each source over {short(tokens)} tokens: {by_source} in all."


def _in_words(calls: Calls) -> str:
    return f"{counted(calls.world_size, 'rank')}, {calls.batch_size:,} rows of {calls.seq_len:,}"


def _segments(boxes: Sequence[Box]) -> dict[int, list[Box]]:
    segments: dict[int, list[Box]] = {}
    for box in boxes:
        segments.setdefault(box.begin, []).append(box)
    return segments
