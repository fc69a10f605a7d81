"""Sessions that hear and speak: the order of what is told, interruptions, and what is left of an answer."""

import asyncio
import base64
from typing import Any

import pytest

from stentor.protocols.common.limits import Limits
from stentor.tests.fakes import FakeEngine, says
from stentor.tests.server.realtime.audio_session import (
    ANSWER,
    MANUAL,
    TRANSCRIBED,
    audio_of,
    hear,
    input_audio_of,
    kinds_of,
    session,
)
from stentor.tests.server.realtime.session_fakes import SECONDS_A_SENTENCE, FakeInputAudio, Running, voice_state
from stentor.tests.server.realtime.test_text_sessions import engine_of, prompt_of, user
from stentor.tests.server.realtime.wire import part_of

pytestmark = pytest.mark.anyio


async def test_a_spoken_turn_is_told_in_the_order_of_the_protocol() -> None:
    async with session() as running:
        hear(running, "..<hello>")
        done = (await running.until("response.done"))["response"]
        kinds = kinds_of(running)
    assert kinds[:9] == [
        "session.created",
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "rate_limits.updated",
        "response.output_item.added",
    ]
    assert "conversation.item.input_audio_transcription.completed" not in kinds
    own = [kind for kind in part_of(running.sent, done["id"]) if not kind.endswith(".delta")]
    assert own[-6:] == [
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": ANSWER}]
    assert done["audio"] == {"output": {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "joe"}}
    assert prompt_of(engine_of(running)) == "<user>..hello\n<assistant>"


async def test_the_transcript_is_told_ahead_of_the_audio_of_each_sentence() -> None:
    async with session() as running:
        running.say(type="response.create")
        await running.until("response.output_audio.delta")
        deltas = [event for event in running.sent if event["type"] == "response.output_audio_transcript.delta"]
        assert "".join(event["delta"] for event in deltas).startswith("This is the first sentence.")
        await running.until("response.done")


@pytest.mark.parametrize(
    ("format", "bytes_a_second"), [("audio/pcm", 48_000), ("audio/pcmu", 8000), ("audio/pcma", 8000)]
)
async def test_audio_comes_in_the_format_of_the_session(format: str, bytes_a_second: int) -> None:
    async with session(audio={"output": {"format": {"type": format}}}) as running:
        running.say(type="response.create")
        done = (await running.until("response.done"))["response"]
        expected = 2 * SECONDS_A_SENTENCE * bytes_a_second
        assert abs(len(audio_of(running, done["id"])) - expected) <= bytes_a_second / 100


async def test_transcription_events_come_where_the_session_wants_them() -> None:
    async with session(**TRANSCRIBED) as running:
        hear(running, "<ab>")
        completed = await running.until("conversation.item.input_audio_transcription.completed")
        assert (completed["transcript"], completed["usage"]) == ("ab", {"type": "duration", "seconds": 0.002})
        deltas = [event for event in running.sent if event["type"].endswith("input_audio_transcription.delta")]
        assert "".join(event["delta"] for event in deltas) == "ab"
        await running.until("response.done")
        running.say(type="conversation.item.retrieve", item_id=completed["item_id"])
        item = (await running.until("conversation.item.retrieved"))["item"]
        assert item["content"] == [
            {"type": "input_audio", "transcript": "ab", "audio": base64.b64encode(b"ab").decode()}
        ]


async def test_a_response_waits_for_what_was_said() -> None:
    async with session() as running:
        hear(running, "<a>")
        await running.until("response.done")
        input_audio_of(running).gate.clear()
        hear(running, "<b>")
        created = await running.until("response.created")
        await running.settle(50)
        assert len(engine_of(running).streams) == 1
        input_audio_of(running).gate.set()
        done = await running.until("response.done")
        assert done["response"]["id"] == created["response"]["id"]
        assert "<user>b" in prompt_of(engine_of(running))


async def test_what_cannot_be_heard_fails_its_response_and_not_the_next() -> None:
    async with session(**TRANSCRIBED) as running:
        hear(running, "...")
        await running.settle()
        input_audio_of(running).fails = True
        hear(running, "<a>")
        done = (await running.until("response.done"))["response"]
        assert done["status"] == "failed"
        assert "conversation.item.input_audio_transcription.failed" in kinds_of(running)
        input_audio_of(running).fails = False
        hear(running, "<b>")
        assert (await running.until("response.done"))["response"]["status"] == "completed"


async def test_where_nothing_was_said_nothing_is_answered() -> None:
    async with session() as running:
        hear(running, "<>")
        done = (await running.until("response.done"))["response"]
        assert (done["status"], done["output"]) == ("completed", [])
        assert engine_of(running).streams == []


async def test_speech_interrupts_the_answer_at_once() -> None:
    engine = FakeEngine(answer=says("word ", repeat=True), delay=0.001, max_model_len=4096)
    async with session(engine=engine) as running:
        hear(running, "<a>")
        await running.until("response.output_audio_transcript.delta")
        hear(running, "<")
        started = await running.until("input_audio_buffer.speech_started")
        done = await running.until("response.done")
        place = running.sent.index(started)
        assert done["response"]["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        between = {event["type"] for event in running.sent[place + 1 : running.sent.index(done)]}
        assert not any(kind.endswith(".delta") for kind in between)
        await running.settle(50)
        assert engine.live == 0
        assert running.sent[-1] is done


async def test_speech_that_may_not_interrupt_lets_the_answer_end() -> None:
    engine = FakeEngine(answer=says(ANSWER), max_model_len=4096)
    detection = {"type": "server_vad", "interrupt_response": False}
    async with session(engine=engine, audio={"input": {"turn_detection": detection}}) as running:
        engine.gate.clear()
        hear(running, "<a>")
        await running.until("response.created")
        hear(running, "<b>")
        assert (await running.until("error"))["error"]["code"] == "conversation_already_has_active_response"
        engine.gate.set()
        assert (await running.until("response.done"))["response"]["status"] == "completed"


async def test_without_create_response_the_client_asks() -> None:
    detection = {"type": "server_vad", "create_response": False}
    async with session(audio={"input": {"turn_detection": detection}}) as running:
        hear(running, "<a>")
        await running.until("conversation.item.done")
        await running.settle(50)
        assert "response.created" not in kinds_of(running)
        running.say(type="response.create")
        await running.until("response.done")


async def test_turns_that_the_client_ends_itself() -> None:
    async with session(**MANUAL) as running:
        running.say(type="input_audio_buffer.commit")
        assert (await running.until("error"))["error"]["code"] == "input_audio_buffer_commit_empty"
        hear(running, "gone")
        running.say(type="input_audio_buffer.clear")
        await running.until("input_audio_buffer.cleared")
        hear(running, "kept")
        running.say(type="input_audio_buffer.commit")
        await running.until("conversation.item.done")
        await running.settle(30)
        assert "response.created" not in kinds_of(running)  # a commit asks for nothing
        running.say(type="response.create")
        await running.until("response.done")
        assert "<user>kept" in prompt_of(engine_of(running))


async def test_silence_for_long_makes_the_model_speak() -> None:
    async with session() as running:
        hear(running, "<a>")
        await running.until("response.done")
        hear(running, "~")
        timeout = await running.until("input_audio_buffer.timeout_triggered")
        committed = await running.until("input_audio_buffer.committed")
        assert committed["item_id"] == timeout["item_id"]
        await running.until("response.done")
        assert prompt_of(engine_of(running)).endswith(f"{ANSWER}\n<assistant>")


async def test_no_id_is_longer_than_clients_keep() -> None:
    def ids(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(ids, value))
        if not isinstance(value, dict):
            return set()
        own = {each for name, each in value.items() if name.endswith("id") and isinstance(each, str)}
        return own.union(*map(ids, value.values()))

    async with session() as running:
        hear(running, "<hello>")
        await running.until("response.done")
    found = ids(running.sent)
    assert {name.partition("_")[0] for name in found} == {"sess", "item", "resp", "event", "conv"}
    assert max(map(len, found)) <= 32


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"type": "conversation.item.retrieve"}, "item_retrieve_invalid_item_id"),
        ({"type": "conversation.item.delete"}, "item_delete_invalid_item_id"),
        (
            {"type": "conversation.item.truncate", "content_index": 0, "audio_end_ms": 0},
            "item_truncate_invalid_item_id",
        ),
    ],
)
async def test_an_item_that_is_not_there_has_a_code_for_what_was_asked_of_it(event: dict[str, Any], code: str) -> None:
    async with session() as running:
        running.say(**event, item_id="gone")
        error = (await running.until("error"))["error"]
        assert (error["code"], error["param"]) == (code, "item_id")


