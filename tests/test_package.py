"""The wheel, installed for a stranger: in an empty folder that has a data.py, a data/ and a config.py of its own."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from making import ROOT, make_text, write_parquet

from tokenmill import __version__

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NEWEST = ("3.14", "3.13", "3.12")
EXTRAS = [extra for extra in PROJECT["project"]["optional-dependencies"] if extra != "all"]
QUIET = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def names(requirements):
    """numpy>=1.26 -> numpy; ray[default]>=2.40 -> ray"""
    found = set()
    for line in requirements:
        name = line.partition("[")[0]
        for sign in "=<>!~ ":
            name = name.partition(sign)[0]
        found.add(name)
    return found


def packages_of(extra):
    return names(PROJECT["project"]["optional-dependencies"][extra])


# ---------------------------------------------------------------------------- what is declared


def test_the_package_needs_numpy_alone_and_training_torch_or_jax_beside_it():
    extras = PROJECT["project"]["optional-dependencies"]
    assert names(PROJECT["project"]["dependencies"]) == {"numpy"}
    assert (names(extras["torch"]), names(extras["jax"])) == ({"torch"}, {"jax"})
    assert extras["all"] == [f"tokenmill[{','.join(EXTRAS)}]"]


def test_what_is_pinned_is_what_is_declared():
    """requirements.txt is what `make demo` installs; requirements-test.txt the tools of the development group."""
    pinned = pins("requirements.txt")
    extras = PROJECT["project"]["optional-dependencies"]
    assert pinned.keys() == names(PROJECT["project"]["dependencies"]) | names(extras["torch"]) | names(
        extras["prepare"]
    ) | names(extras["report"]) | names(extras["view"])
    assert pins("requirements-test.txt").keys() == names(PROJECT["dependency-groups"]["dev"])
    for line in extras["prepare"]:
        if "==" in line:
            assert line in (ROOT / "requirements.txt").read_text().splitlines()


def pins(file):
    lines = [line.partition("#")[0].strip() for line in (ROOT / file).read_text().splitlines()]
    assert all("==" in line for line in lines if line), f"{file} pins every version"
    return {next(iter(names([line]))): line for line in lines if line}


# ---------------------------------------------------------------------------- installed

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
    """The wheel, built of what git tracks or would."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "tokenmill", source / "tokenmill", ignore=shutil.ignore_patterns("__pycache__"))
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, source], cwd=folder)
    (found,) = folder.glob("tokenmill-*.whl")
    assert found.name == f"tokenmill-{__version__}-py3-none-any.whl"
    return found


def pythons():
    """This Python, and the newest that this machine has."""
    newer = [found for version in NEWEST if (found := find_python(version))]
    return [sys.executable, *newer[:1]]


def find_python(version):
    homes = [Path.home() / ".pyenv" / "versions", Path("/usr")]
    found = [str(path) for home in homes for path in sorted(home.glob(f"{version}*/bin/python3"))]
    found += [path] if (path := shutil.which(f"python{version}")) else []
    works = (path for path in found if subprocess.run([path, "-c", "import venv"], capture_output=True).returncode == 0)
    return next(works, None)


