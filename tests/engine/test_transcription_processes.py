"""Real engine and worker processes of a transcription model, some killed in the middle of a window."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest

from stentor.engine.client.client import EngineClient
from stentor.engine.client.request import EngineRequest
from stentor.protocols.ipc.actors import Finished, PromptDone, SequenceTokens
from stentor.protocols.ipc.audio import Alignment, AlignmentOutput
from stentor.protocols.ipc.config import EngineConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.forked import Victim, client_of, kill, served, told_of_losses
from stentor.tests.engine.local import model_config
from stentor.tests.engine.media import Audio
from stentor.tests.engine.tiny_whisper import NO_SPEECH, SOT, window, write_whisper

pytestmark = pytest.mark.anyio

LONG = SamplingParams(max_tokens=50, temperature=0.8)
WINDOWS = 9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper(tmp_path_factory.mktemp("whisper"))


def transcription_client(folder: Path) -> AbstractAsyncContextManager[EngineClient]:
    return served(client_of(EngineConfig(model_config(folder, max_num_seqs=4, max_num_batched_tokens=0))))


class Transcript:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.alignments: list[AlignmentOutput | None] = []
        self.ends: list[Finished] = []

    async def read(self, client: EngineClient, prompt: list[int], seed: int, audio: Audio, begun: anyio.Event) -> None:
        params = LONG if audio.align is None else SamplingParams(max_tokens=1)
        async for events in client.submit(
            EngineRequest(prompt, audio.ruled(params), [seed], media=audio.media, probe=audio.probe)
        ):
            for event in events:
                match event:
                    case PromptDone(alignment=alignments):
                        self.alignments.append(alignments)
                    case SequenceTokens(tokens=tokens):
                        self.tokens += tokens
                        if len(self.tokens) > 5:
                            begun.set()
                    case Finished():
                        self.ends.append(event)


async def transcribe(
    client: EngineClient, victim: Victim | None = None
) -> list[tuple[list[int], str, AlignmentOutput | None]]:
    """Every window at once; the worker or the engine is killed once one of them has begun."""
    begun = anyio.Event()
    transcripts = [Transcript() for _ in range(WINDOWS)]
    async with anyio.create_task_group() as tasks:
        for number, transcript in enumerate(transcripts):
            prompt, audio = [5, number, SOT, 65], window(number % 6, no_speech=(2, NO_SPEECH))
            if number == 7:
                prompt, audio = [SOT, 65, 3, 4, 5], window(1, align=Alignment(2, 90))
            tasks.start_soon(transcript.read, client, prompt, number, audio, begun)
        if victim is not None:
            await begun.wait()
            kill(client, victim)
    assert all(len(each.ends) == len(each.alignments) == 1 for each in transcripts)
    return [(each.tokens, each.ends[0].reason, each.alignments[0]) for each in transcripts]


async def test_windows_go_on_as_they_would_have_after_their_worker_or_engine_was_killed(folder: Path) -> None:
    async with transcription_client(folder) as client:
        expected = await transcribe(client)
        assert {(len(tokens), reason) for tokens, reason, _ in expected} == {(50, "length"), (1, "length")}
        aligned = expected[7][2]
        assert aligned is not None
        assert (len(aligned.times), len(aligned.probabilities)) == (4, 3)
        assert await transcribe(client, "worker") == expected
        await told_of_losses(client, workers=1)
        assert await transcribe(client, "engine") == expected
        await told_of_losses(client, engines=1)
        assert client.stats.recovered > 1


async def test_a_window_of_half_a_minute_passes_and_a_longer_one_is_refused(folder: Path) -> None:
    async with transcription_client(folder) as client:
        begun = anyio.Event()
        whole, longer = Transcript(), Transcript()
        await whole.read(client, [SOT], 1, window(1, 30.0), begun)
        assert len(whole.tokens) == 50
        await longer.read(client, [SOT], 1, window(1, 30.1), begun)
        assert longer.ends[0].reason == "error"
        assert "up to 960000 bytes" in str(longer.ends[0].message)
        (refused,) = [event async for events in client.submit(EngineRequest([SOT], LONG, [1])) for event in events]
        assert isinstance(refused, Finished)
        assert refused.message == "a transcription model is served: the request needs audio"
