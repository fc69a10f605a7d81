"""What is read of a machine's processor."""

import os
from pathlib import Path

import pytest

from stentor.engine.sharing.cpu_topology import Cpu, format_cpus, parse_cpus, read_topology
from stentor.tests.engine import machines
from stentor.tests.engine.machines import write


def test_this_machine_is_read() -> None:
    topology = read_topology()
    assert [cpu.number for cpu in topology.cpus] == sorted(os.sched_getaffinity(0))


def test_a_machine_that_tells_nothing_has_plain_cores(tmp_path: Path) -> None:
    topology = read_topology(tmp_path, {3, 1})
    assert topology.cpus == (Cpu(1, 1, 0, 0, 1.0), Cpu(3, 3, 0, 0, 1.0))
    assert topology.quota is None


def test_hardware_threads_sockets_and_nodes_are_read(tmp_path: Path) -> None:
    topology = machines.TWO_SOCKETS.read(tmp_path)
    assert topology.cpus[33] == Cpu(33, 1, 0, 0, 1.0)
    assert topology.cpus[63] == Cpu(63, 31, 1, 1, 1.0)


def test_a_processor_of_intel_tells_its_fast_cores_and_frequencies_do_not_count(tmp_path: Path) -> None:
    speeds = [cpu.speed for cpu in machines.HYBRID.read(tmp_path).cpus]
    assert speeds == [1.0] * 16 + [0.5] * 8


def test_capacities_count_beside_the_largest(tmp_path: Path) -> None:
    speeds = [cpu.speed for cpu in machines.BIG_LITTLE.read(tmp_path).cpus]
    assert speeds == [414 / 1024] * 4 + [1.0] * 4


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "150000 100000"}, 1.5),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "50000 100000"}, 0.5),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": ""}, None),
        # two groups around each other
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
                "sys/fs/cgroup/a/cpu.max": "300000 100000",
            },
            3.0,
        ),
        # version 1, and a container that sees the host's path but its own group
        (
            {
                "proc/self/cgroup": "5:memory:/docker/1\n4:cpu,cpuacct:/docker/1",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            2.5,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
        ),
        # both versions side by side
        ({"proc/self/cgroup": "1:cpu:/\n0::/a", "sys/fs/cgroup/unified/a/cpu.max": "100000 50000"}, 2.0),
        ({"proc/self/cgroup": "0::/../../outside", "sys/fs/cgroup/cpu.max": "100000 100000"}, 1.0),
        ({"proc/self/cgroup": "nonsense\n\n::", "sys/fs/cgroup/cpu.max": "100000 100000"}, 1.0),
    ],
)
def test_the_smallest_quota_around_the_process_is_read(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    for path, text in files.items():
        write(tmp_path, path, text)
    assert read_topology(tmp_path, {0}).quota == quota


@pytest.mark.parametrize("text", ["0", "0-3", "0-2,8", "1,3,5-7"])
def test_lists_of_cpus_are_read_and_written_alike(text: str) -> None:
    assert format_cpus(parse_cpus(text)) == text


@pytest.mark.parametrize("text", ["", "x", "1-", "0,,2"])
def test_what_is_no_list_of_cpus_is_empty(text: str) -> None:
    assert parse_cpus(text) == set()
