"""The two endpoints: every format as the SDK reads it, and every mistake as a 4xx that names the field."""

import asyncio
import io
import json
import wave
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from openai.types import audio as sdk

from stentor.protocols.common.errors import BadRequest
from stentor.server.app.state import ServerState
from stentor.server.asr.model import TranscriptionModel
from stentor.server.asr.untimed_vocabulary import UntimedVocabulary
from stentor.server.asr.vocabulary import Vocabulary
from stentor.server.audio.decode import Decoded
from stentor.server.config.limits import OverloadConfig
from stentor.server.config.model_registry import ModelRegistry, ServedModel
from stentor.tests.fakes import fake_state
from stentor.tests.server.asr.scripted import (
    ENGLISH,
    VOCABULARY,
    Asked,
    Said,
    Script,
    engine_of,
    model_of,
    says,
    sound,
)
from stentor.tests.server.harness import in_memory, on_loopback, until
from stentor.tests.wire.validate import TRANSCRIPT_EXTENSIONS, check_event, check_object, frames_of

pytestmark = pytest.mark.anyio

TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
EXTENSIONS = {"TranscriptionVerbose": frozenset({"task"}), "TranslationVerbose": frozenset({"task", "usage"})}


class WavReader:
    """Decodes what the wave module reads; the real decoder has tests of its own."""

    def __init__(self, max_bytes: int = 1 << 22) -> None:
        self.max_bytes = max_bytes

    async def decode(self, data: bytes, field: str) -> Decoded:
        try:
            with wave.open(io.BytesIO(data)) as file:
                return Decoded(file.readframes(file.getnframes()))
        except (wave.Error, EOFError):
            raise BadRequest(f"`{field}`: no audio", field, "invalid_audio") from None


def wav(pcm: bytes) -> bytes:
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(pcm)
    return target.getvalue()


def hears(asked: Asked) -> Said:
    """Two segments, or the times of their words, or German."""
    if asked.params.allowed_token_ids is not None:
        return Said([VOCABULARY.languages["de"]], ended=False, reason="length")
    if asked.probe.align is not None:
        count = len(asked.prompt) - asked.probe.align.start
        times = [round(0.1 * place, 2) for place in range(count + 1)]
        return Said([1], times=times, probabilities=[0.5] * count, ended=False)
    return Said(says(0.0, " Guten", 0.6, 0.6, " Tag --> ü.", 1.8))


def state_with(
    script: Script = hears, vocabulary: Vocabulary | UntimedVocabulary = VOCABULARY, **fields: object
) -> ServerState:
    model = model_of(script, vocabulary)
    return fake_state(
        registry=ModelRegistry(
            [ServedModel("chat", ("fake/model", "fake")), ServedModel("transcription", ("whisper",))]
        ),
        transcription=model,
        runners={"transcription": model.client},
        **{"decoder": WavReader(), **fields},  # type: ignore[arg-type]
    )


def model_in(state: ServerState) -> TranscriptionModel:
    assert isinstance(state.auxiliary.transcription, TranscriptionModel)
    return state.auxiliary.transcription


Fields = Sequence[tuple[str, str]]


async def post(
    state: ServerState, fields: Fields = (), pcm: bytes | None = None, path: str = TRANSCRIPTIONS
) -> httpx.Response:
    parts: list[tuple[str, Any]] = [(name, (None, value.encode())) for name, value in fields]
    parts.append(("file", ("a.wav", wav(sound(2) if pcm is None else pcm), "audio/wav")))
    async with in_memory(state) as client:
        return await client.post(path, files=parts)


async def test_json_is_the_sdk_s_transcription() -> None:
    answer = await post(state_with(), [("model", "whisper")])
    assert answer.status_code == 200, answer.text
    found = check_object(sdk.Transcription, answer.content)
    assert found.text == "Guten Tag --> ü."
    assert answer.json()["usage"] == {"type": "duration", "seconds": 2}
    assert "logprobs" not in answer.json()


