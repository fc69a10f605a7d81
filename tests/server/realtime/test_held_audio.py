"""What all sessions hold together: counted where it lies, bounded, and given back however a session ends."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.openai.realtime.session import (
    AudioInput,
    AudioPcma,
    AudioPcmu,
    ServerVad,
    Transcription,
)
from stentor.server.api.realtime.common.audio_budget import RESERVED, AudioFull, AudioShare, HeldAudio
from stentor.server.api.realtime.connections.vllm import VllmSession
from stentor.server.api.realtime.conversation.conversation import RealtimeConversation
from stentor.server.api.realtime.conversation.machine import State
from stentor.server.api.realtime.listening.incremental_transcriber import IncrementalTranscriber
from stentor.server.api.realtime.listening.input_audio_pipeline import InputAudioPipeline
from stentor.server.api.realtime.listening.input_buffer import InputBuffer
from stentor.server.api.realtime.listening.partial_pace import PartialPace
from stentor.server.api.realtime.listening.streamed import AnyTranscriber, StreamedTurn, StreamTranscriber
from stentor.server.app.state import ServerState
from stentor.server.config.config import RealtimeConfig
from stentor.server.config.model_registry import ModelRegistry, ServedModel
from stentor.tests.examples import examples
from stentor.tests.fakes import fake_state
from stentor.tests.server.asr.scripted import Said, model_of, says
from stentor.tests.server.asr.streams import StreamingEngine, streaming_model
from stentor.tests.server.realtime import test_socket
from stentor.tests.server.realtime.session_fakes import Running, voice_state
from stentor.tests.server.realtime.sounds import LoudnessDetector, Model, passes, silence, until, words
from stentor.tests.server.realtime.test_any_input_audio import inputs, steps
from stentor.tests.server.responses.sockets import serving

pytestmark = pytest.mark.anyio

RATE = 24_000
SECOND = 2 * RATE
MANUAL = AudioInput(turn_detection=None)


# ---- the account


def test_what_is_held_is_bounded_and_given_back() -> None:
    held = HeldAudio(1000)
    with held.share() as one, held.share() as two:
        hold = one.hold()
        one.check(750)
        hold.set(750)
        with pytest.raises(AudioFull) as full:
            one.check(1)
        assert (full.value.code, full.value.status) == ("realtime_audio_full", 429)
        two.check(100)  # of what is for those that hold little
        with pytest.raises(AudioFull):
            two.check(126)
        hold.set(600)
        two.check(126)
        assert (held.bytes, one.bytes, two.bytes) == (600, 600, 0)
    assert held.bytes == 0
    hold.set(10)  # said too late
    one.close()
    assert held.bytes == 0


def test_who_is_refused_is_counted() -> None:
    refused: list[None] = []
    share = HeldAudio(100, lambda: refused.append(None)).share()
    for size in (75, 76):
        try:
            share.check(size)
        except AudioFull:
            assert size == 76
    assert len(refused) == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400), st.sampled_from(["take", "drop", "leave"]))))
def test_the_sum_is_that_of_the_shares_and_never_too_much(script: list[tuple[int, int, str]]) -> None:
    held = HeldAudio(1000)
    shares: dict[int, tuple[AudioShare, list[Any]]] = {}
    sizes: dict[int, list[int]] = {}
    for number, size, step in script:
        if number not in shares:
            shares[number], sizes[number] = (held.share(), []), []
        share, holds = shares[number]
        match step:
            case "take":
                try:
                    share.check(size)
                except AudioFull:
                    total, own = sum(map(sum, sizes.values())), sum(sizes[number])
                    assert total + size > 1000 * (1 - RESERVED)
                    assert total + size > 1000 or (own + size) * len(shares) > 1000 * RESERVED
                    continue
                holds.append(share.hold())
                holds[-1].set(size)
                sizes[number].append(size)
            case "drop" if holds:
                holds.pop().set(0)
                sizes[number].pop()
            case "leave":
                share.close()
                del shares[number], sizes[number]
        assert held.bytes == sum(map(sum, sizes.values())) <= 1000
        assert {number: share.bytes for number, (share, _) in shares.items()} == {
            number: sum(own) for number, own in sizes.items()
        }


# ---- what lies in a session


def in_buffer(buffer: InputBuffer) -> int:
    return len(buffer._sent._data) + len(buffer._resampled._data)


def in_turn(transcription: IncrementalTranscriber | StreamedTurn) -> int:
    if isinstance(transcription, IncrementalTranscriber):
        return len(transcription._window._data)
    assert isinstance(transcription, StreamedTurn)
    stretch = transcription._stretch
    return len(transcription._waiting) + (0 if stretch is None else stretch.size + len(stretch._untranscribed))


def in_input_audio(input_audio: InputAudioPipeline) -> int:
    """All but what comes whole and is on its way."""
    transcriptions = {
        *input_audio._unsettled,
        *([input_audio._growing.transcription] if input_audio._growing is not None else []),
    }
    return in_buffer(input_audio._buffer) + sum(map(in_turn, transcriptions))


def in_items(conversation: RealtimeConversation) -> int:
    return sum(len(entry.turn.audio) for entry in conversation if entry.turn is not None)


async def live(transcribe: AnyTranscriber, input: AudioInput, script: list[tuple[str, object]], most: float) -> None:
    held, codes = HeldAudio(most), set[str]()
    with held.share() as share:
        input_audio = InputAudioPipeline(transcribe, LoudnessDetector, PartialPace(), max_seconds=20, share=share)
        input_audio.configure(input, logprobs=False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(input_audio.run)
            for name, value in script:
                before = in_input_audio(input_audio)
                try:
                    match name, value:
                        case "append", bytes():
                            await input_audio.append(value)
                        case "configure", AudioInput():
                            input_audio.check(value)
                            input_audio.configure(value, logprobs=True)
                        case "commit", _:
                            input_audio.commit()
                        case "clear", _:
                            input_audio.clear()
                            assert in_buffer(input_audio._buffer) == 0
                        case _:
                            await anyio.sleep(0.001)
                except AudioFull:
                    assert in_input_audio(input_audio) <= before + 4  # nothing of it was taken
                except BadRequest as error:
                    codes.add(error.code or "")
                assert share.bytes == in_input_audio(input_audio)
                assert share.bytes <= most + 32 * 2 * 400  # the padding of a turn that begins
            input_audio.clear()
            await until(lambda: not input_audio._unsettled)
            assert share.bytes == 0
            tasks.cancel_scope.cancel()
    assert held.bytes == 0
    assert codes <= {"input_audio_buffer_commit_empty", "input_audio_buffer_full"}


@settings(max_examples=examples(40, 600), deadline=None)
@given(inputs, steps, st.sampled_from([2e5, 5e5, 1e9]))
def test_whatever_a_client_does_what_its_session_holds_is_what_is_counted(
    input: AudioInput, script: list[tuple[str, object]], most: float
) -> None:
    anyio.run(live, Model(), input, script, most)


async def streaming(input: AudioInput, script: list[tuple[str, object]], most: float) -> None:
    await live(StreamTranscriber(streaming_model(StreamingEngine()), passes()), input, script, most)


@settings(max_examples=examples(25, 400), deadline=None)
@given(inputs, steps, st.sampled_from([2e5, 1e9]))
def test_so_it_is_with_a_model_that_hears_while_it_is_spoken_to(
    input: AudioInput, script: list[tuple[str, object]], most: float
) -> None:
    anyio.run(streaming, input, script, most)


@asynccontextmanager
async def hearing(
    share: AudioShare, input: AudioInput, model: Model | None = None
) -> AsyncIterator[InputAudioPipeline]:
    input_audio = InputAudioPipeline(model or Model(), LoudnessDetector, PartialPace(), share=share)
    input_audio.configure(input, logprobs=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(input_audio.run)
        yield input_audio
        tasks.cancel_scope.cancel()


async def test_another_format_that_takes_more_room_than_there_is_is_refused_before_anything_changes() -> None:
    held = HeldAudio(700_000)
    with held.share() as share:
        async with hearing(share, AudioInput(AudioPcmu(), turn_detection=None)) as input_audio:
            await input_audio.append(b"\xff" * 40_000)
            before = share.bytes
            with pytest.raises(AudioFull):
                input_audio.check(MANUAL)
            input_audio.check(AudioInput(AudioPcma(), turn_detection=None))
            assert share.bytes == before == in_input_audio(input_audio)


async def test_a_session_that_holds_much_keeps_nobody_from_speaking() -> None:
    held = HeldAudio(4_000_000)
    with held.share() as greedy, held.share() as other:
        vad = AudioInput(transcription=Transcription(), turn_detection=ServerVad(silence_duration_ms=200))
        async with hearing(greedy, MANUAL) as much, hearing(other, vad) as little:
            taken = 0
            with pytest.raises(AudioFull):  # noqa: PT012
                while taken < 100:
                    await much.append(silence(1000, RATE))
                    taken += 1
            assert taken > 10
            await little.append(silence(1000, RATE) + words(1, 2, rate=RATE))
            assert held.bytes <= 4_000_000
            much.clear()
            await much.append(silence(1000, RATE))


async def test_what_comes_whole_is_counted_from_when_it_is_taken() -> None:
    held = HeldAudio(1_000_000)
    with held.share() as share:
        async with hearing(share, MANUAL) as input_audio:
            turn = input_audio.turn_of("item", words(1, 2, rate=RATE))
            assert share.bytes >= len(words(1, 2, rate=RATE))
            with pytest.raises(AudioFull):
                input_audio.turn_of("other", bytes(10 * SECOND))
            assert (await turn.transcript()).text == "w1 w2"
            assert share.bytes == 0  # the item that keeps it counts it


async def test_a_turn_that_fails_lets_go_of_its_audio(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    model.error = RuntimeError("a surprise")
    held = HeldAudio()
    with held.share() as share:
        async with hearing(share, MANUAL, model) as input_audio:
            await input_audio.append(words(1, rate=RATE))
            turn = input_audio.commit()
            with pytest.raises(Exception, match="failed"):
                await turn.transcript()
            assert share.bytes == 0


# ---- whole sessions


class RealInputAudio(Running):
    """A connection whose ears are real but for the model."""

    held: HeldAudio
    share: AudioShare
    model: Model
    real: InputAudioPipeline | None = None

    @classmethod
    def over(cls, held: HeldAudio, model: Model | None = None) -> "RealInputAudio":
        running = cls(voice_state(speaks=False), lambda rules: rules.realtime("sess_1", None, 1))
        running.held, running.share, running.model = held, held.share(), model or Model()
        running.connection._conversation._audio = running.share.hold()
        return running

    def _open_input_audio(self, on_partial: Any, on_speech_event: Any) -> Any:
        self.real = InputAudioPipeline(
            self.model, LoudnessDetector, PartialPace(), on_partial, on_speech_event, max_seconds=20, share=self.share
        )
        return self.real

    @property
    def lies(self) -> int:
        return in_items(self.connection.conversation) + (0 if self.real is None else in_input_audio(self.real))


def encoded(pcm: bytes) -> str:
    return base64.b64encode(pcm).decode()


APPEND, COMMIT, CLEAR = ("input_audio_buffer.append", "input_audio_buffer.commit", "input_audio_buffer.clear")


async def test_a_session_that_is_refused_audio_is_told_so_and_goes_on() -> None:
    running = RealInputAudio.over(HeldAudio(1_000_000))
    running.start()
    running.say(type="session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})
    running.say(type=APPEND, audio=encoded(words(1, 2, rate=RATE)))
    running.say(type=APPEND, audio=encoded(bytes(12 * SECOND)), event_id="mine")
    error = (await running.until("error"))["error"]
    assert (error["code"], error["type"], error["event_id"]) == ("realtime_audio_full", "rate_limit_error", "mine")
    running.say(type="conversation.item.create", item=item("whole", bytes(12 * SECOND)))
    assert (await running.until("error"))["error"]["code"] == "realtime_audio_full"
    running.say(type=COMMIT)
    done = await running.until("input_audio_buffer.committed")
    await until(lambda: running.lies == len(words(1, 2, rate=RATE)) == running.share.bytes)
    running.say(type="conversation.item.delete", item_id=done["item_id"])
    await running.until("conversation.item.deleted")
    assert running.share.bytes == 0
    await running.end()


def item(id: str, pcm: bytes) -> dict[str, Any]:
    content = [{"type": "input_audio", "audio": encoded(pcm)}]
    return {"type": "message", "id": id, "role": "user", "content": content}


IDS = ["one", "two", "three"]
said = st.integers(1, 6).map(lambda number: words(number, rate=RATE))
messages = st.one_of(
    st.builds(lambda pcm: {"type": APPEND, "audio": encoded(pcm)}, said),
    st.builds(lambda ms: {"type": APPEND, "audio": encoded(silence(ms, RATE))}, st.sampled_from([300, 2000])),
    st.sampled_from([{"type": COMMIT}, {"type": CLEAR}, {"type": "wait"}, {"type": "response.create"}]),
    st.builds(lambda id, pcm: {"type": "conversation.item.create", "item": item(id, pcm)}, st.sampled_from(IDS), said),
    st.builds(lambda id: {"type": "conversation.item.delete", "item_id": id}, st.sampled_from(IDS)),
    st.builds(
        lambda pcm: {"type": "response.create", "response": {"conversation": "none", "input": [item("x", pcm)]}}, said
    ),
    st.builds(
        lambda kind, vad: {
            "type": "session.update",
            "session": {"type": "realtime", "audio": {"input": {"format": kind, "turn_detection": vad}}},
        },
        st.sampled_from([{"type": "audio/pcm", "rate": RATE}, {"type": "audio/pcmu"}]),
        st.sampled_from([None, {"type": "server_vad", "silence_duration_ms": 200}]),
    ),
)


async def session(script: list[dict[str, Any]], end: str, most: float, fails: bool) -> None:
    held = HeldAudio(most)
    model = Model(0.001)
    model.error = RuntimeError("a surprise") if fails else None
    running = RealInputAudio.over(held, model)
    inbox = running.inbox

    async def receive() -> bytes | None:
        message = await inbox.get()
        if message == b"broken":
            raise ConnectionError("the socket is broken")
        return message

    running.connection.begin()
    with anyio.CancelScope() as scope, running.share:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(running.event_queue.write, running.send)
                tasks.start_soon(running.connection.serve, receive)
                for message in script:
                    if message["type"] != "wait":
                        running.say(**message)
                    await until(inbox.empty)
                    await anyio.sleep(0.001)
                if end == "settled":
                    real = running.real
                    await until(lambda: real is None or not real._arriving)
                    with anyio.fail_after(60):
                        while real is not None and {*real._unsettled} - {real._growing and real._growing.transcription}:
                            await anyio.sleep(0.002)
                    assert running.share.bytes == running.lies
                match end:
                    case "broken":
                        inbox.put_nowait(b"broken")
                        await anyio.sleep_forever()
                    case "cancelled":
                        scope.cancel()
                    case _:
                        inbox.put_nowait(None)
                        await until(lambda: running.connection.state is State.ENDED)
                        tasks.cancel_scope.cancel()
        except* ConnectionError:
            pass
    assert held.bytes == 0
    assert held._sessions == 0


@settings(max_examples=examples(40, 500), deadline=None)
@given(
    st.lists(messages, max_size=14),
    st.sampled_from(["settled", "gone", "broken", "cancelled"]),
    st.sampled_from([6e5, 1e9]),
    st.booleans(),
)
def test_however_a_session_ends_nothing_of_it_is_counted_any_more(
    script: list[dict[str, Any]], end: str, most: float, fails: bool
) -> None:
    anyio.run(session, script, end, most, fails)


# ---- over the wire


def on_page(state: ServerState, name: str) -> float | None:
    return state.metrics.registry.get_sample_value(name, {"model_name": state.chat.config.served_names[0]})


@pytest.mark.parametrize("vllm", [False, True])
async def test_the_option_bounds_what_sockets_bring_and_the_page_shows_it(vllm: bool) -> None:
    model = model_of(lambda asked: Said(says(" Hm")))
    state = fake_state(
        registry=ModelRegistry(
            [ServedModel("chat", ("fake/model", "fake")), ServedModel("transcription", ("whisper",))]
        ),
        transcription=model,
        runners={"transcription": model.client},
        realtime=RealtimeConfig(max_audio_bytes=1_000_000),
    )
    async with (
        serving(state) as address,
        test_socket.opened(address, "" if vllm else "?intent=transcription") as socket,
    ):
        await test_socket.reported(socket, "session.created")
        if vllm:
            await test_socket.say(socket, type="session.update", model="whisper")
        for size in (SECOND, 20 * SECOND):
            await test_socket.say(socket, type=APPEND, audio=encoded(bytes(size)))
        error = (await test_socket.reported(socket, "error"))[-1]
        assert (error if vllm else error["error"])["code"] == "realtime_audio_full"
        held = on_page(state, "stentor:realtime_audio_bytes")
        assert held is not None
        assert SECOND <= held < 1_000_000
        assert on_page(state, "stentor:realtime_audio_refused_total") == 1
        await socket.close()
        await until(lambda: on_page(state, "stentor:realtime_audio_bytes") == 0)


# ---- vLLM's dialect


@asynccontextmanager
async def dialect(share: AudioShare, transcribe: AnyTranscriber) -> AsyncIterator[tuple[Any, list[dict[str, Any]]]]:
    events: list[dict[str, Any]] = []
    send, sent = anyio.create_memory_object_stream[bytes](100)

    async def room() -> None:
        await anyio.lowlevel.checkpoint()

    served = VllmSession(
        transcribe, PartialPace(), lambda name: None, lambda one: events.append(json.loads(one)), room, share=share
    )

    async def say(**message: Any) -> None:
        await send.send(json.dumps(message).encode())

    async with anyio.create_task_group() as tasks:
        with send, sent:
            tasks.start_soon(served.serve, sent.receive, b'{"type": "session.update", "model": "w"}')
            yield say, events
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("streams", [False, True])
async def test_vllms_dialect_is_told_in_its_own_words_and_goes_on(streams: bool) -> None:
    transcribe = StreamTranscriber(streaming_model(StreamingEngine()), passes()) if streams else Model()
    held = HeldAudio(1_000_000)
    with held.share() as share:
        async with dialect(share, transcribe) as (say, events):
            await say(type=APPEND, audio=encoded(words(1)))
            await until(lambda: share.bytes > 0)
            await say(type=APPEND, audio=encoded(bytes(600_000)))
            await until(lambda: bool(events))
            assert events == [{"type": "error", "error": events[0]["error"], "code": "realtime_audio_full"}]
            await say(type=COMMIT)
            await say(type=APPEND, audio=encoded(words(2)))
            await say(type=APPEND, audio=encoded(bytes(600_000)))
            await until(lambda: [one["type"] for one in events].count("error") == 2)
            assert 0 < share.bytes <= 1_000_000
            await say(type=COMMIT, final=True)
            await until(lambda: events[-1]["type"] == "transcription.done")
            assert events[-1]["text"].endswith("1 ẃ2" if streams else "w1 w2")
            assert share.bytes == 0
            await say(type=APPEND, audio=encoded(words(3)))
            await until(lambda: share.bytes > 0)
    assert held.bytes == 0
