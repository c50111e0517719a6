"""Runs examples/look.ipynb, and writes its outputs into it: `make picture`"""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "look.ipynb"


def main() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(NOTEBOOK.parent)}}
    NotebookClient(notebook, timeout=600, resources=where, record_timing=False).execute()
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()
