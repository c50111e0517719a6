"""What is printed of others' words steers no terminal and tells no password, whichever command
prints it.
"""

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
import traceback

import pytest
import warm
from file_server import FileServer, Hub, environment
from making import QUICK_REPORT, ROOT, make_text, run_prepare, tree, write_parquet

from tokenmill import RowLoader, TokenSet, cli
from tokenmill.addresses import named
from tokenmill.messages import escape_controls, sanitize


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("a\x1b[2Jb", "a␛[2Jb"),
        ("a\x9b2Jb\x7f", r"a\x9b2Jb␡"),
        ("a\u202etxt.exe", r"a\u202etxt.exe"),
        ("a\u2028b", r"a\u2028b"),
        ("one line\n\tand another", "one line\n\tand another"),
        ("مرحبا é 水車 👩\u200d🚀", "مرحبا é 水車 👩\u200d🚀"),
        ("http://alice:S3CRET@host/a.parquet: 404", "http://host/a.parquet: 404"),
        ("get http://host/a?sig=S3CRET&x=1 now", "get http://host/a now"),
        ("s3://key@bucket/x and https://h/y?z=@", "s3://bucket/x and https://h/y"),
    ],
)
def test_printed(told, shown):
    assert sanitize(told) == shown
    assert "S3CRET" in told or "@" in told or escape_controls(told) == shown


def test_an_error_tells_no_signature_and_steers_nothing(capsys, tmp_path):
    flags = ["--tokens-root", str(tmp_path)]
    assert cli.main(["prepare", "--source", "http://127.0.0.1:9/a.parquet?sig=S3CRET", *flags]) == 1
    assert cli.main(["show", str(tmp_path / "a\x1b[2Jb\x9b"), "--row", "0", "--seq-len", "64"]) == 1
    error = capsys.readouterr().err
    assert "http://127.0.0.1:9" in error
    assert "S3CRET" not in error
    assert "\x1b" not in error
    assert "\x9b" not in error


def in_a_terminal(command, **more) -> tuple[int, str]:
    """A command's exit status, and what a terminal gets."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, **more)
    os.close(theirs)
    got = b""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                data = os.read(ours, 65536)
            except OSError:  # its end
                break
            got += data
        elif process.poll() is not None:
            break
    process.kill()
    os.close(ours)
    return process.wait(), got.decode("utf-8", "replace")


def test_a_file_of_the_hub_that_is_called_like_markup(tokenizer_json, tmp_path):
    path = write_parquet(tmp_path / "there" / "a.parquet", make_text(documents=30, seed=1))
    with Hub(
        "owner/corpus", dict.fromkeys(("a[/b].parquet", "a[/[red]b.parquet"), path.read_bytes())
    ) as server:
        command = [sys.executable, str(ROOT / "prepare_data.py"), "--source", "owner/corpus"]
        command += ["--num-shards", "2", "--tokenizer", tokenizer_json]
        env = environment(server.url, tmp_path) | {"TERM": "xterm", "COLUMNS": "200"}
        status, shown = in_a_terminal(command, cwd=tmp_path, env=env)
    assert status == 0, shown
    assert "a[/b].parquet" in shown
    assert "[red]b.parquet" in shown


def test_a_signature_is_in_no_file_and_no_word(tokenizer_json, tmp_path):
    for name in ("a", "z"):
        write_parquet(tmp_path / "there" / f"{name}.parquet", make_text(documents=9, seed=0))
    with FileServer.of(tmp_path / "there") as server:
        server.sig = "S3CRET"
        where = f"{server.url}/set"
        flags = ["--val-file", f"{where}/z.parquet?sig=S3CRET"]
        flags += ["--tokenizer", tokenizer_json, "--name", "web"]
        done = run_prepare("--source", f"{where}/a.parquet?sig=S3CRET", *flags, cwd=tmp_path)
        folder = tmp_path / done.stdout.splitlines()[-1]
        bad = run_prepare(
            "--source", f"{where}/b.parquet?sig=S3CRET", *flags, cwd=tmp_path, check=False
        )
    with FileServer.of(folder) as server:
        where = f"{server.url}/set?sig=S3CRET"
        words = (*QUICK_REPORT, where, "--out", tmp_path / "report.html")
        report = warm.run(
            *words, cwd=ROOT, env={**os.environ, "TOKENMILL_CACHE": str(tmp_path / "cache")}
        )
    assert report.returncode == 0, report.stderr
    assert bad.returncode != 0
    for command in (done, bad, report):
        assert "S3CRET" not in command.stdout + command.stderr
    assert [path for path, data in tree(tmp_path).items() if b"S3CRET" in data] == []


@pytest.mark.parametrize(
    "address",
    [
        "http://alice:S3CRET@127.0.0.1:1/set",
        "s3://key:S3CRET@bucket/set",
        "nobody://alice:S3CRET@knows/this",
        "https://me:S3CRET\uff1ax@h/x",
        "https://me:S3CRET/x@h/x",
        "sftp://me:S3CRET@host/x",
    ],
)
def test_an_address_with_a_password_is_refused_and_not_shown(
    address, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("text " * 100)
    commands = [
        "show {} --row 0 --seq-len 64",
        "verify {}",
        "pull {} back",
        "convert out nanogpt {} out",
    ]
    commands += [
        "prepare --source {}/a.parquet",
        "prepare --source x.txt --tokens-root {}",
        "push {} s3://bucket/x",
    ]
    for command in commands:
        with contextlib.suppress(SystemExit):  # of invalid arguments
            assert cli.main(command.format(address).split()) == 1
        printed = " ".join("".join(capsys.readouterr()).split())
        assert "expected a host, perhaps with a port, and no user or password" in printed
        assert "S3CRET" not in printed
    assert [path.name for path in tmp_path.iterdir()] == ["x.txt"]
    for make in (lambda: TokenSet(address), lambda: RowLoader(address, batch_size=1, seq_len=8)):
        with pytest.raises(ValueError, match="no user or password") as error:
            make()
        assert "S3CRET" not in "".join(traceback.format_exception(error.value))


def test_a_user_that_is_no_secret_is_kept():
    for address in (
        "sftp://me@host/x",
        "abfs://container@account.dfs.core.windows.net/x",
        "hf://datasets/o/n@v1/x",
    ):
        assert named(address) == address
