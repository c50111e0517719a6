"""Makes a site of the pages, which are readable as plain files too: `make docs`

python docs/make_site.py [SITE]        warnings are errors

Pages link to each other and to files beside docs/, so those that are in the site, and what they link to, are gathered
in one folder first, each where it lies in the project.
"""

import re
import shutil
import sys
import tempfile
from pathlib import Path

import yaml
from mkdocs.__main__ import cli

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)|(?:src|srcset)=\"([^\"]+)\"")


def pages(nav: list | dict | str) -> list[str]:
    """The pages of a navigation, whatever its depth."""
    if isinstance(nav, str):
        return [nav]
    return [
        page for below in (nav if isinstance(nav, list) else nav.values()) for page in pages(below)
    ]


def gather(folder: Path, named: list[str]) -> None:
    """Copies pages, and the files that they link to, into a folder."""
    for page in named:
        linked = {"".join(found) for found in LINK.findall((ROOT / page).read_text())}
        targets = {(ROOT / page).parent / link for link in linked if "://" not in link}
        for path in {ROOT / page, *filter(Path.is_file, targets)}:
            copy = folder / path.resolve().relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)


def build(site: Path) -> None:
    """SystemExit where a page is missing, or links nowhere."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gather(folder / "pages", pages(settings["nav"]) + settings["extra_css"])
        (mkdocstrings,) = (
            one["mkdocstrings"] for one in settings["plugins"] if isinstance(one, dict)
        )
        mkdocstrings["handlers"]["python"]["paths"] = [str(ROOT)]
        (folder / "mkdocs.yml").write_text(
            yaml.safe_dump(settings | {"docs_dir": str(folder / "pages")})
        )
        cli(
            [
                "build",
                "--strict",
                "--quiet",
                "--config-file",
                str(folder / "mkdocs.yml"),
                "--site-dir",
                str(site),
            ]
        )


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site").resolve())
