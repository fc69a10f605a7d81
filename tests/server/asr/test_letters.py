"""Transcripts of models whose tokens are letters: vocabularies, words, sentences by pauses, and growing turns."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from openai.types import audio as sdk
from transformers import Wav2Vec2CTCTokenizer

from stentor.engine.loading.errors import CheckpointError
from stentor.protocols.ipc.pooling import Pooled
from stentor.server.asr.framewise_vocabulary import FramewiseVocabulary
from stentor.server.asr.options import TranscriptionOptions
from stentor.server.asr.transcribe import transcribe_turn
from stentor.tests.parity.ctc_modules import LETTERS, write_languages, write_letters, write_omniasr
from stentor.tests.server.asr.scripted import Said, Script, engine_of, model_of, sound
from stentor.tests.server.asr.test_framewise import opened
from stentor.tests.server.asr.test_http import EXTENSIONS, model_in, post, state_with
from stentor.tests.wire.validate import check_object

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def languages(tmp_path_factory: pytest.TempPathFactory) -> FramewiseVocabulary:
    return opened(write_languages(tmp_path_factory.mktemp("languages")))


SAID = (
    *(("D", 4, 6), ("O", 7, 8), ("N", 8, 9), ("'", 9, 10), ("T", 11, 13)),
    *(("|", 13, 14), ("|", 15, 16), ("G", 17, 18), ("O", 20, 21), ("|", 22, 24)),
    *(("Y", 60, 61), ("O", 61, 63), ("|", 63, 64)),
)
"""Two words, and another after a pause of half a second and more, by letters and positions of 20 ms."""


def hears(*said: tuple[str, int, int]) -> Script:
    rows = [struct.pack("<4f", LETTERS.index(piece), first, end, -0.5) for piece, first, end in said]
    return lambda _asked: Said([], pooled=Pooled(len(rows), 4, b"".join(rows)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_letters(tmp_path_factory.mktemp("letters"))


@pytest.fixture(scope="module")
def vocabulary(folder: Path) -> FramewiseVocabulary:
    return opened(folder)


async def test_words_and_their_times_are_those_of_transformers_offsets(
    vocabulary: FramewiseVocabulary, folder: Path
) -> None:
    granularities = [("timestamp_granularities[]", each) for each in ("word", "segment")]
    answer = await post(state_with(hears(*SAID), vocabulary), [("response_format", "verbose_json"), *granularities])
    found = check_object(sdk.TranscriptionVerbose, answer.content, EXTENSIONS)
    positions = [0] * 64
    for piece, first, end in SAID:
        positions[first:end] = [LETTERS.index(piece)] * (end - first)
    tokenizer = Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
    theirs: Any = tokenizer.decode(positions, output_word_offsets=True)
    expected = [(word["word"], word["start_offset"] / 50, word["end_offset"] / 50) for word in theirs.word_offsets]
    assert [(word.word, word.start, word.end) for word in found.words or ()] == expected
    assert expected == [("DON'T", 0.08, 0.26), ("GO", 0.34, 0.42), ("YO", 1.2, 1.26)]
    assert found.text == " ".join(theirs.text.split()) == "DON'T GO YO"
    segments = [(each.text, each.start, each.end) for each in found.segments or ()]
    assert segments == [(" DON'T GO", 0.08, 0.42), (" YO", 1.2, 1.26)]


async def test_letters_of_omniasr_s_tokenizer_are_words_as_those_of_a_vocabulary_file(tmp_path: Path) -> None:
    letters = [" " if each == "|" else each for each in LETTERS] + ["."]
    vocabulary = opened(write_omniasr(tmp_path, letters))
    granularities = [("timestamp_granularities[]", each) for each in ("word", "segment")]
    answer = await post(state_with(hears(*SAID), vocabulary), [("response_format", "verbose_json"), *granularities])
    found = check_object(sdk.TranscriptionVerbose, answer.content, EXTENSIONS)
    words = [(word.word, word.start, word.end) for word in found.words or ()]
    assert words == [("DON'T", 0.08, 0.26), ("GO", 0.34, 0.42), ("YO", 1.2, 1.26)]
    assert [each.text for each in found.segments or ()] == [" DON'T GO", " YO"]
    turn = await transcribe_turn(
        model_of(hears(*SAID), vocabulary), sound(3), TranscriptionOptions(), after=vocabulary.encode("DONT")
    )
    assert turn.text == "DONT GO YO"


async def test_windows_are_joined_by_a_space(vocabulary: FramewiseVocabulary) -> None:
    state = state_with(hears(("H", 3, 4), ("I", 5, 6)), vocabulary)
    answer = await post(state, [("response_format", "text")], pcm=sound(70))
    assert answer.text == "HI HI HI\n"


async def test_a_turn_of_letters_goes_on_behind_the_words_that_were_sent(vocabulary: FramewiseVocabulary) -> None:
    model = model_of(hears(*SAID), vocabulary)
    turn = await transcribe_turn(model, sound(3), TranscriptionOptions(), after=vocabulary.encode("DONT"))
    assert turn.text == "DONT GO YO"
    nothing = await transcribe_turn(model_of(hears(("|", 1, 2)), vocabulary), sound(3), TranscriptionOptions())
    assert (nothing.text, nothing.tokens) == ("", [])


async def test_a_vocabulary_of_capitals_may_be_written_in_small_letters(tmp_path: Path) -> None:
    small = opened(write_letters(tmp_path, do_lower_case=True))
    answer = await post(state_with(hears(*SAID), small), [("response_format", "text")])
    assert answer.text == "don't go yo\n"
    assert small.encode("go") == [LETTERS.index(piece) for piece in "|GO"]


async def test_a_vocabulary_of_several_languages_is_that_of_the_weights(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "config.json", tmp_path)
    letters = json.loads((folder / "vocab.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps({"deu": {"<pad>": 0, "ß": 1}, "eng": letters}))
    (tmp_path / "tokenizer_config.json").write_text('{"target_lang": "eng"}')
    answer = await post(state_with(hears(*SAID), opened(tmp_path)), [("response_format", "text")])
    assert answer.text == "DON'T GO YO\n"


@pytest.mark.parametrize(
    ("named", "prompt", "text"),
    [
        ([], 0, "BAB"),
        ([("language", "en")], 0, "BAB"),
        ([("language", "eng")], 0, "BAB"),
        ([("language", "de")], 1, "ACß"),
        ([("language", "German")], 1, "ACß"),
        ([("language", "deu")], 1, "ACß"),
        ([("language", "uz")], 2, "BAB"),
        ([("language", "uzb-script_latin")], 2, "BAB"),
    ],
)
async def test_a_request_names_the_language_whose_letters_it_gets(
    languages: FramewiseVocabulary, named: list[tuple[str, str]], prompt: int, text: str
) -> None:
    own = {"A": LETTERS.index("A"), "B": LETTERS.index("B")}
    tokens = [3, 5, 1] if prompt == 1 else [own["B"], own["A"], own["B"]]
    rows = [struct.pack("<4f", token, place, place + 1, -0.5) for place, token in enumerate(tokens)]
    state = state_with(lambda _asked: Said([], pooled=Pooled(len(rows), 4, b"".join(rows))), languages)
    answer = await post(state, [*named, ("response_format", "text")])
    assert answer.text == f"{text}\n"
    assert [asked.prompt for asked in engine_of(model_in(state)).asked] == [[prompt]]


async def test_a_language_without_an_adapter_is_refused(languages: FramewiseVocabulary) -> None:
    answer = await post(state_with(hears(*SAID), languages), [("language", "fr")])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "language")


async def test_special_tokens_are_no_text(vocabulary: FramewiseVocabulary) -> None:
    said = (("<s>", 1, 2), ("H", 3, 4), ("<unk>", 4, 5), ("I", 5, 6), ("</s>", 7, 8))
    answer = await post(state_with(hears(*said), vocabulary), [("response_format", "text")])
    assert answer.text == "HI\n"


async def test_a_blank_that_the_vocabulary_does_not_agree_with_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"pad_token_id is 0 in config.json and 3 in vocab.json"):
        opened(write_letters(tmp_path, pad_token="<unk>"))


@pytest.mark.parametrize("pieces", [{"a": "b"}, {"a": 1, "b": 1}, {"a": -1}, {}, {"a": True}])
async def test_a_vocabulary_of_another_shape_is_refused(
    folder: Path, tmp_path: Path, pieces: dict[str, object]
) -> None:
    shutil.copy(folder / "config.json", tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps(pieces))
    with pytest.raises(CheckpointError, match=r"vocab.json: expected"):
        opened(tmp_path)


async def test_a_vocabulary_of_phonemes_is_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "vocab.json"):
        shutil.copy(folder / name, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Wav2Vec2PhonemeCTCTokenizer"}')
    with pytest.raises(CheckpointError, match="are phonemes"):
        opened(tmp_path)