async def test_logprobs_come_where_they_are_asked_for() -> None:
    answer = await post(state_with(), [("include[]", "logprobs")])
    found = check_object(sdk.Transcription, answer.content)
    logprobs = found.logprobs or []
    assert "".join(bytes(map(int, one.bytes or ())).decode("latin-1") for one in logprobs).encode(
        "latin-1"
    ).decode() == (" Guten Tag --> ü.")
    assert {one.logprob for one in logprobs} == {-0.25}


async def test_verbose_json_has_segments_and_words_as_asked() -> None:
    answer = await post(state_with(), [("response_format", "verbose_json")])
    found = check_object(sdk.TranscriptionVerbose, answer.content, EXTENSIONS)
    assert (found.language, found.duration, found.words) == ("german", 2.0, None)
    assert [(one.id, one.start, one.end, one.text) for one in found.segments or ()] == [
        (0, 0.0, 0.6, " Guten"),
        (1, 0.6, 1.8, " Tag --> ü."),
    ]
    fields = [("response_format", "verbose_json"), ("timestamp_granularities[]", "word")]
    found = check_object(sdk.TranscriptionVerbose, (await post(state_with(), fields)).content, EXTENSIONS)
    assert found.segments is None
    assert [one.word for one in found.words or ()][:2] == ["Guten", "Tag"]
    both = [*fields, ("timestamp_granularities[]", "segment")]
    found = check_object(sdk.TranscriptionVerbose, (await post(state_with(), both)).content, EXTENSIONS)
    assert found.segments
    assert found.words


async def test_subtitles_and_text_are_plain() -> None:
    state = state_with()
    assert (await post(state, [("response_format", "text")])).text == "Guten Tag --> ü.\n"
    srt = await post(state, [("response_format", "srt")])
    assert srt.text == ("1\n00:00:00,000 --> 00:00:00,600\nGuten\n\n2\n00:00:00,600 --> 00:00:01,800\nTag -> ü.\n\n")
    vtt = await post(state, [("response_format", "vtt")])
    assert vtt.headers["content-type"] == "text/vtt; charset=utf-8"
    assert vtt.text == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:00.600\nGuten\n\n00:00:00.600 --> 00:00:01.800\nTag -> ü.\n\n"
    )


async def test_silence_is_an_empty_text_in_every_format() -> None:
    def quiet(asked: Asked) -> Said:
        return hears(asked) if asked.params.allowed_token_ids else Said([], logprob=-2.0, no_speech=0.9)

    for style, expected in {"text": "\n", "srt": "", "vtt": "WEBVTT\n\n"}.items():
        assert (await post(state_with(quiet), [("response_format", style)])).text == expected
    assert (await post(state_with(quiet))).json()["text"] == ""
    verbose = await post(state_with(quiet), [("response_format", "verbose_json")])
    assert check_object(sdk.TranscriptionVerbose, verbose.content, EXTENSIONS).segments == []


async def test_a_stream_is_the_sdk_s_events_and_says_the_same() -> None:
    answer = await post(state_with(), [("stream", "true"), ("include[]", "logprobs")])
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = [frame.data for frame in frames_of(answer.content)]
    assert frames[-1] == "[DONE]"
    events = [check_event(sdk.TranscriptionStreamEvent, frame, TRANSCRIPT_EXTENSIONS) for frame in frames[:-1]]
    *deltas, done = events
    assert [event.type for event in events] == [
        "transcript.text.delta",
        "transcript.text.delta",
        "transcript.text.done",
    ]
    assert "".join(event.delta for event in deltas) == done.text == "Guten Tag --> ü."
    assert [one for event in deltas for one in event.logprobs] == done.logprobs or len(done.logprobs) == 18
    assert done.usage.output_tokens == len(VOCABULARY.encode(" Guten Tag --> ü."))
    assert done.usage.input_token_details.audio_tokens == 100
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens


