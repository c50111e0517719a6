"""The wheel in clean environments, used from a folder with a data.py, a data/ and a config.py of
its own.

The Python of the tests gets the extras of README's line; the others that the package is for get
numpy alone.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from making import ROOT, make_text, write_parquet

from tokenmill import __version__

README = (ROOT / "README.md").read_text()
README_EXTRAS = re.search(r"pip install '\.\[(.*?)\]'", README)[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = [extra for extra in PROJECT["project"]["optional-dependencies"] if extra != "all"]
OTHERS = [
    shutil.which(f"python{version}") for version in ("3.12", "3.13")
]  # a pyenv's are no programs of their own
OTHERS = OTHERS if not (Path.home() / ".pyenv").exists() else []
OTHERS += [
    max(Path.home().glob(f".pyenv/versions/{v}*/bin/python3"), default=None)
    for v in ("3.12", "3.13")
]
QUIET = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def names(requirements):
    """numpy>=1.26 -> numpy; ray[default]>=2.40 -> ray"""
    names = set()
    for line in requirements:
        name = line.partition("[")[0]
        for sign in "=<>!~ ":
            name = name.partition(sign)[0]
        names.add(name)
    return names


def packages_of(extra):
    return names(PROJECT["project"]["optional-dependencies"][extra])


def test_the_package_needs_numpy_alone_and_training_torch_or_jax_beside_it():
    extras = PROJECT["project"]["optional-dependencies"]
    assert names(PROJECT["project"]["dependencies"]) == {"numpy"}
    assert (names(extras["torch"]), names(extras["jax"])) == ({"torch"}, {"jax"})
    assert extras["all"] == [f"tokenmill[{','.join(EXTRAS)}]"]


def test_what_is_pinned_is_what_is_declared():
    """requirements.txt is what `make demo` installs; requirements-test.txt the tools of the
    development group.
    """
    pinned = pins("requirements.txt")
    extras = PROJECT["project"]["optional-dependencies"]
    declared = sum(
        (extras[extra] for extra in ("torch", "prepare", "report", "view")),
        PROJECT["project"]["dependencies"],
    )
    assert pinned.keys() == names(declared)
    assert pins("requirements-test.txt").keys() == names(PROJECT["dependency-groups"]["dev"])
    for line in extras["prepare"]:
        if "==" in line:
            assert line in (ROOT / "requirements.txt").read_text().splitlines()


def pins(file):
    lines = [line.partition("#")[0].strip() for line in (ROOT / file).read_text().splitlines()]
    assert all("==" in line for line in lines if line), f"{file} pins every version"
    return {next(iter(names([line]))): line for line in lines if line}


MISSING = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from the sdist, which is built of what git tracks or would."""
    source = tmp_path_factory.mktemp("source")
    folder = tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "tokenmill", source / "tokenmill", ignore=shutil.ignore_patterns("__pycache__")
    )
    run([sys.executable, "-m", "build", "--outdir", folder, source], cwd=folder)
    return folder / f"tokenmill-{__version__}-py3-none-any.whl"


@pytest.mark.slow
def test_wheel_and_sdist_have_the_whole_package_and_pass_twine(wheel):
    sdist = wheel.with_name(f"tokenmill-{__version__}.tar.gz")
    run([sys.executable, "-m", "twine", "check", "--strict", wheel, sdist], cwd=wheel.parent)
    listing = run([sys.executable, "-m", "zipfile", "-l", wheel], cwd=wheel.parent).stdout
    package = [
        path
        for path in (ROOT / "tokenmill").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert all(str(path.relative_to(ROOT)) in listing for path in package)
    assert len(re.findall("^tokenmill/", listing, re.MULTILINE)) == len(package)


class Environment:
    """A virtual environment with the wheel, or other packages, in the versions that are pinned for
    the tests.
    """

    def __init__(self, folder, *requirements, python=sys.executable):
        pinned = pins("requirements.txt") | pins("requirements-test.txt")
        # pip's constraints have no extras
        lines = [re.sub(r"\[.*\]", "", line) for line in pinned.values()]
        (folder / "pinned.txt").write_text("\n".join(lines))
        self.cwd = folder / "project"
        self.bin = folder / "venv" / "bin"
        self.cwd.mkdir()
        run([python, "-m", "venv", "--without-pip", folder / "venv"], cwd=folder)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            self.bin / "python",
            "install",
            "--quiet",
            "--no-compile",
        ]
        run([*pip, "-c", folder / "pinned.txt", *requirements], cwd=folder)

    def lacks(self, module):
        return self.run("python", "-c", f"import {module}", check=False).returncode == 1

    def run(self, *command, cwd=None, check=True, absent=()):
        """Runs a command of the environment; `absent` modules cannot be imported."""
        env = dict(os.environ, **QUIET)
        env.pop("PYTHONPATH", None)
        if absent:
            # a folder of its own: Python takes a file of one size and second for the one that it
            # compiled
            site = Path(tempfile.mkdtemp(prefix="absent-", dir=self.cwd.parent))
            (site / "sitecustomize.py").write_text(MISSING.format(absent=set(absent)))
            env["PYTHONPATH"] = str(site)
        return run([self.bin / command[0], *command[1:]], cwd=cwd or self.cwd, env=env, check=check)


