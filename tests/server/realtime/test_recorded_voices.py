"""Events that voice frameworks from PyPI have sent, recorded in front of the server, bring no error in return.

Pipecat gives up a session at the first error event, and LiveKit reports it to the application. A line is one
connection. Its audio is replaced by what was said; ``wait`` names the server's event that the client sent the next one
after, and ``$answer`` is the item that the server spoke last.
"""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from stentor.tests.server.realtime.audio_session import session
from stentor.tests.server.realtime.test_text_sessions import engine_of, prompt_of

pytestmark = pytest.mark.anyio

RECORDED = [json.loads(line) for line in (Path(__file__).parent / "recorded_voices.jsonl").read_text().splitlines()]
ANSWER = "It is Paris. " * 12
"""Longer, spoken, than what a client has played of it where it truncates it."""


def heard(events: list[dict[str, Any]]) -> str:
    """What the client's audio says, without the marks of where speech begins and ends."""
    sounds = [event["audio"] for event in events if event.get("type") == "input_audio_buffer.append"]
    return b"".join(map(base64.b64decode, sounds)).decode().translate(str.maketrans("", "", "<>"))


@pytest.mark.parametrize("recorded", RECORDED, ids=[line["client"] for line in RECORDED])
async def test_what_a_voice_framework_sends_is_served_without_an_error(recorded: dict[str, Any]) -> None:
    transcribes = "intent=transcription" in recorded["address"]
    async with session(ANSWER, transcribes=transcribes) as running:
        for event in recorded["events"]:
            if "wait" in event:
                await running.until(event["wait"])
                continue
            answers = [told["item"]["id"] for told in running.sent if told["type"] == "response.output_item.added"]
            running.say(**{name: answers[-1] if value == "$answer" else value for name, value in event.items()})
        await running.settle()
        assert [event for event in running.sent if event["type"] == "error"] == []
        completed = [event for event in running.sent if event["type"].endswith("transcription.completed")]
        assert "".join(event["transcript"] for event in completed) == heard(recorded["events"])
        ended = [event["response"]["status"] for event in running.sent if event["type"] == "response.done"]
        assert set(ended) <= {"completed", "cancelled"}
        assert bool(ended) is not transcribes
        for event in completed if ended else ():
            assert event["transcript"] in prompt_of(engine_of(running))


async def test_a_cancellation_without_a_response_fails_in_the_words_that_clients_expect() -> None:
    """A client that cancels while the server ends the response by itself finds the error by its first words."""
    async with session() as running:
        running.say(type="response.cancel")
        first = (await running.until("error"))["error"]
        running.say(type="response.create")
        await running.until("response.created")
        running.say(type="response.cancel", response_id="resp_other")
        second = (await running.until("error"))["error"]
        await running.until("response.done")
    for error in (first, second):
        assert error["code"] == "response_cancel_not_active"
        assert error["message"].startswith("Cancellation failed")