@pytest.mark.parametrize("path", [TRANSCRIPTIONS, TRANSLATIONS])
async def test_a_stream_is_vllm_s_chunks_too(path: str) -> None:
    answer = await post(state_with(), [("stream", "true"), ("model", "whisper")], path=path)
    *chunks, end = (frame.data for frame in frames_of(answer.content))
    assert end == "[DONE]"
    *deltas, last = map(json.loads, chunks)
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in deltas) == last["text"] == "Guten Tag --> ü."
    assert last["choices"] == [{"delta": {"content": ""}, "finish_reason": "stop"}]
    kind = path.rpartition("/")[2].removesuffix("s")
    heads = {(each["id"], each["object"], each["created"], each["model"]) for each in [*deltas, last]}
    assert {head[1:2] + head[3:] for head in heads} == {(f"{kind}.chunk", "whisper")}
    assert len(heads) == 1
    assert not any("usage" in each for each in deltas)


@pytest.mark.parametrize("forced", [False, True])
async def test_a_stream_counts_tokens_in_vllm_s_shape_for_who_asks(forced: bool) -> None:
    asked = [("stream", "true"), ("stream_continuous_usage_stats", "true")]
    state = state_with(force_include_usage=forced)
    answer = await post(state, asked if forced else [*asked, ("stream_include_usage", "true")])
    *deltas, done, last = (json.loads(frame.data) for frame in frames_of(answer.content)[:-1])
    written = [len(VOCABULARY.encode(text)) for text in (" Guten", " Guten Tag --> ü.")]
    assert [each["usage"]["completion_tokens"] for each in deltas] == written
    assert {each["usage"]["prompt_tokens"] for each in deltas} == {done["usage"]["input_tokens"]} == {100}
    assert last["choices"] == []
    assert (last["usage"]["completion_tokens"], last["usage"]["total_tokens"]) == (written[-1], 100 + written[-1])


async def test_tokens_are_counted_in_every_delta_only_with_usage() -> None:
    answer = await post(state_with(), [("stream", "true"), ("stream_continuous_usage_stats", "true")])
    assert not any("usage" in json.loads(frame.data) for frame in frames_of(answer.content)[:-2])


async def test_a_failure_before_the_first_event_has_its_own_status() -> None:
    state = state_with(lambda _asked: Said([], reason="error"))
    for fields in ([], [("stream", "true")]):
        answer = await post(state, [*fields, ("language", "en")])
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "generation_failed"
        assert "worker.py" not in answer.text


@pytest.mark.parametrize("fields", [[], [("stream", "true")]])
async def test_where_memory_has_no_room_for_a_window_that_is_told(fields: Fields) -> None:
    state = state_with()
    engine_of(model_in(state)).arena_full = True
    answer = await post(state, [*fields, ("language", "en")])
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "memory_full")
    assert answer.headers["retry-after"] == "2"
    assert (state.admission.queue.requests, state.admission.live_requests) == (0, 0)


async def test_a_failure_within_a_stream_ends_it_with_an_error() -> None:
    said = iter([Said(says(0.0, " one", 30.0, 30.0)), Said([], reason="error")])
    answer = await post(state_with(lambda _: next(said)), [("stream", "true"), ("language", "en")], sound(40))
    frames = [json.loads(frame.data) for frame in frames_of(answer.content)]
    assert frames[0]["type"] == "transcript.text.delta"
    assert frames[1]["error"]["code"] == "generation_failed"


async def test_a_translation_is_told_so_and_reports_english() -> None:
    state = state_with()
    answer = await post(state, [("response_format", "verbose_json")], path=TRANSLATIONS)
    found = check_object(sdk.TranslationVerbose, answer.content, EXTENSIONS)
    assert found.language == "english"
    assert engine_of(model_in(state)).asked[-1].after_start == [VOCABULARY.languages["de"], VOCABULARY.translate]
    assert check_object(sdk.Translation, (await post(state, path=TRANSLATIONS)).content).text == "Guten Tag --> ü."


async def test_an_english_model_translates_nothing() -> None:
    answer = await post(state_with(vocabulary=ENGLISH), path=TRANSLATIONS)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


