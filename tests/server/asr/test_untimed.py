"""Transcripts of a model that knows no timestamps: windows, formats, turns, and its tokens."""

from contextlib import aclosing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai.types import audio as sdk

from stentor.engine.loading.errors import CheckpointError
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ipc.audio import PromptProbe
from stentor.server.app.auxiliary_models import open_transcription
from stentor.server.asr.chunks import Span, quiet_spans
from stentor.server.asr.model import TranscriptionModel
from stentor.server.asr.options import TranscriptionOptions
from stentor.server.asr.segments import BYTES_A_FRAME, Segment
from stentor.server.asr.transcribe import Transcription, transcribe_turn
from stentor.server.asr.untimed_vocabulary import UntimedVocabulary
from stentor.server.config.models import TranscriptionConfig
from stentor.tests.parity.transcribers import (
    PROMPTED,
    tiny_cohere,
    tiny_seamless,
    tiny_streaming,
    write_moonshine,
    write_prompted,
)
from stentor.tests.server.asr.scripted import UNTIMED, VOCABULARY, Asked, Said, engine_of, model_of, sound
from stentor.tests.server.asr.test_http import TRANSLATIONS, post, state_with
from stentor.tests.wire.validate import TRANSCRIPT_EXTENSIONS, check_event, check_object, frames_of

pytestmark = pytest.mark.anyio


def says_its_seconds(asked: Asked) -> Said:
    return Said(UNTIMED.encode(f" {asked.seconds:g}"))


def loud_but(quiet: float, seconds: float) -> bytes:
    """Noise, with a tenth of a second of silence from ``quiet`` on."""
    samples = np.random.default_rng(0).integers(-3000, 3000, round(seconds * 16_000)).astype("<i2")
    samples[round(quiet * 16_000) : round((quiet + 0.1) * 16_000)] = 0
    return samples.tobytes()


