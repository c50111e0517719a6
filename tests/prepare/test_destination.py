"""Preparing into a bucket: the same set as in a folder, by any number of machines."""

import json
import sys
from dataclasses import replace
from itertools import chain

import boto3
import pytest
import torch
import warm
from making import ROOT, make_text, run_prepare, tree, write_parquet

from tokenmill import PrepareConfig, RowLoader
from tokenmill.prepare import destination as destination_module
from tokenmill.prepare.choose_tokenizer import find_tokenizer
from tokenmill.prepare.destination import Destination
from tokenmill.prepare.input_files import list_files
from tokenmill.prepare.make import make
from tokenmill.prepare.remembered import command_path
from tokenmill.prepare.run import prepare
from tokenmill.remote.token_set import CacheConfig, open_set
from tokenmill.store import locks

run_module = sys.modules["tokenmill.prepare.run"]  # tokenmill.prepare is a function
SHARDS = ("--shard-text-bytes", "60000", "--workers", "2", "--val-file", "shard_3.parquet")


@pytest.fixture
def flags(source, tokenizer_json):
    return ["--source", str(source), "--tokenizer", tokenizer_json, *SHARDS]


def objects(bucket: str, prefix: str = "tokens/") -> dict[str, bytes]:
    """What lies in a bucket, by its name without the set's."""
    s3 = boto3.client("s3")
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    items = chain.from_iterable(page.get("Contents", ()) for page in pages)
    keys = [item["Key"] for item in items]
    return {
        key.split("/", 2)[2]: s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys
    }


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_bucket_gets_what_a_folder_gets(flags, bucket, tmp_path, cache):
    done = run_prepare(*flags, cwd=tmp_path)
    here = tmp_path / done.stdout.splitlines()[-1]
    done = run_prepare(*flags, "--tokens-root", f"s3://{bucket}/tokens", cwd=tmp_path)
    address = done.stdout.splitlines()[-1]
    assert address == f"s3://{bucket}/tokens/{here.name}"
    assert objects(bucket) == tree(here)
    assert not list(cache.rglob("*.bin")), "no shard stays"
    dry = run_prepare(*flags, "--tokens-root", f"s3://{bucket}/tokens", "--dry-run", cwd=tmp_path)
    assert "all shards are made" in dry.stdout
    loaders = [
        RowLoader(tokens, batch_size=4, seq_len=64, cache_dir=cache) for tokens in (here, address)
    ]
    for _ in range(30):
        first, second = (next(loader)[0] for loader in loaders)
        assert torch.equal(first, second)


def test_two_runs_at_once_write_the_same_bytes(flags, bucket, tmp_path):
    """As a doubled task of Slurm: the same command, twice, on one machine."""
    here = tmp_path / run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1]
    words = [*flags, "--tokens-root", f"s3://{bucket}/tokens"]
    first = warm.Command(ROOT / "prepare_data.py", *words, cwd=tmp_path)
    run_prepare(*words, cwd=tmp_path)
    done = first.done()
    assert done.returncode == 0, done.stderr
    assert objects(bucket) == tree(here)


