"""Chooses the CPUs and the number of threads of a worker.

- One thread a core: both hardware threads share arithmetic units and memory access, and the server and the engine need
  the second.
- Only the fast cores of a hybrid processor, since every part of a step waits for its slowest thread.
- One socket: its threads touch the weights first, so Linux puts them into that socket's memory. The next worker gets
  the next socket.
- No more threads than a container's quota: with one more, all of them stop for the rest of each period.

A worker is bound to a set of CPUs, never one thread to one CPU: if another process takes a CPU, the scheduler still
finds a free one in the set.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from .cpu_topology import Cpu, CpuTopology, format_cpus

_FAST: Final = 0.75
"""Least speed relative to the fastest core: clusters of one kind differ by a few per cent, kinds by 40."""
_WHOLE_SOCKET: Final = 0.5
"""Least number of cores relative to the largest socket's: an affinity may leave a single CPU of a socket."""


class WorkerPlace(msgspec.Struct, frozen=True):
    """One worker among the workers of all models."""

    place: int = 0
    """Its index, from 0."""
    places: int = 1
    rank: int = 0
    """Its index among the workers that split its model, which have consecutive places."""
    ranks: int = 1


_ALONE: Final = WorkerPlace()


class CpuPlan(msgspec.Struct, frozen=True):
    threads: int
    cpus: frozenset[int] | None
    """CPUs that the worker is bound to; None: not bound."""
    is_own: bool
    """Whether workers of other models compute on other CPUs."""
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        """The choice and its reasons, for the start-up message."""
        what = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        where = "" if self.cpus is None else f" on CPUs {format_cpus(self.cpus)}"
        return f"{what}{where}" + (f": {', '.join(self.reasons)}" if self.reasons else "")


def plan_cpus(
    topology: CpuTopology, asked: int | None = None, worker: WorkerPlace = _ALONE, most: int | None = None
) -> CpuPlan:
    """``asked`` threads are used as given, and bound only if each has a core. ``most`` limits the chosen number."""
    sockets = _sockets(topology.cpus)
    mine = worker.place % len(sockets)
    first = worker.place - worker.rank
    beside = sum((first + rank) % len(sockets) == mine for rank in range(worker.ranks))
    here = sockets[mine]
    fastest = max(cpu.speed for cpu in topology.cpus)
    fast = [cpu for cpu in here if cpu.speed >= _FAST * fastest] or here
    cores = len({cpu.core for cpu in fast})
    reasons = []
    if asked is not None:
        threads = asked
        reasons.append("--threads")
    else:
        threads = max(1, cores // beside)
        hardware = max(sum(cpu.core == core for cpu in fast) for core in {cpu.core for cpu in fast})
        each = f"one for each of {_count(cores, 'core')}"
        reasons.append(each + (f" of {hardware} hardware threads" if hardware > 1 else ""))
        if beside > 1:
            reasons.append(f"shared by {beside} workers")
        if topology.quota is not None and (paid := math.ceil(topology.quota / worker.ranks)) < threads:
            threads = max(1, paid)
            reasons = [f"a quota of {topology.quota:g} CPUs"]
        if most is not None and most < threads:
            threads = most
            reasons = ["as many as torch takes by itself (OMP_NUM_THREADS)"]
    held = None
    if threads * beside <= cores and len(fast) < len(topology.cpus):
        held = frozenset(cpu.number for cpu in fast)
        if len(fast) < len(here):
            reasons.append(f"the fast ones of {len({cpu.core for cpu in here})}")
        if len(sockets) > 1:
            reasons.append(f"socket {mine + 1} of {len(sockets)}")
    is_own = held is not None and worker.places <= len(sockets)
    return CpuPlan(threads, held, is_own, tuple(reasons))


def _sockets(cpus: Sequence[Cpu]) -> list[list[Cpu]]:
    """Groups of CPUs that share the nearest memory, largest first; at least one.

    Joins nodes of one socket, and sockets of one node, which firmware makes by interleaving memory.
    """
    found: list[list[Cpu]] = []
    for cpu in cpus:
        near = [each for each in found if any(one.socket == cpu.socket or one.node == cpu.node for one in each)]
        found = [each for each in found if each not in near]
        found.append([*(one for each in near for one in each), cpu])
    cores = [len({cpu.core for cpu in each}) for each in found]
    whole = [each for each, count in zip(found, cores, strict=True) if count >= _WHOLE_SOCKET * max(cores)]
    return sorted(whole, key=lambda each: (-len({cpu.core for cpu in each}), each[0].number))


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
