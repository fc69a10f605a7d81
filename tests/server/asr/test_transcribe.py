"""Long audio, window after window, over a transcription model what a script says."""

import asyncio
from contextlib import aclosing
from itertools import cycle, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.client.errors import EngineUnavailable
from stentor.server.asr import transcribe as transcribing
from stentor.server.asr.chunks import Span, pack
from stentor.server.asr.model import TranscriptionModel
from stentor.server.asr.options import TEMPERATURE_FALLBACK, Chunking, TranscriptionOptions
from stentor.server.asr.segments import Segment
from stentor.server.asr.transcribe import Transcription, transcribe_turn
from stentor.server.common.errors import GenerationFailed
from stentor.tests.examples import examples
from stentor.tests.server.asr.scripted import (
    ENGLISH,
    VOCABULARY,
    Asked,
    Said,
    at,
    engine_of,
    in_turn,
    model_of,
    says,
    sound,
)
from stentor.tests.server.harness import until

pytestmark = pytest.mark.anyio
ENGLISH_OPTIONS = TranscriptionOptions(language="en")


async def segments_of(
    model: TranscriptionModel, pcm: bytes, options: TranscriptionOptions = ENGLISH_OPTIONS
) -> list[Segment]:
    async with aclosing(Transcription(model, pcm, options).segments()) as segments:
        return [segment async for segment in segments]


async def test_each_window_begins_where_the_last_one_was_understood_up_to() -> None:
    model = model_of(
        in_turn(
            Said(says(0.0, " one", 20.0, 20.0, " two", 25.0, 25.0, " cut")),
            Said(says(0.0, " three", 9.0)),
        )
    )
    found = await segments_of(model, sound(40))
    assert [(segment.id, segment.seek, segment.start, segment.end, segment.text) for segment in found] == [
        (0, 0, 0.0, 20.0, " one"),
        (1, 0, 20.0, 25.0, " two"),
        (2, 2500, 25.0, 34.0, " three"),
    ]
    assert [asked.seconds for asked in engine_of(model).asked] == [30.0, 15.0]


async def test_the_next_window_is_told_what_was_said_before_it() -> None:
    said = (says(0.0, " one", 20.0, 20.0, " two", 30.0, 30.0), says(0.0, " three", 9.0))
    model = model_of(in_turn(*(Said(tokens) for tokens in said)))
    options = TranscriptionOptions(language="de", prompt="hint", task="translate")
    await segments_of(model, sound(40), options)
    first, second = engine_of(model).asked
    hint = VOCABULARY.encode(" hint")
    assert first.before_start == [VOCABULARY.sot_prev, *hint]
    assert first.after_start == [VOCABULARY.languages["de"], VOCABULARY.translate]
    assert second.before_start == [VOCABULARY.sot_prev, *hint, *said[0][:-1]]


async def test_what_was_said_before_is_cut_to_half_of_the_context() -> None:
    model = model_of(in_turn(Said(says(0.0, " x" * 100, 30.0, 30.0)), Said(says(0.0, " y", 1.0))))
    await segments_of(model, sound(40), TranscriptionOptions(language="en", prompt="long " * 200, temperatures=(0.0,)))
    for asked in engine_of(model).asked:
        assert len(asked.before_start) == 224
        assert len(asked.prompt) + asked.params.max_tokens <= 448


async def test_nothing_is_told_where_it_is_not_wanted_or_was_guessed() -> None:
    tokens = says(0.0, " one", 30.0, 30.0)
    quiet = TranscriptionOptions(language="en", condition_on_previous_text=False)
    model = model_of(in_turn(Said(tokens), Said(tokens)))
    await segments_of(model, sound(40), quiet)
    assert engine_of(model).asked[1].before_start == []

    def guessed(asked: Asked) -> Said:
        return Said(tokens, logprob=-0.1 if asked.params.temperature > 0.5 else -3.0)

    model = model_of(guessed)
    await segments_of(model, sound(40))
    assert [asked.params.temperature for asked in engine_of(model).asked] == [0.0, 0.2, 0.4, 0.6] * 2
    assert engine_of(model).asked[4].before_start == []


