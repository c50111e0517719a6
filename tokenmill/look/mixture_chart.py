"""Draws a mixture's run: the share of each source over the tokens of the run. Areas are proportional to tokens.

The picture is an SVG of plain boxes and text. It needs no library, and comes in colors for a light or a dark page.
"""

import html

from tokenmill.feed.forecast import Forecast, ForecastLine
from tokenmill.look.report_text import short

SCHEMES = {"light": ("#222", "#777", 60), "dark": ("#ddd", "#999", 52)}  # ink, faint ink, lightness of the boxes in %
LEFT, TOP, WIDTH, HEIGHT, LEGEND = 46, 12, 540, 220, 200


def hue(number: int) -> int:
    """A color for each source, far from those before it."""
    return (210 + number * 137) % 360


def draw(found: Forecast, scheme: str = "light") -> str:
    """The picture as an SVG."""
    ink, faint, light = SCHEMES[scheme]
    end = max((line.end for line in found.lines), default=1)
    names = list(found.mixture.names)
    parts = []

    def text(x: float, y: float, words: str, anchor: str = "start", colour: str = ink) -> None:
        escaped = html.escape(words)
        parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" fill="{colour}" text-anchor="{anchor}">{escaped}</text>'
        )

    for begin, lines in _segments(found):
        below = 0.0
        for line in lines:
            x, width = LEFT + WIDTH * begin / end, WIDTH * (line.end - begin) / end
            y, height = TOP + HEIGHT * below, HEIGHT * line.share
            fill = f"hsl({hue(names.index(line.source))} 55% {light}%)"
            tooltip = html.escape(
                f"{line.source}: {line.share:.2%}, {line.tokens:,} tokens, {line.epochs:.2f} epochs by then"
            )
            parts.append(
                f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{fill}">'
                f"<title>{tooltip}</title></rect>"
            )
            below += line.share
    for share in (0, 0.5, 1):
        text(LEFT - 6, TOP + HEIGHT * (1 - share) + 4, f"{share:.0%}", "end", faint)
    ticks = dict.fromkeys([*(begin for begin, _ in _segments(found)), end])
    last = -100.0
    for tick in ticks:
        x = LEFT + WIDTH * tick / end
        parts.append(
            f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{TOP}" y2="{TOP + HEIGHT + 4}" stroke="{faint}" stroke-width="0.7"/>'
        )
        if x - last > 44:
            text(x, TOP + HEIGHT + 18, short(tick), "middle", faint)
            last = x
    text(LEFT + WIDTH, TOP + HEIGHT + 36, "tokens of the run", "end", faint)
    for number, name in enumerate(names):
        y = TOP + 6 + 20 * number
        fill = f"hsl({hue(number)} 55% {light}%)"
        parts.append(f'<rect x="{LEFT + WIDTH + 16}" y="{y}" width="12" height="12" fill="{fill}"/>')
        tokens, epochs = found.totals[name]
        text(LEFT + WIDTH + 34, y + 10, f"{name}: {short(tokens)}, {epochs:.2f} epochs")
    width, height = LEFT + WIDTH + LEGEND + 60, max(TOP + HEIGHT + 44, TOP + 20 * len(names) + 12)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'role="img" aria-label="{html.escape(label(found))}" font-family="system-ui, sans-serif">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def label(found: Forecast) -> str:
    """The picture in words."""
    totals = ", ".join(f"{name} {short(tokens)} tokens" for name, (tokens, _) in found.totals.items())
    return f"The share of each source over {short(found.tokens)} tokens: {totals} in all."


def _segments(found: Forecast) -> list[tuple[int, list[ForecastLine]]]:
    segments: dict[int, list[ForecastLine]] = {}
    for line in found.lines:
        segments.setdefault(line.begin, []).append(line)
    return list(segments.items())
