"""Every command and every Python block of README and docs/ runs: in `make test`, those of the first
two pages.
"""

import importlib
import json
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
import warm
from file_server import Hub, environment
from making import QUICK_REPORT, ROOT, make_text, run_prepare, write_parquet

import tokenmill
from tokenmill import PRESETS
from tokenmill.prepare.command import _parse

FIRST = [ROOT / "README.md", ROOT / "docs" / "quickstart.md"]
PAGES = [
    *FIRST,
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    *sorted({*(ROOT / "docs").glob("*.md")} - {*FIRST}),
]
OF_THEIR_OWN = {  # in tests/test_train.py, remote/test_copy.py, prepare/test_destination.py, here
    "torchrun --nproc-per-node 4 examples/fsdp2_tp.py data/tokens/NAME --tp 2",
    "tokenmill push data/tokens/NAME hf://datasets/owner/NAME --license odc-by",
    "tokenmill prepare --source my/files --tokens-root s3://bucket/tokens",
    "tokenmill show mine --step 2 --checkpoint checkpoint.pt",
}
ELSEWHERE = {  # what is not run here, and what runs it
    "make demo": ".ci/run",
    "python examples/mixture.py": "the fixture `mixture`",
    "make train": "tests/test_train.py, in fewer steps",
    ". .venv/bin/activate": "nothing: the tests' Python is that one",
    "pip install '.[torch,prepare,report,view]'": "tests/test_package.py, of a wheel",
    "python prepare_data.py --source s3://bucket/folder": "nothing; test_listing.py has URLs",
    "tokenmill push data/tokens/NAME s3://bucket/tokens/NAME": "remote/test_copy.py",
    "tokenmill pull s3://bucket/tokens/NAME": "remote/test_copy.py",
    "python prepare_data.py --source my/parquet/files --cluster ray": "prepare/test_ray.py",
}
ELSEWHERE |= dict.fromkeys(OF_THEIR_OWN, "a test of its own")
SMALL_BENCHMARK = "--batch-size 2 --step-ms 1 --seconds 1"
SMALL_MODEL = "--layers 1 --width 32 --heads 2"
SMALLER = {
    "files --tokenizer train:8192": "files --tokenizer train:400",
    "mixture.toml --steps 30": f"mixture.toml --steps 2 --val-batches 1 {SMALL_MODEL}",
    "--nproc-per-node 8": "--nproc-per-node 2",
    "prepare_data.py climbmix": "prepare_data.py climbmix --num-shards 4",
    "--step 12345": "--step 45",  # thousands of epochs of a small set
    "--layers 12 --width 768 --heads 12": SMALL_MODEL,
    "--batch-size 32 --total-rows 512": "--batch-size 2 --total-rows 4",
    "--seq-len 2048 --steps 20000": "--seq-len 32 --steps 2",
    "--device cuda --batch-size 32 --seq-len 2048 --step-ms 20": SMALL_BENCHMARK,
}


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def commands():
    """Each command, with the first page that has it."""
    pages = {}
    for page in PAGES:
        for line in lines_of(page):
            pages.setdefault(shlex.join(shlex.split(line, comments=True)), page)
    return pages


def lines_of(page):
    return "".join(blocks(page, "bash")).splitlines()


def marked(page, *values):
    reads_the_library = re.search("stdlib|prepare demo", str(values[0]))
    is_quick = page in FIRST and not reads_the_library
    return pytest.param(*values, marks=() if is_quick else pytest.mark.slow)


COMMANDS = commands()
PYTHON = []
for page in PAGES:
    PYTHON += [marked(page, page, number) for number in range(len(blocks(page, "python")))]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A folder with a set like that of the README's offline preparation, of less text."""
    cwd = tmp_path_factory.mktemp("newcomer")
    for number in range(2):
        write_parquet(cwd / "texts" / f"{number}.parquet", make_text(400, seed=number))
    run_prepare("--source", "texts", "--tokenizer", "train:400", "--name", "stdlib", cwd=cwd)
    return cwd