async def test_unlikely_and_repetitive_transcripts_are_drawn_again_at_higher_temperatures() -> None:
    model = model_of(
        in_turn(
            Said(says(0.0, " no no no" * 12, 9.0)),
            Said(says(0.0, " unlikely", 9.0), logprob=-1.5),
            Said(says(0.0, " fine", 9.0)),
        )
    )
    (segment,) = await segments_of(model, sound(10))
    assert segment.text == " fine"
    assert segment.temperature == 0.4
    asked = engine_of(model).asked
    assert [one.params.temperature for one in asked] == [0.0, 0.2, 0.4]
    assert len({one.audio.digest for one in asked}) == 1, "the window is encoded once"


async def test_where_no_temperature_is_good_enough_the_likeliest_counts() -> None:
    logprobs = iter([-3.0, -2.0, -1.5, -1.2, -4.0, -5.0])
    model = model_of(lambda asked: Said(says(0.0, f" at {asked.params.temperature}", 9.0), logprob=next(logprobs)))
    (segment,) = await segments_of(model, sound(10))
    assert segment.text == " at 0.6"
    assert segment.temperature == TEMPERATURE_FALLBACK[-1], "nothing may be built on it"


async def test_what_repeats_itself_is_taken_only_where_everything_does() -> None:
    def repetitive(asked: Asked) -> Said:
        colder = asked.params.temperature < 0.9
        return Said(says(0.0, " no no no" * 12 if colder else " rare", 9.0), logprob=-0.1 if colder else -3.0)

    (segment,) = await segments_of(model_of(repetitive), sound(10))
    assert segment.text == " rare"
    (segment,) = await segments_of(model_of(lambda _: Said(says(0.0, " no no no" * 12, 9.0))), sound(10))
    assert segment.compression_ratio > 2.4


async def test_a_temperature_that_the_client_names_is_the_only_one() -> None:
    model = model_of(in_turn(Said(says(0.0, " unlikely", 9.0), logprob=-5.0)))
    (segment,) = await segments_of(model, sound(10), TranscriptionOptions(language="en", temperatures=(0.7,)))
    assert segment.temperature == 0.7


async def test_silence_is_passed_over_without_another_try() -> None:
    model = model_of(
        in_turn(Said(says(0.0, " Thank you.", 2.0), logprob=-2.0, no_speech=0.9), Said(says(0.0, " hello", 5.0)))
    )
    (segment,) = await segments_of(model, sound(36))
    assert (segment.text, segment.start) == (" hello", 30.0)
    assert engine_of(model).asked[0].probe.no_speech == (0, VOCABULARY.no_speech)


async def test_a_muted_window_is_not_even_heard() -> None:
    model = model_of(in_turn(Said(says(0.0, " hello", 5.0))), ENGLISH)
    (segment,) = await segments_of(model, bytes(30 * 32_000) + sound(6))
    assert (segment.text, segment.start) == (" hello", 30.0)
    turn = await transcribe_turn(model, bytes(32_000), TranscriptionOptions())
    assert turn.text == ""
    assert len(engine_of(model).asked) == 1


async def test_what_is_likely_is_no_silence_whatever_else_is_said() -> None:
    model = model_of(in_turn(Said(says(0.0, " quiet", 2.0), no_speech=0.95)))
    assert len(await segments_of(model, sound(3))) == 1


async def test_segments_of_no_time_and_of_no_text_are_left_out() -> None:
    model = model_of(in_turn(Said(says(0.0, " a", 0.0, 0.0, " ", 2.0, 2.0, " b", 3.0))))
    assert [segment.text for segment in await segments_of(model, sound(4))] == [" b"]


