"""--limit-documents: a trial set of the first documents, which nobody takes for the whole."""

import pytest
from hub_server import Hub, environment
from making import make_text, read_manifest, run_prepare, tree, write_parquet

from tokenmill import Documents, TokenSet, cli
from tokenmill.look.list_sets import lines


@pytest.fixture
def flags(source, tokenizer_json):
    return ("--source", source, "--tokenizer", tokenizer_json, "--val-fraction", 0.3, "--limit-documents")


def all_texts(folder):
    token_set = TokenSet(folder)
    return sorted(document.text for split in ("train", "val") for document in Documents(token_set, split))


def test_the_first_documents_are_taken_marked_and_resumed(source, flags, tmp_path):
    done = run_prepare(*flags, 70, cwd=tmp_path)
    folder = tmp_path / done.stdout.splitlines()[-1]
    assert folder.name.startswith("corpus-first-70-bpe400-")
    assert all_texts(folder) == sorted([*make_text(40, seed=0), *make_text(40, seed=1)[:30]])
    assert read_manifest(folder)["limit_documents"] == 70
    assert "a trial set: only the first 70 documents of the source" in done.stdout
    assert "    a trial set: only the first 70 documents of the source" in lines(tmp_path / "data/tokens")
    records = [TokenSet(folder).record(entry) for entry in TokenSet(folder).entries]
    limits = {s["file"]: s.get("limit_documents") for r in records for s in r["source"].get("files", [r["source"]])}
    assert limits == {
        "shard_0.parquet": None,
        "val-of/shard_0.parquet": None,
        "shard_1.parquet": 30,
        "val-of/shard_1.parquet": 30,
    }
    before = tree(folder)
    next(folder.glob("shards/*.bin")).unlink()
    assert "1 to make" in run_prepare(*flags, 70, cwd=tmp_path).stderr
    assert tree(folder) == before
    cli.main(["verify", str(folder)])
    whole = run_prepare(*flags[:-3], cwd=tmp_path)
    assert (tmp_path / whole.stdout.splitlines()[-1]).name.startswith("corpus-bpe400-"), "a set of its own"


def test_metadata_is_added_to_a_trial_set_later(source, tokenizer_json, tmp_path):
    import pyarrow.parquet as pq

    path = source / "shard_0.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column("n", [list(range(len(table)))]), path, row_group_size=8)
    flags = ("--source", path, "--name", "few", "--tokenizer", tokenizer_json, "--limit-documents", 20)
    run_prepare(*flags, cwd=tmp_path)
    folder = tmp_path / run_prepare(*flags, "--keep-columns", "n", cwd=tmp_path).stdout.splitlines()[-1]
    found = Documents(folder, "train")
    texts = make_text(40, seed=0)
    assert [texts[document.metadata["n"]] for document in found] == [document.text for document in found]


@pytest.mark.parametrize("format", ["jsonl", "txt", "csv", "jsonl.gz"])
def test_every_format_is_limited(tmp_path, tokenizer_json, format):
    import gzip
    import json

    texts = [f"text number {number}" for number in range(300)]
    (tmp_path / "corpus").mkdir()
    path = tmp_path / "corpus" / f"a.{format}"
    more = ()
    if format == "txt":
        path.write_text("\n\n".join(texts))
        more = ("--document-separator", r"\n\n")
    elif format == "csv":
        path.write_text("text\n" + "\n".join(texts))
    else:
        data = "".join(json.dumps({"text": text}) + "\n" for text in ["", *texts]).encode()
        path.write_bytes(gzip.compress(data) if format.endswith("gz") else data)
    flags = ("--source", "corpus", "--tokenizer", tokenizer_json, "--limit-documents", 100, *more)
    done = run_prepare(*flags, "--dry-run", cwd=tmp_path)
    assert "validates: 0.1 of the documents" in done.stdout
    folder = tmp_path / run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1]
    assert all_texts(folder) == sorted(texts[:100])


def test_small_files_are_read_until_there_are_enough_documents(tmp_path, tokenizer_json):
    (tmp_path / "corpus").mkdir()
    for number in range(50):
        (tmp_path / "corpus" / f"{number:02}.txt").write_text(f"text number {number}")
    flags = ("--source", "corpus", "--tokenizer", tokenizer_json, "--limit-documents")
    done = run_prepare(*flags, 20, cwd=tmp_path)
    assert "a trial set of the first 20 documents, in 20 files" in done.stderr
    assert all_texts(tmp_path / done.stdout.splitlines()[-1]) == sorted(f"text number {n}" for n in range(20))
    done = run_prepare(*flags, 60, cwd=tmp_path)
    assert "the source has 50 documents in all, fewer than --limit-documents 60" in done.stderr
    whole = tmp_path / done.stdout.splitlines()[-1]
    assert len(all_texts(whole)) == 50
    assert "limit_documents" not in read_manifest(whole), "it is the whole"


def test_a_changed_source_and_a_validation_file_are_not_passed_over(source, flags, tmp_path):
    run_prepare(*flags, 70, cwd=tmp_path)
    write_parquet(source / "shard_0.parquet", make_text(documents=50, seed=9), row_group_size=8)
    done = run_prepare(*flags, 70, cwd=tmp_path, check=False)
    assert (done.returncode, "--limit-documents" in done.stderr or "other data" in done.stderr) == (1, True)
    flags = [flag for flag in flags if flag not in ("--val-fraction", 0.3)]
    held_out = write_parquet(tmp_path / "a_held_out.parquet", ["held out"] * 99)
    write_parquet(source / "shard_0.parquet", make_text(documents=40, seed=0), row_group_size=8)
    done = run_prepare("--val-file", held_out, "--name", "other", *flags, 5, cwd=tmp_path)
    assert f"--val-file {held_out} is not used" in done.stderr
    assert all_texts(tmp_path / done.stdout.splitlines()[-1]) == sorted(make_text(40, seed=0)[:5])


def test_of_a_hub_only_the_files_that_are_needed_are_fetched(tmp_path, tokenizer_json):
    names = [f"shard_{number}.parquet" for number in range(4)]
    paths = [write_parquet(tmp_path / "there" / name, make_text(60, seed=n)) for n, name in enumerate(names)]
    hub = Hub("owner/corpus", {name: path.read_bytes() for name, path in zip(names, paths, strict=True)})
    env = environment(hub.url, tmp_path)
    flags = ("--source", "owner/corpus", "--num-shards", 4, "--tokenizer", tokenizer_json, "--limit-documents", 70)
    dry = run_prepare(*flags, "--dry-run", cwd=tmp_path, env=env)
    assert (hub.fetched, "1 file, 1 of them to fetch" in dry.stdout) == ([], True)
    folder = tmp_path / run_prepare(*flags, cwd=tmp_path, env=env).stdout.splitlines()[-1]
    assert hub.fetched == names[:2]
    assert all_texts(folder) == sorted([*make_text(60, seed=0), *make_text(60, seed=1)[:10]])
    assert [file["name"] for file in read_manifest(folder)["hub"]["files"]] == names[:2]
    hub.shutdown()
    hub.server_close()