@pytest.fixture
def small(tokenizer_json, bucket, tmp_path):
    """Settings for a set of two small files at an address."""
    for name in "ab":
        write_parquet(tmp_path / f"{name}.parquet", make_text(20, seed=ord(name)))
    return PrepareConfig(
        source=[str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")],
        name="s",
        tokenizer=str(tokenizer_json),
        tokens_root=f"s3://{bucket}/tokens",
        workers=1,
    )


@pytest.mark.parametrize("size", [None, 15_000])
def test_a_run_that_would_unlist_another_run_s_shards_is_refused(size, small):
    """An address has no lock: of two runs of other sources, the second to end is refused."""
    both = replace(small, shard_text_bytes=size)
    with pytest.MonkeyPatch.context() as patch:
        make_missing = run_module._make_missing

        def meanwhile(*arguments):
            patch.setattr(run_module, "_make_missing", make_missing)
            prepare(both)
            return make_missing(*arguments)

        patch.setattr(run_module, "_make_missing", meanwhile)
        with pytest.raises(ValueError, match=r"another run has made shard .* while this one ran"):
            prepare(replace(both, source=both.source[:1]))


def test_names_in_a_bucket_lead_nowhere_else(flags, bucket, tmp_path, cache):
    """Whoever may write to a bucket chooses the names of its objects."""
    words = [*flags, "--tokens-root", f"s3://{bucket}/tokens"]
    name = run_prepare(*words, cwd=tmp_path).stdout.splitlines()[-1].rpartition("/")[2]
    keys = [
        f"/{tmp_path}/elsewhere/a.json",
        "../../../b.json",
        "shards/../../c.json",
        "manifests/x.json",
        "shards/x/y.json",
    ]
    for key in keys:
        boto3.client("s3").put_object(Bucket=bucket, Key=f"tokens/{name}/{key}", Body=b"{}")
    before = set(tmp_path.rglob("*"))
    assert "all shards are made" in run_prepare(*words, cwd=tmp_path).stderr
    assert not [path for path in set(tmp_path.rglob("*")) - before if path.suffix == ".json"]


def test_a_set_in_a_bucket_grows(source, tokenizer_json, bucket, tmp_path, cache):
    flags = [
        "--tokenizer",
        tokenizer_json,
        *SHARDS,
        "--tokens-root",
        f"s3://{bucket}/tokens",
        "--name",
        "web",
    ]
    few = tmp_path / "few"
    few.mkdir()
    for number in (0, 3):
        (few / f"shard_{number}.parquet").write_bytes(
            (source / f"shard_{number}.parquet").read_bytes()
        )
    address = run_prepare("--source", str(few), *flags, cwd=tmp_path).stdout.splitlines()[-1]
    loader = RowLoader(address, batch_size=4, seq_len=64, cache_dir=cache)
    next(loader)
    state = loader.state_dict()
    after = next(loader)[0]
    before = open_set(address, CacheConfig(cache)).digest
    run_prepare("--source", str(source), *flags, cwd=tmp_path)
    assert open_set(address, CacheConfig(cache)).digest != before
    grown = RowLoader(address, batch_size=4, seq_len=64, cache_dir=cache)
    grown.load_state_dict(state)
    assert torch.equal(next(grown)[0], after), (
        "the epoch goes on over the shards that it began with"
    )


@pytest.mark.parametrize(
    "root", ["s3://no-such-bucket/tokens", "s4://bucket/tokens", "memory://tokens"]
)
def test_what_cannot_be_written_to_is_refused_before_anything_is_made(
    root, flags, bucket, tmp_path
):
    done = run_prepare(*flags, "--tokens-root", root, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert root in done.stderr
    assert "made" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*:*"))


def test_the_hub_and_a_cluster_are_refused(flags, tmp_path):
    done = run_prepare(*flags, "--tokens-root", "hf://datasets/o/n", cwd=tmp_path, check=False)
    assert done.returncode == 1
    with pytest.raises(ValueError, match="to a bucket prepare by --part"):
        PrepareConfig("corpus", tokens_root="s3://b/tokens", cluster="ray")


def test_a_refusal_leaves_the_folder_to_another_run_that_is_in_there(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "DYING_SECONDS", 0.01)
    with Destination.of(str(tmp_path), "web") as destination:
        destination.folder.mkdir()
        command_path(destination.folder).touch()
        with destination.held():
            destination.remove()
            assert destination.folder.exists()
        destination.remove()
        assert list(tmp_path.iterdir()) == []


def test_a_worker_holds_the_set_as_its_run_may_be_killed(source, tokenizer_json, tmp_path):
    """And a link to a set's folder is held as the folder is."""
    (tmp_path / "linked").mkdir()
    config = PrepareConfig(
        source=str(source), name="s", tokenizer=str(tokenizer_json), tokens_root=str(tmp_path)
    )
    folder = prepare(config).folder
    (tmp_path / "linked" / folder.name).symlink_to(folder)
    other = Destination(folder, str(folder))
    with Destination.of(str(tmp_path / "linked"), folder.name) as linked:
        files, asked = list_files(config, print)
        tokenizer = find_tokenizer(config, files, asked, print)
        job = run_module._job(config, files, asked, tokenizer, replace(linked, purpose="this"))

        def report(_, *counts):
            if counts:  # it is in the unit
                with pytest.raises(BlockingIOError, match="another run makes this set"):
                    replace(other, purpose="that").held().__enter__()

        make(job.work, job.units[0], report)


def test_a_run_at_an_address_reads_what_it_has_written(small, bucket):
    """Of two runs that end in the same moment, the one whose manifest is gone is refused."""
    with pytest.MonkeyPatch.context() as patch:
        push_rest = destination_module.push_rest

        def meanwhile(*arguments):
            push_rest(*arguments)
            s3 = boto3.client("s3")
            files = s3.list_objects_v2(Bucket=bucket)["Contents"]
            (key,) = [file["Key"] for file in files if file["Key"].endswith("/manifest.json")]
            manifest = json.loads(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
            manifest["shards"].reverse()
            s3.put_object(Bucket=bucket, Key=key, Body=json.dumps(manifest).encode())

        patch.setattr(destination_module, "push_rest", meanwhile)
        with pytest.raises(ValueError, match="another run has written its manifest at the same"):
            prepare(small)
