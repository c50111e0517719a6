"""Makes docs/show-light.svg and docs/show-dark.svg, the README's picture of `tokenmill show`: `make picture`

    python docs/show_picture.py data/tokens/NAME

It is what the command prints for a step of a run that went from two ranks to one, from its checkpoint.
"""

import io
import json
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, MONOKAI
from rich.text import Text

from tokenmill.look.show import Show, show
from tokenmill.numpy import RowLoader

DOCS = Path(__file__).resolve().parent
WIDTH, LINES = 116, 21
THEMES = {"light": DEFAULT_TERMINAL_THEME, "dark": MONOKAI}


def checkpoint(token_set: str, folder: Path) -> Path:
    """A position of a run of 9 steps on two ranks, and 3 on one."""
    state = None
    for world_size, steps in ((2, 9), (1, 3)):
        with RowLoader(
            token_set, batch_size=2, seq_len=8192, rank=0, world_size=world_size
        ) as loader:
            if state is not None:
                loader.load_state_dict(state)
            for _ in range(steps):
                next(loader)
            state = loader.state_dict()
    path = folder / "ckpt.json"
    path.write_text(json.dumps(state))
    return path


def main(token_set: str) -> None:
    console = Console(
        record=True,
        width=WIDTH,
        file=io.StringIO(),
        highlight=False,
        markup=False,
        color_system="truecolor",
    )
    with tempfile.TemporaryDirectory() as folder:
        console.print("$ tokenmill show stdlib --step 5 --checkpoint ckpt.pt", style="bold")
        show(Show(token_set, step=5, checkpoint=str(checkpoint(token_set, Path(folder)))), console)
    lines = console.export_text(clear=False, styles=True).replace(token_set, "stdlib").splitlines()
    shown = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False, markup=False)
    for line in lines[:LINES]:
        shown.print(Text.from_ansi(line), overflow="ellipsis", no_wrap=True)
    for scheme, theme in THEMES.items():
        svg = shown.export_svg(title="tokenmill show", theme=theme, clear=False, unique_id="show")
        svg = re.sub(
            r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL
        )  # which GitHub does not load anyway
        (DOCS / f"show-{scheme}.svg").write_text(
            "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
