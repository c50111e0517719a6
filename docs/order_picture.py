"""Makes docs/order-light.svg and docs/order-dark.svg, the picture of docs/order.md: `make picture`

Slices and windows in it are computed by the code that the loader uses, for three small files. It is narrow, so that it
can be read on a phone.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tokenmill.rows.windows import WindowSize, epoch_of_shards

DOCS = Path(__file__).resolve().parent
FILES = {"web": 96, "code": 64, "math": 48}  # tokens, in units of which a slice has 8
SIZE = WindowSize(slice=8, window=104)
HUES = {"web": 210, "code": 30, "math": 150}
SCHEMES = {"light": ("#222", "#fff", 62, "#6a6a6a"), "dark": ("#ddd", "#0d1117", 52, "#9a9a9a")}
CELL, GAP, LEFT, WIDTH, LINE = 20, 2, 80, 380, 18
ROWS = [(130, 60, 92), (190, 92), (75, 45, 162), (110, 172)]  # widths of the pieces in each


class Picture:
    """Boxes and lines of text from the top down."""

    def __init__(self, scheme: str):
        self.ink, self.paper, self._light, self.faint = SCHEMES[scheme]
        self._parts: list[str] = []
        self.y = 4

    def text(
        self, x: float, words: str, size: int = 15, colour: str = "", anchor: str = "start"
    ) -> None:
        colour = colour or self.ink
        place = (
            f'x="{x}" y="{self.y + 15}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"'
        )
        self._parts.append(f"<text {place}>{words}</text>")

    def heading(self, *lines: str) -> None:
        for line in lines:
            self.text(0, line, colour=self.faint)
            self.y += LINE
        self.y += 6

    def box(self, x: float, width: float, name: str, label: str) -> None:
        fill = f"hsl({HUES[name]} 60% {self._light}%)"
        self._parts.append(
            f'<rect x="{x}" y="{self.y}" width="{width}" height="{CELL}" rx="3" fill="{fill}"/>'
        )
        self.text(x + width / 2, label, 12, "#111", "middle")

    def cells(self, head: str, slices: list[tuple[str, int]]) -> None:
        self.text(0, head)
        for place, (name, number) in enumerate(slices):
            self.box(LEFT + place * (CELL + GAP), CELL, name, str(number))
        self.y += CELL + 6

    def svg(self) -> str:
        body, height = "\n".join(self._parts), self.y + 8
        box = f'viewBox="-8 -8 {WIDTH + 16} {height + 8}" width="{WIDTH + 116}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif">'
            f'<rect x="-8" y="-8" width="{WIDTH + 16}" height="{height + 8}" fill="{self.paper}"/>\n{body}\n</svg>\n'
        )


def draw(scheme: str) -> str:
    picture, names = Picture(scheme), list(FILES)
    epoch = epoch_of_shards(list(FILES.values()), (1337, "", 0), SIZE)
    shard, begin, *_ = epoch.slices
    slices = [
        (names[s], b // SIZE.slice) for s, b in zip(shard.tolist(), begin.tolist(), strict=True)
    ]
    picture.heading("Files are cut into slices of 2^20 tokens.")
    for name in names:
        picture.cells(name, [one for one in slices if one[0] == name])
    picture.y += 14
    picture.heading(
        "An epoch deals all slices to windows, at",
        f"random: of every {len(epoch)}, one to each window.",
    )
    for number in range(len(epoch)):
        inside = epoch._order[epoch._offsets[number] : epoch._offsets[number + 1]].tolist()
        picture.cells(f"window {number}", [slices[one] for one in inside])
    picture.y += 14
    picture.heading(
        "The documents of a window are packed",
        "together, and the rows are shuffled.",
        "Ranks take consecutive rows.",
    )
    mixed = [
        name for name, _ in (slices[one] for one in epoch._order[: epoch._offsets[1]].tolist())
    ]
    for row, widths in enumerate(ROWS):
        picture.text(0, f"row {row}, rank {row // 2}", 12)
        x = LEFT + 6
        for piece, width in enumerate(widths):
            picture.box(x, width - GAP, mixed[(row * 5 + piece * 7) % len(mixed)], "BOS ...")
            x += width
        picture.y += CELL + 6
    return picture.svg()


if __name__ == "__main__":
    for scheme in SCHEMES:
        (DOCS / f"order-{scheme}.svg").write_text(draw(scheme))
