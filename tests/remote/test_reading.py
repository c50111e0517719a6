"""Reading by ranges, through every fault that a server can have."""

import pytest
from file_server import FileServer

from tokenmill.addresses import named
from tokenmill.remote import backends, http_backend, retry
from tokenmill.remote.backends import backend_of, read

DATA = bytes(range(256)) * 400  # 102,400 bytes


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Patience of seconds, so that a test that needs all of it ends."""
    monkeypatch.setattr(retry, "PATIENCE_SECONDS", 3.0)
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(http_backend, "SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(http_backend, "RANGE_SECONDS", 0.8)


@pytest.fixture
def server():
    with FileServer({"set/a.bin": DATA}) as server:
        yield server


def ask(server, start=1000, stop=51_000, path="set"):
    return read(backend_of(f"{server.url}/{path}"), "a.bin", start, stop)


@pytest.mark.parametrize("fault", ["drop", "503", "429", "stall", "trickle", "short"])
def test_a_fault_that_passes_costs_another_try(server, fault):
    server.faults["set/a.bin"] = [fault, fault]
    assert ask(server) == DATA[1000:51_000]
    assert len(server.asked) == 3


@pytest.mark.parametrize("fault", ["drop", "503", "stall", "trickle", "short"])
def test_a_fault_that_does_not_pass_is_an_error_in_time_with_the_address(server, fault):
    server.always["a.bin"] = fault
    with pytest.raises(ConnectionError, match=r"/set/a.bin: could not be read in \d+ tries over .*; the last ended"):
        ask(server)


def test_retry_after_is_waited_for(server):
    slept = []
    server.faults["set/a.bin"], server.retry_after = ["429", "503"], "2"
    found = read(backend_of(f"{server.url}/set"), "a.bin", 1000, 51_000, pause_for=slept.append)
    assert found == DATA[1000:51_000]
    assert all(2 <= pause < 3 for pause in slept)
    assert len(slept) == 2


@pytest.mark.parametrize("location", [None, "file:///etc/passwd", "ftp://host/a.bin"])
def test_a_redirect_to_nowhere_is_an_error_at_once(server, location):
    server.always["a.bin"], server.location = "redirect", location
    with pytest.raises(OSError, match=r"/set/a.bin: redirected to '.*', which is no address of the web"):
        ask(server)
    assert len(server.asked) == 1


def test_a_circle_of_redirects_ends(server):
    server.always["a.bin"], server.location = "redirect", f"{server.url}/set/a.bin"
    with pytest.raises(OSError, match="/set/a.bin: redirected more than 5 times"):
        ask(server)


def test_an_address_with_a_fragment_is_refused():
    with pytest.raises(ValueError, match=r"s3://bucket/web: expected an address without `#`"):
        named("s3://bucket/web#2")


def test_what_is_tried_for_seconds_is_told(server, monkeypatch, caplog):
    monkeypatch.setattr(retry, "WARN_SECONDS", 0.05)
    server.faults["set/a.bin"] = ["stall"]
    server.faults["set/a.bin"] += ["503"]
    assert ask(server) == DATA[1000:51_000]
    (said,) = [message for message in caplog.messages if server.url in message]
    assert "/set/a.bin: not read yet, tried again for up to 3 s: " in said


def test_what_is_no_secure_connection_is_told_at_once(server):
    with pytest.raises(OSError, match="no secure connection"):
        read(backend_of(f"https://127.0.0.1:{server.server_port}/set"), "a.bin", 0, 10)


def test_what_is_not_there_and_what_may_not_be_read_are_final(server):
    backend = backend_of(f"{server.url}/set")
    with pytest.raises(FileNotFoundError, match="/set/b.bin: no such file"):
        read(backend, "b.bin", 0, 10)
    server.always["a.bin"] = "403"
    with pytest.raises(PermissionError, match="/set/a.bin: no access"):
        ask(server)
    assert len(server.asked) == 3


def test_a_server_that_knows_no_ranges_is_refused(server):
    server.always["a.bin"] = "whole"
    with pytest.raises(OSError, match="answers a range with the whole file"):
        ask(server)
    assert ask(server, 0, len(DATA)) == DATA, "the whole file is what was asked for"


def test_a_range_past_the_end_is_told(server):
    with pytest.raises(OSError, match="expected 300,000 bytes or more, found fewer"):
        ask(server, 200_000, 300_000)


def test_a_file_that_was_cut_is_told_at_once(server):
    with pytest.raises(
        OSError, match=r"/set/a.bin: expected 250,000 bytes or more, found \d+,\d+; it was replaced, or"
    ):
        ask(server, len(DATA) - 10, 250_000)
    assert len(server.asked) == 1


def test_a_server_that_sends_more_than_a_file_has_is_left(server, monkeypatch):
    """Manifests, records and tokenizers are read whole: as much as one may have."""
    monkeypatch.setattr(backends, "LARGEST", 10_000)
    with pytest.raises(OSError, match=r"/set/a.bin: expected at most 10,000 bytes, found .*; not read"):
        read(backend_of(f"{server.url}/set"), "a.bin")
    assert len(server.asked) == 1


def test_a_connection_is_kept(server):
    for start in range(0, 50_000, 1000):
        assert ask(server, start, start + 1000) == DATA[start : start + 1000]
    assert len(http_backend._pools) >= 1
    assert len(server.asked) == 50


def test_a_server_that_is_not_there_is_told():
    with pytest.raises(ConnectionError, match="could not be read"):
        read(backend_of("http://127.0.0.1:1/set"), "a.bin", 0, 10)


def test_a_signature_is_sent_and_never_shown(server):
    with pytest.raises(FileNotFoundError) as error:
        read(backend_of(f"{server.url}/set?sig=S3CRET"), "b.bin")
    assert "S3CRET" not in str(error.value)
    with pytest.raises(FileNotFoundError) as error:
        read(backend_of(f"http://alice:S3CRET@127.0.0.1:{server.server_port}/set"), "b.bin")
    assert "S3CRET" not in str(error.value)


# ---------------------------------------------------------------------------- the hub


@pytest.fixture
def hub(server, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", f"{server.url}/hub")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "hf_S3CRET")
    server.token = "hf_S3CRET"
    return server


def backend(revision=""):
    """One that nobody has asked yet."""
    from tokenmill.remote.hub_backend import HubBackend

    return HubBackend(f"hf://datasets/o/n{revision}/set")


def test_the_hub_is_read_through_redirects_that_are_kept(hub):
    here = backend()
    for start in (0, 1000, 2000):
        assert read(here, "a.bin", start, start + 1000) == DATA[start : start + 1000]
    assert [path for path, _ in hub.asked] == ["set/a.bin"] * 3
    assert hub.resolved == 1, "the hub, which takes few requests a minute, is asked once"
    assert len(here._redirects) == 1


def test_a_token_is_not_sent_to_another_port_of_its_host(hub, monkeypatch):
    sent, real = [], http_backend.get

    def noted(url, headers, *more):
        sent.append((url, "Authorization" in headers))
        return real(url, headers, *more)

    monkeypatch.setattr(http_backend, "get", noted)
    with FileServer({"set/a.bin": DATA}) as other:
        hub.always["a.bin"], hub.location = "redirect", f"{other.url}/set/a.bin"
        assert read(backend(), "a.bin", 0, 10) == DATA[:10]
    assert [has for url, has in sent if url.startswith(hub.url + "/hub/")] == [True]
    assert [has for url, has in sent if url.startswith(other.url)] == [False]


def test_a_redirect_that_has_expired_is_asked_for_anew(hub):
    here = backend()
    assert read(here, "a.bin", 0, 10) == DATA[:10]
    hub.renew()
    assert read(here, "a.bin", 10, 20) == DATA[10:20]


def test_a_repository_that_is_not_there_is_told(hub):
    with pytest.raises(FileNotFoundError, match="no such dataset repository or revision"):
        read(backend("@v9"), "a.bin")
    hub.token = "another"
    with pytest.raises(FileNotFoundError, match="set HF_TOKEN"):
        read(backend(), "a.bin")


def test_an_address_of_the_hub_is_checked():
    with pytest.raises(ValueError, match="expected hf://datasets/OWNER/NAME"):
        backend_of("hf://o/n")


# ---------------------------------------------------------------------------- fsspec


def test_whatever_fsspec_knows_is_read():
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe_file("/tokens/web/a.bin", DATA)
    backend = backend_of("memory://tokens/web")
    assert read(backend, "a.bin", 5, 105) == DATA[5:105]
    assert read(backend, "a.bin") == DATA
    with pytest.raises(FileNotFoundError, match="memory://tokens/web/b.bin"):
        read(backend, "b.bin")


def test_a_kind_of_address_that_nobody_knows_is_told():
    with pytest.raises(ValueError, match="no such kind of address"):
        backend_of("nobody://knows/this")
