"""Turns heard by a model that decodes frame by frame: chunk by chunk as they come, with the words of the whole."""

import os
import signal
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from stentor.engine.client.client import EngineClient
from stentor.loadtest.processes import tree
from stentor.protocols.ipc.actors import PromptDone, PromptPart
from stentor.protocols.ipc.config import EngineConfig
from stentor.protocols.ipc.inputs import StreamShape
from stentor.server.api.realtime.common.interfaces import TokenProbability
from stentor.server.api.realtime.connections.serving import RealtimeServing
from stentor.server.api.realtime.listening.hypotheses import TranscriptionSettings
from stentor.server.api.realtime.listening.streamed import StreamedTurn, StreamTranscriber
from stentor.server.app.auxiliary_models import open_transcription
from stentor.server.asr.framewise_streams import FramewiseStreams
from stentor.server.asr.framewise_vocabulary import framewise_vocabulary_of
from stentor.server.asr.model import TranscriptionModel
from stentor.server.asr.options import TranscriptionOptions
from stentor.server.asr.streaming import TextToken, Transcribed
from stentor.server.asr.transcribe import transcribe_turn
from stentor.server.common.keys import ANYONE
from stentor.server.config.model_registry import ModelRegistry, ServedModel
from stentor.tests.engine.forked import client_of
from stentor.tests.engine.local import model_config
from stentor.tests.fakes import fake_state
from stentor.tests.parity.framewise import BLANK, PIECES, tiny_ctc, tiny_nemotron, write_framewise
from stentor.tests.parity.test_whisper import sound
from stentor.tests.server.asr.scripted import engine_of, model_of
from stentor.tests.server.asr.test_framewise import says, write_told
from stentor.tests.server.realtime.sounds import passes

pytestmark = pytest.mark.anyio
STEP = 3 * 1280
"""Samples of a chunk of the tiny model."""


class Served:
    served_names = ("tiny",)


def form_of(folder: Path) -> FramewiseStreams:
    found = framewise_vocabulary_of(folder)
    assert found.shape is not None
    return FramewiseStreams(found, found.shape)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_framewise(tmp_path_factory.mktemp("nemotron"), tiny_nemotron)


def test_a_request_has_a_position_for_each_chunk_and_says_the_language(folder: Path, tmp_path: Path) -> None:
    form = form_of(folder)
    assert form.shape == StreamShape(STEP - 960, STEP, tail=True)
    request = form.request(100, None, logprobs=False)
    assert (request.prompt, request.streamed, request.params.max_tokens) == ([0] * 100, b"", 0)
    assert form.room(100) == 99 * 2 * STEP
    assert len(form.request(1 << 20, None, logprobs=False).prompt) == 600 * 16_000 // STEP + 1
    told = form_of(write_told(tmp_path))
    assert [told.request(3, name, logprobs=False).prompt for name in ("de", "pt-BR", None)] == [
        *([2, 0, 0], [3, 0, 0], [6, 0, 0])
    ]


def test_a_part_of_a_result_is_its_tokens_and_how_far_the_model_is(folder: Path) -> None:
    form, h = form_of(folder), PIECES.index("▁h")
    rows = struct.pack("<8f", h, 5, 6, -0.5, BLANK - 1, 6, 7, -0.25)
    said = form.read(PromptPart(1, 0, [], rows, 4), 2)
    assert said == Transcribed(4, [h, BLANK - 1], [TextToken(h, b" h", -0.5)])
    assert form.read(PromptDone(1, 0, 0.0, 0.0, None), 4) is None


def test_sessions_stream_to_a_model_that_can_and_send_turns_to_others(folder: Path, tmp_path: Path) -> None:
    for folder_of, streams in ((folder, True), (write_framewise(tmp_path, tiny_ctc), False)):
        model = open_transcription(Served(), engine_of(model_of(says())), folder_of)
        state = fake_state(
            registry=ModelRegistry([ServedModel("chat", ("fake",)), ServedModel("transcription", ("tiny",))]),
            transcription=model,
            runners={"transcription": model.client},
        )
        transcriber = RealtimeServing(state.for_realtime).transcriber(ANYONE)
        assert isinstance(transcriber, StreamTranscriber) == streams
        if isinstance(transcriber, StreamTranscriber):
            assert transcriber.positions_a_second == 12.5


@asynccontextmanager
async def listening(folder: Path) -> AsyncIterator[tuple[TranscriptionModel, EngineClient]]:
    client = client_of(EngineConfig(model_config(folder, max_num_seqs=3, max_num_batched_tokens=0)))
    with anyio.fail_after(240):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.run)
            await client.wait_started()
            try:
                yield open_transcription(Served(), client, folder), client
            finally:
                tasks.cancel_scope.cancel()


def kill(name: str, others: set[int]) -> None:
    """The process below this one whose name ends so."""
    comms = {pid: Path(f"/proc/{pid}/comm") for pid in {*tree(os.getpid())} - others}
    (victim,) = (pid for pid, comm in comms.items() if comm.exists() and comm.read_text().strip().endswith(name))
    os.kill(victim, signal.SIGKILL)


async def test_a_turn_has_the_words_of_the_whole_though_its_worker_and_its_engine_are_killed(tmp_path: Path) -> None:
    others = {*tree(os.getpid())}
    pcm, settings = sound(4.3, 2), TranscriptionSettings(language="de", partials=True, logprobs=True)
    async with listening(write_told(tmp_path)) as (model, client):
        whole = await transcribe_turn(model, pcm, TranscriptionOptions(language="de"))
        assert len(whole.text) > 8
        assert model.streamed is not None
        told: list[str] = []

        def tell(text: str, tokens: list[TokenProbability]) -> None:
            told.append(text)

        known = ""
        turn = StreamedTurn(0, StreamTranscriber(model.streamed, passes()), settings, tell)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(turn.run)
            for place, at in enumerate(range(0, len(pcm), 9_998)):
                turn.push(pcm[at : at + 9_998])
                if place in (4, 9):
                    known = "".join(told)
                    kill({4: "-worker", 9: "-engine"}[place], others)
                await anyio.sleep(0.002)
                if place in (3, 8):
                    before = len(told)
                    while len(told) == before:
                        await anyio.sleep(0.02)  # words come before the end, and after a kill
            turn.finish()
            transcript = await turn.transcript()
        assert client.engine_restarts == 1
    assert known
    assert "".join(told) == transcript.text == whole.text
    assert transcript.logprobs is not None
    given = [each.logprob for each in transcript.logprobs]
    assert given == pytest.approx(whole.logprobs, abs=2e-3)
