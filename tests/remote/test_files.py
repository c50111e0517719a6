"""Objects are read through every fault that a server can have, and what does not pass is one clear
error.
"""

import traceback
from functools import cache

import fsspec
import pytest
from elsewhere import batches, same
from file_server import FileServer

from tokenmill import RowLoader
from tokenmill.addresses import named
from tokenmill.remote import files
from tokenmill.remote.files import read, sizes, write
from tokenmill.remote.retry import WrongBytes
from tokenmill.remote.token_set import open_set

DATA = bytes(range(256)) * 400  # 102,400 bytes
pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def plain():
    with FileServer({"set/a.bin": DATA}) as server:
        yield server


def ask(server, start=1000, end=51_000):
    return read(f"{server.url}/set", "a.bin", start, end)


def short(data):
    if len(data) != 50_000:
        raise WrongBytes("expected 50,000 bytes")


@pytest.mark.parametrize("fault", ["drop", "503", "429", "stall", "trickle"])
def test_a_fault_that_passes_costs_another_try(plain, fault):
    plain.faults["set/a.bin"] = [fault, fault]
    assert ask(plain) == DATA[1000:51_000]
    assert len(plain.asked) == 3


@pytest.mark.parametrize("fault", ["drop", "503", "stall", "trickle"])
def test_a_fault_that_does_not_pass_is_an_error_in_time_with_the_address(plain, fault):
    plain.always["a.bin"] = fault
    with pytest.raises(
        ConnectionError, match=r"/set/a.bin: cannot be read, \d+ tries over \d+ s: "
    ):
        ask(plain)


def test_wrong_bytes_are_asked_for_three_times(plain):
    plain.faults["set/a.bin"] = ["short", "short"]
    assert read(f"{plain.url}/set", "a.bin", 1000, 51_000, short) == DATA[1000:51_000]
    plain.always["a.bin"] = "short"
    with pytest.raises(
        WrongBytes, match=r"a.bin: cannot be read, 3 tries over .*: expected 50,000 bytes"
    ):
        read(f"{plain.url}/set", "a.bin", 1000, 51_000, short)


@pytest.mark.parametrize("location", [None, "file:///etc/passwd", "ftp://host/a.bin", "itself"])
def test_a_redirect_to_nowhere_is_an_error_at_once(plain, location):
    plain.always["a.bin"] = "redirect"
    plain.location = f"{plain.url}/set/a.bin" if location == "itself" else location
    with pytest.raises(
        (OSError, ValueError),
        match=r"/set/a.bin: cannot be read: (HTTP status 302|.*scheme|No host)",
    ):
        ask(plain)
    assert len(plain.asked) <= 6


def test_what_is_missing_forbidden_or_not_supported_is_final(plain):
    with pytest.raises(FileNotFoundError, match="/set/b.bin: cannot be read: HTTP status 404"):
        read(f"{plain.url}/set", "b.bin", 0, 10)
    plain.always["a.bin"] = "403"
    with pytest.raises(PermissionError, match="/set/a.bin: cannot be read: HTTP status 403"):
        ask(plain)
    plain.always["a.bin"] = "whole"
    with pytest.raises(
        OSError, match="asked for 50,000 bytes, and more came: the server does not support"
    ):
        ask(plain)
    assert ask(plain, 0, len(DATA)) == DATA, "the whole file is what was asked for"
    with pytest.raises(ValueError, match="expected at most 10,000 bytes, found more"):
        read(f"{plain.url}/set", "a.bin", most=10_000)
    with pytest.raises(ConnectionError, match=r"cannot be read: .*SSL"):
        read(f"https://127.0.0.1:{plain.server_port}/set", "a.bin", 0, 10)
    assert len(plain.asked) == 5, "none was tried twice"


@pytest.mark.parametrize("fault", [None, "403", "503", "flip", "drop", "redirect"])
def test_a_signature_is_sent_and_never_shown(plain, fault):
    plain.sig = "S3CRET"
    address = f"{plain.url}/set?sig={plain.sig}"
    assert read(address, "a.bin", 0, 10) == DATA[:10]
    plain.always = {"": fault} if fault else {}
    plain.location = f"ftp://other/x?sig={plain.sig}"
    with pytest.raises(OSError, match=r"/set/b.bin: cannot be read") as error:
        read(str(named(address)), "b.bin")
    assert plain.sig not in "".join(traceback.format_exception(error.value))