async def test_a_long_file_is_cut_where_it_is_quiet_and_its_windows_are_asked_for_greedily() -> None:
    model = model_of(says_its_seconds, UNTIMED)
    options = TranscriptionOptions(prompt="A name.", temperatures=UNTIMED.temperatures)
    found: list[Segment] = []
    async with aclosing(Transcription(model, loud_but(25.0, 40.0), options).segments()) as segments:
        async for segment in segments:
            found.append(segment)
    assert "".join(segment.text for segment in found) == " 25.05 14.95"
    assert [(segment.id, segment.start, segment.end) for segment in found] == [(0, 0.0, 25.05), (1, 25.05, 40.0)]
    for asked in engine_of(model).asked:
        assert (asked.prompt, asked.params.temperature, asked.params.rules) == ([UNTIMED.eot + 1], 0.0, None)
        assert asked.probe == PromptProbe()
        assert asked.params.max_tokens == min(224, 8 + -(-13 * round(asked.seconds * 16_000) // 16_000))


def test_spans_cover_the_whole_of_any_file() -> None:
    assert list(quiet_spans(b"")) == []
    assert list(quiet_spans(b"\1\0" * 100)) == [Span(0, 1)]
    pcm = loud_but(3.0, 95.0)
    spans = list(quiet_spans(pcm))
    assert spans[0].begin == 0
    assert spans[-1].end == len(pcm) // BYTES_A_FRAME
    assert all(one.end == other.begin for one, other in pairwise(spans))
    assert all(2200 <= span.end - span.begin <= 3000 for span in spans[:-1])


async def test_json_text_and_events_say_the_same_and_any_language_is_accepted() -> None:
    state = state_with(says_its_seconds, UNTIMED)
    answer = await post(state, [("language", "ja"), ("include[]", "logprobs")])
    found = check_object(sdk.Transcription, answer.content)
    assert (found.text, len(found.logprobs or ())) == ("2", 2)
    assert (await post(state, [("response_format", "text")])).text == "2\n"
    streamed = await post(state, [("stream", "true"), ("prompt", "A name.")])
    frames = frames_of(streamed.content)
    *deltas, done = [
        check_event(sdk.TranscriptionStreamEvent, frame.data, TRANSCRIPT_EXTENSIONS)
        for frame in frames
        if frame.data != "[DONE]"
    ]
    assert "".join(event.delta for event in deltas) == done.text == "2"
    assert done.usage.input_token_details.model_dump() == {"audio_tokens": 84, "text_tokens": 0}


@pytest.mark.parametrize("format", ["verbose_json", "srt", "vtt"])
async def test_a_format_with_times_is_refused(format: str) -> None:
    answer = await post(state_with(says_its_seconds, UNTIMED), [("response_format", format)])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")
    assert "transcribes without times" in answer.json()["error"]["message"]


async def test_a_translation_is_refused() -> None:
    answer = await post(state_with(says_its_seconds, UNTIMED), path=TRANSLATIONS)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    assert "translates nothing" in answer.json()["error"]["message"]


async def test_a_turn_goes_on_behind_its_settled_tokens() -> None:
    model = model_of(says_its_seconds, UNTIMED)
    turn = await transcribe_turn(model, sound(3), TranscriptionOptions(), after=UNTIMED.encode("So far"))
    assert turn.text == "So far 3"
    (asked,) = engine_of(model).asked
    assert asked.prompt == [VOCABULARY.sot, *UNTIMED.encode("So far")]


async def test_the_tokens_of_a_checkpoint_keep_spaces_and_join_bytes(tmp_path: Path) -> None:
    folder = write_moonshine(tmp_path)
    client = engine_of(model_of(says_its_seconds))
    vocabulary = open_transcription(TranscriptionConfig(path=str(folder)), client, folder).vocabulary
    assert isinstance(vocabulary, UntimedVocabulary)
    assert (vocabulary.eot, vocabulary.beginning(None, "transcribe", timestamps=False)) == (2, [1])
    tokens = vocabulary.encode("ab ü c")
    assert vocabulary.decode([1, *tokens, 2]) == " ab ü c"
    assert (vocabulary.multilingual, vocabulary.translates, vocabulary.detects) == (False, False, False)


async def test_a_streaming_moonshine_begins_with_its_first_token(tmp_path: Path) -> None:
    folder = write_moonshine(tmp_path, tiny_streaming, num_hidden_layers=1)
    client = engine_of(model_of(says_its_seconds))
    vocabulary = open_transcription(TranscriptionConfig(path=str(folder)), client, folder).vocabulary
    found = vocabulary.beginning(None, "transcribe", timestamps=False), vocabulary.positions_a_second
    assert found == ([1], 50.0)


def opened(folder: Path) -> TranscriptionModel:
    client = engine_of(model_of(says_its_seconds))
    return open_transcription(TranscriptionConfig(path=str(folder)), client, folder)


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> TranscriptionModel:
    return opened(write_prompted(tmp_path_factory.mktemp("canary")))


def spelled(
    model: TranscriptionModel, language: str | None, task: str = "transcribe", written: str = "en"
) -> list[str]:
    prompt = model.vocabulary.beginning(language, task, timestamps=False, written=written)
    return [str(model.vocabulary.tokenizer.backend.id_to_token(token)) for token in prompt]


async def test_the_prompt_of_a_canary_names_both_languages(canary: TranscriptionModel) -> None:
    begin = ["<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>"]
    end = ["<|pnc|>", "<|noitn|>", "<|notimestamp|>", "<|nodiarize|>"]
    assert spelled(canary, "de") == [*begin, "<|de|>", "<|de|>", *end]
    assert spelled(canary, None) == [*begin, "<|en|>", "<|en|>", *end]
    assert spelled(canary, "uk", "translate") == [*begin, "<|uk|>", "<|en|>", *end]
    assert spelled(canary, "en", "translate", "de") == [*begin, "<|en|>", "<|de|>", *end]
    assert (sorted(canary.languages), canary.vocabulary.positions_a_second) == (["de", "en", "uk"], 12.5)
    assert canary.language("German", "language") == "de"
    with pytest.raises(BadRequest, match="the model does not transcribe `ja`; it transcribes 3 languages"):
        canary.language("ja", "language")


async def test_the_prompt_of_a_cohere_transcribe_names_one_language(tmp_path: Path) -> None:
    model = opened(write_prompted(tmp_path, tiny_cohere))
    assert spelled(model, "ja")[:6] == [
        *("▁", "<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>", "<|ja|>", "<|ja|>")
    ]
    assert (sorted(model.languages), model.vocabulary.translates) == (["de", "en", "ja"], False)


async def test_a_tokenizer_without_a_token_of_the_prompt_is_refused(tmp_path: Path) -> None:
    folder = write_prompted(tmp_path, names=[name for name in PROMPTED if name != "<|pnc|>"])
    with pytest.raises(CheckpointError, match=r"The tokenizer has no token <\|pnc\|>"):
        opened(folder)


async def test_a_translation_names_the_language_that_is_spoken(canary: TranscriptionModel) -> None:
    assert isinstance(canary.vocabulary, UntimedVocabulary)
    state = state_with(lambda asked: Said([65], ended=False, reason="length"), canary.vocabulary)
    answer = await post(state, path=TRANSLATIONS)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "language")
    answer = await post(state, [("language", "ja")], path=TRANSLATIONS)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "language")
    answer = await post(state, [("language", "de")], path=TRANSLATIONS)
    assert answer.json()["text"] == "A"
    assert isinstance(state.auxiliary.transcription, TranscriptionModel)
    (asked,) = engine_of(state.auxiliary.transcription).asked
    assert asked.prompt == canary.vocabulary.beginning("de", "translate", timestamps=False)


