"""Requests that kill whatever worker computes them, among streams that must not notice more than a pause."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx
import msgspec

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.chaos.bodies import MODEL, make_bodies
from stentor.tests.chaos.exactness import difference
from stentor.tests.chaos.killing import Asked, Lanes, Note
from stentor.tests.chaos.poison_worker import MAGIC
from stentor.tests.e2e.made_up import EXACT

STREAMS: Final = 16
MODULE: Final = "stentor.tests.chaos.poison_server"
SERVE: Final = ("--served-model-name", MODEL, "--max-model-len", "512", *EXACT)
_SECONDS: Final = 120.0


class Poisoned(msgspec.Struct, frozen=True, kw_only=True):
    poisons: int
    """Sent at once."""
    statuses: list[int]
    """What they got."""
    streams: int
    identical: int
    worker_deaths: int
    seconds: float
    """From sending the poison to the last of its answers."""
    problems: list[str]


def poison(server: ServerProcess, counts: Sequence[int], seed: int, tokens: int, note: Note) -> list[Poisoned]:
    """One result for each of ``counts``: poisons at once. ``tokens``: of the streams beside them, at most."""
    return asyncio.run(_poison_all(server, counts, make_bodies(seed, STREAMS, tokens // 2, tokens), note))


async def _poison_all(
    server: ServerProcess, counts: Sequence[int], bodies: Sequence[dict[str, Any]], note: Note
) -> list[Poisoned]:
    calm = Lanes(server.port, bodies, STREAMS)
    await calm.run_once()
    references = {asked.number: asked for asked in calm.done}
    return [await _poison(server, poisons, bodies, references, note) for poisons in counts]


async def _poison(
    server: ServerProcess, poisons: int, bodies: Sequence[dict[str, Any]], references: Mapping[int, Asked], note: Note
) -> Poisoned:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=_SECONDS) as client:
        before = await _figures(client)
        lanes = Lanes(server.port, bodies, STREAMS)
        running = asyncio.create_task(lanes.run_once())
        while not lanes.flow_since(0.0) and not running.done():
            await asyncio.sleep(0.01)
        note(f"{poisons} poisonous requests among {STREAMS} streams")
        began = time.monotonic()
        answers = await asyncio.gather(*(client.post("/v1/completions", json=_body(each)) for each in range(poisons)))
        seconds = time.monotonic() - began
        await running
        after = await _figures(client)
    problems = [f"poison got {each.status_code}: {each.text[:300]}" for each in answers if each.status_code != 500]
    problems += [
        f"poison got another error: {each.text[:300]}"
        for each in answers
        if each.status_code == 500 and each.json()["error"]["code"] != "generation_failed"
    ]
    differences = [_problem(asked, references[asked.number]) for asked in lanes.done]
    problems += [each for each in differences if each is not None]
    if (failed := after["poisoned_requests_total"] - before["poisoned_requests_total"]) != poisons:
        problems.append(f"{failed:g} requests were failed as poison, expected {poisons}")
    if after["engine_restarts_total"] != before["engine_restarts_total"]:
        problems.append("the engine was lost too")
    return Poisoned(
        poisons=poisons,
        statuses=[each.status_code for each in answers],
        streams=len(lanes.done),
        identical=differences.count(None),
        worker_deaths=int(after["worker_restarts_total"] - before["worker_restarts_total"]),
        seconds=seconds,
        problems=problems,
    )


def _body(number: int) -> dict[str, object]:
    return {"model": MODEL, "prompt": [300 + number, *MAGIC, 17], "max_tokens": 20, "ignore_eos": True}


def _problem(asked: Asked, reference: Asked) -> str | None:
    found = asked.stream.error or reference.stream.error or difference(asked, reference)
    return None if found is None else f"body {asked.number}: {found}"


async def _figures(client: httpx.AsyncClient) -> dict[str, float]:
    page = (await client.get("/metrics")).text
    lines = [line for line in page.splitlines() if line.startswith("stentor:")]
    return {line.split("{")[0].removeprefix("stentor:"): float(line.split()[-1]) for line in lines}