# ---------------------------------------------------------------------------- other kinds of
# addresses


def test_whatever_fsspec_knows_is_read_written_and_listed(tmp_path):
    address = f"memory://tokens/{tmp_path.name}"
    (tmp_path / "a").write_bytes(DATA)
    (tmp_path / "b").write_bytes(b"b")
    write(address, "a.bin", tmp_path / "a")
    write(address, "views/b", tmp_path / "b")
    assert fsspec.filesystem("memory").cat(f"/tokens/{tmp_path.name}/a.bin") == DATA
    assert read(address, "a.bin", 5, 105) == DATA[5:105]
    assert read(address, "a.bin") == DATA
    assert sizes(address) == {"a.bin": len(DATA), "views/b": 1}
    assert sizes(address, "views") == {"views/b": 1}
    with pytest.raises(FileNotFoundError, match=f"{address}/b.bin: cannot be read"):
        read(address, "b.bin")
    with pytest.raises(FileNotFoundError):
        read("memory://credentials-web", "Credentials.json")
    with pytest.raises(ValueError, match="expected at most 10 bytes, found more"):
        read(address, "a.bin", most=10)
    with pytest.raises(ValueError, match="nobody://knows/this/a: no such kind of address"):
        read("nobody://knows/this", "a")
    for web in ("https://host/set", "hf://datasets/o/n"):
        with pytest.raises(ValueError, match="files cannot be sent there one by one"):
            write(web, "a", tmp_path / "a")


def test_s3_is_read_written_and_listed(bucket, tmp_path):
    address = f"s3://{bucket}/tokens/web"
    (tmp_path / "a").write_bytes(DATA)
    write(address, "a.bin", tmp_path / "a")
    assert read(address, "a.bin", 1000, 51_000) == DATA[1000:51_000]
    assert read(address, "a.bin") == DATA
    assert sizes(address) == {"a.bin": len(DATA)}
    with pytest.raises(FileNotFoundError, match=rf"{address}/b.bin: cannot be read"):
        read(address, "b.bin", 0, 10)
    assert sizes("s3://no-such-bucket/x") == {}
    with pytest.raises(FileNotFoundError, match="s3://no-such-bucket/x/a: cannot be written"):
        write("s3://no-such-bucket/x", "a", tmp_path / "a")


