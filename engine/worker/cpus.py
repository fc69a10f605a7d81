"""The CPUs that this worker computes on."""

import os
from dataclasses import replace

from stentor.protocols.ipc.config import WorkerConfig

from ..sharing.cpu_plan import CpuPlan, WorkerPlace, plan_cpus
from ..sharing.cpu_topology import CpuTopology, read_topology


def choose_cpus(config: WorkerConfig, most: int, topology: CpuTopology | None = None) -> CpuPlan:
    """As ``--threads`` asks, else by what the processor is, ``most`` threads at most."""
    rank = config.rank
    worker = WorkerPlace(config.cpu_place + rank, config.cpu_places, rank, config.tensor_parallel_size)
    return plan_cpus(topology or read_topology(), config.threads, worker, most)


def hold(plan: CpuPlan) -> CpuPlan:
    """Keeps the calling thread, and those that it starts from now on, on the CPUs of ``plan``.

    Memory that they are the first to touch then lies beside these CPUs. What could be done is returned: a sandbox may
    forbid it.
    """
    if plan.cpus is None:
        return plan
    try:
        os.sched_setaffinity(0, plan.cpus)
    except OSError:
        return replace(plan, cpus=None, is_own=False)
    return plan
