"""The machine that a result was measured on, as far as a reader has to know it."""

import os
import platform
import sys
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    """CPU, cores that this process may use, memory in bytes, Python and platform."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.release()} {platform.machine()}",
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "CPU part"):
            return value.strip()
    return platform.processor()
