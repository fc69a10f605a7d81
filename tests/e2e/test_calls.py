"""A caller over WebRTC who speaks to the real server with the demo models, over a network that loses packets."""

import asyncio

import openai
import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.support.whole_audio import resample

pytest.importorskip("piper", reason="the demo's voice needs the extra `speech`")
pytest.importorskip("aiortc", reason="the extra `webrtc` is not installed")

from stentor.tests.server.realtime.rtc_client import RATE, Client, loopback

__all__ = ["loopback"]
pytestmark = pytest.mark.usefixtures("loopback")

QUESTION = "What is the capital of France?"
LOUD = 1000


@pytest.mark.alone  # sound has its time
@pytest.mark.proof
def test_a_caller_of_whose_packets_a_tenth_is_lost_is_understood_and_answered(server: ServerProcess) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0) as client:
        said = client.audio.speech.create(model="tts-1", voice="alloy", input=QUESTION, response_format="pcm").content

    async def run() -> None:
        audio = {"input": {"transcription": {"model": "whisper-1"}}}
        caller = Client(f"127.0.0.1:{server.port}")
        await caller.dial({"type": "realtime", "instructions": "Answer in one short sentence.", "audio": audio})
        caller.lose(0.1)
        caller.microphone.waiting = resample(said, 24_000, RATE)
        transcript = await caller.until("conversation.item.input_audio_transcription.completed", 120)
        await caller.when(lambda: sum(loud > LOUD for loud in caller.loudness) > 20, 120)
        await caller.hang_up()
        assert caller.lost > 3
        assert "capital of france" in transcript["transcript"].lower()
        caller.check()

    asyncio.run(run())
