"""Random requests and rude clients against a real server, which must be as it was afterwards."""

import asyncio
import time
from typing import Final

import httpx
import msgspec

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.chaos import hostile
from stentor.tests.chaos.bodies import MODEL
from stentor.tests.chaos.footprint import returned, settled, touch_cache
from stentor.tests.chaos.killing import Note
from stentor.tests.server.harness import CHAT, HELLO

SERVE: Final = ("--served-model-name", MODEL, *hostile.SERVE)
_WARMING_SHARE: Final = 0.2
"""Share of requests that are sent first and not measured, so that what is made once for all requests is there."""
_MIB: Final = 1 << 20


class Fuzzed(msgspec.Struct, frozen=True, kw_only=True):
    requests: int
    clients_that_left: int
    statuses: dict[str, int]
    seconds: float
    resident_before_mib: dict[str, float]
    resident_after_mib: dict[str, float]
    problems: list[str]


def fuzz(server: ServerProcess, requests: int, seed: int, note: Note) -> Fuzzed:
    """The same seed sends the same requests; what they meet depends on time."""
    hostile.check_document(server.port)
    warming = int(requests * _WARMING_SHARE)
    note(f"seed {seed}: drawing {warming} and {requests} requests")
    cases = hostile.make_cases(seed, warming + requests)
    _make_what_is_made_once(server.port)
    asyncio.run(hostile.send_all(server.port, cases[:warming]))
    before = settled(server.port, server.pid)
    began = time.monotonic()
    tally = asyncio.run(
        hostile.send_all(
            server.port,
            cases[warming:],
            lambda done: note(f"{done} of {requests} requests") if done % 500 == 0 else None,
        )
    )
    seconds = time.monotonic() - began
    _render(server.port)  # a process that was late has been ended, and is started again by the next request
    after, leaks = returned(server.port, server.pid, before)
    return Fuzzed(
        requests=requests,
        clients_that_left=tally.left.total(),
        statuses={str(status): count for status, count in sorted(tally.statuses.items())},
        seconds=seconds,
        resident_before_mib={role: size / _MIB for role, size in before.resident.items()},
        resident_after_mib={role: size / _MIB for role, size in after.resident.items()},
        problems=[*tally.failures, *leaks],
    )


def _make_what_is_made_once(port: int) -> None:
    touch_cache(port, MODEL)
    _render(port)


def _render(port: int) -> None:
    body = {"messages": HELLO, "chat_template": "{{ 1 }}", "max_tokens": 1}
    httpx.post(f"http://127.0.0.1:{port}{CHAT}", json=body, timeout=60).raise_for_status()
