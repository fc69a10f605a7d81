"""Real engine and worker processes that transcribe audio while it arrives, killed in the middle of it."""

from pathlib import Path

import anyio
import pytest

from stentor.engine.client.client import EngineClient
from stentor.engine.client.request import EngineRequest
from stentor.engine.client.stream import RequestStream
from stentor.protocols.ipc.actors import Finished, SequenceTokens
from stentor.protocols.ipc.config import EngineConfig
from stentor.protocols.ipc.inputs import StreamShape
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.forked import Victim, client_of, kill, served
from stentor.tests.engine.local import model_config
from stentor.tests.engine.tiny_voxtral import BOS, PAD, STEP, speech, write_voxtral

pytestmark = pytest.mark.anyio
PROMPT = [BOS, PAD, PAD]
PARAMS = SamplingParams(max_tokens=100, temperature=0.7)
POSITIONS = 40
STREAMS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_voxtral(tmp_path_factory.mktemp("voxtral"))


class Speaker:
    """Says a third, waits until the rest is wanted, and reads what is written meanwhile."""

    def __init__(self, client: EngineClient, seed: int) -> None:
        self.stream: RequestStream = client.submit(EngineRequest(PROMPT, PARAMS, [seed], streamed=b""))
        self.pcm = speech(POSITIONS, seed)
        self.tokens: list[int] = []
        self.ends: list[Finished] = []
        self.heard_some = anyio.Event()

    async def read(self) -> None:
        async for events in self.stream:
            for event in events:
                if isinstance(event, SequenceTokens):
                    self.tokens += event.tokens
                    self.heard_some.set()
                elif isinstance(event, Finished):
                    self.ends.append(event)

    def say(self, begin: float, end: float) -> None:
        first, last = (int(part * POSITIONS) * 2 * STEP for part in (begin, end))
        for at in range(first, last, 1000):
            self.stream.append(self.pcm[at : min(at + 1000, last)])
        if end == 1.0:
            self.stream.append(b"", last=True)


async def speak(client: EngineClient, *victims: Victim) -> list[list[int]]:
    """All at once; after the first third the worker or the engine is killed, while more is said."""
    speakers = [Speaker(client, seed) for seed in range(STREAMS)]
    async with anyio.create_task_group() as tasks:
        for speaker in speakers:
            tasks.start_soon(speaker.read)
            speaker.say(0.0, 0.3)
        await speakers[0].heard_some.wait()
        for number, victim in enumerate(victims):
            kill(client, victim)
            before = len(speakers[0].tokens)
            for speaker in speakers:
                speaker.say(0.3 + 0.2 * number, 0.5 + 0.2 * number)
            while len(speakers[0].tokens) == before:
                await anyio.sleep(0.02)
        for speaker in speakers:
            speaker.say(0.3 + 0.2 * len(victims), 1.0)
    assert all([end.reason for end in speaker.ends] == ["stop"] for speaker in speakers)
    return [speaker.tokens for speaker in speakers]


async def test_streams_go_on_after_their_worker_and_their_engine_were_killed(folder: Path) -> None:
    config = EngineConfig(model_config(folder, max_num_seqs=3, max_num_batched_tokens=0))
    async with served(client_of(config)) as client:
        assert client.ready is not None
        assert client.ready.stream == StreamShape(first=STEP + 40, step=STEP)
        expected = await speak(client)
        assert [len(tokens) for tokens in expected] == [POSITIONS - len(PROMPT) + 1] * STREAMS
        assert await speak(client, "worker", "engine") == expected
        assert client.engine_restarts == 1
        silent = client.submit(EngineRequest(PROMPT, PARAMS, [1], streamed=bytes(10 * STEP)))
        await anyio.sleep(0.2)
        silent.abort()
        ends = [event for events in [events async for events in silent] for event in events]
        assert isinstance(ends[-1], Finished)
        assert ends[-1].reason == "abort"
