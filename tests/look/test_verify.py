"""Any flipped bit is found and named, and what is taken out is made anew, byte for byte."""

import json
import random
import shutil
import subprocess

import numpy as np
import pytest
import warm
from making import BOS, ROOT, VOCAB, make_chat_set, make_token_set, run_prepare, tree

from tokenmill.look.verify import verify
from tokenmill.store.manifests import write_manifest
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import TEXT_COUNTS


@pytest.fixture
def own(token_set, tmp_path):
    """A copy of the small token set, with the tokenizer that its manifest names left out."""
    shutil.copytree(token_set, tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture
def own_prepared(prepared, tmp_path):
    shutil.copytree(prepared[1], tmp_path / prepared[1].name)
    return tmp_path / prepared[1].name


def run_verify(path, *flags):
    return warm.run("-m", "tokenmill", "verify", path, *flags, cwd=ROOT)


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def shard_problems(path):
    return {name: problems for name, problems in verify(path, workers=1).items() if name}


def test_every_flipped_bit_is_found_and_named_with_shard_and_file(own):
    rng = random.Random(0)
    paths = sorted([*own.glob("shards/*.bin"), *own.glob("shards/*.idx")])
    for _ in range(4):
        bits = {path: rng.randrange(8 * path.stat().st_size) for path in paths}
        for path, bit in bits.items():
            flip(path, bit)
        problems = shard_problems(own)
        for path, bit in bits.items():
            assert f"{path.suffix}: the MiB from byte 0 on is damaged" in problems[path.stem]
            flip(path, bit)
    assert shard_problems(own) == {}


def test_damage_beyond_the_first_mib_is_named_where_it_is(tmp_path):
    path = make_token_set(tmp_path / "set", train=[[1000] * 1500], val=[[9]])
    flip(path / "shards" / "train_0.000.bin", 8 * 2_000_001 + 3)
    assert (
        shard_problems(path)["train_0.000"][-1] == ".bin: the MiB from byte 1,048,576 on is damaged"
    )


@pytest.mark.parametrize(
    ("tokens", "lengths", "message"),
    [
        ([BOS, 5, BOS, 6, 7], [2, 3], None),
        ([BOS, 5, 4, 6, 7], [2, 3], ".bin: document 1 has no BOS at token 2"),
        ([BOS, 5, BOS, 6, BOS], [2, 3], ".bin: BOS at token 4, where no document begins"),
        ([BOS, 5, BOS, VOCAB, 7], [2, 3], ".bin: token 3 is 1000, the vocabulary has 1,000"),
        ([BOS, 5, BOS, 6, 7], [2, 0, 3], ".idx: offset 2 is not above the one before it"),
    ],
)
def test_what_was_written_wrong_is_found_though_its_checksums_are_right(
    tmp_path, tokens, lengths, message
):
    with ShardWriter(
        make_token_set(tmp_path / "set", train=[[9]], val=[[9]]), "other.000", "uint16"
    ) as writer:
        writer.write(np.array(tokens), lengths)
        counts = dict.fromkeys(TEXT_COUNTS, 0)
        record = writer.finish(counts | {"source": {"file": "other"}, "fingerprint": "f" * 64})
    facts = json.loads((tmp_path / "set" / "manifest.json").read_text())["tokenizer"]
    write_manifest(tmp_path / "set", "synthetic", facts, [(record, "train")])
    assert shard_problems(tmp_path / "set") == ({"other.000": [message]} if message else {})


@pytest.mark.parametrize(
    ("mask", "targets", "message"),
    [
        ([0, 1, 0, 1, 1], [1, 2], ""),
        ([0, 1, 0, 0, 1], [1, 2], "document 1 has another number of tokens in the loss"),
        ([0, 1, 1, 1, 1], [1, 3], "BOS of document 1 is in the loss"),
    ],
)
def test_a_mask_that_does_not_agree_with_its_targets_is_found(tmp_path, mask, targets, message):
    folder = make_chat_set(tmp_path / "set", train=[[9]], val=[[9]])
    with ShardWriter(folder, "other.000", "uint16", ["mask", "targets"]) as writer:
        writer.write(np.array([BOS, 5, BOS, 6, 7]), [2, 3])
        writer.write_column("mask", np.array(mask, bool))
        writer.write_column("targets", targets)
        counts = dict.fromkeys(TEXT_COUNTS, 0)
        record = writer.finish(counts | {"source": {"file": "other"}, "fingerprint": "e" * 64})
    facts = json.loads((folder / "manifest.json").read_text())["tokenizer"]
    write_manifest(folder, "synthetic", facts, [(record, "train")])
    assert message in "".join(shard_problems(folder).get("other.000", []))
    assert bool(message) == bool(shard_problems(folder))


@pytest.mark.parametrize("flags", [(), ("--quick",)])
def test_missing_and_cut_files_and_changed_records_are_found_by_a_quick_look_too(
    own_prepared, flags
):
    bins, idxs, records = (
        sorted(own_prepared.glob(f"shards/*.{suffix}")) for suffix in ("bin", "idx", "json")
    )
    bins[0].unlink()
    idxs[1].write_bytes(idxs[1].read_bytes()[:-8])
    record = json.loads(records[2].read_text())
    records[2].write_text(json.dumps(record | {"tokens": record["tokens"] + 1}))
    records[3].write_text("{")
    (own_prepared / "token_bytes.npy").unlink()
    manifest = (own_prepared / "manifest.json").read_text()
    (own_prepared / "manifest.json").write_text(
        manifest.replace('"split": "val"', '"split": "train"')
    )
    done = run_verify(own_prepared, *flags)
    assert done.returncode == 1
    for expected in (
        f"{bins[0].stem}: ",
        f"{bins[1].stem}: .idx: expected",
        f"{bins[2].stem}.json: bin.bytes: expected",
        f"{bins[3].stem}: ",
        "manifest.json: it was changed since it was written",
        "8 shards, 4 bad",
    ):
        assert expected in done.stdout
    assert bins[4].stem not in done.stdout


EDITS = {
    "dataset": "other",
    "null_documents": 7,
    "empty_documents": 7,
    "prepared": {"validation": {"fraction": 0.5}, "shard_text_bytes": 1},
}


@pytest.mark.parametrize("key", EDITS)
@pytest.mark.parametrize("file", ["manifest.json", "manifests/*.json"])
def test_an_edit_of_what_no_row_depends_on_is_found_in_each_manifest(own_prepared, file, key):
    (path,) = own_prepared.glob(file)
    manifest = json.loads(path.read_text())
    assert verify(own_prepared, quick=True) == {}
    path.write_text(json.dumps(manifest | {key: EDITS[key]}))
    (problem,) = verify(own_prepared, quick=True)[""]
    assert problem.startswith(f"{path}: it was changed since it was written")


def test_a_problem_of_the_set_alone_is_counted_and_has_advice(own_prepared):
    with (own_prepared / "token_bytes.npy").open("ab") as file:
        file.write(b"x")
    done = run_verify(own_prepared, "--quick")
    assert done.returncode == 1
    assert "8 shards, 0 bad, 1 problem of the set\nput the files that these" in done.stdout


def test_bad_shards_are_made_again_byte_for_byte_after_the_command_that_is_printed(
    prepared, tokenizer_json, tmp_path
):
    corpus, path = prepared
    shutil.copytree(path.parents[2], tmp_path / "cwd")
    copied = tmp_path / "cwd" / path.relative_to(path.parents[2])
    before = tree(copied)
    flip(sorted(copied.glob("shards/*.bin"))[2], 12_345)
    done = run_verify(copied)
    assert done.returncode == 1
    subprocess.run(done.stdout.splitlines()[-1], shell=True, check=True)
    flags = ["--source", "corpus", "--tokenizer", tokenizer_json, "--shard-text-bytes", "33000"]
    flags += ["--val-file", "shard_3.parquet"]
    done = run_prepare(*flags, cwd=tmp_path / "cwd")
    assert "made " in done.stderr
    assert tree(copied) == before
