"""Makes docs/run-light.svg and docs/run-dark.svg, the timeline of docs/resuming.md: `make picture`

A small run is stopped three times, and resumed with other ranks, another mixture and longer rows. The picture is what
`tokenmill mix --checkpoint` draws of its position.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from making import make_sources

from tokenmill import Mixture
from tokenmill.look import mixture_chart
from tokenmill.look.run_history import history
from tokenmill.numpy import RowLoader

DOCS = Path(__file__).resolve().parent
# calls, ranks, rows of each, length of rows, weights of web, code and math
RUN = [
    (260, 8, 4, 16, (80, 15, 5)),
    (420, 4, 4, 16, (80, 15, 5)),
    (240, 4, 4, 16, (40, 30, 30)),
    (110, 8, 2, 32, (40, 30, 30)),
]


def position(folder: Path) -> dict:
    """The position after a run whose calls change three times."""
    make_sources(folder, documents=400)
    state = None
    for calls, world_size, batch_size, seq_len, weights in RUN:
        names = ("web", "code", "math")
        mixture = Mixture({str(folder / name): weight for name, weight in zip(names, weights, strict=True)})
        settings = {"batch_size": batch_size, "seq_len": seq_len, "rank": 0, "world_size": world_size}
        with RowLoader(mixture, **settings) as loader:
            if state is not None:
                loader.load_state_dict(state)
            for _ in range(calls):
                next(loader)
            state = loader.state_dict()
    assert state is not None
    return state


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        found = history(position(Path(name)))
    for scheme in mixture_chart.SCHEMES:
        (DOCS / f"run-{scheme}.svg").write_text(mixture_chart.draw(mixture_chart.chart_of_run(found), scheme))
