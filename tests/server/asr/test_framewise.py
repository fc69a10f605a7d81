"""Transcripts of a model that decodes frame by frame: words, sentences, formats, turns, and what has no effect."""

import json
import struct
from pathlib import Path

import pytest
from openai.types import audio as sdk
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from transformers.models.nemotron3_5_asr.processing_nemotron3_5_asr import DEFAULT_PROMPT_DICTIONARY

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.model_config.speech.framewise import LanguagePromptSpec
from stentor.protocols.ipc.pooling import Pooled
from stentor.server.app.auxiliary_models import open_transcription
from stentor.server.asr.framewise_vocabulary import FramewiseVocabulary
from stentor.server.asr.language_prompts import language_prompts_of
from stentor.server.asr.options import TranscriptionOptions
from stentor.server.asr.transcribe import transcribe_turn
from stentor.server.config.models import TranscriptionConfig
from stentor.tests.parity.framewise import BLANK, PIECES, tiny_ctc, tiny_nemotron_3_5, write_framewise
from stentor.tests.server.asr.scripted import Said, Script, engine_of, model_of, sound
from stentor.tests.server.asr.test_http import EXTENSIONS, TRANSLATIONS, model_in, post, state_with
from stentor.tests.wire.validate import TRANSCRIPT_EXTENSIONS, check_event, check_object, frames_of

pytestmark = pytest.mark.anyio

SAID = (
    ("▁h", 5, 7),
    ("i", 7, 9),
    (".", 9, 9),
    ("▁y", 10, 13),
    ("o", 13, 13),
    (",", 14, 14),
    ("▁i", 20, 21),
    ("?", 22, 23),
)
"""Two sentences, "hi." and "yo, i?", by their pieces and positions."""
LANGUAGES = {"en": 0, "en-GB": 1, "de-DE": 2, "pt-BR": 3, "pt": 4, "vi-VN": 5, "auto": 6}
TAGS = ("de-DE", "pt-BR")


def says(*said: tuple[str, int, int]) -> Script:
    """A script that gives the same transcript for every window."""
    rows = [struct.pack("<4f", PIECES.index(piece), first, end, -0.5) for piece, first, end in said]
    return lambda _asked: Said([], pooled=Pooled(len(rows), 4, b"".join(rows)))


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> FramewiseVocabulary:
    return opened(write_framewise(tmp_path_factory.mktemp("parakeet"), tiny_ctc))


def opened(folder: Path) -> FramewiseVocabulary:
    client = engine_of(model_of(says()))
    found = open_transcription(TranscriptionConfig(path=str(folder)), client, folder).vocabulary
    assert isinstance(found, FramewiseVocabulary)
    return found


async def test_words_and_sentences_have_the_times_of_their_positions(vocabulary: FramewiseVocabulary) -> None:
    granularities = [("timestamp_granularities[]", each) for each in ("word", "segment")]
    answer = await post(state_with(says(*SAID), vocabulary), [("response_format", "verbose_json"), *granularities])
    found = check_object(sdk.TranscriptionVerbose, answer.content, EXTENSIONS)
    assert (found.text, found.language) == ("hi. yo, i?", "unknown")
    words = [(word.word, word.start, word.end) for word in found.words or ()]
    assert words == [("hi.", 0.4, 0.72), ("yo,", 0.8, 1.04), ("i?", 1.6, 1.68)]
    segments = [(each.id, each.text, each.start, each.end) for each in found.segments or ()]
    assert segments == [(0, " hi.", 0.4, 0.72), (1, " yo, i?", 0.8, 1.68)]
    assert [each.avg_logprob for each in found.segments or ()] == [pytest.approx(-4 / 9)] * 2


async def test_every_format_and_the_stream_say_the_same(vocabulary: FramewiseVocabulary) -> None:
    state = state_with(says(*SAID), vocabulary)
    assert (await post(state, [("response_format", "text")])).text == "hi. yo, i?\n"
    assert "00:00:00,800 --> 00:00:01,680\nyo, i?" in (await post(state, [("response_format", "srt")])).text
    assert "00:00.400 --> " in (await post(state, [("response_format", "vtt")])).text
    frames = frames_of((await post(state, [("stream", "true")])).content)
    events = [
        check_event(sdk.TranscriptionStreamEvent, frame.data, TRANSCRIPT_EXTENSIONS)
        for frame in frames
        if frame.data != "[DONE]"
    ]
    *deltas, done = events
    assert [event.delta for event in deltas] == ["hi.", " yo, i?"]
    assert done.text == "hi. yo, i?"


async def test_log_probabilities_are_those_of_its_tokens(vocabulary: FramewiseVocabulary) -> None:
    answer = await post(state_with(says(*SAID), vocabulary), [("include[]", "logprobs")])
    found = check_object(sdk.Transcription, answer.content)
    assert [(each.token, each.logprob) for each in found.logprobs or ()][:2] == [(" h", -0.5), ("i", -0.5)]
    assert len(found.logprobs or ()) == len(SAID)


async def test_the_engine_is_asked_for_a_whole_transcript_whatever_the_request_says(
    vocabulary: FramewiseVocabulary,
) -> None:
    fields = [("temperature", "0.7"), ("top_p", "0.5"), ("language", "de"), ("prompt", "A name.")]
    state = state_with(says(*SAID), vocabulary)
    answer = await post(state, [*fields, ("response_format", "verbose_json")])
    assert check_object(sdk.TranscriptionVerbose, answer.content, EXTENSIONS).language == "german"
    (asked,) = engine_of(model_in(state)).asked
    assert asked.pooling is not None
    assert (asked.pooling.task, asked.prompt, asked.params.max_tokens) == ("transcribe", [0], 0)


