"""What the tests share: text, tokenizers and token sets that they make themselves, and ../shared
where it is.

Each fixture imports what it needs, so that the tests of a wing need no more than the wing: those of
rows/ run with numpy, pytest and hypothesis.
"""

import gc
import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tokenmill.tokenize.tokenizer import Tokenizer

settings.register_profile("calm", deadline=None)  # how long an example takes is the machine's
settings.load_profile("calm")
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # in a shell's background: what tests start would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = Path(__file__).resolve().parents[2] / "shared"


# Files in the order in which they begin; all others follow. DataLoaders fork in
# test_packed_rows.py, before other tests have started the thread pools of their libraries. Then
# those that take longest, so that both processes end together.
FIRST = (
    "packed_rows",
    "clients",
    "ray",
    "train",
    "package",
    "train_jax",
    "engines",
    "types",
    "notebook",
    "docs",
)
FIRST += (
    "real_templates",
    "hub",
    "show",
    "fuzz",
    "files",
    "huggingface",
    "prepare",
    "torture",
    "part_cache",
    "copy",
)
FIRST += (
    "destination",
    "validation",
    "jax_arrays",
    "prepare_chat",
    "lifetime",
    "rows",
    "convert",
    "report",
)


def pytest_collection_modifyitems(items):
    begins = {f"test_{name}.py": number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: begins.get(item.path.name, len(FIRST)))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory) -> None:
    """What is kept from run to run is kept elsewhere."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["HF_HUB_DISABLE_XET"] = (
        "1"  # huggingface_hub reads it once, and the hubs of these tests have no Xet
    )


@pytest.fixture(autouse=True)
def own_loaders(monkeypatch) -> None:
    """The loaders that get_batch keeps are each test's own."""
    if module := sys.modules.get("tokenmill.batches.get_batch"):
        monkeypatch.setattr(module, "_loaders", module.LoaderCache())


@pytest.fixture(scope="session")
def tokenizer() -> "Tokenizer":
    """A byte-level BPE of 400 tokens with nanochat's pattern and special tokens."""
    from making import make_text

    from tokenmill.tokenize.train import train_tokenizer

    return train_tokenizer(make_text(documents=200, seed=0), 400, "bpe400")


@pytest.fixture(scope="session")
def tokenizer_json(tokenizer, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("tokenizer") / "bpe400.json"
    tokenizer.save(path)
    return str(path)


@pytest.fixture
def source(tmp_path) -> Path:
    """A folder of four parquet files, 40 documents each, in row groups of 8."""
    from making import make_text, write_parquet

    folder = tmp_path / "corpus"
    for number in range(4):
        write_parquet(
            folder / f"shard_{number}.parquet",
            make_text(documents=40, seed=number),
            row_group_size=8,
        )
    return folder


@pytest.fixture(scope="session")
def token_set(tmp_path_factory) -> Path:
    """A small token set of random ids: three training shards (one of long documents), one for
    validation.
    """
    from making import make_token_set

    return make_token_set(
        tmp_path_factory.mktemp("set") / "tokens" / "synthetic",
        train=[[5, 3, 40, 7, 2, 9, 16, 17, 1, 12], [3] * 20, [100, 33, 50]],
        val=[[4, 8, 30, 6, 2, 2, 11]],
    )


@pytest.fixture(params=["one window", "many windows"])
def windows(request, monkeypatch) -> str:
    """Runs a test with all of a small token set in one window, as it is, and in windows of a few
    slices.
    """
    if request.param == "many windows":
        request.getfixturevalue("small_windows")
    return request.param


@pytest.fixture
def small_windows(monkeypatch) -> None:
    """Runs a test with a small token set in windows of a few slices."""
    from tokenmill.rows import windows

    monkeypatch.setattr(windows, "DEFAULT_WINDOW_SIZE", windows.WindowSize(slice=16, window=64))


@pytest.fixture(scope="session")
def prepared(tokenizer_json, tmp_path_factory) -> tuple[Path, Path]:
    """Four parquet files in row groups of 300, and the token set that prepare_data.py made of them
    in many shards.
    """
    from making import make_text, run_prepare, write_parquet

    cwd = tmp_path_factory.mktemp("prepared")
    for number in range(4):
        texts = make_text(documents=700, seed=number, words=15)
        write_parquet(cwd / "corpus" / f"shard_{number}.parquet", texts, row_group_size=300)
    flags = [
        "--source",
        "corpus",
        "--tokenizer",
        tokenizer_json,
        "--workers",
        "2",
        "--shard-text-bytes",
        "33000",
    ]
    flags += ["--val-file", "shard_3.parquet"]
    done = run_prepare(*flags, cwd=cwd)
    return cwd / "corpus", cwd / done.stdout.splitlines()[-1]


@pytest.fixture(scope="session")
def gpt2() -> "Tokenizer":
    if not (SHARED / "tiktoken_cache").is_dir():
        pytest.skip("no ../shared/tiktoken_cache beside this checkout")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(SHARED / "tiktoken_cache")
    from tokenmill.tokenize.vocabularies import load_tokenizer

    return load_tokenizer("gpt2")


@pytest.fixture(scope="session")
def moto():
    """A server that speaks S3."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(moto, monkeypatch, tmp_path):
    """An empty bucket, and credentials for it."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    name = f"b{abs(hash(tmp_path)) % 10**8}"
    import boto3
    import fsspec

    from tokenmill.remote import files

    boto3.client("s3").create_bucket(Bucket=name)
    files._s3_client.cache_clear()  # of other tests, with other credentials
    files._url_on_the_hub.cache_clear()
    if importlib.util.find_spec("s3fs"):
        fsspec.get_filesystem_class("s3").clear_instance_cache()
    yield name
    if importlib.util.find_spec("s3fs"):  # or other tests would ask this server
        fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.fixture
def soon_given_up(monkeypatch):
    """A StatefulDataLoader that raised while it began waits five seconds for each of its workers,
    then ends it.
    """
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
    yield
    gc.collect()  # of it, as exceptions are in cycles


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium; skips where none is installed."""
    import contextlib

    from browser import chromium

    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(chromium())
        except FileNotFoundError as error:
            pytest.skip(str(error))