async def test_average_and_compression_are_those_of_whisper() -> None:
    model = model_of(in_turn(Said(says(0.0, " hi", 1.0), logprob=-0.5)))
    (segment,) = await segments_of(model, sound(3))
    assert segment.avg_logprob == pytest.approx(-0.5), "the end of the transcript counts, too"
    assert segment.tokens == says(0.0, " hi", 1.0)


async def test_the_language_is_detected_once_on_the_first_window() -> None:
    def script(asked: Asked) -> Said:
        if asked.params.allowed_token_ids is not None:
            assert asked.params.allowed_token_ids == tuple(sorted(VOCABULARY.languages.values()))
            assert asked.prompt == [VOCABULARY.sot]
            return Said([VOCABULARY.languages["ja"]], ended=False, reason="length")
        return Said(says(0.0, " hai", 30.0, 30.0))

    model = model_of(script)
    heard = Transcription(model, sound(60), TranscriptionOptions())
    async with aclosing(heard.segments()) as segments:
        assert len([segment async for segment in segments]) == 2
    assert heard.language == "ja"
    asked = engine_of(model).asked
    assert len(asked) == 3
    assert asked[0].audio.digest == asked[1].audio.digest, "the window is encoded once"
    assert asked[1].after_start[0] == VOCABULARY.languages["ja"]


async def test_an_english_model_is_told_no_language() -> None:
    model = model_of(in_turn(Said(says(0.0, " hi", 1.0))), ENGLISH)
    heard = Transcription(model, sound(3), TranscriptionOptions())
    async with aclosing(heard.segments()) as segments:
        assert [segment.text async for segment in segments] == [" hi"]
    assert heard.language == "en"
    assert engine_of(model).asked[0].prompt == [VOCABULARY.sot]


async def test_rules_and_bounds_reach_the_engine() -> None:
    model = model_of(in_turn(Said(says(0.0, " hi", 1.0))))
    await segments_of(model, sound(3), TranscriptionOptions(language="en", salt="mine", name="req-1", max_tokens=50))
    (asked,) = engine_of(model).asked
    rules = asked.params.rules
    assert rules is not None
    assert rules.timestamp_begin == VOCABULARY.timestamp_begin
    assert rules.max_initial_timestamp == 50
    assert {VOCABULARY.no_timestamps, VOCABULARY.no_speech, VOCABULARY.sot, VOCABULARY.transcribe} <= set(
        rules.suppressed
    )
    assert VOCABULARY.eot in rules.suppressed_first
    assert (asked.params.eos_token_ids, asked.params.max_tokens) == ((VOCABULARY.eot,), 50)
    assert (asked.salt, asked.name) == ("mine", "req-1")


async def test_windows_of_other_callers_share_nothing() -> None:
    model = model_of(lambda _asked: Said(says(0.0, " hi", 1.0)))
    for salt in ("one", "two", "one"):
        await segments_of(model, sound(3), TranscriptionOptions(language="en", salt=salt))
    digests = [asked.audio.digest for asked in engine_of(model).asked]
    assert digests[0] == digests[2] != digests[1]


async def test_words_get_their_times_and_move_the_bounds_of_segments() -> None:
    text = " ab cd"

    def script(asked: Asked) -> Said:
        if asked.probe.align is None:
            return Said(says(0.0, text, 2.0))
        assert asked.after_start[-len(text) :] == VOCABULARY.encode(text)
        assert asked.prompt[asked.probe.align.start - 1] == VOCABULARY.no_timestamps
        assert asked.probe.align.frames == 150
        assert asked.params.max_tokens == 1
        return Said([1], times=[0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 1.1], probabilities=[0.5] * 6, ended=False)

    model = model_of(script)
    (segment,) = await segments_of(model, sound(3), TranscriptionOptions(language="en", word_times=True))
    assert [(word.word, word.start, word.end) for word in segment.words or ()] == [(" ab", 0.2, 0.6), (" cd", 0.6, 1.1)]
    assert (segment.start, segment.end) == (0.2, 1.1)


