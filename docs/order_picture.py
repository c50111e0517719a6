"""Makes docs/order-light.svg and docs/order-dark.svg, the picture of docs/order.md: `make picture`

Slices, windows and the ranks' rows in it are computed by the code that the loader uses, for three small files.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tokenmill.rows.windows import Epoch, WindowSize

DOCS = Path(__file__).resolve().parent
FILES = {"web": 120, "code": 80, "math": 56}  # tokens, in units of which a slice has 8
DEFAULT_WINDOW_SIZE = WindowSize(slice=8, window=128)
HUES = {"web": 210, "code": 30, "math": 150}
SCHEMES = {"light": ("#222", "#fff", 62, "#999"), "dark": ("#ddd", "#0d1117", 52, "#777")}
CELL, GAP, LEFT, WIDTH = 20, 3, 150, 640


def draw(scheme: str) -> str:
    ink, paper, light, faint = SCHEMES[scheme]
    names = list(FILES)
    epoch = Epoch(list(FILES.values()), (1337, "", 0), DEFAULT_WINDOW_SIZE)
    parts = []

    def text(x, y, words, size=13, colour=ink, anchor="start"):
        parts.append(f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{words}</text>')

    def cell(x, y, name, label=""):
        parts.append(
            f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="3" fill="hsl({HUES[name]} 60% {light}%)"/>'
        )
        if label != "":
            text(x + CELL / 2, y + 14, label, 10, "#111", "middle")

    y = 34
    text(0, 16, "files, cut in slices of 2^20 tokens", 13, faint)
    for name, tokens in FILES.items():
        text(0, y + 15, name)
        for k in range(-(-tokens // DEFAULT_WINDOW_SIZE.slice)):
            cell(LEFT + k * (CELL + GAP), y, name, k)
        y += CELL + 8
    y += 26
    text(0, y, "an epoch: all slices permuted by (seed, epoch), in windows", 13, faint)
    y += 14
    for number in range(len(epoch)):
        window = epoch.window(number)
        slices = list(zip(window.shard.tolist(), (window.begin // DEFAULT_WINDOW_SIZE.slice).tolist(), strict=True))
        text(0, y + 15, f"window {number}")
        for place, (shard, k) in enumerate(slices):
            cell(LEFT + place * (CELL + GAP), y, names[shard], k)
        y += CELL + 8
    y += 26
    text(0, y, "window 0: its documents packed together, its rows shuffled; ranks take consecutive rows", 13, faint)
    y += 14
    window = epoch.window(0)
    mixed = [names[shard] for shard in window.shard.tolist()]
    for row in range(4):
        text(0, y + 15, f"row {row}")
        text(LEFT - 44, y + 15, f"rank {row // 2}", 12, faint)
        x = LEFT
        for piece, width in enumerate([(150, 60, 90), (210, 90), (75, 45, 180), (120, 180)][row]):
            name = mixed[(row * 5 + piece * 7) % len(mixed)]
            parts.append(
                f'<rect x="{x}" y="{y}" width="{width - GAP}" height="{CELL}" rx="3" '
                f'fill="hsl({HUES[name]} 60% {light}%)"/>'
            )
            text(x + 7, y + 14, "BOS", 9, "#111")
            x += width
        y += CELL + 8
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 -8 {WIDTH} {y + 12}" font-family="sans-serif">'
        f'<rect x="-12" y="-8" width="{WIDTH}" height="{y + 12}" fill="{paper}"/>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    for scheme in SCHEMES:
        (DOCS / f"order-{scheme}.svg").write_text(draw(scheme))
