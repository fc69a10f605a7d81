"""Reads the processor's topology from Linux: cores, hardware threads, sockets, memory nodes, quotas.

::

    sys/devices/system/cpu/cpuN/topology/thread_siblings_list   the hardware threads of its core
    sys/devices/system/cpu/cpuN/topology/physical_package_id    its socket
    sys/devices/system/cpu/cpuN/cpu_capacity                    its speed, where cores differ (Arm, Linux 6.12)
    sys/devices/system/cpu/cpuN/cpufreq/cpuinfo_max_freq        its speed, where nothing else tells
    sys/devices/cpu_core/cpus                                   the fast cores of a hybrid processor of Intel
    sys/devices/system/node/nodeN/cpulist                       the CPUs beside each part of the memory
    cpu.max, or cpu.cfs_quota_us and cpu.cfs_period_us          the quota of a control group (:mod:`.cgroups`)

Missing or unreadable files mean the plain case: each CPU a core of its own, one socket, no quota.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from .cgroups import group_folders, text_of

_CPUS: Final = "sys/devices/system/cpu"
_NODES: Final = "sys/devices/system/node"
_SLOW: Final = 0.5
"""Assumed speed of Intel's efficiency cores, which the processor does not report."""


class Cpu(NamedTuple):
    """A logical CPU: a core, or one of its hardware threads."""

    number: int
    core: int
    """The lowest CPU number of its core."""
    socket: int
    node: int
    """The memory node beside it."""
    speed: float
    """Speed of its core relative to the machine's fastest."""


class CpuTopology(msgspec.Struct, frozen=True):
    cpus: tuple[Cpu, ...]
    """CPUs that this process may run on."""
    quota: float | None = None
    """CPU time that the container may use, in CPUs; None: no limit."""


def read_topology(root: Path = Path("/"), affinity: Collection[int] | None = None) -> CpuTopology:
    """``affinity``: the CPUs to examine; None: those that the calling thread may run on."""
    numbers = sorted(os.sched_getaffinity(0) if affinity is None else affinity)
    nodes = _nodes(root / _NODES)
    speeds = _speeds(root, numbers)
    cpus = []
    for number in numbers:
        topology = root / _CPUS / f"cpu{number}/topology"
        siblings = parse_cpus(text_of(topology / "thread_siblings_list")) or {number}
        socket = _whole(topology / "physical_package_id")
        cpus.append(Cpu(number, min(siblings), socket or 0, nodes.get(number, 0), speeds[number]))
    return CpuTopology(tuple(cpus), min(_quotas(root), default=None))


def parse_cpus(text: str) -> set[int]:
    """ "0-2,8" → {0, 1, 2, 8}; empty if the text is no such list."""
    found: set[int] = set()
    for part in text.split(","):
        if (match := re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)) is None:
            return set()
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found


def format_cpus(cpus: Collection[int]) -> str:
    """{0, 1, 2, 8} → "0-2,8"."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _nodes(folder: Path) -> dict[int, int]:
    """Memory node by CPU."""
    found = {}
    for path in folder.glob("node[0-9]*"):
        for cpu in parse_cpus(text_of(path / "cpulist")):
            found[cpu] = int(path.name.removeprefix("node"))
    return found


def _speeds(root: Path, numbers: Collection[int]) -> Mapping[int, float]:
    """Speed of each CPU relative to the fastest; all 1 if it is unknown for one of them."""
    for file in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        values = {number: _whole(root / _CPUS / f"cpu{number}" / file) for number in numbers}
        known = {number: value for number, value in values.items() if value}
        if known and len(known) == len(values) and (file == "cpu_capacity" or not _fast_cores(root)):
            return {number: value / max(known.values()) for number, value in known.items()}
    fast = _fast_cores(root)
    if not fast.intersection(numbers):
        return dict.fromkeys(numbers, 1.0)
    return {number: 1.0 if number in fast else _SLOW for number in numbers}


def _fast_cores(root: Path) -> set[int]:
    return parse_cpus(text_of(root / "sys/devices/cpu_core/cpus"))


def _quotas(root: Path) -> Iterator[float]:
    """Quotas of the process's control group and its ancestors; the smallest applies."""
    for folder in group_folders(root, "cpu"):
        quota, period = (*text_of(folder / "cpu.max").split(), "", "")[:2]
        if not quota:
            quota, period = (text_of(folder / f"cpu.cfs_{what}_us").strip() for what in ("quota", "period"))
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:  # else "max", or -1
            yield int(quota) / int(period)


def _whole(path: Path) -> int | None:
    text = text_of(path).strip()
    return int(text) if text.isdecimal() else None
