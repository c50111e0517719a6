"""The cores of a container are those of its quota, in both versions of cgroups."""

import os

import pytest

from tokenmill.prepare.cores import available_cores

V1 = "cpu,cpuacct/d/cpu.cfs"
BOUND = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "100000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, BOUND),
        ("0::/a/b\n", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 1),
        (
            "4:cpu,cpuacct:/d\n",
            {"cpu,cpuacct/d/cpu.cfs_quota_us": "90000", "cpu,cpuacct/d/cpu.cfs_period_us": "1000000"},
            1,
        ),
        (
            "4:cpu,cpuacct:/d\n",
            {"cpu,cpuacct/d/cpu.cfs_quota_us": "-1", "cpu,cpuacct/d/cpu.cfs_period_us": "1000"},
            BOUND,
        ),
        ("nonsense", {}, BOUND),
    ],
)
def test_a_quota_counts(tmp_path, membership, files, cores):
    for name, content in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(content)
    (tmp_path / "membership").write_text(membership)
    assert available_cores(tmp_path / "cgroup", tmp_path / "membership") == cores


def test_without_cgroups_it_is_what_the_process_is_bound_to(tmp_path):
    assert available_cores(tmp_path, tmp_path / "none") == BOUND