async def test_a_transcription_model_of_another_name_is_the_one_that_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = {"model": "gpt-4o-mini-transcribe"}
    async with session(instructions="Be brief.", audio={"input": {"transcription": other}}) as running:
        updated = [each for each in running.sent if each["type"] == "session.updated"][-1]["session"]
        assert updated["audio"]["input"]["transcription"]["model"] == "fake-whisper"
        assert updated["instructions"] == "Be brief."
    assert "'gpt-4o-mini-transcribe', which is not served" in caplog.text


async def test_the_voice_stays_once_it_has_been_heard() -> None:
    async with session(audio={"output": {"voice": "ann"}}) as running:
        running.say(type="response.create")
        done = (await running.until("response.done"))["response"]
        assert done["audio"]["output"]["voice"] == "ann"
        update = {"type": "realtime", "audio": {"output": {"voice": "joe"}}}
        running.say(type="session.update", session=update)
        error = (await running.until("error"))["error"]
        assert (error["code"], error["param"]) == ("cannot_update_voice", "session.audio.output.voice")
        running.say(type="session.update", session={"type": "realtime", "audio": {"output": {"voice": "ann"}}})
        await running.until("session.updated")


async def test_a_sentence_that_cannot_be_spoken_fails_the_response() -> None:
    async with session("This is the first sentence. This one is unspeakable. And so on.") as running:
        running.say(type="response.create")
        done = (await running.until("response.done"))["response"]
        assert done["status"] == "failed"
        assert done["status_details"]["error"]["code"] == "speech_failed"
        assert done["output"][0]["status"] == "incomplete"


