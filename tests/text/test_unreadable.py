"""Source files that once ended the whole command, or held it for ever, are errors of their own."""

import base64
import os
import socket

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from making import make_text, run_prepare, write_parquet

from tokenmill.text.listing import list_source


def write_encrypted(path, column, texts):
    """A parquet file with one encrypted column and a footer that anyone can read."""
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):
        def __init__(self, _):
            super().__init__()

        def wrap_key(self, key, master):
            return base64.b64encode(key).decode()

        def unwrap_key(self, wrapped, master):
            return base64.b64decode(wrapped)

    settings = {"footer_key": "f", "column_keys": {"c": [column]}, "plaintext_footer": True, "double_wrapping": False}
    properties = encryption.CryptoFactory(Keys).file_encryption_properties(
        encryption.KmsConnectionConfig(), encryption.EncryptionConfiguration(**settings)
    )
    table = pa.table({"text": texts, "id": [str(number) for number in range(len(texts))]})
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("size", [[], ["--shard-text-bytes", "1000"]], ids=["small files share a shard", "alone"])
def test_an_encrypted_column_is_an_error_of_its_file_and_the_others_are_made(size, tokenizer_json, tmp_path):
    texts = make_text(9, seed=1)
    for name in ("a", "c", "d"):
        write_parquet(tmp_path / "in" / f"{name}.parquet", texts)
    write_encrypted(tmp_path / "in" / "b.parquet", "text", texts)
    flags = ("--source", "in", "--tokenizer", tokenizer_json, *size)
    done = run_prepare(*flags, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "b.parquet: column 'text' is encrypted (" in done.stderr
    assert "error: 1 failed" in done.stderr
    assert len(list(tmp_path.glob("data/tokens/*/shards/*.json"))) == (3 if size else 1)
    (tmp_path / "in" / "b.parquet").unlink()
    run_prepare(*flags, cwd=tmp_path)


def test_a_column_that_is_not_read_may_be_encrypted(tokenizer_json, tmp_path):
    texts = make_text(9, seed=1)
    table = pa.table({"text": texts, "id": [str(number) for number in range(9)]})
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    write_encrypted(tmp_path / "in" / "b.parquet", "id", texts)
    flags = ("--source", "in", "--tokenizer", tokenizer_json)
    assert run_prepare(*flags, cwd=tmp_path).stdout.count("9 documents") == 2
    done = run_prepare(*flags, "--keep-ids", "id", "--name", "ids", cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "b.parquet: column 'id' is encrypted" in done.stderr


def make_pipe(path):
    os.mkfifo(path)


def make_device_link(path):
    path.symlink_to("/dev/zero")


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        where = os.getcwd()
        os.chdir(path.parent)  # the path of a socket may have 107 bytes
        server.bind(path.name)
        os.chdir(where)


@pytest.mark.parametrize(
    ("make", "found"), [(make_pipe, "a pipe"), (make_device_link, "a device"), (make_socket, "a socket")]
)
@pytest.mark.parametrize("name", ["b.jsonl", "b.jsonl.zst"])
def test_only_regular_files_are_sources(make, found, name, tokenizer_json, tmp_path):
    for other in ("a", "c"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{other}.jsonl").write_text('{"text": "some words"}\n')
    make(tmp_path / "in" / name)
    flags = ("--name", "one", "--tokenizer", tokenizer_json)
    for source in ("in", "in/*.jsonl*", f"in/{name}"):
        done = run_prepare("--source", source, *flags, cwd=tmp_path, check=False)
        assert done.returncode == 1
        assert f"{name}: expected a regular file, found {found}; take it out of the source" in done.stderr
    done = run_prepare("--source", "in/[ac].jsonl", "--val-file", f"in/{name}", *flags, cwd=tmp_path, check=False)
    assert f"expected a regular file, found {found}" in done.stderr


def test_what_has_no_name_of_a_source_may_be_anything(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "some words"}\n')
    make_pipe(tmp_path / "control")
    assert list_source(str(tmp_path)).left_out == ["1 file of no known format: control"]