async def test_words_say_where_the_next_window_begins() -> None:
    def script(asked: Asked) -> Said:
        if asked.probe.align is not None:
            return Said([1], times=[4.0, 4.1, 4.5], probabilities=[0.5] * 2, ended=False)
        return Said(says(0.0, " x", 20.0, 20.0)) if asked.seconds > 29 else Said(says(0.0, " y", 1.0))

    model = model_of(script)
    found = await segments_of(model, sound(31), TranscriptionOptions(language="en", word_times=True))
    assert found[1].seek == 450


async def test_logprobs_are_those_of_each_segment() -> None:
    model = model_of(in_turn(Said(says(0.0, " a", 1.0, 1.0, " bc", 2.0))))
    found = await segments_of(model, sound(3), TranscriptionOptions(language="en", logprobs=True))
    reported = [[one.token for one in segment.logprobs or ()] for segment in found]
    assert reported == [says(0.0, " a", 1.0), [*says(1.0, " bc", 2.0), VOCABULARY.eot]]


async def test_a_model_that_gets_nowhere_comes_to_an_end() -> None:
    model = model_of(lambda _asked: Said(says(0.0, " a", 0.02, 0.02, " b", 0.04, 0.04)))
    await segments_of(model, sound(300))
    assert len(engine_of(model).asked) < 80
    model = model_of(lambda _asked: Said([at(0), at(0)]))
    await segments_of(model, sound(60))
    assert len(engine_of(model).asked) == 2


TOKENS = st.lists(st.one_of(st.integers(0, 255), st.integers(at(0), at(30))), max_size=12)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.tuples(TOKENS, st.floats(-2, 0)), min_size=1, max_size=6), st.floats(0.01, 95))
async def test_any_transcript_ends_in_order_within_the_audio(
    said: list[tuple[list[int], float]], seconds: float
) -> None:
    again = cycle(said)
    model = model_of(lambda _asked: Said(*next(again)))
    options = TranscriptionOptions(language="en", temperatures=(0.0,))
    found = await segments_of(model, sound(seconds), options)
    assert [segment.id for segment in found] == list(range(len(found)))
    assert all(first.seek <= second.seek for first, second in pairwise(found))
    assert all(0 <= segment.seek <= seconds * 100 for segment in found)


async def test_no_audio_says_nothing() -> None:
    model = model_of(in_turn())
    assert await segments_of(model, b"") == []


async def test_what_the_engine_cannot_finish_is_an_error_that_tells_nothing() -> None:
    model = model_of(in_turn(Said([], reason="error")))
    with pytest.raises(GenerationFailed) as caught:
        await segments_of(model, sound(3))
    assert "worker.py" not in str(caught.value)
    engine_of(model).failure = "gone"
    with pytest.raises(EngineUnavailable):
        await segments_of(model, sound(3))


# ---- side by side


async def test_chunks_are_heard_side_by_side_and_told_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async def chunks(_pcm: bytes, _chunking: Chunking, _limiter: object) -> list[Span]:
        return [Span(100 + 3000 * place, 3000 * (place + 1)) for place in range(20)]

    monkeypatch.setattr(transcribing, "chunks_of", chunks)
    running, most = 0, 0

    async def gate() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002 * (running % 3))
        running -= 1

    model = model_of(lambda asked: Said(says(0.0, " x", 1.0)))
    engine_of(model).gate = gate
    options = TranscriptionOptions(language="en", chunking=Chunking())
    found = await segments_of(model, sound(600), options)
    assert [segment.start for segment in found] == [1.0 + 30 * place for place in range(20)]
    assert [segment.id for segment in found] == list(range(20))
    assert most == model.parallel_windows
    assert all(asked.before_start == [] for asked in engine_of(model).asked)