async def test_audio_that_is_cancelled_is_not_sent_any_more() -> None:
    async with session(" ".join(f"This is sentence number {number} of many." for number in range(40))) as running:
        running.say(type="response.create")
        await running.until("response.output_audio.delta")
        running.say(type="response.cancel")
        done = await running.until("response.done")
        await running.settle(100)
        assert running.sent[-1] is done
        assert running.state.auxiliary.speech is not None
        assert running.state.auxiliary.speech.callers == 0


async def test_clearing_the_output_ends_the_answer() -> None:
    async with session(" ".join(f"This is sentence number {number} of many." for number in range(40))) as running:
        running.say(type="output_audio_buffer.clear")
        assert (await running.until("error"))["error"]["code"] == "output_audio_buffer_empty"
        running.say(type="response.create")
        await running.until("response.output_audio.delta")
        running.say(type="output_audio_buffer.clear")
        done = (await running.until("response.done"))["response"]
        assert done["status"] == "cancelled"
        assert (await running.until("output_audio_buffer.cleared"))["response_id"] == done["id"]


async def test_text_and_audio_take_turns_in_one_session() -> None:
    async with session() as running:
        running.say(type="response.create", response={"output_modalities": ["text"]})
        done = (await running.until("response.done"))["response"]
        assert done["output"][0]["content"][0]["type"] == "output_text"
        running.say(type="response.create")
        done = (await running.until("response.done"))["response"]
        assert done["output"][0]["content"][0]["type"] == "output_audio"


