"""The notebook runs from its first cell to its last, and shows what it says."""

import re

import nbformat
import pytest
from making import ROOT
from nbclient import NotebookClient

SMALLER = {"train:8192": "train:1024", '"examples/mixture.py"]': '"examples/mixture.py", "--vocab", "1024"]'}


@pytest.mark.slow
def test_every_cell_runs_and_shows_its_thing(tmp_path):
    folder = tmp_path / "clone" / "examples"
    folder.mkdir(parents=True)
    for name in ("tokenmill", "examples/mixture.py", "examples/train_gpt.py"):
        (tmp_path / "clone" / name).symlink_to(ROOT / name)
    text = (ROOT / "examples" / "look.ipynb").read_text()
    for large, small in SMALLER.items():
        assert large.replace('"', '\\"') in text
        text = text.replace(large.replace('"', '\\"'), small.replace('"', '\\"'))
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = ["".join(map(str, cell.outputs)) for cell in cells]
    wanted = {2: "stdlib-bpe1024-", 3: "tokenmill report", 4: "display:flex", 5: "torch.Size([16, 1024])"}
    for number, part in (wanted | {6: "<td>packages</td>", 8: "image/png"}).items():
        assert part in shown[number], part
    first, last = map(float, re.search(r"loss from (\S+) to (\S+);", shown[7]).groups())
    assert last < first - 1