class Stranger:
    """Somebody's machine: a virtual environment with the wheel, and a folder with modules of their own."""

    def __init__(self, folder, python, wheel):
        self.cwd = folder / "project"
        self.own = python == sys.executable
        (self.cwd / "data").mkdir(parents=True)
        for name in ("data.py", "config.py", "data/__init__.py"):
            (self.cwd / name).write_text("raise SystemExit('tokenmill imports a module of the user')\n")
        for number in range(3):
            write_parquet(self.cwd / "text" / f"{number}.parquet", make_text(60, seed=number), row_group_size=20)
        run([python, "-m", "venv", folder / "venv"], cwd=folder)
        self.bin = folder / "venv" / "bin"
        self.install(wheel)

    def install(self, wheel):
        """With this Python, whose torch is installed beside the tests, dependencies are those; else all but torch's."""
        self.pip("--no-deps", wheel)
        site = next((self.bin.parent / "lib").glob("python*/site-packages"))
        if self.own:
            packages = [path for path in sys.path if path.endswith("site-packages")]
            (site / "of-the-tests.pth").write_text("\n".join(packages) + "\n")
        else:
            extras = PROJECT["project"]["optional-dependencies"]
            self.pip("-c", ROOT / "requirements.txt", "numpy", *sorted({*extras["prepare"], *extras["report"]}))

    def pip(self, *arguments):
        run([self.bin / "python", "-m", "pip", "install", "--quiet", "--no-compile", *arguments], cwd=self.cwd)

    def run(self, *command, check=True, absent=()):
        """Runs a command of the environment; `absent` modules cannot be imported."""
        env = dict(os.environ, **QUIET)
        env.pop("PYTHONPATH", None)
        if absent:
            # a folder of its own: Python takes a file of one size and second for the one that it compiled
            site = Path(tempfile.mkdtemp(prefix="absent-", dir=self.cwd.parent))
            (site / "sitecustomize.py").write_text(MISSING.format(absent=set(absent)))
            env["PYTHONPATH"] = str(site)
        return run([self.bin / command[0], *command[1:]], cwd=self.cwd, env=env, check=check)

    def prepare(self, *flags, **more):
        command = ["tokenmill", "prepare", "--source", "text", "--tokenizer", "train:300", "--workers", "2", *flags]
        return self.run(*command, **more)


def run(command, cwd, env=None, check=True):
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, timeout=600)
    assert not check or done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


def of(python):
    """A parameter of the fixture: everything is installed, for another Python anew, which takes a minute."""
    return pytest.param(python, id=Path(python).parent.parent.name, marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=map(of, pythons()))
def stranger(request, tmp_path_factory, wheel):
    return Stranger(tmp_path_factory.mktemp("stranger"), request.param, wheel)


@pytest.fixture(scope="module")
def tokens(stranger):
    """A token set that the stranger prepared, with two spawned workers."""
    return stranger.prepare().stdout.splitlines()[-1]


LOAD = """
import tokenmill, torch
from tokenmill import PackedRows, RowLoader, document_ids, get_batch
loader = RowLoader({tokens!r}, batch_size=2, seq_len=64)
inputs, targets = next(loader)
assert inputs.shape == targets.shape == document_ids(inputs, loader.bos_id).shape == (2, 64)
inputs, targets = get_batch("val", 1, 32, tokens={tokens!r})
assert len(list(PackedRows({tokens!r}, batch_size=2, seq_len=64, epochs=1))) > 3
print(tokenmill.__file__)
"""


def test_it_is_installed_and_not_the_clone_s(stranger):
    found = stranger.run("python", "-c", "import tokenmill; print(tokenmill.__file__)").stdout
    assert Path(found.strip()).is_relative_to(stranger.bin.parent)
    assert stranger.run("tokenmill", "--version").stdout == f"tokenmill {__version__}\n"
    assert stranger.run("python", "-m", "tokenmill", "--version").stdout == f"tokenmill {__version__}\n"


def test_a_stranger_loads_what_the_stranger_prepared(stranger, tokens):
    if not stranger.own:
        pytest.skip("torch for this Python is several gigabytes here; tried by hand")
    assert str(stranger.bin.parent) in stranger.run("python", "-c", LOAD.format(tokens=tokens)).stdout


LOAD_ARRAYS = """
import sys
from tokenmill.numpy import RowLoader, document_ids
loader = RowLoader({tokens!r}, batch_size=2, seq_len=64)
inputs, targets = next(loader)
assert inputs.shape == targets.shape == document_ids(inputs, loader.bos_id).shape == (2, 64)
loader.load_state_dict(loader.state_dict())
print("torch" in sys.modules)
"""


def test_a_stranger_loads_arrays_without_torch(stranger, tokens):
    assert stranger.run("python", "-c", LOAD_ARRAYS.format(tokens=tokens), absent={"torch", "jax"}).stdout == "False\n"


