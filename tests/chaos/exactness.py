"""Live streams over processes that die, held against the same requests on the same server in peace."""

import asyncio
import itertools
import json
import random
import re
import statistics
from collections.abc import Sequence
from typing import Any, Final

import jsonschema
import msgspec

from stentor.loadtest.recovery import recovery
from stentor.loadtest.server_process import ServerProcess
from stentor.tests.chaos.bodies import MODEL, is_constrained, make_bodies, runs_to_its_length
from stentor.tests.chaos.killing import (
    ENGINE_KILLED,
    WORKER_KILLED,
    WORKER_STOPPED,
    Asked,
    Kill,
    Kind,
    Lanes,
    Note,
    disturb,
)
from stentor.tests.chaos.streams import Choice

STREAMS: Final = 32
SHOWN: Final = 5
"""Problems that are told in full."""


class Amount(msgspec.Struct, frozen=True):
    """How much is done."""

    worker_kills: int
    engine_kills: int
    stops: int
    bodies: int
    least_tokens: int
    most_tokens: int

    @property
    def kills(self) -> list[Kind]:
        return [
            *[WORKER_KILLED] * self.worker_kills,
            *[ENGINE_KILLED] * self.engine_kills,
            *[WORKER_STOPPED] * self.stops,
        ]


SHORT: Final = Amount(3, 3, 1, 32, 20, 48)
FULL: Final = Amount(20, 20, 5, 64, 40, 120)


class Recoveries(msgspec.Struct, frozen=True):
    """Of one kind of kill, in seconds: from the kill to the end of the longest pause of any stream."""

    kind: str
    kills: int
    median: float
    worst: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    arguments: list[str]
    streams_at_once: int
    streams: int
    """That ended while processes died."""
    tokens: int
    survivors: int
    """Streams that lived when something was killed."""
    identical_survivors: int
    identical: int
    incomplete: int
    """Streams that failed, ended early, or had fewer or more tokens than they must."""
    recoveries: list[Recoveries]
    longest_pause: float
    usual_pause: float
    seconds: float
    problems: list[str]


def measure(server: ServerProcess, amount: Amount, seed: int, *, exact: bool, note: Note) -> Outcome:
    """Raises TimeoutError where streams do not go on; the server's output says more."""
    return asyncio.run(_measure(server, amount, seed, exact, note))


SMALL_STEPS: Final = (
    *("--step-timeout", "1.5", "--max-num-seqs", "64", "--max-num-batched-tokens", "64"),
    *("--max-mixed-prefill-tokens", "32"),
)
"""A worker that hangs is found in seconds, also where a step takes long: its deadline grows with the step."""


def serve_arguments(*more: str) -> list[str]:
    return ["--served-model-name", MODEL, "--max-model-len", "1024", *more]


