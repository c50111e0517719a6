"""What the tests share: text, tokenizers and token sets that they make themselves, and ../shared where it is."""

import gc
import os
from pathlib import Path

import pytest
from hypothesis import settings
from making import make_text, make_token_set, run_prepare, write_parquet

from tokenmill.batches import plans
from tokenmill.rows.windows import Grain
from tokenmill.tokenize.tokenizer import Tokenizer, train_tokenizer

settings.register_profile("calm", deadline=None)  # how long an example takes is the machine's
settings.load_profile("calm")

SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_collection_modifyitems(items):
    """Tests whose DataLoaders fork come first: before others have started the thread pools of their libraries."""
    items.sort(key=lambda item: item.path.name != "test_packed_rows.py")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory) -> None:
    """What is kept from run to run is kept elsewhere."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """A byte-level BPE of 400 tokens with nanochat's pattern and special tokens."""
    return train_tokenizer(make_text(documents=200, seed=0), 400, "bpe400")


@pytest.fixture(scope="session")
def tokenizer_json(tokenizer, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("tokenizer") / "bpe400.json"
    tokenizer.save(path)
    return str(path)


@pytest.fixture
def source(tmp_path) -> Path:
    """A folder of four parquet files, 40 documents each, in row groups of 8."""
    folder = tmp_path / "corpus"
    for number in range(4):
        write_parquet(folder / f"shard_{number}.parquet", make_text(documents=40, seed=number), row_group_size=8)
    return folder


@pytest.fixture(scope="session")
def token_set(tmp_path_factory) -> Path:
    """A small token set of random ids: three training shards (one of long documents), one for validation."""
    return make_token_set(
        tmp_path_factory.mktemp("set") / "tokens" / "synthetic",
        train=[[5, 3, 40, 7, 2, 9, 16, 17, 1, 12], [3] * 20, [100, 33, 50]],
        val=[[4, 8, 30, 6, 2, 2, 11]],
    )


@pytest.fixture(params=["one window", "many windows"])
def windows(request, monkeypatch) -> str:
    """Runs a test with all of a small token set in one window, as it is, and in windows of a few slices."""
    if request.param == "many windows":
        monkeypatch.setattr(plans, "GRAIN", Grain(slice=16, window=64))
    return request.param


@pytest.fixture
def small_windows(monkeypatch) -> None:
    """Runs a test with a small token set in windows of a few slices."""
    monkeypatch.setattr(plans, "GRAIN", Grain(slice=16, window=64))


@pytest.fixture(scope="session")
def prepared(tokenizer_json, tmp_path_factory) -> tuple[Path, Path]:
    """Four parquet files in row groups of 300, and the token set that prepare_data.py made of them in many shards."""
    cwd = tmp_path_factory.mktemp("prepared")
    for number in range(4):
        texts = make_text(documents=700, seed=number, words=15)
        write_parquet(cwd / "corpus" / f"shard_{number}.parquet", texts, row_group_size=300)
    flags = ["--source", "corpus", "--tokenizer", tokenizer_json, "--workers", "2", "--shard-text-bytes", "50000"]
    done = run_prepare(*flags, cwd=cwd)
    return cwd / "corpus", cwd / done.stdout.splitlines()[-1]


@pytest.fixture(scope="session")
def shared_corpus() -> Path:
    if not (SHARED / "corpus").is_dir():
        pytest.skip("no ../shared/corpus beside this checkout")
    return SHARED / "corpus"


@pytest.fixture(scope="session")
def gpt2() -> Tokenizer:
    if not (SHARED / "tiktoken_cache").is_dir():
        pytest.skip("no ../shared/tiktoken_cache beside this checkout")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(SHARED / "tiktoken_cache")
    from tokenmill.tokenize.tokenizer import load_tokenizer

    return load_tokenizer("gpt2")


@pytest.fixture(scope="session")
def moto():
    """A server that speaks S3."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
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

    boto3.client("s3").create_bucket(Bucket=name)
    return name


@pytest.fixture
def soon_given_up(monkeypatch):
    """A StatefulDataLoader that raised while it began waits five seconds for each of its workers, then ends it."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
    yield
    gc.collect()  # of it, as exceptions are in cycles