def test_a_stranger_looks_verifies_and_converts(stranger, tokens):
    assert "row 0:0:3" in stranger.run("tokenmill", "show", tokens, "--row", "3", "--seq-len", "64").stdout
    page = stranger.run("tokenmill", "report", tokens, "--seq-len", "64").stdout.splitlines()[-1]
    assert "<svg" in (text := (stranger.cwd / page).read_text()) or "<div" in text
    assert "0 bad, read in full" in stranger.run("tokenmill", "verify", tokens).stdout
    stranger.run("tokenmill", "convert", "out", "nanogpt", tokens, "as-nanogpt")
    assert (stranger.cwd / "as-nanogpt" / "train.bin").stat().st_size > 1000


@pytest.mark.parametrize("method", ["fork", "forkserver"])  # the defaults of Python 3.11 and 3.14
def test_a_script_without_a_guard_prepares_once(stranger, method):
    """Spawned workers run a parent's script again, unless they are kept from it."""
    (stranger.cwd / "script.py").write_text(
        "import multiprocess, multiprocessing\n"
        f"multiprocess.set_start_method({method!r}); multiprocessing.set_start_method({method!r})\n"
        "print('the script runs')\n"
        "from tokenmill import PrepareConfig, prepare\n"
        f"config = PrepareConfig(source='text', tokenizer='train:300', name='own', tokens_root={method!r}, workers=2)\n"
        "print(prepare(config))\n"
    )
    said = stranger.run("python", "script.py").stdout
    assert said.count("the script runs") == 1
    (manifest,) = (stranger.cwd / method).glob("own-*/manifest.json")
    assert json.loads(manifest.read_text())["documents"] == 180


# ---------------------------------------------------------------------------- a missing extra

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


def test_help_and_version_need_no_extra(stranger):
    everything = {
        module for extra in EXTRAS for module in names(PROJECT["project"]["optional-dependencies"][extra])
    } | {"numpy"}
    said = stranger.run("tokenmill", "--help", absent=everything).stdout
    assert all(f"  {verb} " in said for verb in ("prepare", "show", "report", "verify", "convert"))
    assert stranger.run("tokenmill", "--version", absent=everything).stdout


def test_every_public_name_is_there_without_an_extra(stranger):
    if not stranger.own:
        pytest.skip("torch for this Python is several gigabytes here; tried by hand")
    everything = {module for extra in EXTRAS if extra != "torch" for module in packages_of(extra)}
    code = "from tokenmill import *; print(RowLoader, Tokenizer, PrepareConfig, prepare)"
    assert "Tokenizer" in stranger.run("python", "-c", code, absent=everything).stdout


def test_a_missing_extra_is_named_where_a_script_needs_it(stranger, tokens):
    code = "from tokenmill import PrepareConfig, prepare; prepare(PrepareConfig(source='text'))"
    encode = f"from tokenmill import Tokenizer; print(Tokenizer.load('{tokens}/tokenizer.json').encode('a'))"
    for asked, module in ((code, "pyarrow"), (encode, "tiktoken")):
        done = stranger.run("python", "-c", asked, check=False, absent={module})
        assert f"{module} is not installed; {PIP.format('prepare', 'prepare')}" in done.stderr.splitlines()[-1]


def test_another_url_than_the_extra_remote_knows_is_named(stranger):
    done = stranger.run("tokenmill", "prepare", "--source", "s3://bucket/x", check=False, absent={"s3fs"})
    assert done.returncode == 1
    assert PIP.format("remote", "remote") in done.stderr


# ---------------------------------------------------------------------------- environments with a few packages


class Few:
    """A virtual environment with a few packages, in the versions of requirements.txt and requirements-test.txt."""

    def __init__(self, folder, *requirements):
        pinned = folder / "pinned.txt"
        known = pins("requirements.txt") | pins("requirements-test.txt")
        pinned.write_text(
            "\n".join(line for line in known.values() if "[" not in line)
        )  # pip's constraints have no extras
        self.cwd, self.python = folder, folder / "venv" / "bin" / "python"
        run([sys.executable, "-m", "venv", folder / "venv"], cwd=folder)
        run([self.python, "-m", "pip", "install", "--quiet", "--no-compile", "-c", pinned, *requirements], cwd=folder)

    def run(self, *words, cwd=None, check=True):
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | QUIET
        return run([self.python, *words], cwd=cwd or self.cwd, env=env, check=check)

    def lacks(self, module):
        return self.run("-c", f"import {module}", check=False).returncode == 1