def run(command, cwd, env=None, check=True):
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, timeout=600
    )
    assert not check or done.returncode == 0, (
        f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done


@pytest.fixture(scope="module", params=[pytest.param(README_EXTRAS, marks=pytest.mark.slow)])
def stranger(request, tmp_path_factory, wheel):
    """Somebody's machine, and their project."""
    made = Environment(tmp_path_factory.mktemp("stranger"), f"{wheel}[{request.param}]")
    (made.cwd / "data").mkdir()
    for name in ("data.py", "config.py", "data/__init__.py"):
        (made.cwd / name).write_text("raise SystemExit('tokenmill imports a module of the user')\n")
    for number in range(3):
        write_parquet(
            made.cwd / "text" / f"{number}.parquet", make_text(60, seed=number), row_group_size=20
        )
    return made


@pytest.fixture(scope="module")
def tokens(stranger):
    """A token set that the stranger prepared, with two workers."""
    prepare = [
        "tokenmill",
        "prepare",
        "--source",
        "text",
        "--tokenizer",
        "train:300",
        "--workers",
        "2",
    ]
    return stranger.run(*prepare).stdout.splitlines()[-1]


def test_the_lines_of_the_readme_train_from_another_folder(stranger, tokens):
    (code,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL)
        if "ckpt.pt" in block
    )
    stranger.run("python", "-c", code.replace("from data import", "from tokenmill import"))
    assert (stranger.cwd / "ckpt.pt").stat().st_size > 1000


LOAD_ARRAYS = """
import sys
from tokenmill.numpy import RowLoader, document_ids
loader = RowLoader({tokens!r}, batch_size=2, seq_len=64)
inputs, targets = next(loader)
assert inputs.shape == targets.shape == document_ids(inputs, loader.bos_id).shape == (2, 64)
loader.load_state_dict(loader.state_dict())
print("torch" in sys.modules)
"""


def test_a_stranger_looks_verifies_and_converts(stranger, tokens):
    assert (
        "row 0:0:3"
        in stranger.run("tokenmill", "show", tokens, "--row", "3", "--seq-len", "64").stdout
    )
    page = stranger.run("tokenmill", "report", tokens, "--seq-len", "64").stdout.splitlines()[-1]
    assert "<svg" in (text := (stranger.cwd / page).read_text()) or "<div" in text
    assert "0 bad, read in full" in stranger.run("tokenmill", "verify", tokens).stdout
    stranger.run("tokenmill", "convert", "out", "nanogpt", tokens, "as-nanogpt")
    assert (stranger.cwd / "as-nanogpt" / "train.bin").stat().st_size > 1000


PIP = "pip install 'tokenmill[{}]' (in a clone: pip install '.[{}]')"


@pytest.mark.parametrize(
    ("verb", "module", "extra"),
    [
        ("prepare", "pyarrow", "prepare"),
        ("prepare", "tyro", "prepare"),
        ("show", "rich", "report"),
        ("report", "jinja2", "report"),
        ("verify", "multiprocess", "report"),
        ("convert", "pyarrow", "prepare"),
    ],
)
def test_a_missing_extra_is_named_with_the_line_for_pip(stranger, verb, module, extra):
    done = stranger.run("tokenmill", verb, "--help", check=False, absent={module})
    assert done.returncode == 1
    assert done.stderr == f"error: {module} is not installed; {PIP.format(extra, extra)}\n"


def test_every_public_name_is_there_without_an_extra(stranger):
    everything = {*chain(*(packages_of(extra) for extra in EXTRAS if extra != "torch"))}
    code = "from tokenmill import *; print(RowLoader, Tokenizer, PrepareConfig, prepare)"
    assert "Tokenizer" in stranger.run("python", "-c", code, absent=everything).stdout


def test_a_missing_extra_is_named_where_a_script_needs_it(stranger, tokens):
    code = "from tokenmill import PrepareConfig, prepare; prepare(PrepareConfig(source='text'))"
    encode = (
        f"from tokenmill import Tokenizer; Tokenizer.load('{tokens}/tokenizer.json').encode('a')"
    )
    for asked, module in ((code, "pyarrow"), (encode, "tiktoken")):
        done = stranger.run("python", "-c", asked, check=False, absent={module})
        assert (
            f"{module} is not installed; {PIP.format('prepare', 'prepare')}"
            in done.stderr.splitlines()[-1]
        )


@pytest.fixture(scope="module", params=[sys.executable, *[*filter(None, OTHERS)][-1:]], ids=str)
def numpy_alone(request, tmp_path_factory, wheel):
    """What `pip install tokenmill` installs."""
    few = Environment(tmp_path_factory.mktemp("alone"), wheel, python=request.param)
    assert all(map(few.lacks, ("torch", "jax", "rich")))
    return few


@pytest.mark.slow
def test_numpy_alone_is_enough_to_load_arrays(numpy_alone, prepared):
    done = numpy_alone.run("python", "-c", LOAD_ARRAYS.format(tokens=str(prepared[1])))
    assert done.stdout == "False\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["RowLoader", "PackedRows", "get_batch", "document_mask"])
def test_without_torch_what_needs_it_names_it_and_what_to_install(numpy_alone, name):
    done = numpy_alone.run("python", "-c", f"from tokenmill import {name}", check=False)
    assert done.returncode == 1
    instead = "use RowLoader and position_ids of tokenmill.numpy or tokenmill.jax, which do not"
    install = PIP.format("torch", "torch")
    assert done.stderr.splitlines()[-1].endswith(
        f"torch is not installed; {install}; or {instead} need torch"
    )


@pytest.mark.slow
def test_without_jax_its_module_names_it_and_what_to_install(numpy_alone):
    done = numpy_alone.run("python", "-c", "import tokenmill.jax", check=False)
    assert done.stderr.splitlines()[-1].endswith(
        f"jax is not installed; {PIP.format('jax', 'jax')}"
    )
