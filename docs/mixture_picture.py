"""Makes docs/mixture-light.svg and docs/mixture-dark.svg, the picture of docs/mixtures.md: `make picture`

A run of 10^12 tokens in three stages, as `tokenmill mix --html` draws it; sources of these sizes are made up.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tokenmill import Mixture
from tokenmill.feed.forecast import forecast
from tokenmill.look import mixture_chart

DOCS = Path(__file__).resolve().parent
STAGES = [
    (0, {"web": 80, "code": 15, "math": 5}),
    ("600B", {"web": 55, "code": 30, "math": 15}),
    ("900B", {"web": 25, "code": 25, "math": 50}),
]
WINDOWS = {"web": 5000, "code": 800, "math": 120}  # of 2^28 tokens


def draw(scheme: str) -> str:
    sizes = {name: windows << 28 for name, windows in WINDOWS.items()}
    found = forecast(Mixture(STAGES, max_epochs={"math": 4}), tokens=10**12, sizes=sizes)
    return mixture_chart.draw(mixture_chart.chart_of(found), scheme)


if __name__ == "__main__":
    for scheme in mixture_chart.SCHEMES:
        (DOCS / f"mixture-{scheme}.svg").write_text(draw(scheme))