async def test_a_transcription_session_only_listens() -> None:
    async with session(transcribes=True) as running:
        hear(running, "<ab>")
        await running.until("conversation.item.input_audio_transcription.completed")
        await running.settle(50)
        deltas = ("conversation.item.input_audio_transcription.delta",)  # come when they come
        assert kinds_of(running, but=deltas) == [
            "session.created",
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
            "conversation.item.input_audio_transcription.completed",
        ]
        running.say(type="conversation.item.create", item=user("x"))
        assert (await running.until("error"))["error"]["code"] == "invalid_event"
        running.say(type="session.update", session={"type": "realtime"})
        assert (await running.until("error"))["error"]["param"] == "session.type"
        running.say(
            type="session.update", session={"type": "transcription", "audio": {"input": {"turn_detection": None}}}
        )
        assert (await running.until("session.updated"))["session"]["audio"]["input"]["turn_detection"] is None


async def test_a_session_may_become_one_of_transcription_before_anything_has_happened() -> None:
    async with session() as running:
        running.say(type="session.update", session={"type": "transcription", **TRANSCRIBED})
        assert (await running.until("session.updated"))["session"]["type"] == "transcription"
        running.say(type="response.create")
        assert (await running.until("error"))["error"]["code"] == "invalid_event"


async def test_audio_in_an_item_is_heard() -> None:
    async with session(**TRANSCRIBED) as running:
        content = [{"type": "input_audio", "audio": base64.b64encode(b"spoken").decode()}]
        running.say(type="conversation.item.create", item={"type": "message", "role": "user", "content": content})
        running.say(type="response.create")
        await running.until("response.done")
        assert "<user>spoken" in prompt_of(engine_of(running))
        assert "conversation.item.input_audio_transcription.completed" in kinds_of(running)


async def test_audio_of_an_item_that_is_refused_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[bytes] = []
    turn_of = FakeInputAudio.turn_of

    def noted(input_audio: FakeInputAudio, item_id: str, audio: bytes) -> Any:
        heard.append(audio)
        return turn_of(input_audio, item_id, audio)

    monkeypatch.setattr(FakeInputAudio, "turn_of", noted)
    audio = base64.b64encode(b"spoken").decode()
    item = {"type": "message", "role": "user", "id": "mine", "content": [{"type": "input_audio", "audio": audio}]}
    async with session() as running:
        for _ in range(2):
            running.say(type="conversation.item.create", item=item)
        assert (await running.until("error"))["error"]["code"] == "item_create_duplicate_item_id"
        new = {**item, "id": "another"}
        running.say(type="response.create", response={"input": [new, {**new, "content": []}]})
        assert (await running.until("error"))["error"]["param"] == "response.input[1].content"
    assert heard == [b"spoken"]


async def test_a_conversation_that_is_full_takes_no_more_turns_by_hand() -> None:
    running = Running(voice_state(limits=Limits(max_messages=1)))
    running.start()
    running.say(type="session.update", session={"type": "realtime", **MANUAL})
    for word in ("one", "two"):
        hear(running, word)
        running.say(type="input_audio_buffer.commit")
    error = (await running.until("error"))["error"]
    assert error["code"] == "array_above_max_length"
    assert input_audio_of(running).buffer == b"two"
    await running.end()


async def test_detection_may_be_switched_off_and_on_while_somebody_speaks() -> None:
    detection = {"type": "server_vad"}
    async with session() as running:
        hear(running, "<he")
        await running.until("input_audio_buffer.speech_started")
        for given in (None, detection):
            running.say(
                type="session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": given}}}
            )
        input_audio_of(running).item = None
        hear(running, "<llo>")
        await running.until("input_audio_buffer.speech_started")
        await running.until("response.done")
    assert "error" not in kinds_of(running)


async def test_what_waits_for_a_transcript_ends_with_the_connection() -> None:
    async with session() as running:
        hear(running, "x")
        await running.settle()
        input_audio_of(running).gate.clear()
        hear(running, "<a>")
        await running.until("response.created")
        await asyncio.sleep(0)
    assert running.sent[-1]["type"] == "response.done"
    assert running.state.admission.live_requests == 0
