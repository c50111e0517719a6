"""The notebook runs from its first cell to its last, and shows what it says."""

import re

import nbformat
import pytest
from making import ROOT
from nbclient import NotebookClient

SMALLER = {"train:8192": "train:1024", '"mixture.py")]': '"mixture.py"), "--vocab", "1024"]'}


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
    before = sorted((tmp_path / "clone").rglob("*"))
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    assert sorted((tmp_path / "clone").rglob("*")) == before, "it leaves nothing behind"
    check_outputs(notebook)


def check_outputs(notebook):
    shown = ["".join(map(str, cell.outputs)) for cell in code_cells(notebook)]
    assert not any("Warning" in part for part in shown)
    wanted = {
        2: "stdlib-bpe",
        3: " documents\\n",
        4: "best_fit drops nothing",
        5: "row 0:0:15, rank 0",
    }
    for number, part in (
        wanted | {6: "torch.Size([16, 1024])", 7: "packages 40%", 9: "image/png"}
    ).items():
        assert part in shown[number], part
    first, last = map(float, re.search(r"loss from (\S+) to (\S+);", shown[8]).groups())
    assert last < first - 1


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_it_ships_with_the_outputs_of_its_cells():
    notebook = nbformat.read(ROOT / "examples" / "look.ipynb", as_version=4)
    assert [cell.execution_count for cell in code_cells(notebook)] == list(
        range(1, len(code_cells(notebook)) + 1)
    )
    check_outputs(notebook)
    assert str(ROOT) not in (ROOT / "examples" / "look.ipynb").read_text()
