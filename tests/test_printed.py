"""What is printed of others' words steers no terminal and tells no password, whichever command prints it."""

import os
import pty
import select
import subprocess
import sys
import time

import pytest
from hub_server import Hub, environment
from making import ROOT, make_text, write_parquet

from tokenmill import cli
from tokenmill.printed import printed, without_controls


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
        ("s3://key@bucket/x and https://h/y?z=@", "s3://bucket/x and https://h/y?z=@"),
    ],
)
def test_printed(told, shown):
    assert printed(told) == shown
    assert "S3CRET" in told or "@" in told or without_controls(told) == shown


def test_an_error_tells_no_password_and_steers_nothing(capsys, tmp_path):
    flags = ["--tokens-root", str(tmp_path)]
    assert cli.main(["prepare", "--source", "http://alice:S3CRET@127.0.0.1:9/a.parquet", *flags]) == 1
    assert cli.main(["show", str(tmp_path / "a\x1b[2Jb\x9b"), "--row", "0"]) == 1
    told = capsys.readouterr().err
    assert "http://127.0.0.1:9" in told
    assert "S3CRET" not in told
    assert "\x1b" not in told
    assert "\x9b" not in told


def in_a_terminal(command, **more) -> tuple[int, str]:
    """A command's exit status, and what a terminal gets."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, **more)
    os.close(theirs)
    got, until = b"", time.monotonic() + 120
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
    server = Hub("owner/corpus", {"a[/b].parquet": path.read_bytes(), "[red]b.parquet": path.read_bytes()})
    try:
        command = [sys.executable, str(ROOT / "prepare_data.py"), "--source", "owner/corpus", "--num-shards", "2"]
        more = {"cwd": tmp_path, "env": environment(server.url, tmp_path) | {"TERM": "xterm", "COLUMNS": "200"}}
        status, told = in_a_terminal([*command, "--tokenizer", tokenizer_json], **more)
    finally:
        server.shutdown()
        server.server_close()
    assert status == 0, told
    assert "a[/b].parquet" in told
    assert "[red]b.parquet" in told
