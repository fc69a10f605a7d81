"""What both ways to hear a turn have in common."""

import anyio
import pytest

from stentor.server.api.realtime.common.audio_budget import HeldAudio
from stentor.server.api.realtime.listening.hypotheses import TranscriptionSettings
from stentor.server.api.realtime.listening.partial_pace import PartialPace
from stentor.server.api.realtime.listening.streamed import StreamTranscriber, begin_transcription
from stentor.tests.server.asr.streams import StreamingEngine, streaming_model
from stentor.tests.server.realtime.sounds import Model, passes, words

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("given_up", [False, True])
@pytest.mark.parametrize("streams", [False, True])
async def test_a_turn_that_is_over_keeps_nothing_of_what_comes(streams: bool, given_up: bool) -> None:
    model = StreamTranscriber(streaming_model(StreamingEngine()), passes()) if streams else Model()
    with HeldAudio().share() as share:
        turn = begin_transcription(0, model, TranscriptionSettings(), PartialPace(), share=share)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(turn.run)
            turn.push(words(1, 2))
            assert share.bytes == len(words(1, 2))
            if given_up:
                turn.give_up()
            else:
                turn.finish()
                await turn.transcript()
            assert share.bytes == 0
            turn.push(words(3))
            assert share.bytes == 0
