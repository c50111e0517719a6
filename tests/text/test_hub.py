"""A hub's files are listed once, fetched by the real client, and tokenized as they come."""

import json
import random
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import warm
from file_server import Hub, environment
from making import ROOT, make_text, run_prepare, tree, wait_until, write_parquet

from tokenmill.hub_client import HubFile
from tokenmill.messages import in_bytes
from tokenmill.prepare import fetching
from tokenmill.text import hub as hub_module
from tokenmill.text.locate import locate
from tokenmill.text.source_file import SourceFile

REPOSITORY = "owner/corpus"
NAMES = [f"shard_{number}.parquet" for number in range(4)]


def make_files(folder, first_seed=0):
    files = {"README.md": b"a data set"}
    for number, name in enumerate(NAMES):
        path = write_parquet(
            folder / name, make_text(documents=60, seed=first_seed + number), row_group_size=20
        )
        files[name] = path.read_bytes()
    return files


@pytest.fixture
def hub(tmp_path):
    with Hub(REPOSITORY, make_files(tmp_path / "there")) as server:
        yield server


@pytest.fixture
def env(hub, tmp_path):
    return environment(hub.url, tmp_path)


@pytest.fixture
def flags(tokenizer_json):
    # shards of one file each
    fixed = ["--source", REPOSITORY, "--tokenizer", tokenizer_json, "--shard-text-bytes", 100_000]
    return [*fixed, "--val-file", NAMES[1], "--num-shards"]


@pytest.mark.parametrize("asked", ["as the flags say", "train:400"])
def test_a_dry_run_tells_what_is_ahead_and_fetches_nothing(asked, hub, env, flags, tmp_path):
    trained = ["--tokenizer", asked] if asked.startswith("train") else []
    done = run_prepare(*flags, 3, *trained, "--dry-run", cwd=tmp_path, env=env)
    size = sum(len(hub.commits[hub.main][name]) for name in NAMES[:3])
    assert f"3 files, 3 of them to fetch: {in_bytes(size)}" in done.stdout
    text = in_bytes(2.5 * size)
    assert f"about {text} of text to tokenize" in done.stdout
    assert hub.fetched == []
    assert not (tmp_path / "data/tokens").exists()
    assert not (tmp_path / "data/tokenizers").exists()


def token_set(done, cwd):
    return tree(cwd / done.stdout.splitlines()[-1])


def bins(files):
    return {name: data for name, data in files.items() if name.endswith((".bin", ".idx"))}


def test_the_first_files_in_name_order_are_fetched_once_and_more_later(hub, env, flags, tmp_path):
    done = run_prepare(*flags, 2, cwd=tmp_path, env=env)
    assert sorted(hub.fetched) == NAMES[:2]
    assert (tmp_path / "data/raw/owner--corpus/shard_1.parquet").read_bytes() == hub.commits[
        hub.main
    ][NAMES[1]]
    assert done.stdout.splitlines()[-1].startswith("data/tokens/corpus-bpe400-")
    size = sum(len(hub.commits[hub.main][name]) for name in NAMES[:2])
    ahead = f"2 files, 2 of them to fetch: {in_bytes(size)}\n"
    assert ahead in done.stderr.partition("fetched shard_")[0], "told before anything is fetched"
    assert (
        f"fetched shard_1.parquet, {in_bytes(len(hub.commits[hub.main][NAMES[1]]))}" in done.stderr
    )
    run_prepare(*flags, 2, cwd=tmp_path, env=env)
    more = run_prepare(*flags, 3, cwd=tmp_path, env=env)
    assert sorted(hub.fetched) == NAMES[:3]
    local = run_prepare("--source", tmp_path / "there", *flags[2:-1], cwd=tmp_path)
    actual = bins(token_set(more, tmp_path))
    expected = bins(token_set(local, tmp_path))
    assert actual == {name: data for name, data in expected.items() if "shard_3" not in name}


def test_what_goes_wrong_on_the_way_is_tried_again(hub, env, flags, tmp_path):
    hub.faults = {NAMES[0]: ["503"], NAMES[1]: ["short"]}
    run_prepare(*flags, 2, cwd=tmp_path, env=env)
    for name in NAMES[:2]:
        assert (tmp_path / "data/raw/owner--corpus" / name).read_bytes() == hub.commits[hub.main][
            name
        ]
        assert hub.fetched.count(name) >= 2


