"""How many cores this process may use: those it is bound to, limited by the quota of its container.

16 cores, `docker run --cpus 2.5`   ->   cpu.max "250000 100000"   ->   3
"""

import math
import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def available_cores(cgroups: Path = CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> int:
    """At least 1."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([bound, *(math.ceil(quota) for quota in _quotas(cgroups, membership))]))


def _quotas(cgroups: Path, membership: Path) -> list[float]:
    """The quotas of this process's cgroup and of all cgroups above it, in cores; both versions of cgroups."""
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return []
    found = []
    for _, controllers, path in (line for line in lines if len(line) == 3):
        root = cgroups if not controllers else cgroups / controllers
        if controllers and "cpu" not in controllers.split(","):
            continue
        below = Path(path.lstrip("/"))
        for group in (root / below, *(root / parent for parent in below.parents)):
            found += [quota for quota in (_quota_of_v2(group), _quota_of_v1(group)) if quota]
    return found


def _quota_of_v2(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _quota_of_v1(group: Path) -> float | None:
    try:
        quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return quota / period if quota > 0 else None
    except (OSError, ValueError):
        return None