def run(command, cwd, env=None):
    """A command's output.

    One of Python's is run in a process that has its imports already (warm.py).
    """
    env = dict(env or os.environ, PYTHONPATH=str(ROOT))
    first, *words = map(str, command)
    if first == sys.executable:
        done = warm.run(*words, cwd=cwd, env=env)
    else:
        done = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300
        )
    assert done.returncode == 0, (
        f"{shlex.join(map(str, command))}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done.stdout


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """A folder in which the example made its mixture."""
    cwd = tmp_path_factory.mktemp("mixture")
    run([sys.executable, ROOT / "examples" / "mixture.py", "--vocab", "400"], cwd)
    return cwd


def write_scored(folder):
    """Parquet files with the columns that docs/views.md keeps."""
    folder.mkdir()
    for number in range(3):
        texts = make_text(300, seed=number)
        columns = {
            "text": texts,
            "score": [n % 50 / 10 for n in range(300)],
            "language": ["en", "de", "en"] * 100,
            "meta": [{"domain": f"{n}.org"} for n in range(4)] * 75,
        }
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=100)


@pytest.fixture(scope="module")
def viewed(gpt2, tmp_path_factory):
    """A folder in which the first commands of docs/views.md were run."""
    cwd = tmp_path_factory.mktemp("viewed")
    write_scored(cwd / "fineweb")
    for line in "".join(blocks(ROOT / "docs" / "views.md", "bash")[:2]).splitlines():
        run([sys.executable, "-m", *shlex.split(line)], cwd)
    return cwd


def write_mine(cwd):
    """The file of text that docs/quickstart.md begins with."""
    (cwd / "mine.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in make_text(300, seed=9))
    )


@pytest.fixture(scope="module")
def started(gpt2, tmp_path_factory):
    """A folder in which the sets of docs/quickstart.md were prepared."""
    cwd = tmp_path_factory.mktemp("started")
    write_mine(cwd)
    write_parquet(cwd / "my/parquet/files/0.parquet", make_text(300, seed=0), row_group_size=100)
    for line in lines_of(ROOT / "docs" / "quickstart.md"):
        if " prepare " in line:
            run([sys.executable, "-m", *shlex.split(line)], cwd)
    return cwd


# of pages whose blocks do not run after the demo
OTHER_FOLDERS = {
    "mixtures.md": "mixture",
    "views.md": "viewed",
    "quickstart.md": "started",
    "preparing.md": "started",
}


@pytest.mark.parametrize(
    ("page", "number"), PYTHON, ids=lambda value: getattr(value, "name", value)
)
def test_the_python_blocks_run_after_the_demo(request, page, number):
    folder = request.getfixturevalue(OTHER_FOLDERS.get(page.name, "demo"))
    run([sys.executable, "-c", blocks(page, "python")[number]], folder)


def test_the_quickstart_s_checkpoint_says_its_steps(started):
    page = ROOT / "docs" / "quickstart.md"
    training = next(block for block in blocks(page, "python") if '"checkpoint.pt"' in block)
    run([sys.executable, "-c", training], started)
    (command,) = [line for line in lines_of(page) if "--checkpoint" in line]
    shown = run([sys.executable, "-m", *shlex.split(command)], started)
    assert "rows of 64 + 1 tokens, best_fit; seed 1337; 2 rows on each of 1 rank; mine" in shown
    assert len(re.findall(r"^row 0:0:[45], rank 0$", shown, re.MULTILINE)) == 2, (
        "the third batch of two rows"
    )


@pytest.fixture(scope="module")
def workshop(gpt2, demo, tmp_path_factory):
    """A folder for the commands of the first pages, and a token set for data/tokens/NAME."""
    cwd = tmp_path_factory.mktemp("workshop")
    for number in range(3):
        path = cwd / "my/parquet/files" / f"{number}.parquet"
        write_parquet(path, make_text(300, seed=number), row_group_size=100)
    write_mine(cwd)
    name = run_prepare(
        "--source", "my/parquet/files", "--name", "first", cwd=cwd
    ).stdout.splitlines()[-1]
    shutil.copytree(demo, cwd, dirs_exist_ok=True)  # for commands before its own
    return cwd, name