async def _measure(server: ServerProcess, amount: Amount, seed: int, exact: bool, note: Note) -> Outcome:
    draw = random.Random(seed)
    bodies = make_bodies(seed, amount.bodies, amount.least_tokens, amount.most_tokens)
    loop = asyncio.get_running_loop()
    note(f"seed {seed}: {len(bodies)} requests undisturbed")
    calm = Lanes(server.port, bodies, STREAMS)
    await calm.run_once()
    references = {asked.number: asked for asked in calm.done}
    problems = [f"undisturbed: {problem}" for asked in calm.done for problem in faults_of(asked, bodies)]

    began = loop.time()
    lanes = Lanes(server.port, bodies, STREAMS)
    running = asyncio.create_task(lanes.run_until_ending())
    disturbing = asyncio.create_task(disturb(lanes, server.pid, amount.kills, draw, note))
    try:
        await asyncio.wait([running, disturbing], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        kills = await disturbing
        lanes.ending = True
        await running
    finally:
        for task in (running, disturbing):
            task.cancel()
        await asyncio.gather(running, disturbing, return_exceptions=True)
    return _judge(server, lanes.done, references, bodies, kills, problems, exact, seed, loop.time() - began)


def _judge(
    server: ServerProcess,
    done: Sequence[Asked],
    references: dict[int, Asked],
    bodies: Sequence[dict[str, Any]],
    kills: Sequence[Kill],
    problems: list[str],
    exact: bool,
    seed: int,
    seconds: float,
) -> Outcome:
    incomplete = identical = survivors = identical_survivors = 0
    for asked in done:
        faults = faults_of(asked, bodies)
        incomplete += bool(faults)
        differs = difference(asked, references[asked.number])
        identical += differs is None
        lived_over = [kill.kind.name for kill in kills if asked.stream.began < kill.moment < asked.stream.ended]
        survivors += bool(lived_over)
        identical_survivors += bool(lived_over) and differs is None
        if exact and differs is not None and not faults:
            faults = [differs]
        problems += [f"body {asked.number}: {fault} (lived over {lived_over})" for fault in faults]
    arrivals = [asked.stream.arrivals for asked in done]
    pauses = [after - before for each in arrivals for before, after in itertools.pairwise(each)]
    return Outcome(
        seed=seed,
        arguments=server.command[5:-4],
        streams_at_once=STREAMS,
        streams=len(done),
        tokens=sum(len(choice.tokens) for asked in done for choice in asked.stream.choices),
        survivors=survivors,
        identical_survivors=identical_survivors,
        identical=identical,
        incomplete=incomplete,
        recoveries=[_recoveries(kind, kills, arrivals) for kind in (WORKER_KILLED, ENGINE_KILLED, WORKER_STOPPED)],
        longest_pause=max(pauses),
        usual_pause=statistics.median(pauses),
        seconds=seconds,
        problems=problems,
    )


def _recoveries(kind: Kind, kills: Sequence[Kill], arrivals: Sequence[Sequence[float]]) -> Recoveries:
    each = [recovery(arrivals, kill.moment) for kill in kills if kill.kind is kind]
    return (
        Recoveries(kind.name, len(each), statistics.median(each), max(each)) if each else Recoveries(kind.name, 0, 0, 0)
    )


def faults_of(asked: Asked, bodies: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong whatever the arithmetic."""
    stream, body = asked.stream, bodies[asked.number]
    if stream.error is not None:
        return [stream.error]
    if is_constrained(body):
        return [fault for choice in stream.choices if (fault := form_of(choice, body)) is not None]
    return [
        f"choice {index} has {len(choice.tokens)} tokens and ended by {choice.reason}, expected {body['max_tokens']}"
        for index, choice in enumerate(stream.choices)
        if len(choice.tokens) > body["max_tokens"]
        or (runs_to_its_length(body) and (len(choice.tokens), choice.reason) != (body["max_tokens"], "length"))
    ]


def form_of(choice: Choice, body: dict[str, Any]) -> str | None:
    """What is wrong with the form of a choice that had to have one; one that was cut off may end anywhere."""
    if choice.reason == "length":
        return None
    if "tools" in body:
        if choice.reason != "tool_calls" or not choice.calls or choice.text:
            return f"no call of a tool, but {choice.text[:80]!r} and {choice.reason}"
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body["tools"]}
        for name, arguments in choice.calls:
            if name not in schemas or not _is_valid(arguments, schemas[name]):
                return f"a call of {name!r} with {arguments[:80]!r}"
        return None
    shape = body["structured_outputs"]
    good = (
        _is_valid(choice.text, shape["json"])
        if "json" in shape
        else re.fullmatch(shape["regex"], choice.text) is not None
        if "regex" in shape
        else choice.text in shape["choice"]
    )
    return None if good and choice.reason == "stop" else f"{choice.text[:80]!r} by {choice.reason} is not {shape}"


def _is_valid(text: str, schema: dict[str, Any]) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def difference(asked: Asked, reference: Asked) -> str | None:
    """Where what two streams of the same body brought begins to differ."""
    for index, (ours, theirs) in enumerate(zip(asked.stream.choices, reference.stream.choices, strict=True)):
        if ours != theirs:
            same = next(
                (at for at, pair in enumerate(zip(ours.tokens, theirs.tokens, strict=False)) if pair[0] != pair[1]),
                min(len(ours.tokens), len(theirs.tokens)),
            )
            return (
                f"choice {index} differs from token {same} on: {ours.tokens[same : same + 4]} of {len(ours.tokens)} "
                f"tokens, {ours.reason}; undisturbed {theirs.tokens[same : same + 4]} of {len(theirs.tokens)}, "
                f"{theirs.reason}"
            )
    return None
