"""No secret of an address is printed, by no command, log, warning, error or repr, with debug logging on."""

import contextlib
import io
import logging
import traceback
import warnings

import pytest
import warm
from file_server import FileServer
from making import ROOT, tree

from tokenmill import Mixture, PackedRows, PrepareConfig, RowLoader, TokenSet, cli, prepare
from tokenmill.addresses import display_address, named
from tokenmill.remote import files, ranges
from tokenmill.remote.copy import pull
from tokenmill.remote.token_set import CacheConfig, open_set
from tokenmill.sanitize import hide, redact, sanitize_logs

SECRET = "S3CRETofALongEnoughKind"
ADDRESSES = {
    "a password": "http://alice:{0}@{1}/set",
    "a token as the user": "http://{0}@{1}/set",
    "a signature": "http://{1}/set?sig={0}&se=2030-01-01",
    "two of them": "http://alice:{0}@{1}/set?X-Amz-Signature={0}",
    "a server that is not there": "http://alice:{0}@127.0.0.1:1/set?sig={0}",
    "no secure connection": "https://alice:{0}@{1}/set?sig={0}",
    "a bucket": "s3://key:{0}@bucket/set?sig={0}",
    "an option of a bucket": "s3://bucket/set?sig={0}",
    "no such kind": "nobody://alice:{0}@knows/this?sig={0}",
    "whatever fsspec knows": "memory://alice:{0}@there/set?sig={0}",
    "a fragment": "http://alice:{0}@{1}/set?sig={0}#part",
    "the hub": "hf://alice:{0}@datasets/o/n?sig={0}",
    "something else of the hub": "hf://models/o/n?token={0}",
    "a password in a repository of the hub": "hf://datasets/me:{0}@b/x",
    "a colon that is none": "https://me:{0}\uff1ax@h/x",
    "a password with #": "https://me:{0}#x@h/x",
    "a password with /": "https://me:{0}/x@h/x",
    "a password with ?": "https://me:{0}?x@h/x",
}