async def test_a_translation_is_refused(vocabulary: FramewiseVocabulary) -> None:
    answer = await post(state_with(says(*SAID), vocabulary), path=TRANSLATIONS)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    assert "translates nothing" in answer.json()["error"]["message"]


async def test_a_turn_goes_on_behind_the_words_that_were_sent(vocabulary: FramewiseVocabulary) -> None:
    model = model_of(says(*SAID), vocabulary)
    given = vocabulary.encode("ha")
    turn = await transcribe_turn(model, sound(3), TranscriptionOptions(), after=given)
    assert turn.text == "ha yo, i?"
    assert (turn.tokens[: len(given)], len(turn.logprobs)) == (given, 5)
    tokens = [PIECES.index(piece) for piece, _, _ in SAID]
    assert [vocabulary.behind(vocabulary.encode(text), tokens) for text in ("", "a", "a b", "a b c", "a b c d")] == [
        *(0, 3, 6, 8, 8)
    ]


async def test_audio_without_words_has_an_empty_transcript(vocabulary: FramewiseVocabulary) -> None:
    answer = await post(state_with(says(), vocabulary), [("response_format", "verbose_json")])
    found = check_object(sdk.TranscriptionVerbose, answer.content, EXTENSIONS)
    assert (found.text, found.segments) == ("", [])


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> FramewiseVocabulary:
    """Of a model that is told one of eight languages, and names it in a token behind the text."""
    return opened(write_told(tmp_path_factory.mktemp("nemotron")))


def write_told(folder: Path, **languages: object) -> Path:
    write_framewise(folder, tiny_nemotron_3_5)
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens([AddedToken(f"<{locale}>", special=True, normalized=False) for locale in TAGS])
    backend.save(str(folder / "tokenizer.json"))
    named = {**LANGUAGES, **{name.replace("_", "-"): number for name, number in languages.items()}}
    (folder / "processor_config.json").write_text(json.dumps({"prompt_dictionary": named}))
    return folder


@pytest.mark.parametrize(
    ("named", "prompt", "reported"),
    [
        ([], 6, "unknown"),
        ([("language", "de")], 2, "german"),
        ([("language", "German")], 2, "german"),
        ([("language", "pt_BR")], 3, "portuguese"),
        ([("language", "pt-AO")], 4, "portuguese"),
        ([("language", "vi")], 5, "vietnamese"),
        ([("languages[]", "vi")], 5, "vietnamese"),
    ],
)
async def test_a_model_with_language_prompts_is_told_the_language(
    told: FramewiseVocabulary, named: list[tuple[str, str]], prompt: int, reported: str
) -> None:
    state = state_with(says(*SAID), told)
    answer = await post(state, [*named, ("response_format", "verbose_json")])
    assert check_object(sdk.TranscriptionVerbose, answer.content, EXTENSIONS).language == reported
    assert [asked.prompt for asked in engine_of(model_in(state)).asked] == [[prompt]]


async def test_the_engine_keeps_a_transcript_of_each_language(told: FramewiseVocabulary) -> None:
    state = state_with(says(*SAID), told)
    for language in ("de", "vi", "de"):
        await post(state, [("language", language)])
    digests = [asked.audio.digest for asked in engine_of(model_in(state)).asked]
    assert digests[0] == digests[2] != digests[1]


async def test_the_language_that_a_transcript_names_is_reported_and_no_part_of_the_text(
    told: FramewiseVocabulary,
) -> None:
    rows = [struct.pack("<4f", PIECES.index(piece), first, end, -0.5) for piece, first, end in SAID]
    rows.append(struct.pack("<4f", len(PIECES) + TAGS.index("pt-BR"), 24, 25, -0.5))
    state = state_with(lambda _asked: Said([], pooled=Pooled(len(rows), 4, b"".join(rows))), told)
    answer = await post(state, [("response_format", "verbose_json")])
    found = check_object(sdk.TranscriptionVerbose, answer.content, EXTENSIONS)
    assert (found.text, found.language) == ("hi. yo, i?", "portuguese")
    turn = await transcribe_turn(model_in(state), sound(3), TranscriptionOptions())
    assert (turn.text, turn.language) == ("hi. yo, i?", "pt")


async def test_a_language_that_the_model_is_not_told_is_refused(told: FramewiseVocabulary) -> None:
    answer = await post(state_with(says(*SAID), told), [("language", "klingon")])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "language")


async def test_the_published_languages_are_known_without_a_file(tmp_path: Path) -> None:
    found = language_prompts_of(tmp_path, LanguagePromptSpec(128, 16, 101))
    numbers = [found.number_of(name) for name in ("en", "en-GB", "he", "zh", "unknown", None)]
    assert numbers == [0, 1, 64, 4, 101, 101]
    published = {**DEFAULT_PROMPT_DICTIONARY}
    for misspelt in ("auto", "enGB", "esES"):
        del published[misspelt]
    assert found.by_locale == published


@pytest.mark.parametrize("named", [["de"], "de", 5])
async def test_languages_of_another_shape_are_refused(tmp_path: Path, named: object) -> None:
    folder = write_told(tmp_path)
    (folder / "processor_config.json").write_text(json.dumps({"prompt_dictionary": named}))
    with pytest.raises(CheckpointError, match="prompt_dictionary is no object"):
        opened(folder)


async def test_a_language_outside_the_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has 8 for fr, expected a number below 8, the num_prompts"):
        opened(write_told(tmp_path, fr=8))


async def test_a_blank_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    config = write_framewise(tmp_path, tiny_ctc) / "config.json"
    config.write_text(config.read_text().replace(f'"pad_token_id": {BLANK}', '"pad_token_id": 900'))
    with pytest.raises(CheckpointError, match="pad_token_id is 900, expected a token of the"):
        opened(tmp_path)
