"""Kokoro's voices are read in both of their layouts, and its graph gets phonemes, a style and a speed."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stentor.engine.loading.download.hub import resolve_model
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.kind import kind_of
from stentor.engine.tts import english
from stentor.engine.tts.backend import CannotSpeak, Stop, Stopped
from stentor.engine.tts.kokoro import KokoroSynthesizer
from stentor.engine.tts.voices import Voices, read_voices
from stentor.tests.engine.tts.made import stopped
from stentor.tests.engine.tts.tiny_kokoro import INT64, VOICES, graph, write_kokoro_onnx, write_onnx_community

pytest.importorskip("hibari")


@pytest.fixture(scope="module", params=[write_onnx_community, write_kokoro_onnx])
def voices(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Voices:
    write: Callable[[Path], Path] = request.param
    return read_voices(write(tmp_path_factory.mktemp("kokoro")))


def expected(speaker: Any, text: str, voice: str, variety: str, speed: float) -> Any:
    phonemes = speaker._english[variety](text)
    ids = [0, *(english.kokoro_vocabulary()[sound] for sound in phonemes), 0]
    wave = np.tile(ids, int(8 / speed)) * VOICES[voice][len(phonemes) - 1].mean()
    return np.clip(wave, -1, 1) * 32767


def test_voices_of_english_are_found_with_the_makers_default_first(voices: Voices) -> None:
    named = [(place.name, place.language) for place in voices.places]
    assert named == [("af_heart", "en-us"), ("af_alloy", "en-us"), ("bm_george", "en-gb")]
    assert (voices.backend, voices.sample_rate, voices.any_speed) == ("kokoro", 24000, True)


@pytest.mark.parametrize("speed", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("place", [0, 2])
def test_the_graph_gets_phonemes_the_style_of_their_number_and_the_speed(
    voices: Voices, speaker: Any, speed: float, place: int
) -> None:
    voice = voices.places[place]
    text = "Hello there, how are you?"
    samples = np.frombuffer(speaker.speak(text, voice, speed, Stop()), "<i2")
    wanted = expected(speaker, text, voice.name, voice.language or "", speed)
    assert samples.shape == wanted.shape
    assert np.abs(samples - wanted).max() <= 1.1
    assert np.abs(wanted).max() > 3000


def test_a_sentence_of_many_phonemes_takes_several_runs(voices: Voices, speaker: Any) -> None:
    text = "nineteen eighty-four, " * 30
    phonemes = speaker._english["en-us"](text)
    assert len(phonemes) > 400
    samples = len(speaker.speak(text, voices.places[0], 1.0, Stop())) // 2
    assert samples == 8 * (len(phonemes) + 2 * -(-len(phonemes) // 320))


def test_a_sentence_that_nobody_wants_is_not_made(voices: Voices, speaker: Any) -> None:
    with pytest.raises(Stopped):
        speaker.speak("hello", voices.places[0], 1.0, stopped())


def test_one_of_several_graphs_is_served_by_its_path_or_by_its_usual_name(tmp_path: Path) -> None:
    folder = write_onnx_community(tmp_path)
    assert kind_of(folder) == kind_of(folder / "onnx" / "model_q8f16.onnx") == "speech"
    assert read_voices(folder).places[0].path == str(folder / "onnx" / "model.onnx")
    chosen = read_voices(resolve_model(str(folder / "onnx" / "model_q8f16.onnx")))
    assert (chosen.backend, chosen.places[0].path) == ("kokoro", str(folder / "onnx" / "model_q8f16.onnx"))
    (folder / "onnx" / "model.onnx").rename(folder / "onnx" / "model_fp16.onnx")
    with pytest.raises(CheckpointError, match=r"several graphs: onnx/model_fp16\.onnx, onnx/model_q8f16\.onnx"):
        read_voices(folder)


def test_a_folder_without_a_configuration_is_a_folder_of_voices(tmp_path: Path) -> None:
    folder = write_kokoro_onnx(tmp_path)
    assert resolve_model(str(folder)) == folder
    assert kind_of(folder) == "speech"


def test_what_is_missing_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_onnx_community(tmp_path)
    with monkeypatch.context() as without:
        without.setattr(importlib.util, "find_spec", lambda _name: None)
        with pytest.raises(CheckpointError, match=r"af_heart reads phonemes.*pip install 'stentor\[english\]'"):
            read_voices(folder)
    for name in ("af_heart", "af_alloy", "bm_george"):
        (folder / "voices" / f"{name}.bin").unlink()
    with pytest.raises(CheckpointError, match="are jf_alpha, and text is read as English only"):
        read_voices(folder)
    (folder / "voices" / "jf_alpha.bin").unlink()
    with pytest.raises(CheckpointError, match=r"Kokoro without styles \(voices/NAME\.bin\)"):
        read_voices(folder)


def test_a_graph_or_a_style_of_another_shape_is_refused(tmp_path: Path) -> None:
    folder = write_onnx_community(tmp_path)
    (folder / "voices" / "af_heart.bin").write_bytes(bytes(1000))
    with pytest.raises(CannotSpeak, match=r"af_heart\.bin holds no styles of 256 numbers"):
        KokoroSynthesizer(read_voices(folder).places, 1)
    (folder / "onnx" / "model.onnx").write_bytes(graph(speed=INT64))
    with pytest.raises(CannotSpeak, match=r"speed tensor\(int64\), where a graph of Kokoro takes"):
        KokoroSynthesizer(read_voices(folder).places, 1)
    (folder / "onnx" / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(CannotSpeak, match="cannot be loaded"):
        KokoroSynthesizer(read_voices(folder).places, 1)