def test_a_file_that_stays_wrong_fails_alone_and_never_gets_its_name(hub, env, flags, tmp_path):
    hub.faults = {NAMES[2]: ["flip"] * 100}
    done = run_prepare(*flags, 3, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 1
    assert "failed: " in done.stderr
    assert "owner/corpus: fetching shard_2.parquet failed (expected" in done.stderr
    assert "Traceback" not in done.stderr
    raw = tmp_path / "data/raw/owner--corpus"
    assert sorted(path.name for path in raw.glob("*.parquet")) == NAMES[:2]
    hub.faults = {}
    hub.asked.clear()
    run_prepare(*flags, 3, cwd=tmp_path, env=env)
    assert hub.fetched == [NAMES[2]]


def test_a_file_outside_of_lfs_is_compared_by_its_git_sha1(env, tokenizer_json, tmp_path):
    lines = [json.dumps({"text": text}) for text in make_text(60, seed=1)]
    with Hub(REPOSITORY, {"a.jsonl": "\n".join(lines).encode()}) as server:
        flags = ["--source", REPOSITORY, "--tokenizer", tokenizer_json]
        env["HF_ENDPOINT"] = server.url
        server.faults = {"a.jsonl": ["flip"] * 100}
        wrong = run_prepare(*flags, cwd=tmp_path, env=env, check=False)
        assert wrong.returncode == 1
        assert "fetching a.jsonl failed (expected" in wrong.stderr
        assert "bytes of Git's SHA-1" in wrong.stderr
        server.faults = {}
        run_prepare(*flags, cwd=tmp_path, env=env)


def test_a_dropped_connection_is_taken_up_and_a_killed_run_leaves_nothing_half_fetched(
    hub, env, flags, tmp_path
):
    texts = make_text(240, seed=0)
    rng = random.Random(0)
    columns = {
        "text": texts,
        "image": [rng.randbytes(100_000) for _ in texts],
    }  # the client writes 10 MB at a time
    pq.write_table(pa.table(columns), tmp_path / "large.parquet")
    hub.commits[hub.main][NAMES[0]] = (tmp_path / "large.parquet").read_bytes()
    hub.faults = {NAMES[0]: ["stall"]}
    flags[5] = 100_000_000  # few shards
    process = warm.Command(ROOT / "prepare_data.py", *flags, "2", cwd=tmp_path, env=env)
    incoming = tmp_path / "data/raw/owner--corpus/.cache"
    size = len(hub.commits[hub.main][NAMES[0]])
    wait_until(lambda: [p for p in incoming.rglob("*.incomplete") if 0 < p.stat().st_size < size])
    process.kill()
    hub.faults = {NAMES[0]: ["drop"]}
    run_prepare(*flags, 2, cwd=tmp_path, env=env)
    assert hub.ranges == [(NAMES[0], 10 << 20)], "the second request is for the rest only"
    assert (tmp_path / "data/raw/owner--corpus" / NAMES[0]).read_bytes() == hub.commits[hub.main][
        NAMES[0]
    ]


def test_no_keep_raw_deletes_files_once_their_shards_are_made_and_asks_for_none_again(
    hub, env, flags, tmp_path
):
    kept = tmp_path / "kept"
    elsewhere = tmp_path / "other"
    for folder in (kept, elsewhere):
        folder.mkdir()
    expected = token_set(run_prepare(*flags, 3, cwd=kept, env=env), kept)
    done = run_prepare(*flags, 3, "--no-keep-raw", cwd=elsewhere, env=env)
    assert token_set(done, elsewhere) == expected
    assert list((elsewhere / "data/raw").rglob("*.parquet")) == []
    hub.asked.clear()
    again = run_prepare(*flags, 3, "--no-keep-raw", cwd=elsewhere, env=env)
    assert (hub.fetched, token_set(again, elsewhere)) == ([], expected)
    next((elsewhere / again.stdout.splitlines()[-1]).glob("shards/shard_1.*.bin")).unlink()
    assert (
        token_set(run_prepare(*flags, 3, "--no-keep-raw", cwd=elsewhere, env=env), elsewhere)
        == expected
    )
    assert hub.fetched == [NAMES[1]]


def test_a_file_of_a_unit_that_failed_is_kept_for_the_next_run(env, tokenizer_json, tmp_path):
    lines = [json.dumps({"text": text}) for text in make_text(60, seed=1)]
    content = "\n".join(["broken", *lines]).encode()
    flags = ["--source", REPOSITORY, "--tokenizer", tokenizer_json, "--no-keep-raw"]
    flags += ["--shard-text-bytes", len(content) // 4, "--workers", 1]
    with Hub(REPOSITORY, {"a.jsonl": content}) as server:
        env["HF_ENDPOINT"] = server.url
        done = run_prepare(*flags, cwd=tmp_path, env=env, check=False)
        assert "line 1: expected a JSON object" in done.stderr
        assert (tmp_path / "data/raw/owner--corpus/a.jsonl").exists()


def test_a_slash_after_a_repository_s_name_changes_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(
        hub_module, "_ask", lambda *of: ("c" * 40, [HubFile("a.txt", 1, None, "0" * 40)])
    )
    without, with_one = (locate(source, tmp_path, "main") for source in ("o/n", "o/n/"))
    assert without == with_one


def test_a_file_that_was_here_before_makes_no_room_for_one_more(monkeypatch):
    first, second = (SourceFile(name, name, 1) for name in "ab")
    is_fetched = threading.Event()
    monkeypatch.setattr(fetching, "fetch_file", lambda file: is_fetched.set())
    files = fetching.Fetching([first], print, 1)
    assert is_fetched.wait(30)
    files.forget(second)
    assert not files._room.acquire(blocking=False)
    files.forget(first)
    assert files._room.acquire(blocking=False)


def test_a_set_stays_of_the_commit_that_it_was_made_from(hub, env, flags, tmp_path):
    first = token_set(run_prepare(*flags, 3, cwd=tmp_path, env=env), tmp_path)
    assert json.loads(first["manifest.json"])["hub"]["commit"] == "a" * 40
    hub.commits["b" * 40] = make_files(tmp_path / "new", first_seed=50)
    hub.main = "b" * 40
    done = run_prepare(*flags, 4, cwd=tmp_path, env=env, check=False)
    assert "was made from other data" in done.stderr
    assert "bytes of shard_0.parquet was" in done.stderr
    assert "name the commit in manifest.json as --revision" in done.stderr
    more = token_set(
        run_prepare(*flags, 4, "--revision", "a" * 40, cwd=tmp_path, env=env), tmp_path
    )
    assert json.loads(more["manifest.json"])["hub"]["commit"] == "a" * 40


def test_a_repository_of_several_configs_is_an_error_that_lists_them(tokenizer_json, tmp_path):
    write_parquet(tmp_path / "texts.parquet", make_text(20, seed=1))
    texts = (tmp_path / "texts.parquet").read_bytes()
    for names, message in (
        (["data/a.parquet", "sample/10BT/a.parquet"], ["/data/*'", "/sample/10BT/*'"]),
        (["data/train/a.parquet", "data/train/b.parquet"], []),
    ):
        server = Hub(REPOSITORY, dict.fromkeys(names, texts))
        flags = ["--source", REPOSITORY, "--tokenizer", tokenizer_json, "--dry-run"]
        folder = tmp_path / names[0].replace("/", "-")
        folder.mkdir()
        env = environment(server.url, folder)
        done = run_prepare(*flags, cwd=folder, env=env, check=False)
        assert done.returncode == bool(message), done.stderr
        for line in message:
            assert f"--source '{REPOSITORY}{line}" in done.stderr
        for line in message[:1]:
            refused = run_prepare(
                *flags[2:], "--source", f"{REPOSITORY}/{line[1:-1]}", cwd=folder, env=env
            )
            assert "about " in refused.stdout


def test_a_private_repository_takes_the_usual_token(hub, env, flags, tmp_path):
    hub.token = "hf_secret"
    done = run_prepare(*flags, 2, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 1
    assert (
        "no such dataset repository on the hub (for a private repository set HF_TOKEN, or log in"
        in done.stderr
    )
    run_prepare(*flags, 2, cwd=tmp_path, env={**env, "HF_TOKEN": "hf_secret"})


def test_a_repository_that_is_not_there_or_too_small_is_an_error(env, tokenizer_json, tmp_path):
    flags = ("--tokenizer", tokenizer_json, "--source")
    done = run_prepare(*flags, "owner/nothing", cwd=tmp_path, env=env, check=False)
    assert done.returncode == 1
    assert (
        "owner/nothing: no such local file or folder, and no such dataset repository on the hub"
        in done.stderr
    )
    done = run_prepare(*flags, REPOSITORY, "--num-shards", 9, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 1
    assert "expected 9 files, found 4; give a smaller --num-shards" in done.stderr
    done = run_prepare(*flags, REPOSITORY, "--revision", "v9", cwd=tmp_path, env=env, check=False)
    assert "owner/corpus: has no revision 'v9'; check --revision" in done.stderr


def test_a_hub_that_does_not_answer_is_an_error_that_says_what_to_do(flags, tmp_path):
    env = environment("http://127.0.0.1:9", tmp_path)
    done = run_prepare(*flags, 2, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 1
    assert "owner/corpus: no such folder is here, and the Hugging Face hub" in done.stderr
    assert "could not be reached" in done.stderr
    assert "--source data/raw" not in done.stderr, "nothing was fetched"
    assert "Traceback" not in done.stderr