async def test_closing_a_transcript_takes_back_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def chunks(_pcm: bytes, _chunking: Chunking, _limiter: object) -> list[Span]:
        return [Span(3000 * place, 3000 * (place + 1)) for place in range(4)]

    monkeypatch.setattr(transcribing, "chunks_of", chunks)
    blocked = asyncio.Event()
    calls = 0

    async def gate() -> None:
        nonlocal calls
        calls += 1
        if calls > 2:  # the first chunk has said what it has to
            await blocked.wait()

    model = model_of(lambda asked: Said(says(0.0, " x", 30.0, 30.0)))
    engine_of(model).gate = gate
    options = TranscriptionOptions(language="en", chunking=Chunking())
    hearing = asyncio.create_task(segments_of(model, sound(120), options))
    await until(lambda: calls >= 4)
    hearing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hearing
    assert [asked.aborted for asked in engine_of(model).asked].count(True) >= 2


def test_speech_is_packed_into_windows() -> None:
    second = 16_000
    spoken = [(1 * second, 5 * second), (8 * second, 29 * second), (31 * second, 40 * second)]
    assert pack(spoken, 60 * second) == [Span(100, 2900), Span(3100, 4000)]
    assert pack([(0, 70 * second)], 70 * second) == [Span(0, 3000), Span(3000, 6000), Span(6000, 7000)]
    assert pack([(100, 200)], second) == [], "a click"


@given(st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 900_000)), max_size=20), st.integers(0, 6_000_000))
def test_no_chunk_is_longer_than_a_window_and_none_overlap(gaps: list[tuple[int, int]], samples: int) -> None:
    spoken, place = [], 0
    for gap, length in gaps:
        begin = min(samples, place + gap)
        place = min(samples, begin + length)
        spoken.append((begin, place))
    chunks = pack(spoken, samples)
    assert all(0 < chunk.end - chunk.begin <= 3000 for chunk in chunks)
    assert all(first.end <= second.begin + 1 for first, second in pairwise(chunks))


# ---- turns of a conversation


async def test_a_turn_is_one_request_without_timestamps() -> None:
    model = model_of(in_turn(Said(VOCABULARY.encode(" Hello there."))))
    turn = await transcribe_turn(model, sound(2), TranscriptionOptions(language="de", prompt="names"))
    assert turn.text == "Hello there."
    (asked,) = engine_of(model).asked
    assert asked.after_start == [VOCABULARY.languages["de"], VOCABULARY.transcribe, VOCABULARY.no_timestamps]
    assert asked.params.rules is not None
    assert asked.params.rules.timestamp_begin == -1
    assert len(turn.logprobs) == len(turn.tokens) + 1


async def test_a_guess_goes_on_after_what_is_agreed() -> None:
    model = model_of(in_turn(Said(VOCABULARY.encode(" there."))), ENGLISH)
    agreed = VOCABULARY.encode(" Hello")
    turn = await transcribe_turn(model, sound(2), TranscriptionOptions(), after=agreed)
    assert turn.text == "Hello there."
    (asked,) = engine_of(model).asked
    assert asked.after_start == [VOCABULARY.no_timestamps, *agreed]
    assert asked.params.rules is not None
    assert asked.params.rules.suppressed_first == [], "there may be nothing to add"


@pytest.mark.parametrize("agreed", [100, 300, 1000])
async def test_no_prompt_is_longer_than_the_context(agreed: int) -> None:
    model = model_of(in_turn(Said([])))
    options = TranscriptionOptions(language="en", prompt="names " * 100)
    await transcribe_turn(model, sound(2), options, after=VOCABULARY.encode("a" * agreed))
    (asked,) = engine_of(model).asked
    assert len(asked.prompt) + asked.params.max_tokens <= 448
    assert asked.params.max_tokens >= 16
    assert asked.probe.no_speech == (asked.prompt.index(VOCABULARY.sot), VOCABULARY.no_speech)


async def test_only_the_end_of_a_long_turn_is_heard_and_silence_says_nothing() -> None:
    model = model_of(in_turn(Said(VOCABULARY.encode(" Thanks."), logprob=-3.0, no_speech=0.9)), ENGLISH)
    turn = await transcribe_turn(model, sound(40), TranscriptionOptions())
    assert turn.text == ""
    assert engine_of(model).asked[0].seconds == 30.0
