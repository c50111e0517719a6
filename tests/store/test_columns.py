"""The columns of a chat set, its mask and targets, are written, listed, checked, and refused where
they are damaged.
"""

import numpy as np
import pytest
from making import TEXT_COUNTS, make_chat_set, read_manifest

from tokenmill import TokenSet
from tokenmill.look.verify import verify
from tokenmill.store import manifests
from tokenmill.store.manifests import digest_of
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import is_finished, read_record, shard_path

NAME = "train_0.000"


@pytest.fixture
def folder(tmp_path):
    return make_chat_set(tmp_path / "set", train=[[5, 3, 40, 7], [3] * 30], val=[[4, 8]])


def test_a_mask_has_a_bit_for_each_token_however_it_is_written(tmp_path):
    tokens = np.arange(21)
    mask = tokens % 3 == 1
    with ShardWriter(tmp_path, NAME, "uint16", ["mask", "targets"]) as writer:
        for first, last in ((0, 3), (3, 14), (14, 21)):  # of no whole bytes
            writer.write(tokens[first:last], [last - first])
            writer.write_column("mask", mask[first:last])
            writer.write_column("targets", [np.count_nonzero(mask[first:last])])
        record = writer.finish(
            dict.fromkeys(TEXT_COUNTS, 0) | {"fingerprint": "f" * 64, "source": {"file": "a.jsonl"}}
        )
    bits = np.unpackbits(np.fromfile(tmp_path / f"shards/{NAME}.mask", np.uint8), bitorder="little")
    assert bits.tolist() == [*mask, 0, 0, 0]
    assert np.fromfile(tmp_path / f"shards/{NAME}.targets", "<u4").tolist() == [1, 4, 2]
    assert read_record(shard_path(tmp_path, NAME, "json"), NAME) == record
    assert is_finished(tmp_path, record)


@pytest.mark.parametrize("suffix", ["mask", "targets"])
def test_the_digest_follows_from_each_column_and_damage_is_found(folder, suffix):
    manifest = read_manifest(folder)
    record = read_record(shard_path(folder, NAME, "json"), NAME)
    listed = manifest["shards"][0]
    columns = {name: record[name]["sha256"] for name in ("bin", "idx", "mask", "targets")}
    assert columns.items() <= listed.items()
    digest = digest_of(manifest)
    listed[suffix] = "0" * 64
    assert digest_of(manifest) != digest
    path = folder / f"shards/{NAME}.{suffix}"
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 4]) + data[1:])
    assert f".{suffix}: the MiB from byte 0 on is damaged" in verify(folder, workers=1)[NAME]
    cut = data[:-1]
    path.write_bytes(cut)
    message = f"{NAME}.{suffix}: expected {len(data)} bytes, found {len(cut)}"
    with pytest.raises(ValueError, match=message):
        TokenSet(folder).open(TokenSet(folder).entries[0]).column(suffix)
    assert not is_finished(folder, record), "so it is made again"


def test_a_column_that_is_new_changes_no_digest_of_a_set(token_set, monkeypatch):
    manifest = read_manifest(token_set)
    before = digest_of(manifest)
    monkeypatch.setattr(manifests, "LISTED", (*manifests.LISTED, "kind"))
    assert digest_of(manifest) == before
    manifest["shards"][0]["kind"] = "0" * 64
    assert digest_of(manifest) != before