async def test_fields_reach_the_engine() -> None:
    state = state_with()
    fields = [
        *(("language", "German"), ("prompt", "hint"), ("temperature", "0.3"), ("seed", "7"), ("top_p", "0.5")),
        *(("top_k", "9"), ("max_completion_tokens", "77"), ("repetition_penalty", "1.1"), ("min_p", "0.1")),
    ]
    assert (await post(state, fields)).status_code == 200
    (asked,) = engine_of(model_in(state)).asked
    params = asked.params
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.3, 0.5, 9, 77)
    assert (params.repetition_penalty, params.min_p, asked.seed) == (1.1, 0.1, 7)
    assert asked.after_start[0] == VOCABULARY.languages["de"]
    assert asked.before_start == [VOCABULARY.sot_prev, *VOCABULARY.encode(" hint")]
    assert asked.name


async def test_keywords_and_hotwords_are_read_behind_the_prompt() -> None:
    state = state_with()
    names = [("keywords[]", "Stentor"), ("keywords[]", "Ajax"), ("hotwords", "Hector")]
    await post(state, [("language", "de"), ("prompt", "Greek names"), *names])
    await post(state, [("language", "de"), ("keywords", "Stentor")])
    first, second = engine_of(model_in(state)).asked
    assert first.before_start == [VOCABULARY.sot_prev, *VOCABULARY.encode(" Greek names, Stentor, Ajax, Hector")]
    assert second.before_start == [VOCABULARY.sot_prev, *VOCABULARY.encode(" Stentor")]


async def test_the_language_is_found_among_those_that_may_be_spoken() -> None:
    state = state_with()
    await post(state, [("languages[]", "de"), ("languages[]", "ja")])
    allowed = engine_of(model_in(state)).asked[0].params.allowed_token_ids
    assert allowed == tuple(sorted((VOCABULARY.languages["de"], VOCABULARY.languages["ja"])))