@pytest.fixture(scope="module")
def everything(workshop, tokenizer, tokenizer_json, mixture):
    """The workshop with what the commands of all other pages name too."""
    cwd, name = workshop
    shutil.copytree(cwd / "my/parquet/files", cwd / "base_data_climbmix")
    write_scored(cwd / "fineweb")
    for folder in ("path/to", "tokenizer"):
        (cwd / folder).mkdir(parents=True)
    shutil.copy(tokenizer_json, cwd / "path/to/tokenizer.json")
    (cwd / "tokenizer/tokenizer.pkl").write_bytes(pickle.dumps(tokenizer.encoding))
    shutil.copytree(mixture, cwd, dirs_exist_ok=True)
    theirs = {
        "nanogpt": "data/openwebtext",
        "llm.c": "fineweb10B",
        "npy": "edu_fineweb10B",
        "megatron": "as-megatron",
    }
    for layout, folder in theirs.items():
        run([sys.executable, "-m", "tokenmill", "convert", "out", layout, name, folder], cwd)
    save = (
        "import torch; from tokenmill import RowLoader\n"
        f"loader = RowLoader({name!r}, batch_size=2, seq_len=64)\n"
        "for _ in range(40): next(loader)\ntorch.save({'data': loader.state_dict()}, 'ckpt.pt')"
    )
    run([sys.executable, "-c", save], cwd)
    return cwd, name


@pytest.fixture(scope="module")
def hubs(tmp_path_factory):
    """A hub for each repository that the commands fetch from, with as many small files as they ask
    for: its address.
    """
    folder = tmp_path_factory.mktemp("hubs")
    data = write_parquet(folder / "one.parquet", make_text(60, seed=0)).read_bytes()
    shards = {f"shard_{i:05}.parquet": data for i in range(200)}
    model = tokenizers.ByteLevelBPETokenizer()
    model.train_from_iterator(
        make_text(50, seed=0), vocab_size=400, special_tokens=["<|endoftext|>"]
    )
    model.save(str(folder / "tokenizer.json"))
    files = {
        "Qwen/Qwen3-0.6B": {"tokenizer.json": (folder / "tokenizer.json").read_bytes()},
        "owner/name": {f"sample/10BT/shard_{i:05}.parquet": data for i in range(3)},
    }
    files |= dict.fromkeys(PRESETS["climbmix"].source + PRESETS["fineweb-edu"].source, shards)
    hubs = [Hub(repository, files[repository]) for repository in files]
    yield {hub.repository: hub.url for hub in hubs}
    for hub in hubs:
        hub.shutdown()
        hub.server_close()


@pytest.mark.parametrize("command", [marked(page, command) for command, page in COMMANDS.items()])
def test_the_commands_run(request, hubs, tmp_path, command):
    if command in ELSEWHERE:
        pytest.skip(f"run by {ELSEWHERE[command]}")
    page = COMMANDS[command]
    cwd, name = request.getfixturevalue("workshop" if page in FIRST else "everything")
    for large, small in SMALLER.items():
        command = command.replace(large, small)
    words = []
    for word in shlex.split(command.replace("data/tokens/NAME", name)):
        words += real(word, cwd)
    if words[:4] == [sys.executable, "-m", "tokenmill", "report"]:
        words[1:4] = QUICK_REPORT
    if "train_gpt" in command:
        words += [] if "--mixture" in words else ["--tokens", name]
        words += ["--sample", "0", "--device", "cpu"]
    if "convert out" in command:
        shutil.rmtree(cwd / words[-1], ignore_errors=True)
    (repository,) = PRESETS["climbmix" if "climbmix" in words else "fineweb-edu"].source
    for name in hubs:
        if any(word.startswith(name) for word in words):
            repository = name
    assert run(words, cwd, environment(hubs[repository], tmp_path)).strip(), "it says something"


