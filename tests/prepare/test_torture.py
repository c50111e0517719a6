"""A preparation that is killed at random moments, or runs out of room, goes on to the bytes of an undisturbed one."""

import os
from contextlib import contextmanager
from pathlib import Path

import pytest
from making import full_after, run_prepare, tree
from torture import make_source, torture

# root may write wherever it likes, unless it gives up that right
WITHOUT_ROOT_S_RIGHTS = () if os.geteuid() else ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")


@pytest.mark.slow
def test_killed_at_random_moments_it_goes_on_to_the_same_bytes(tokenizer_json, tmp_path):
    counts = torture(tmp_path, Path(tokenizer_json), kills=5, seed=4)
    assert counts["token sets, all equal"] >= 1


def test_a_full_disk_is_a_clear_error_and_the_next_run_goes_on(tokenizer_json, tmp_path):
    flags = ("--source", make_source(tmp_path / "corpus"), "--tokenizer", tokenizer_json, "--workers", 2)
    full = run_prepare(*flags, cwd=tmp_path, check=False, **full_after(100_000))
    assert full.returncode == 1
    assert "File too large" in full.stderr
    assert "run the same command again" in full.stderr
    assert "Traceback" not in full.stderr
    assert not list(tmp_path.glob("data/tokens/*/manifest.json"))
    assert not list(tmp_path.rglob("*.tmp"))
    again = tree(tmp_path / run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1])
    whole = run_prepare(*flags, "--tokens-root", "undisturbed", cwd=tmp_path)
    assert again == tree(tmp_path / whole.stdout.splitlines()[-1])


def test_a_clock_that_goes_backwards_changes_nothing(source, tokenizer_json, tmp_path):
    flags = ("--source", source, "--tokenizer", tokenizer_json, "--shard-text-bytes", 20_000)
    folder = tmp_path / run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1]
    expected = tree(folder)
    (folder / "manifest.json").unlink()
    for number, path in enumerate(sorted(folder.rglob("*"))):
        if path.suffix == ".idx" and number % 2:
            path.unlink()
        else:
            os.utime(path, (4e9, 4e9))  # it was written in the year 2096
    done = run_prepare(*flags, cwd=tmp_path)
    assert "all shards are made" not in done.stderr
    assert tree(folder) == expected


def test_a_read_only_token_set_is_used_as_it_is_and_refused_where_it_must_change(source, tokenizer_json, tmp_path):
    flags = (
        "--source",
        source,
        "--tokenizer",
        tokenizer_json,
        "--shard-text-bytes",
        200_000,
        "--val-file",
        "shard_3.parquet",
    )
    folder = tmp_path / run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1]
    expected = tree(folder)
    with read_only(folder):
        again = run_prepare(*flags, cwd=tmp_path, prefix=WITHOUT_ROOT_S_RIGHTS)
        assert "all shards are made" in again.stderr
    (folder / "shards" / "shard_1.000.bin").unlink()
    with read_only(folder):
        refused = run_prepare(*flags, cwd=tmp_path, check=False, prefix=WITHOUT_ROOT_S_RIGHTS)
    assert refused.returncode == 1
    assert "cannot be written (Permission denied); make room, or mend that, and run again" in refused.stderr
    assert "Traceback" not in refused.stderr
    run_prepare(*flags, cwd=tmp_path)
    assert tree(folder) == expected


@contextmanager
def read_only(folder):
    """Takes away the right to write below a folder."""
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    yield
    for path in folders:
        path.chmod(0o755)