def test_s3_without_credentials_or_in_another_region_is_one_clear_error(
    plain, monkeypatch, tmp_path
):
    """A server that answers as S3 does for a bucket of another region: 301 without a Location."""
    for key, value in {
        "AWS_ENDPOINT_URL": plain.url,
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(key, value)
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(key, raising=False)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    files._s3_client.cache_clear()
    files._url_on_the_hub.cache_clear()
    with pytest.raises(
        PermissionError,
        match=r"redentials.*; set AWS credentials that have access, .*FSSPEC_S3_ANON",
    ):
        read("s3://set/x", "a.bin", 0, 10)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    plain.files["set/x/a.bin"] = DATA
    plain.always["x/a.bin"] = "301"
    with pytest.raises((OSError, ValueError), match="s3://set/x/a.bin: cannot be read"):
        read("s3://set/x", "a.bin", 0, 10)
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def test_the_hub_is_read_through_redirects_that_are_kept_and_renewed(hub, monkeypatch):
    hub.files["set/a.bin"] = DATA
    for address in ("hf://datasets/o/n/set", "hf://datasets/o/renamed@main/set"):
        for start in (0, 1000, 2000):
            assert read(address, "a.bin", start, start + 1000) == DATA[start : start + 1000]
    assert hub.resolved == 2, "the hub, which takes few requests a minute, is asked once for each"
    hub.renew()
    assert read("hf://datasets/o/n/set", "a.bin", 10, 20) == DATA[10:20]
    assert sizes("hf://datasets/o/n/set") == {"a.bin": len(DATA)}
    files._url_on_the_hub.cache_clear()
    with monkeypatch.context() as offline:
        offline.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(ConnectionError, match="a.bin: cannot be read: .*offline"):
            read("hf://datasets/o/n/set", "a.bin")
    hub.token = "another"
    with pytest.raises(PermissionError, match="for a private repository set HF_TOKEN"):
        read("hf://datasets/o/n/set", "a.bin")
    with pytest.raises(ValueError, match="expected hf://datasets/OWNER/NAME"):
        read("hf://o/n", "a.bin")


# ---------------------------------------------------------------------------- what rows become of
# it


@pytest.mark.parametrize("fault", ["drop", "flip", "503", "429", "short", "stall"])
def test_rows_are_right_through_faults_that_pass(folder, server, tmp_path, fault):
    for path in server.files:
        server.faults[path] = [fault] if path.endswith((".bin", ".idx")) else []
    assert same(batches(f"{server.url}/set", 200, cache_dir=tmp_path), batches(folder, 200))


PAGE = b"<!doctype html><title>Sign in</title>" * 30_000
NO_ROWS = {
    "wrong bytes": (
        lambda s: s.always.update({"train_2.000.bin": "flip"}),
        r"train_2.000.bin: .*CRC-32",
    ),
    "half of them": (
        lambda s: s.always.update({"train_2.000.bin": "short"}),
        r"train_2.000.bin: .*CRC-32",
    ),
    "a login page": (
        lambda s: s.files.update({"set/shards/train_2.000.bin": PAGE}),
        "train_2.000.bin: cannot be read",
    ),
    "as offsets": (
        lambda s: s.files.update({"set/shards/train_0.000.idx": PAGE}),
        "train_0.000.idx: .*SHA-256",
    ),
    "as the manifest": (
        lambda s: s.files.update({"set/manifest.json": PAGE}),
        "manifest.json: .*found broken JSON",
    ),
    "another shard's record": (
        lambda s: s.files.update(
            {"set/shards/train_0.000.json": s.files["set/shards/train_1.000.json"]}
        ),
        "train_0.000.json: .*SHA-256",
    ),
    "no tokens": (
        lambda s: s.files.pop("set/shards/train_0.000.bin"),
        "train_0.000.bin: cannot be read",
    ),
    "no offsets": (
        lambda s: s.files.pop("set/shards/train_0.000.idx"),
        "train_0.000.idx: cannot be read",
    ),
    "no record": (
        lambda s: s.files.pop("set/shards/train_0.000.json"),
        "train_0.000.json: cannot be read",
    ),
    "no set": (
        lambda s: s.files.pop("set/manifest.json"),
        "/set: expected a finished token set, found no manifest",
    ),
    "no ranges": (lambda s: s.always.update({".bin": "whole"}), "does not support ranges"),
    "a stall": (
        lambda s: s.always.update({"train_2.000.bin": "stall"}),
        r"train_2.000.bin: cannot be read, \d+ tries",
    ),
}


@cache
def rows_of(folder):
    return [inputs for inputs, _ in batches(folder, batch_size=32)]


@pytest.mark.parametrize("fault", NO_ROWS)
def test_what_is_not_the_set_s_is_an_error_and_no_row(folder, server, tmp_path, fault):
    """And once it has passed, the same loader continues."""
    order, message = NO_ROWS[fault]
    here = rows_of(folder)
    right = dict(server.files)
    address = f"{server.url}/set"
    order(server)
    if fault in ("no set", "as the manifest"):
        with pytest.raises((OSError, ValueError), match=message):
            open_set(address)
        return
    there = []
    with RowLoader(address, batch_size=32, seq_len=512, epochs=1, cache_dir=tmp_path) as loader:
        with pytest.raises((OSError, ValueError), match=message):
            there.extend(inputs for inputs, _ in loader)
        there = there[: loader.step]
        server.always.clear()
        server.files.update(right)
        there += [next(loader)[0] for _ in range(len(here) - loader.step)]
    assert same(there, here)
