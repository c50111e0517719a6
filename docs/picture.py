"""Makes the README's picture, docs/rows-light.png and docs/rows-dark.png, and that of docs/chat.md: `make picture`

    python docs/picture.py data/tokens/NAME data/tokens/CHATS

They are screenshots of the report's rows view: of the same documents packed by tokenmill, by nanochat's loader and by
concatenation, and of conversations.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from browser import chromium

from tokenmill import cli

DOCS = Path(__file__).resolve().parent
WIDTH = 860
PICTURES = {
    "rows": (2048, '[data-packing="0"], [data-packing="2"], [data-packing="3"]'),
    "chat": (1024, '[data-packing="0"]'),
}


def take(page: Path, scheme: str, panels: str, picture: Path) -> None:
    """Photographs the first rows of these packings, one below the other, in "light" or "dark"."""
    with chromium() as browser:
        tab = browser.new_context(
            viewport={"width": WIDTH, "height": 900}, color_scheme=scheme
        ).new_page()
        tab.goto(page.as_uri())
        tab.add_style_tag(
            content=f"""
            body > :not(main), main > :not(#rows), #rows > :not(.legend, .panels) {{ display: none !important }}
            body, section {{ margin: 0; padding: 8px }}
            .panel:is({panels}) {{ display: block !important; margin-bottom: 14px }}
            .rows details, .row:nth-child(n + 12) {{ display: none }}
            #rows:not(:has(:is({panels}) .row:nth-child(-n + 11) .x)) .legend li:has(.x) {{ display: none }}
            """
        )
        tab.locator("#rows").screenshot(path=str(picture))


def main(*token_sets: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for token_set, (name, (seq_len, panels)) in zip(token_sets, PICTURES.items(), strict=True):
            page = Path(folder) / f"{name}.html"
            if cli.main(["report", token_set, "--seq-len", str(seq_len), "--out", str(page)]):
                sys.exit(1)
            for scheme in ("light", "dark"):
                take(page, scheme, panels, DOCS / f"{name}-{scheme}.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