def real(word, cwd):
    """What a word of a command stands for on this machine."""
    if word == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    if "*" in word and not word.startswith("owner/"):
        return sorted(str(path.relative_to(cwd)) for path in cwd.glob(word))
    if word == "tokenmill":
        return [sys.executable, "-m", "tokenmill"]
    if word == "python":
        return [sys.executable]
    return [str(ROOT / word) if word.endswith(".py") else word]


def test_what_is_run_elsewhere_is_still_in_the_docs():
    assert set(ELSEWHERE) <= set(COMMANDS)
    makefile = (ROOT / "Makefile").read_text()
    recipes = [line for line in makefile.splitlines() if " examples/train_gpt.py" in line]
    assert all("AGAIN=" in line for line in recipes), "Ctrl-C says the short command"
    assert all(
        f"\n{command[5:]}:" in makefile for command in ELSEWHERE if command.startswith("make ")
    )
    text = "\n".join(COMMANDS)
    assert all(large in text for large in SMALLER)


def test_the_demo_preset_is_the_command_it_is_said_to_be():
    (command,) = [command for command in COMMANDS if "stdlib" in command]
    expected = _parse(shlex.split(command)[2:], "prepare_data.py", PRESETS)
    assert _parse(["demo"], "prepare_data.py", PRESETS) == expected


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_picture_of_the_order_is_what_the_code_draws(scheme):
    assert (
        beside("docs", "order_picture").draw(scheme)
        == (ROOT / "docs" / f"order-{scheme}.svg").read_text()
    )


def test_each_promise_has_its_tests():
    rows = re.findall(
        r"^\| (.+) \| (`.+`) \|$", (ROOT / "tests" / "PROMISES.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 50
    for promise, named in rows:
        path = ""
        for there, name in re.findall(r"`([^`:]*)::(\w+)`", named):
            path = there or path
            assert f"\ndef {name}(" in (ROOT / path).read_text(), promise


def test_the_api_page_has_every_public_name():
    page = (ROOT / "docs" / "api.md").read_text()
    assert {name for name in tokenmill.__all__ if f"\n::: tokenmill.{name}\n" not in page} == {
        "__version__"
    }


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    run([sys.executable, ROOT / "docs" / "make_site.py", tmp_path / "site"], tmp_path)
    page = (tmp_path / "site" / "docs" / "api.html").read_text()
    assert "RowLoader.state_dict" in page
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//(?!squidfunk|www\.mkdocs)""", page), (
        "nothing is fetched"
    )
    for path in (
        "index.html",
        "docs/is-it-for-you.html",
        "docs/rows-dark.png",
        "benchmarks/loader.html",
    ):
        assert (tmp_path / "site" / path).exists()


def test_links_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"", page.read_text()):
            path, _, heading = "".join(link).partition("#")
            if path.startswith("https://"):
                continue  # there is no network here
            target = (page.parent / path) if path else page
            assert target.exists(), f"{page.name}: {path}"
            if heading:
                titles = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
                assert heading in [
                    re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles
                ]


def test_the_figures_are_those_that_were_measured():
    """Every line of a table of speeds is one of the benchmarks' own; the packings' are computed
    here.
    """
    pages = ("benchmarks/loader.md", "benchmarks/prepare.md", "docs/speed.md", "docs/packing.md")
    *measured, speed, packing = [(ROOT / page).read_text().splitlines() for page in pages]
    speeds = [line for line in speed if re.search(r"\| [\d.,]+M? \| [\d.]+ \|", line)]
    assert len(speeds) > 8
    assert set(speeds) <= {*measured[0], *measured[1]}

    benchmark = beside("benchmarks", "packing")
    simulated = benchmark.table_lines([benchmark.fineweb_edu_lengths()])
    first = packing.index(simulated[0])
    assert packing[first : first + len(simulated)] == simulated


def beside(folder, name):
    """A module of a folder that is no package."""
    sys.path.insert(0, str(ROOT / folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)
