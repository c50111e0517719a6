"""A preparation that is killed at random moments, or runs out of room, goes on to the bytes of an undisturbed one."""

import resource
from pathlib import Path

from making import run_prepare, tree
from torture import make_source, torture


def test_killed_at_random_moments_it_goes_on_to_the_same_bytes(tokenizer_json, tmp_path):
    counts = torture(tmp_path, Path(tokenizer_json), kills=5, seed=4)
    assert counts["token sets, all equal"] >= 1


def test_a_full_disk_is_a_clear_error_and_the_next_run_goes_on(tokenizer_json, tmp_path):
    flags = ("--source", make_source(tmp_path / "corpus"), "--tokenizer", tokenizer_json, "--workers", 2)

    def no_more_than_100_kb_a_file():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    full = run_prepare(*flags, cwd=tmp_path, check=False, preexec_fn=no_more_than_100_kb_a_file)
    assert full.returncode == 1
    assert "File too large" in full.stderr
    assert "run the same command again" in full.stderr
    assert "Traceback" not in full.stderr
    assert not list(tmp_path.glob("data/tokens/*/manifest.json"))
    assert not list(tmp_path.rglob("*.tmp"))
    again = tree(tmp_path / run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1])
    whole = run_prepare(*flags, "--tokens-root", "undisturbed", cwd=tmp_path)
    assert again == tree(tmp_path / whole.stdout.splitlines()[-1])
