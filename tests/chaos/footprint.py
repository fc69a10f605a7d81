"""What a server holds while it is idle, and how that has changed."""

import random
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from stentor.server.observability.processes import usage_by_role
from stentor.tests.support.metrics import metric_in

MEMORY_SLACK: Final = 24 << 20
"""Bytes, and the next a share, whichever is more, by which a process may be larger than it was."""
MEMORY_SHARE: Final = 0.05
_TOUCHED: Final = 240
"""Tokens of a prompt that fills blocks."""
_SETTLE_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.25
_CALM_SECONDS: Final = 3.0
"""Longer than the server waits for a quiet moment to get ready for grammars."""


@dataclass(frozen=True)
class Footprint:
    """By role of process, where there are several: ``server``, ``engine``, ``worker``, ``fork_server``, ``helper``."""

    live: int
    """Choices that run or wait."""
    free_blocks: int
    tasks: int
    connections: int
    shared_memory: frozenset[str]
    """Names in ``/dev/shm``."""
    descriptors: dict[str, int]
    processes: dict[str, int]
    resident: dict[str, int]
    """Bytes."""

    def leaks_since(self, before: "Footprint") -> list[str]:
        """What is not as it was. Empty where nothing is held any more."""
        found = [
            f"{what}: {now}, was {then}"
            for what, now, then in (
                ("choices that run or wait", self.live, before.live),
                ("free KV blocks", self.free_blocks, before.free_blocks),
                ("asyncio tasks", self.tasks, before.tasks),
                ("connections", self.connections, before.connections),
                ("names in /dev/shm", sorted(self.shared_memory), sorted(before.shared_memory)),
                ("open descriptors", self.descriptors, before.descriptors),
                ("processes", self.processes, before.processes),
            )
            if now != then
        ]
        for role, now in self.resident.items():
            then = before.resident.get(role, 0)
            if now > then + max(MEMORY_SLACK, MEMORY_SHARE * then):
                found.append(f"resident memory of {role}: {now >> 20} MiB, was {then >> 20}")
        return found


def footprint(port: int, server: int) -> Footprint:
    """``server`` is its process id."""
    # descriptors first: right after the page has been fetched the server may not have closed that connection yet, and
    # on a busy machine it never has
    usage = usage_by_role(server)
    page = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30).text
    return Footprint(
        live=int(metric_in(page, "num_requests_running") + metric_in(page, "num_requests_waiting")),
        free_blocks=int(metric_in(page, "kv_cache_free_blocks")),
        tasks=int(metric_in(page, "tasks")),
        connections=int(metric_in(page, "connections_open")),
        shared_memory=frozenset(path.name for path in Path("/dev/shm").iterdir()),
        descriptors={role: one.open_fds for role, one in sorted(usage.items())},
        processes={role: one.processes for role, one in sorted(usage.items())},
        resident={role: one.resident_bytes for role, one in sorted(usage.items())},
    )


def touch_cache(port: int, model: str) -> None:
    """Writes every block of the KV cache once: memory is taken when that happens, which is no leak."""
    draw = random.Random(0)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
        page = client.get("/metrics").text
        (info,) = [
            line
            for line in page.splitlines()
            if line.startswith("stentor:cache_config_info") and f'model_name="{model}"' in line
        ]
        labels = {name: int(value) for name, value in re.findall(r'(num_gpu_blocks|block_size)="(\d+)"', info)}
        for _ in range(labels["num_gpu_blocks"] * labels["block_size"] // _TOUCHED + 1):
            prompt = [draw.randrange(100, 40_000) for _ in range(_TOUCHED)]
            client.post("/v1/completions", json={"model": model, "prompt": prompt, "max_tokens": 1}).raise_for_status()


def settled(port: int, server: int) -> Footprint:
    """Once nothing runs and for a while nothing has changed but memory; after some seconds whatever it is."""
    moved = time.monotonic()
    deadline = moved + _SETTLE_SECONDS
    before = footprint(port, server)
    while True:
        time.sleep(_POLL_SECONDS)
        now = footprint(port, server)
        if now.live or _moved(now, before):
            moved = time.monotonic()
        if time.monotonic() > min(deadline, moved + _CALM_SECONDS):
            return now
        before = now


def returned(port: int, server: int, baseline: Footprint) -> tuple[Footprint, list[str]]:
    """Waits some seconds for the server to be as it was at ``baseline``; what it is then, and what still differs."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        now = footprint(port, server)
        leaks = now.leaks_since(baseline)
        if not leaks or time.monotonic() > deadline:
            return now, leaks
        time.sleep(_POLL_SECONDS)


def _moved(now: Footprint, before: Footprint) -> bool:
    return (now.free_blocks, now.tasks, now.connections, now.descriptors, now.processes) != (
        before.free_blocks,
        before.tasks,
        before.connections,
        before.descriptors,
        before.processes,
    )