@pytest.mark.parametrize(
    ("fields", "param", "status"),
    [
        ([("model", "nobody")], "model", 404),
        ([("model", "fake")], "model", 400),
        ([("language", "klingon")], "language", 400),
        ([("languages[]", "de"), ("languages[]", "xx")], "languages[1]", 400),
        ([("temperature", "1.5")], "temperature", 400),
        ([("temperature", "hot")], "temperature", 400),
        ([("response_format", "pdf")], "response_format", 400),
        ([("response_format", "diarized_json")], "response_format", 400),
        ([("timestamp_granularities[]", "word")], "timestamp_granularities", 400),
        ([("timestamp_granularities[]", "hour")], "timestamp_granularities[0]", 400),
        ([("include[]", "logprobs"), ("response_format", "srt")], "include", 400),
        ([("stream", "true"), ("response_format", "vtt")], "stream", 400),
        ([("stream", "perhaps")], "stream", 400),
        ([("chunking_strategy", "often")], "chunking_strategy", 400),
        ([("chunking_strategy", '{"type":"server_vad","threshold":2}')], "chunking_strategy.threshold", 400),
        ([("known_speaker_names[]", "Ann")], "known_speaker_names", 400),
        ([("keywords[]", "Stentor")] * 129, "keywords", 400),
        ([("n", "2")], "n", 400),
        ([("use_beam_search", "true"), ("n", "11")], "n", 400),
        ([("use_beam_search", "true"), ("repetition_penalty", "1.2")], "repetition_penalty", 400),
        ([("length_penalty", "nan")], "length_penalty", 400),
        ([("prompt", "a"), ("prompt", "b")], "prompt", 400),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_named_and_never_reaches_the_engine(fields: Fields, param: str, status: int) -> None:
    state = state_with()
    answer = await post(state, fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
    assert engine_of(model_in(state)).asked == []
    assert state.admission.live_requests == 0


async def test_beams_search_for_the_transcript_under_whispers_rules_a_token_at_a_time() -> None:
    state = state_with()
    greedy = (await post(state, [])).json()["text"]
    once = engine_of(model_in(state)).asked[-1]
    engine_of(model_in(state)).asked.clear()
    answer = await post(state, [("use_beam_search", "true"), ("n", "4"), ("length_penalty", "0")])
    assert answer.json()["text"] == greedy
    asked = [each for each in engine_of(model_in(state)).asked if each.params.max_tokens > 1 or each.params.logprobs]
    assert [each.known for each in asked] == [*range(len(asked))]
    assert [each.params.max_tokens for each in asked] == [known + 1 for known in range(len(asked))]
    assert {each.params.logprobs for each in asked} == {8}, "twice as many as there are beams"
    assert all(each.params.rules == once.params.rules and each.prompt == once.prompt for each in asked)
    assert [each.probe.no_speech is not None for each in asked] == [True] + [False] * (len(asked) - 1)


async def test_a_file_is_needed_and_it_must_be_audio() -> None:
    state = state_with()
    async with in_memory(state) as client:
        for answer in (
            await client.post(TRANSCRIPTIONS, files=[("model", (None, b"whisper"))]),
            await client.post(TRANSCRIPTIONS, files=[("file", ("a.wav", b"no audio"))]),
            await client.post(TRANSCRIPTIONS, json={"model": "whisper"}),
        ):
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file"), answer.text


async def test_audio_in_a_field_that_is_no_file_is_told_where_it_belongs() -> None:
    async with in_memory(state_with()) as client:
        answer = await client.post(TRANSCRIPTIONS, files={"file": (None, "x" * (64 << 10) + "x"), "model": (None, "m")})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "file")
    assert "Send data as a file, with a name, in `file`." in error["message"]


async def test_a_server_that_hears_nothing_says_what_would_change_it() -> None:
    answer = await post(fake_state())
    assert answer.status_code == 400
    assert "--transcription-model" in answer.json()["error"]["message"]


async def test_a_file_is_bounded_while_it_comes_in_and_counted_in_what_is_held() -> None:
    small = state_with(decoder=WavReader(64 << 10))
    answer = await post(small, pcm=sound(10))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "file_too_large")
    full = state_with(overload=OverloadConfig(max_inflight_bytes=4 << 20))
    with full.admission.memory.share() as share:
        share.add(1_800_000)
        answer = await post(full, pcm=sound(10))
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "memory_full")
    assert full.admission.memory.bytes == 0


async def test_a_client_that_goes_away_is_heard_no_more() -> None:
    state = state_with()
    engine = engine_of(model_in(state))
    blocked = asyncio.Event()

    async def gate() -> None:
        await blocked.wait()

    engine.gate = gate
    async with on_loopback(state) as url, httpx.AsyncClient(base_url=url) as client:
        for fields in ({}, {"stream": "true"}):
            asking = asyncio.create_task(
                client.post(TRANSCRIPTIONS, data={"language": "en", **fields}, files={"file": wav(sound(2))})
            )
            await until(lambda: state.admission.live_requests == 1 and engine.asked)
            asking.cancel()
            await until(lambda: state.admission.live_requests == 0)
            assert engine.asked.pop().aborted
            await asyncio.gather(asking, return_exceptions=True)


async def test_a_request_that_takes_too_long_is_given_up() -> None:
    state = state_with(overload=OverloadConfig(request_timeout=0.05))
    engine = engine_of(model_in(state))
    blocked = asyncio.Event()

    async def gate() -> None:
        await blocked.wait()

    engine.gate = gate
    answer = await post(state, [("language", "en")])
    assert answer.status_code == 504
    assert engine.asked[0].aborted


async def test_a_request_leaves_the_queue_once_its_first_window_is_heard() -> None:
    waiting: list[int] = []

    def script(_asked: Asked) -> Said:
        waiting.append(state.admission.queue.requests)
        return Said(says(0.0, " x", 30.0, 30.0))

    state = state_with(script)
    assert (await post(state, [("language", "en")], sound(60))).status_code == 200
    assert waiting == [1, 0]
    assert (state.admission.queue.requests, state.admission.queue.tokens) == (0, 0)
