"""Whatever a client does with its input buffer: turns follow one another, positions never move, every turn is heard."""

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.openai.realtime.session import (
    AudioInput,
    AudioPcm,
    AudioPcma,
    AudioPcmu,
    SemanticVad,
    ServerVad,
    Transcription,
)
from stentor.server.api.realtime.common.formats import TICKS, Wire
from stentor.server.api.realtime.common.interfaces import CommittedAudio, SpeechEvent, SpeechStarted
from stentor.server.api.realtime.listening.input_audio_pipeline import InputAudioPipeline
from stentor.server.api.realtime.listening.partial_pace import PartialPace
from stentor.tests.examples import examples
from stentor.tests.server.realtime.sounds import LoudnessDetector, Model, silence, words

inputs = st.builds(
    AudioInput,
    format=st.sampled_from([AudioPcm(), AudioPcmu(), AudioPcma()]),
    transcription=st.sampled_from([None, Transcription(), Transcription(language="en", prompt="Names.")]),
    turn_detection=st.sampled_from(
        [
            None,
            ServerVad(silence_duration_ms=200),
            ServerVad(prefix_padding_ms=0, silence_duration_ms=0, idle_timeout_ms=5000),
            SemanticVad(eagerness="high"),
        ]
    ),
)
speech = st.integers(0, 8).map(lambda number: ("append", words(number, rate=8000)))
quiet = st.sampled_from([0, 30, 500, 3000, 6000]).map(lambda ms: ("append", silence(ms, 8000)))
odd = st.binary(max_size=7).map(lambda data: ("append", data))
calls = st.sampled_from(
    [("commit", None), ("clear", None), ("responded", 100.0), ("responding", None), ("pause", None)]
)
steps = st.lists(st.one_of(speech, speech, quiet, odd, calls, st.tuples(st.just("configure"), inputs)), max_size=25)


async def live(input: AudioInput, script: list[tuple[str, object]]) -> None:
    heard: list[SpeechEvent] = []
    input_audio = InputAudioPipeline(
        Model(), LoudnessDetector, PartialPace(), on_speech_event=heard.append, max_seconds=20
    )
    input_audio.configure(input, logprobs=False)
    wire = Wire.of(input.format)
    turns: list[CommittedAudio] = []
    ticks = half = 0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(input_audio.run)
        for name, value in script:
            try:
                match name, value:
                    case "append", bytes():
                        before = input_audio.received_ms
                        await input_audio.append(value)
                        whole, half = divmod(half + len(value), wire.sample_bytes)
                        ticks += whole * wire.ticks
                        assert input_audio.received_ms >= before
                        assert input_audio.received_ms == ticks * 1000 // TICKS
                    case "configure", AudioInput():
                        input_audio.configure(value, logprobs=True)
                        if not Wire.of(value.format).same_as(wire):
                            half = 0
                        wire = Wire.of(value.format)
                    case "commit", _:
                        turns.append(input_audio.commit())
                        half = 0
                    case "clear", _:
                        input_audio.clear()
                        half = 0
                    case "responded", float():
                        input_audio.responded(value)
                    case "responding", _:
                        input_audio.responding()
                    case _:
                        await anyio.sleep(0.001)
            except BadRequest as error:
                assert error.code in ("input_audio_buffer_commit_empty", "input_audio_buffer_full")  # noqa: PT017
        turns += [one.turn for one in heard if not isinstance(one, SpeechStarted)]
        assert len({turn.item_id for turn in turns}) == len(turns)
        with anyio.fail_after(60):
            for turn in turns:
                transcript = await turn.transcript()
                assert abs(transcript.seconds * 1000 - turn.duration_ms) <= 2
        tasks.cancel_scope.cancel()
    check_order(heard)


def check_order(heard: list[SpeechEvent]) -> None:
    """A turn that was found stops before another starts, unless it was committed or cleared; ends only grow."""
    end, started = 0, ""
    for one in heard:
        if isinstance(one, SpeechStarted):
            assert one.audio_start_ms >= end
            started = one.item_id
            continue
        assert one.audio_end_ms >= end
        end = one.audio_end_ms
        if hasattr(one, "audio_start_ms"):
            assert one.item_id != started
        else:
            assert one.item_id == started


@settings(max_examples=examples(30, 1000), deadline=None)
@given(inputs, steps)
def test_whatever_a_client_does_turns_are_in_order_and_heard(
    input: AudioInput, script: list[tuple[str, object]]
) -> None:
    anyio.run(live, input, script)
