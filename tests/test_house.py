"""The house: wings know only what lies below them, and training loads numpy and torch alone."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter

import pytest
from making import ROOT, make_token_set
from making_views import make_view

PACKAGE = ROOT / "tokenmill"
KNOWN = {  # what each part of the package may import of it
    "extras": set(),
    "addresses": set(),
    "hub_client": set(),
    "checks": set(),
    "messages": set(),
    "threads": set(),
    "store": set(),
    "rows": set(),
    "text": {"store"},
    "tokenize": {"store"},
    "chat": {"store", "text", "tokenize"},
    "prepare": {"store", "text", "tokenize", "chat", "remote"},
    "remote": {"store"},
    "feed": {"store", "rows", "remote"},
    "batches": {"store", "rows", "feed"},
    "views": {"store", "rows", "remote"},
    "look": {"store", "rows", "text", "tokenize", "prepare", "feed", "batches", "remote", "views"},
    "exchange": {"store", "tokenize", "remote"},
    "numpy": {"store", "rows", "feed", "batches"},
    "jax": {"store", "rows", "feed", "batches"},
    "cli": set(),  # its verbs are imported by name, when they are asked for
    "__main__": {"cli"},
    "__init__": {"prepare"},
}
BY_ALL = {"extras", "addresses", "hub_client", "checks", "messages", "threads"}
FACES = {"config", "data", "prepare_data"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def part_of(path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path) -> set[str]:
    """The modules that a file imports, wherever in it, but for those that only a type checker
    reads.
    """
    modules: set[str] = set()
    unread: set[ast.AST] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if node in unread or is_type_checking(node):
            unread |= {*ast.iter_child_nodes(node)}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def is_type_checking(node) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def test_every_part_of_the_package_has_its_arrows_told():
    assert {part_of(path) for path in MODULES} == set(KNOWN)


def test_a_wing_knows_only_what_lies_below_it():
    for path in MODULES:
        part = part_of(path)
        names = imports(path)
        assert not tops_of(names) & FACES, f"{path} imports one of the three faces"
        known = {name.split(".")[1] for name in names if name.startswith("tokenmill.")}
        assert known <= KNOWN[part] | BY_ALL | {part, "__version__"}, path


def tops_of(names) -> set[str]:
    return {name.partition(".")[0] for name in names}


FRAMEWORKS = {  # the modules that may import torch or JAX
    "torch": {"loader", "get_batch", "packed_rows", "documents", "torch_arrays"},
    "jax": {"jax", "jax_arrays"},
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_only_the_modules_that_make_its_arrays_import_a_framework(framework):
    importing = [path for path in MODULES if framework in tops_of(imports(path))]
    assert {path.stem for path in importing} == FRAMEWORKS[framework]
    assert {part_of(path) for path in importing} <= {"batches", framework}


def test_the_tests_of_rows_need_numpy_pytest_and_hypothesis_alone():
    tests = ROOT / "tests"
    files = [*(tests / "rows").glob("*.py"), tests / "conftest.py", tests / "slow_turns.py"]
    at_the_top = set()
    for path in files:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                at_the_top |= tops_of([getattr(node, "module", None) or node.names[0].name])
    needed = {"numpy", "pytest", "hypothesis", "tokenmill", "slow_turns"}
    assert at_the_top - sys.stdlib_module_names <= needed


def test_the_arrows_make_no_circle():
    """Neither those of the parts, nor those of the modules."""
    TopologicalSorter(KNOWN).prepare()
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in MODULES
    }
    arrows = {}
    for module, path in names.items():
        named = {name if name in names else name.rpartition(".")[0] for name in imports(path)}
        arrows[module] = named & names.keys() - {"tokenmill"}
    TopologicalSorter(arrows).prepare()


@pytest.mark.parametrize(
    "wing", sorted({p.parent for p in MODULES} - {PACKAGE}), ids=lambda wing: wing.name
)
def test_a_wing_says_what_lives_in_it_and_what_it_must_never_know(wing):
    text = docstring_of(wing)
    words = set(re.findall(r"\w+", text))
    rooms = {path.stem for path in wing.iterdir()}
    assert {path.stem for path in wing.glob("*.py")} - {"__init__"} <= words, "every room is told"
    listed = re.findall(r"^ {4}(\w+) |[;,] (\w+): ", text, re.MULTILINE)
    assert {first or then for first, then in listed} <= rooms, "and no other"
    assert "omes in" in text
    assert "oes out" in text
    assert "It must never" in text


def docstring_of(package) -> str:
    return ast.get_docstring(ast.parse((package / "__init__.py").read_text()))


def test_the_map_of_the_house_has_every_wing():
    words = set(re.findall(r"\w+", docstring_of(PACKAGE)))
    assert set(KNOWN) - {"__main__", "__init__"} <= words


def test_tests_mirror_the_wings():
    wings = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")} - {ROOT / "tests"}
    assert {folder.name for folder in folders} == wings


# ---------------------------------------------------------------------------- what is loaded

HEAVY = {
    "torch",
    "tiktoken",
    "regex",
    "pyarrow",
    "fsspec",
    "tokenizers",
    "gigatoken",
    "huggingface_hub",
}
HEAVY |= {"rich", "tyro", "jinja2", "multiprocess", "orjson", "tqdm", "rustbpe", "duckdb"}


def loaded_by(code: str, after: str = "") -> set[str]:
    """What some code loads, without what was loaded `after` other code."""
    parts = [after, "import sys; there = {*sys.modules}", code]
    parts.append("print(*{name.partition('.')[0] for name in sys.modules if name not in there})")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(parts)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_training_loads_numpy_and_torch_and_nothing_else_of_weight():
    torch = "import numpy, torch, torch.utils.data, torch.distributed"
    names = ("RowLoader", "PackedRows", "get_batch", "TokenSet", "document_mask", "state_dict")
    loaded = loaded_by(f"import data; from tokenmill import {', '.join(names)}", after=torch)
    assert not loaded & HEAVY - {"torch"}
    assert {"data", "tokenmill"} <= loaded


def test_training_with_numpy_loads_numpy_alone():
    loaded = loaded_by("import tokenmill.numpy")
    assert not loaded & (HEAVY | {"jax", "ssl", "http"})
    assert "numpy" in loaded


def test_training_on_a_view_loads_numpy_alone(tmp_path):
    folder = make_token_set(tmp_path / "set", [[5, 7, 9]], [[4]])
    make_view(folder, "some", {"train_0.000": [2, 0, 1]})
    loaded = loaded_by(
        "from tokenmill.numpy import RowLoader\n"
        f"next(RowLoader({str(folder)!r}, view='some', batch_size=1, seq_len=4))"
    )
    assert not loaded & HEAVY


def test_preparing_and_looking_do_not_wait_for_torch():
    loaded = loaded_by(
        "from tokenmill.prepare import command, make\n"
        "from tokenmill.look import show, report, verify\n"
        "from tokenmill.exchange import convert"
    )
    assert "torch" not in loaded
    assert not loaded_by("import tokenmill, tokenmill.cli; tokenmill.cli.main(['--help'])") & HEAVY


def test_a_wing_that_was_imported_does_not_hide_the_function_of_its_name():
    loaded_by(
        "import tokenmill.prepare.run, tokenmill\n"
        "from tokenmill import PrepareConfig, prepare\n"
        "prepare.__code__"
    )
    loaded_by("from tokenmill import PRESETS; import tokenmill; tokenmill.prepare.__code__")


# ---------------------------------------------------------------------------- the public face


def test_every_public_name_is_told_to_type_checkers_and_found_at_its_home():
    import tokenmill

    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (typed,) = [node for node in tree.body if is_type_checking(node)]
    homes = {}
    for node in typed.body:
        for alias in node.names:
            homes[alias.name] = node.module.removeprefix("tokenmill.")
    assert homes == tokenmill._HOMES
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)} - {"__dir__"}
    assert defined == {"state_dict", "load_state_dict"}, (
        "as torch.distributed.checkpoint sees no others"
    )
    assert sorted(tokenmill.__all__) == sorted([*homes, *defined, "prepare", "__version__"])
    for name in tokenmill.__all__:
        assert getattr(tokenmill, name) is not None
    assert set(dir(tokenmill)) == set(tokenmill.__all__)
    with pytest.raises(AttributeError, match="no attribute 'RowLoaders'"):
        _ = tokenmill.RowLoaders