@pytest.fixture(scope="module")
def seamless(tmp_path_factory: pytest.TempPathFactory) -> TranscriptionModel:
    def make() -> Any:
        model = tiny_seamless(vocab_size=300, speech_encoder_layers=1, decoder_layers=1, encoder_layers=1)
        tokens = {"eng": 260, "deu": 261, "cmn": 262, "arz": 263}
        model.generation_config.text_decoder_lang_to_code_id = tokens
        return model

    names = ("<|endoftext|>", "<s>", "<unk>", "<pad>", "__eng__", "__deu__", "__cmn__", "__arz__")
    return opened(write_prompted(tmp_path_factory.mktemp("seamless"), make, names))


async def test_the_prompt_of_a_seamless_names_the_written_language_alone(seamless: TranscriptionModel) -> None:
    start = seamless.vocabulary.tokenizer.backend.id_to_token(3)
    assert spelled(seamless, "de") == [start, "__deu__"]
    assert spelled(seamless, None) == [start, "__eng__"]
    assert spelled(seamless, "de", "translate") == [start, "__eng__"]
    assert (seamless.vocabulary.eot, seamless.vocabulary.positions_a_second) == (256, 6.25)
    asked = ["Chinese", "zh-TW", "cmn", "ARZ"]
    assert [seamless.language(name, "language") for name in asked] == ["zh", "zh", "cmn", "arz"]
    with pytest.raises(BadRequest, match="the model does not transcribe `ja`; it transcribes 4 languages"):
        seamless.language("ja", "language")


async def test_a_seamless_translates_into_the_language_that_is_asked_for(seamless: TranscriptionModel) -> None:
    assert isinstance(seamless.vocabulary, UntimedVocabulary)
    state = state_with(lambda asked: Said([65], ended=False, reason="length"), seamless.vocabulary)
    answer = await post(state, [("to_language", "ja")], path=TRANSLATIONS)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "to_language")
    assert (await post(state, [("to_language", "German")], path=TRANSLATIONS)).json()["text"] == "A"
    assert (await post(state, path=TRANSLATIONS)).json()["text"] == "A"
    assert isinstance(state.auxiliary.transcription, TranscriptionModel)
    assert [asked.prompt for asked in engine_of(state.auxiliary.transcription).asked] == [[3, 261], [3, 260]]


async def test_a_seamless_without_its_table_of_languages_is_refused(tmp_path: Path) -> None:
    names = ("<|endoftext|>", "<s>", "<unk>", "<pad>")
    folder = write_prompted(tmp_path, partial(tiny_seamless, vocab_size=300, speech_encoder_layers=1), names)
    with pytest.raises(CheckpointError, match="names no token of English in text_decoder_lang_to_code_id"):
        opened(folder)


async def test_a_tokenizer_without_the_end_of_a_transcript_is_refused(tmp_path: Path) -> None:
    folder = write_moonshine(tmp_path, eos_token_id=5000)
    client = engine_of(model_of(says_its_seconds))
    with pytest.raises(CheckpointError, match=r"The tokenizer has no token 5000, which config.json names"):
        open_transcription(TranscriptionConfig(path=str(folder)), client, folder)
