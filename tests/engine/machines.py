"""Machines as Linux describes them in /sys and /proc: small trees of files, with the values of real processors."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stentor.engine.sharing.cpu_topology import CpuTopology, format_cpus, read_topology


@dataclass(frozen=True)
class Machine:
    """CPUs are numbered from 0; of each group of ``cores``, its hardware threads."""

    cores: Sequence[tuple[int, ...]]
    sockets: Sequence[Iterable[int]] = ()
    """CPUs of each; none: all are in one."""
    nodes: Sequence[Iterable[int]] = ()
    """CPUs beside each; none: the kernel tells of no memory."""
    files: Mapping[str, str] | None = None
    """What else there is, by path."""

    def read(self, root: Path, affinity: Iterable[int] | None = None) -> CpuTopology:
        cpus = {cpu for core in self.cores for cpu in core}
        for core in self.cores:
            for cpu in core:
                folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
                folder.mkdir(parents=True)
                (folder / "thread_siblings_list").write_text(f"{format_cpus(core)}\n")
                socket = next((number for number, each in enumerate(self.sockets) if cpu in each), 0)
                (folder / "physical_package_id").write_text(f"{socket}\n")
        for number, near in enumerate(self.nodes):
            write(root, f"sys/devices/system/node/node{number}/cpulist", format_cpus([*near]))
        write_files(root, self.files or {})
        return read_topology(root, cpus if affinity is None else set(affinity))


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(f"{text}\n")


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """``files``: contents by path."""
    for path, text in files.items():
        write(root, path, text)


def each_cpu(file: str, values: Iterable[int]) -> dict[str, str]:
    return {f"sys/devices/system/cpu/cpu{cpu}/{file}": str(value) for cpu, value in enumerate(values)}


def pairs(first: range, second: range) -> list[tuple[int, ...]]:
    """Cores of two hardware threads, as most firmware numbers them: all first ones, then all second ones."""
    return list(zip(first, second, strict=True))


DESKTOP = Machine(pairs(range(8), range(8, 16)), nodes=[range(16)])
"""Ryzen 7 5800X: eight cores of two hardware threads."""
TWO_SOCKETS = Machine(
    pairs(range(32), range(32, 64)),
    [[*range(16), *range(32, 48)], [*range(16, 32), *range(48, 64)]],
    [[*range(16), *range(32, 48)], [*range(16, 32), *range(48, 64)]],
)
"""Two Xeon Gold 6326."""
FOUR_NODES_A_SOCKET = Machine(
    [(cpu,) for cpu in range(128)],
    [range(64), range(64, 128)],
    [range(first, first + 16) for first in range(0, 128, 16)],
)
"""Two EPYC 7763, four nodes a socket (NPS4), one hardware thread a core."""
HYBRID = Machine(
    [*((cpu, cpu + 1) for cpu in range(0, 16, 2)), *((cpu,) for cpu in range(16, 24))],
    nodes=[range(24)],
    files={
        "sys/devices/cpu_core/cpus": "0-15",
        "sys/devices/cpu_atom/cpus": "16-23",
        **each_cpu("cpufreq/cpuinfo_max_freq", [5_200_000] * 16 + [3_900_000] * 8),
    },
)
"""Core i9-12900K: eight performance cores of two hardware threads, eight efficient ones."""
BIG_LITTLE = Machine([(cpu,) for cpu in range(8)], files=each_cpu("cpu_capacity", [414] * 4 + [1024] * 4))
"""RK3588: four Cortex-A55, then four Cortex-A76."""
FREQUENCIES = Machine(
    pairs(range(12), range(12, 24)),
    files=each_cpu("cpufreq/cpuinfo_max_freq", ([5_157_000] * 4 + [3_300_000] * 8) * 2),
)
"""Ryzen AI 9 HX 370: four cores of Zen 5 and eight of Zen 5c, which frequencies tell apart."""
SIBLINGS = Machine([(0, 1)], nodes=[range(2)])
"""A virtual machine of two CPUs that are one core."""
PLAIN = Machine([(cpu,) for cpu in range(4)], nodes=[range(4)])