@pytest.mark.slow
def test_the_tests_of_rows_need_numpy_pytest_and_hypothesis_alone(tmp_path):
    few = Few(tmp_path, "numpy", "pytest", "hypothesis")
    assert few.lacks("torch")
    assert few.lacks("pyarrow")
    done = few.run("-m", "pytest", "tests/rows", "-p", "no:cacheprovider", cwd=ROOT)
    assert "[100%]" in done.stdout


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory, wheel):
    """The wheel with the extra `report`, and what that brings."""
    few = Few(tmp_path_factory.mktemp("few"), f"{wheel}[report]")
    assert few.lacks("torch")
    return few


@pytest.mark.slow
def test_without_torch_every_module_of_feed_is_imported_and_a_mixture_is_forecast(without_torch, prepared):
    code = f"""
import importlib, pkgutil
import tokenmill, tokenmill.feed
for module in pkgutil.iter_modules(tokenmill.feed.__path__, "tokenmill.feed."):
    importlib.import_module(module.name)
from tokenmill import Mixture, TokenSet, find_token_set, forecast, proportional
(line,) = forecast(Mixture({{{str(prepared[1])!r}: 1}}), tokens=100_000).lines
print(tokenmill.__file__, line.tokens)
"""
    file, tokens = without_torch.run("-c", code).stdout.split()
    assert Path(file).is_relative_to(without_torch.cwd)
    assert int(tokens) >= 100_000


@pytest.mark.slow
def test_without_torch_a_set_is_shown_verified_mixed_and_reported(without_torch, prepared):
    folder = prepared[1]
    tokenmill = ("-m", "tokenmill")
    for asked in (["--row", "3"], ["--batch", "1", "--batch-size", "2", "--world-size", "1"], ["--document", "7"]):
        assert "<|bos|>" in without_torch.run(*tokenmill, "show", folder, *asked, "--seq-len", "64").stdout
    assert "0 bad" in without_torch.run(*tokenmill, "verify", folder).stdout
    page = without_torch.cwd / "page.html"
    without_torch.run(*tokenmill, "report", folder, "--seq-len", "64", "--out", page)
    assert "best_fit" in page.read_text()
    (without_torch.cwd / "mixture.toml").write_text(f'[sources.web]\npath = "{folder}"\n[weights]\nweb = 1\n')
    told = without_torch.run(*tokenmill, "mix", "mixture.toml", "--tokens", "100000").stdout
    assert "web" in told
    assert "100.0" in told


@pytest.fixture(scope="module")
def numpy_alone(tmp_path_factory, wheel):
    """What `pip install tokenmill` installs."""
    few = Few(tmp_path_factory.mktemp("alone"), wheel)
    assert all(map(few.lacks, ("torch", "jax", "rich")))
    return few


@pytest.mark.slow
def test_numpy_alone_is_enough_to_load_arrays(numpy_alone, prepared):
    found = numpy_alone.run("-c", LOAD_ARRAYS.format(tokens=str(prepared[1])))
    assert found.stdout == "False\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["RowLoader", "PackedRows", "get_batch", "document_mask"])
def test_without_torch_what_needs_it_names_it_and_what_to_install(numpy_alone, name):
    done = numpy_alone.run("-c", f"from tokenmill import {name}", check=False)
    assert done.returncode == 1
    instead = "; or use RowLoader and position_ids of tokenmill.numpy or tokenmill.jax, which do not need torch"
    assert done.stderr.splitlines()[-1].endswith(f"torch is not installed; {PIP.format('torch', 'torch')}{instead}")


@pytest.mark.slow
def test_without_jax_its_module_names_it_and_what_to_install(numpy_alone):
    done = numpy_alone.run("-c", "import tokenmill.jax", check=False)
    assert done.stderr.splitlines()[-1].endswith(f"jax is not installed; {PIP.format('jax', 'jax')}")
