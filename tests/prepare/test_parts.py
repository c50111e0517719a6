"""Parts on many machines make, in any order and side by side, the set that one machine makes."""

import pytest
import warm
from making import ROOT, run_prepare, tree


@pytest.fixture
def flags(source, tokenizer_json):
    return [
        "--source",
        source,
        "--tokenizer",
        tokenizer_json,
        "--shard-text-bytes",
        "5000",
        "--workers",
        "1",
    ]


@pytest.fixture
def whole(flags, tmp_path):
    done = run_prepare(*flags, "--tokens-root", "whole", cwd=tmp_path)
    return tree(tmp_path / done.stdout.splitlines()[-1])


def test_parts_side_by_side_are_finished_by_the_last(flags, whole, tmp_path):
    command = [ROOT / "prepare_data.py", *flags]
    parts = [warm.Command(*command, "--part", f"{part}/3", cwd=tmp_path) for part in (1, 2, 3)]
    for process in parts:
        done = process.done()
        assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("data/tokens/*/manifest.json"))) == 1, (
        "the part that ended last has written it"
    )
    done = run_prepare(*flags, cwd=tmp_path)
    assert "all shards are made" in done.stderr
    assert tree(tmp_path / done.stdout.splitlines()[-1]) == whole


def test_parts_do_not_each_train_a_tokenizer(source, tmp_path):
    flags = ("--source", source, "--tokenizer", "train:300", "--part", "1/2")
    done = run_prepare(*flags, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "no tokenizer yet, and parts must share one" in done.stderr
