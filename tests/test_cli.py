"""One command: what it lists, how it ends, and how a preset is named."""

import os
import re
import subprocess
import sys

import pytest
import warm
from making import ROOT

from tokenmill import PRESETS, __version__, cli
from tokenmill.prepare import command


def run(*arguments, cwd=ROOT, face=("-m", "tokenmill"), env=None):
    return warm.run(*face, *arguments, cwd=cwd, env=env)


def flat(text):
    """Help without its boxes and line breaks."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


def test_a_missing_extra_is_named_with_the_line_for_pip():
    code = (
        "import sys; sys.modules['tyro'] = None; from tokenmill import cli\n"
        "sys.exit(cli.main(['show', '--help']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    install = "pip install 'tokenmill[report]' (in a clone: pip install '.[report]')"
    assert done.stderr == f"error: tyro is not installed; {install}\n"
    assert done.returncode == 1


def test_help_lists_every_verb(capsys):
    assert cli.main(["--help"]) == 0
    help = capsys.readouterr().out
    for verb, about in cli.VERBS.items():
        assert re.search(rf"^  {verb} +{re.escape(about.help)}$", help, re.MULTILINE)


def test_nothing_asked_for_is_the_help_and_a_status_of_its_own(capsys):
    assert cli.main([]) == 2
    assert "usage: tokenmill COMMAND" in capsys.readouterr().out


def test_the_version_is_the_package_s(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"tokenmill {__version__}\n"


def test_an_unknown_verb_is_answered_with_those_that_there_are(capsys):
    assert cli.main(["reprot", "data"]) == 2
    verbs = "prepare, list, show, report, verify, mix, view, push, pull, convert"
    assert capsys.readouterr().err == (
        f"error: no command 'reprot'; the commands are {verbs}; did you mean report?\n"
    )


@pytest.mark.parametrize("verb", ["show", "report", "verify"])
def test_what_a_user_can_mend_is_one_line_and_no_traceback(verb, tmp_path):
    done = run(
        verb, tmp_path / "nowhere", *(["--row", "1", "--seq-len", "64"] if verb == "show" else [])
    )
    assert done.returncode == 1
    assert re.fullmatch(
        r"error: .*nowhere: expected a finished token set, found no such folder; .*\n", done.stderr
    )


@pytest.mark.parametrize(
    "words",
    [
        [
            "show",
            "TOKENS",
            "--batch",
            "0",
            "--batch-size",
            "64",
            "--world-size",
            "1",
            "--seq-len",
            "64",
            "--full",
        ],
        ["verify", "TOKENS"],
        ["--help"],
    ],
)
def test_a_reader_that_stops_early_is_told_nothing(prepared, words):
    words = [word.replace("TOKENS", str(prepared[1])) for word in words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        [sys.executable, "-m", "tokenmill", *words], cwd=ROOT, **pipes
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == ""


def test_presets_are_named_in_the_help_with_what_they_set():
    for face in (("-m", "tokenmill", "prepare"), ("prepare_data.py",)):
        help = flat(run("--help", face=face).stdout)
        assert "[PRESET]" in help
        assert "demo: --source stdlib --tokenizer train:8192" in help
        climbmix = "karpathy/climbmix-400b-shuffle --num-shards 170 --val-file last"
        assert f"climbmix: --source {climbmix}" in help
        fineweb = "karpathy/fineweb-edu-100b-shuffle --num-shards 46 --val-file shard_00045.parquet"
        assert f"fineweb-edu: --source {fineweb}" in help


def test_a_preset_that_there_is_not_is_answered_with_those_that_there_are(tmp_path):
    done = run("fineweb", cwd=tmp_path, face=(ROOT / "prepare_data.py",))
    assert done.returncode == 2
    presets = "there are fineweb-edu, climbmix, demo; did you mean fineweb-edu?"
    assert f"error: no preset 'fineweb', {presets}" in done.stderr
    assert not list(tmp_path.iterdir())


def test_flags_change_a_preset():
    for flag in ("--val-fraction", "--val_fraction"):  # tyro takes both
        config = command._parse(["fineweb-edu", flag, "0.01"], "prepare", PRESETS)
        assert (config.val_file, config.val_fraction) == (None, 0.01)
    config = command._parse(["demo", "--workers", "3"], "prepare", PRESETS)
    assert (config.source, config.tokenizer, config.workers) == (("stdlib",), "train:8192", 3)


def test_a_clone_s_user_adds_presets_in_config_py(tmp_path):
    """The clone's config.py, with a line of the user's own."""
    for name in ("prepare_data.py", "config.py"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    with open(tmp_path / "config.py", "a") as file:
        file.write('PRESETS["mine"] = PrepareConfig(source="my/files", tokenizer="train:32768")\n')
    done = run(
        "--help",
        cwd=tmp_path,
        face=("prepare_data.py",),
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
    )
    assert "mine: --source my/files --tokenizer train:32768" in flat(done.stdout)


def test_the_faces_give_what_the_package_has():
    import config
    import data
    import tokenmill

    assert config.PRESETS == tokenmill.PRESETS
    assert all(getattr(data, name) is getattr(tokenmill, name) for name in data.__all__)
    assert {
        "Mixture",
        "get_batch",
        "RowLoader",
        "PackedRows",
        "state_dict",
        "load_state_dict",
    } == set(data.__all__)
    for face in ("config.py", "data.py", "prepare_data.py"):
        assert len((ROOT / face).read_text().splitlines()) <= 16, (
            "a few lines that a newcomer understands at once"
        )


COMMANDS = [["-m", "tokenmill", verb] for verb in cli.VERBS if verb != "convert"]
COMMANDS += [["-m", "tokenmill", "convert", way] for way in ("in", "out")] + [
    ["examples/train_gpt.py"]
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_flag_of_every_command_says_what_it_is(words):
    """A field's comment is its help text, and is lost without a word where a formatter breaks its
    line.
    """
    done = warm.run(*words, "--help", cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: " in done.stdout
    lines = [line.strip("│ ") for line in done.stdout.splitlines() if line.startswith("│")]
    assert len(lines) > (1 if words[-1] == "list" else 2)
    words = r"(?:, --no-[\w-]+)?(?: \{[^}]*\}\S*| [A-Z|]+)*"
    assert not re.findall(
        rf"^(--[\w-]+{words}\s+\((?:default|required))", "\n".join(lines), re.MULTILINE
    )
    assert not re.findall(
        r"^\[?[A-Z]+\]? +[a-z]+ \((?:default|required)", "\n".join(lines), re.MULTILINE
    )