@pytest.fixture(params=ADDRESSES)
def address(request, prepared, tmp_path, monkeypatch):
    """An address with a secret; a set lies at those of the server, whose faults are many."""
    monkeypatch.setattr(files, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(files, "WARN_SECONDS", 0.0)
    monkeypatch.setattr(files, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(ranges, "SILENCE_SECONDS", 0.1)
    monkeypatch.setattr(ranges, "SECONDS", 0.8)
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    with FileServer.of(prepared[1]) as server:
        yield ADDRESSES[request.param].format(SECRET, f"127.0.0.1:{server.server_port}"), server


@pytest.fixture
def logged():
    """What the root logger gets, of every library that logs of requests, at level DEBUG."""
    text, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(text)
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield text
    root.removeHandler(handler)
    root.setLevel(level)


def with_secret(text: str) -> list[str]:
    """The lines that have the secret."""
    return [line for line in text.splitlines() if SECRET in line]


def through_faults(server, do) -> list[str]:
    """What do() raises and warns, whole tracebacks, at each fault of the server."""
    told = []
    for fault in ("", "403", "503", "flip", "drop", "redirect", "404"):
        server.always.clear()
        files = dict(server.files)
        if fault == "404":
            server.files.clear()
        elif fault:
            server.always[""] = fault
        server.location = f"ftp://alice:{SECRET}@other/x?sig={SECRET}"
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                told.append(repr(do()))
            except Exception as error:
                told.append("".join(traceback.format_exception(error)))
        told += [str(one.message) for one in warned]
        server.files.update(files)
    return told


def test_the_python_api_tells_no_secret(address, logged, tmp_path, tokenizer_json):
    address, server = address
    text = tmp_path / "x.txt"
    text.write_text("some text")

    def read():
        with RowLoader(address, batch_size=2, seq_len=64, cache_dir=tmp_path / "c") as loader:
            next(loader)
            return repr(loader)

    doings = [
        read,
        lambda: open_set(address, CacheConfig(tmp_path / "d")).file("tokenizer.json").name,
        lambda: pull(address, tmp_path / "pulled"),
        lambda: (
            Mixture({"a": 1}, sources={"a": address})
            and RowLoader(Mixture({"a": 1}, sources={"a": address}), batch_size=1, seq_len=8)
        ),
        lambda: repr(PackedRows(address, batch_size=1, seq_len=8)),
        lambda: files.write(str(named(address)), "a.bin", text),
        lambda: TokenSet(address),
        lambda: prepare(PrepareConfig(f"{address}/a.jsonl", tokenizer=tokenizer_json, tokens_root=tmp_path / "t")),
        lambda: prepare(PrepareConfig(str(text), tokenizer=tokenizer_json, tokens_root=address, val_file=str(text))),
        lambda: named(address) and None,
        lambda: display_address(address),
    ]
    for do in doings:
        told = through_faults(server, do)
        assert not with_secret("\n".join(told))
        assert not with_secret(logged.getvalue())


VERBS = [
    ["show", "{}", "--row", "0", "--seq-len", "64"],
    ["report", "{}", "--out", "r.html"],
    ["verify", "{}"],
    ["mix", "{}", "--tokens", "1M"],
    ["pull", "{}", "back"],
    ["convert", "out", "nanogpt", "{}", "out"],
    ["push", "{}", "{}"],
    ["prepare", "--source", "{}/a.parquet"],
    ["prepare", "--source", "x.txt", "--tokens-root", "{}"],
]


@pytest.mark.slow
@pytest.mark.parametrize("words", VERBS, ids=lambda words: " ".join(words[:3]))
def test_no_command_tells_a_secret(address, logged, capfd, tmp_path, words):
    address, server = address
    (tmp_path / "x.txt").write_text("text " * 100)
    for fault in ("", "503", "403"):
        server.always = {"": fault} if fault else {}
        with contextlib.suppress(SystemExit):  # of invalid arguments
            cli.main([word.format(address) for word in words])
    out, err = capfd.readouterr()
    assert not with_secret(out + err + logged.getvalue())
    assert not [path for path, data in tree(tmp_path).items() if SECRET.encode() in data]


def test_what_a_command_prints_of_a_bug_has_no_secret(tmp_path):
    """An error that nobody expects, a warning and a log record."""
    code = (
        f"import sys, logging, warnings; sys.path.insert(0, {str(ROOT)!r})\n"
        "from tokenmill import cli\n"
        f"address = 'http://alice:{SECRET}@127.0.0.1:9/set?sig={SECRET}'\n"
        "def bug():\n"
        "    from tokenmill.addresses import named\n"
        "    named(address)\n"
        f"    warnings.warn('of {SECRET}')\n"
        f"    logging.getLogger('tokenmill').warning('of %s', '{SECRET}')\n"
        "    raise RuntimeError('of ' + address)\n"
        "cli._exit_status(bug)\n"
    )
    done = warm.run("-c", code, cwd=tmp_path)
    assert done.returncode == 1
    assert "RuntimeError: of http://127.0.0.1:9/set" in done.stderr
    assert done.stderr.count("of [hidden]") == 2
    assert SECRET not in done.stderr.replace(f"'of {SECRET}'", "")  # a line of this program, which a traceback shows


def test_what_is_short_or_no_secret_is_printed_as_it_is():
    display_address("http://data:pass@host/a?anonymous")
    display_address("http://tokens@host/a?sv=2022")
    assert redact("data/tokens/pass anonymous 2022") == "data/tokens/pass anonymous 2022"
    hide("a secret of some length")
    assert redact("it is a secret of some length.") == "it is [hidden]."


def test_a_logged_traceback_has_no_secret(logged):
    sanitize_logs()
    try:
        named(f"http://alice:{SECRET}@127.0.0.1:9/set?sig={SECRET}")
        raise RuntimeError(f"of {SECRET}")
    except RuntimeError:
        logging.getLogger("tokenmill").exception("failed")
    assert "RuntimeError: of [hidden]" in logged.getvalue()
    assert SECRET not in logged.getvalue().replace("{SECRET}", "")


def test_presigned_requests_are_logged_without_their_signatures(logged):
    log = logging.getLogger("urllib3.connectionpool")
    sanitize_logs()
    log.debug(
        '%s://%s:%s "%s %s %s" %s %s', "http", "host", 80, "GET", "/a.bin?X-Amz-Signature=abc", "HTTP/1.1", 200, 5
    )
    assert '"GET /a.bin HTTP/1.1" 200 5' in logged.getvalue()
