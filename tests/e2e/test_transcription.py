"""Transcripts of the demo model for clips of known words: through the SDK in every format, beside transformers."""

import io
import threading
import warnings
import wave
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import openai
import pytest
import torch
from openai.types import audio as sdk

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.download.hub import DEMO_TRANSCRIPTION_MODEL
from stentor.loadtest.voice.clips import SENTENCES, spoken
from stentor.loadtest.voice.transcription import Normalizer, WordErrors, folder_of, word_errors
from stentor.server.asr.vocabulary import settings_of
from stentor.tests.parity.whispers import real, whisper_of
from stentor.tests.wire.validate import TRANSCRIPT_EXTENSIONS, check_event, check_object

pytest.importorskip("piper", reason="the clips are spoken by a voice of the extra `speech`")
soxr = pytest.importorskip("soxr")
NAME: Final = "whisper-1"
RATE: Final = 16_000
CLIPS: Final = 6
FEW: Final = 3
"""Clips that most tests do with: each is a window, and costs a second of the processor."""
PAUSE: Final = 10
"""Seconds between them in which nothing is said: the end of a window of 30 s then falls into the third."""
SOT, EOT, NO_TIMESTAMPS = 50257, 50256, 50362


@pytest.fixture(scope="module")
def clips() -> list[bytes]:
    """Samples of ten sentences, always the same, at the rate at which the model hears."""
    made = []
    for clip in spoken(SENTENCES[:CLIPS], natural=False):
        with wave.open(str(clip.path)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
            made.append(soxr.resample(samples, file.getframerate(), RATE).tobytes())
    return made


def wav(pcm: bytes) -> tuple[str, bytes]:
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(pcm)
    return "clip.wav", target.getvalue()


def one_file(clips: list[bytes], count: int, pause: int = 1) -> tuple[str, bytes]:
    """Several of them with so many seconds of silence between."""
    return wav(bytes(2 * RATE * pause).join(clips[:count]))


def verbose(client: openai.OpenAI, file: Any, **fields: Any) -> sdk.TranscriptionVerbose:
    found: sdk.TranscriptionVerbose = client.audio.transcriptions.create(
        model=NAME, file=file, response_format="verbose_json", **fields
    )
    return found


@pytest.fixture(scope="module")
def hear(client: openai.OpenAI, clips: list[bytes]) -> Callable[[int], sdk.TranscriptionVerbose]:
    """The server's transcript of a clip alone; requested once."""
    return cache(lambda number: verbose(client, wav(clips[number]), temperature=0))


@pytest.mark.parametrize("count", [FEW, pytest.param(CLIPS, marks=pytest.mark.proof)])
def test_words_are_heard_as_they_were_said(hear: Callable[[int], sdk.TranscriptionVerbose], count: int) -> None:
    normalizer = Normalizer()
    total = WordErrors(0, 0)
    for number, said in enumerate(SENTENCES[:count]):
        total += word_errors(normalizer.words(said), normalizer.words(hear(number).text))
    assert total.rate <= 0.08, total


@pytest.mark.parametrize("count", [1, pytest.param(CLIPS, marks=pytest.mark.proof)])
def test_greedy_tokens_are_those_of_transformers(
    clips: list[bytes], hear: Callable[[int], sdk.TranscriptionVerbose], count: int
) -> None:
    import transformers

    checkpoint = open_checkpoint(folder_of(DEMO_TRANSCRIPTION_MODEL))
    model = real(checkpoint)
    suppressed = checkpoint_lists(folder_of(DEMO_TRANSCRIPTION_MODEL))
    for name, value in {
        **{"eos_token_id": EOT, "pad_token_id": EOT, "bos_token_id": EOT, "decoder_start_token_id": SOT},
        **{"is_multilingual": False, "no_timestamps_token_id": NO_TIMESTAMPS, "max_initial_timestamp_index": 50},
        **{"suppress_tokens": suppressed[0], "begin_suppress_tokens": suppressed[1], "forced_decoder_ids": None},
    }.items():
        setattr(model.generation_config, name, value)
    extractor: Any = transformers.WhisperFeatureExtractor(feature_size=whisper_of(checkpoint).mel_bins)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # its threads wait for one another in loops, which on a busy machine takes minutes
    try:
        samples = [np.frombuffer(clip, np.int16).astype(np.float32) / 32768 for clip in clips[:count]]
        features = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
        with torch.inference_mode():
            theirs = [
                model.generate(one.unsqueeze(0), return_timestamps=True, do_sample=False)[0].tolist()
                for one in features
            ]
    finally:
        torch.set_num_threads(threads)
    for number, said in enumerate(theirs):
        expected = [token for token in said if token not in (SOT, EOT)]
        ours = [token for segment in hear(number).segments or () for token in segment.tokens]
        assert ours == expected


@pytest.mark.proof  # with a scripted model: tests/server/asr/test_http.py
def test_every_format_says_the_same(client: openai.OpenAI, clips: list[bytes]) -> None:
    file = one_file(clips, 2)
    create = client.audio.transcriptions.create
    raw = client.audio.transcriptions.with_raw_response.create
    whole = check_object(sdk.Transcription, raw(model=NAME, file=file).content).text
    assert create(model=NAME, file=file, response_format="text").strip() == whole
    extensions = {"TranscriptionVerbose": frozenset({"task"})}
    content = raw(model=NAME, file=file, response_format="verbose_json").content
    detailed = check_object(sdk.TranscriptionVerbose, content, extensions)
    assert detailed.text == whole
    assert detailed.language == "english"
    segments = detailed.segments or []
    assert "".join(segment.text for segment in segments).strip() == whole
    srt = create(model=NAME, file=file, response_format="srt")
    vtt = create(model=NAME, file=file, response_format="vtt")
    assert srt.count(" --> ") == vtt.count(" --> ") == len(segments)
    assert vtt.startswith("WEBVTT\n\n")
    assert all(segment.text.strip() in srt and segment.text.strip() in vtt for segment in segments)


def test_a_stream_of_events_says_the_same_with_its_logprobs(client: openai.OpenAI, clips: list[bytes]) -> None:
    file = one_file(clips, 2)
    whole: Any = client.audio.transcriptions.create(model=NAME, file=file, include=["logprobs"])
    events: list[Any] = list(
        client.audio.transcriptions.create(model=NAME, file=file, stream=True, include=["logprobs"])
    )
    for event in events:
        check_event(sdk.TranscriptionStreamEvent, event.to_json(), TRANSCRIPT_EXTENSIONS)
    *deltas, done = events
    assert "".join(event.delta for event in deltas) == done.text == whole.text
    assert [one.logprob for event in deltas for one in event.logprobs] == [one.logprob for one in done.logprobs]
    joined = b"".join(bytes(one.bytes) for one in done.logprobs).decode().strip()
    assert joined == whole.text
    assert all(one.logprob <= 0 for one in whole.logprobs or ())


def test_words_have_times_in_order_within_the_clip(client: openai.OpenAI, clips: list[bytes]) -> None:
    found = verbose(client, one_file(clips, 2), timestamp_granularities=["word", "segment"])
    words = found.words or []
    assert " ".join(word.word for word in words) == found.text
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= found.duration + 0.02
    seconds = len(clips[0]) / (2 * RATE)
    last_of_first = next(word for word in words if word.word == "lamp.")
    assert abs(last_of_first.end - seconds) < 0.5


@pytest.mark.proof  # with a scripted model: tests/server/asr/test_transcribe.py
def test_long_audio_goes_through_several_windows(client: openai.OpenAI, clips: list[bytes]) -> None:
    file = one_file(clips, FEW, PAUSE)
    found = verbose(client, file)
    normalizer = Normalizer()
    said = [word for text in SENTENCES[:FEW] for word in normalizer.words(text)]
    assert found.duration > 30
    assert word_errors(said, normalizer.words(found.text)).rate < 0.1
    seeks = [segment.seek for segment in found.segments or ()]
    assert seeks == sorted(seeks)
    assert len(set(seeks)) > 1
    chunked = client.audio.transcriptions.create(model=NAME, file=file, chunking_strategy="auto").text
    assert word_errors(said, normalizer.words(chunked)).rate < 0.1


@pytest.mark.proof  # without the server: tests/engine/worker/test_audio_windows.py
def test_many_at_once_hear_what_one_alone_does(
    client: openai.OpenAI, clips: list[bytes], hear: Callable[[int], sdk.TranscriptionVerbose]
) -> None:
    together = [""] * FEW

    def ask(place: int) -> None:
        file = wav(clips[place] + bytes(2))  # the window is the same, but none that the server has encoded
        together[place] = client.audio.transcriptions.create(model=NAME, file=file, temperature=0).text

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(FEW)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == [hear(place).text for place in range(FEW)]


def test_silence_says_nothing(client: openai.OpenAI) -> None:
    assert client.audio.transcriptions.create(model=NAME, file=wav(bytes(2 * 5 * RATE))).text == ""
    chunked = client.audio.transcriptions.create(
        model=NAME, file=wav(bytes(2 * 5 * RATE)), chunking_strategy={"type": "server_vad", "threshold": 0.4}
    )
    assert chunked.text == ""


def test_mistakes_are_told_by_their_field(client: openai.OpenAI, clips: list[bytes]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.transcriptions.create(model=NAME, file=("a.mp3", b"\xff\xfb no sound at all"))
    assert caught.value.param == "file"
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.transcriptions.create(model=NAME, file=wav(clips[0]), language="de")
    assert caught.value.param == "language"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # so the SDK calls the endpoint
        with pytest.raises(openai.BadRequestError) as caught:
            client.audio.translations.create(model=NAME, file=wav(clips[0]))
    assert caught.value.param == "model"


def checkpoint_lists(folder: Path) -> tuple[list[int], list[int]]:
    settings = settings_of(folder)
    return settings["suppress_ids"], settings["suppress_ids_begin"]
