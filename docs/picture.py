"""Makes the README's picture, docs/rows-light.png and docs/rows-dark.png: `make picture`

    python docs/picture.py data/tokens/NAME

It is a screenshot of the report's rows view, of the same documents packed by tokenmill and by concatenation.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from browser import chromium

from tokenmill import cli

DOCS = Path(__file__).resolve().parent
SEQ_LEN, WIDTH = 8192, 860


def take(page: Path, scheme: str, picture: Path) -> None:
    """Photographs the first rows of best_fit and of concat, one below the other, in "light" or "dark"."""
    with chromium() as browser:
        tab = browser.new_context(viewport={"width": WIDTH, "height": 900}, color_scheme=scheme).new_page()
        tab.goto(page.as_uri())
        tab.add_style_tag(
            content="""
            body > :not(main), main > :not(#rows), #rows > :not(.legend, .panels) { display: none !important }
            body, section { margin: 0; padding: 8px }
            .panel:is([data-packing="0"], [data-packing="3"]) { display: block !important; margin-bottom: 14px }
            .rows details { display: none }
            """
        )
        tab.locator("#rows").screenshot(path=str(picture))


def main(token_set: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        if cli.main(["report", token_set, "--seq-len", str(SEQ_LEN), "--out", str(page)]):
            sys.exit(1)
        for scheme in ("light", "dark"):
            take(page, scheme, DOCS / f"rows-{scheme}.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
