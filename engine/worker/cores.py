"""How many cores this process was granted."""

import math
import os
from pathlib import Path


def granted_cores(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that the scheduler lets it run on, or as many as its container's quota pays for, at least 1.

    A thread more than the quota pays for stops all of them for the rest of each period.
    """
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = limit.read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, math.ceil(int(quota) / int(period))))
