"""Which CPUs a worker takes of real machines."""

from pathlib import Path

import pytest

from stentor.engine.sharing.cpu_plan import WorkerPlace, plan_cpus
from stentor.tests.engine import machines
from stentor.tests.engine.machines import Machine


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (machines.PLAIN, "4 threads: one for each of 4 cores"),
        (machines.DESKTOP, "8 threads: one for each of 8 cores of 2 hardware threads"),
        (machines.SIBLINGS, "1 thread: one for each of 1 core of 2 hardware threads"),
        (
            machines.TWO_SOCKETS,
            "16 threads on CPUs 0-15,32-47: one for each of 16 cores of 2 hardware threads, socket 1 of 2",
        ),
        (machines.FOUR_NODES_A_SOCKET, "64 threads on CPUs 0-63: one for each of 64 cores, socket 1 of 2"),
        (machines.HYBRID, "8 threads on CPUs 0-15: one for each of 8 cores of 2 hardware threads, the fast ones of 16"),
        (machines.BIG_LITTLE, "4 threads on CPUs 4-7: one for each of 4 cores, the fast ones of 8"),
        (
            machines.FREQUENCIES,
            "4 threads on CPUs 0-3,12-15: one for each of 4 cores of 2 hardware threads, the fast ones of 12",
        ),
    ],
)
def test_one_thread_a_core_computes_on_the_fast_cores_of_one_socket(
    tmp_path: Path, machine: Machine, expected: str
) -> None:
    assert str(plan_cpus(machine.read(tmp_path))) == expected


def test_a_second_model_gets_the_second_socket_and_needs_no_turns(tmp_path: Path) -> None:
    topology = machines.TWO_SOCKETS.read(tmp_path)
    chat, other = (plan_cpus(topology, worker=WorkerPlace(place, 2)) for place in (0, 1))
    assert chat.cpus == frozenset({*range(16), *range(32, 48)})
    assert other.cpus == frozenset({*range(16, 32), *range(48, 64)})
    assert chat.is_own
    assert other.is_own


def test_a_third_model_shares_a_socket_with_the_first(tmp_path: Path) -> None:
    topology = machines.TWO_SOCKETS.read(tmp_path)
    first, second, third = (plan_cpus(topology, worker=WorkerPlace(place, 3)) for place in range(3))
    assert first.cpus == third.cpus != second.cpus
    assert not any(plan.is_own for plan in (first, second, third)), "all take turns by one lease"


def test_models_on_one_socket_each_have_all_cores_and_take_turns(tmp_path: Path) -> None:
    topology = machines.DESKTOP.read(tmp_path)
    for place in (0, 1):
        plan = plan_cpus(topology, worker=WorkerPlace(place, 2))
        assert (plan.threads, plan.cpus, plan.is_own) == (8, None, False)


def test_workers_that_split_a_model_get_a_socket_each(tmp_path: Path) -> None:
    topology = machines.TWO_SOCKETS.read(tmp_path)
    plans = [plan_cpus(topology, worker=WorkerPlace(rank, 2, rank, 2)) for rank in (0, 1)]
    assert [plan.threads for plan in plans] == [16, 16]
    assert plans[0].cpus
    assert plans[1].cpus
    assert not plans[0].cpus & plans[1].cpus


def test_workers_that_split_a_model_divide_the_cores_of_one_socket(tmp_path: Path) -> None:
    topology = machines.DESKTOP.read(tmp_path)
    plan = plan_cpus(topology, worker=WorkerPlace(1, 3, 1, 3))
    assert str(plan) == "2 threads: one for each of 8 cores of 2 hardware threads, shared by 3 workers"


def test_threads_that_are_asked_for_are_taken_and_held_where_each_has_a_core(tmp_path: Path) -> None:
    topology = machines.TWO_SOCKETS.read(tmp_path)
    assert str(plan_cpus(topology, 12)) == "12 threads on CPUs 0-15,32-47: --threads, socket 1 of 2"
    assert str(plan_cpus(topology, 40)) == "40 threads: --threads"


@pytest.mark.parametrize(("quota", "threads"), [(0.5, 1), (1.5, 2), (2.0, 2), (3.5, 4), (99.0, 4)])
def test_a_quota_bounds_the_threads(tmp_path: Path, quota: float, threads: int) -> None:
    path = tmp_path / "sys/fs/cgroup/cpu.max"
    path.parent.mkdir(parents=True)
    path.write_text(f"{int(quota * 100_000)} 100000\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    plan = plan_cpus(machines.PLAIN.read(tmp_path))
    assert plan.threads == threads
    assert plan.reasons == ((f"a quota of {quota:g} CPUs",) if threads < 4 else ("one for each of 4 cores",))


def test_a_smaller_count_of_the_environment_is_taken(tmp_path: Path) -> None:
    plan = plan_cpus(machines.PLAIN.read(tmp_path), most=1)
    assert str(plan) == "1 thread: as many as torch takes by itself (OMP_NUM_THREADS)"
    assert plan_cpus(machines.PLAIN.read(tmp_path / "again"), 3, most=1).threads == 3, "--threads is more than that"


def test_a_socket_of_which_an_affinity_leaves_a_few_cpus_gets_no_worker(tmp_path: Path) -> None:
    topology = machines.TWO_SOCKETS.read(tmp_path, affinity=[*range(16), 16, 17])
    plans = [plan_cpus(topology, worker=WorkerPlace(place, 2)) for place in (0, 1)]
    assert [plan.cpus for plan in plans] == [frozenset(range(16))] * 2


def test_an_affinity_to_slow_cores_takes_those(tmp_path: Path) -> None:
    plan = plan_cpus(machines.BIG_LITTLE.read(tmp_path, affinity=range(4)))
    assert str(plan) == "4 threads: one for each of 4 cores"


def test_memory_that_firmware_interleaves_makes_one_place_of_two_sockets(tmp_path: Path) -> None:
    interleaved = Machine([(cpu,) for cpu in range(4)], [[0, 1], [2, 3]], [range(4)])
    assert str(plan_cpus(interleaved.read(tmp_path))) == "4 threads: one for each of 4 cores"
