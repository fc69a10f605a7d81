"""What lies in a folder of voices."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.tts.voices import Voices, read_voices
from stentor.protocols.ipc.speech import VoicePlace


def write_piper(folder: Path, name: str, rate: int = 22050, **more: Any) -> Path:
    file = folder / f"{name}.onnx"
    file.write_bytes(b"")
    (folder / f"{name}.onnx.json").write_text(json.dumps({"audio": {"sample_rate": rate}, **more}))
    return file


def write_vits(folder: Path, **tokenizer: Any) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "vits", "sampling_rate": 16000}))
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "vocab.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"phonemize": False, **tokenizer}))


def test_a_piper_voice_is_named_by_its_file(tmp_path: Path) -> None:
    file = write_piper(tmp_path, "en_US-joe-medium")
    for path in (tmp_path, file):
        found = read_voices(path)
        assert found == Voices("piper", (VoicePlace("en_US-joe-medium", str(file)),), 22050)


def test_several_voices_and_speakers_are_told_apart(tmp_path: Path) -> None:
    write_piper(tmp_path, "a")
    write_piper(tmp_path, "b", num_speakers=2, speaker_id_map={"tom": 1, "ann": 0})
    write_piper(tmp_path, "c", num_speakers=2)
    places = read_voices(tmp_path).places
    assert [(place.name, place.speaker) for place in places] == [
        *(("a", None), ("b-ann", 0), ("b-tom", 1)),
        *(("c-0", 0), ("c-1", 1)),
    ]


def test_an_onnx_file_without_its_description_is_no_voice(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(CheckpointError, match="holds no voice"):
        read_voices(tmp_path)
    with pytest.raises(CheckpointError, match=r"model\.onnx\.json cannot be read"):
        read_voices(tmp_path / "model.onnx")


def test_a_rate_that_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    write_piper(tmp_path, "a", 800)
    with pytest.raises(CheckpointError, match="has a sampling rate of 800 Hz, expected 1000 to 768000"):
        read_voices(tmp_path)


def test_voices_of_several_rates_cannot_be_served_together(tmp_path: Path) -> None:
    write_piper(tmp_path, "a", 16000)
    write_piper(tmp_path, "b", 22050)
    with pytest.raises(CheckpointError, match=r"a\.onnx has 16000 Hz, b\.onnx has 22050 Hz"):
        read_voices(tmp_path)


def test_without_piper_the_way_to_install_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_piper(tmp_path, "a")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(CheckpointError, match=r"pip install 'stentor\[speech\]'.* GPL"):
        read_voices(tmp_path)


def test_a_vits_checkpoint_has_its_speakers_as_voices(tmp_path: Path) -> None:
    write_vits(tmp_path)
    assert read_voices(tmp_path) == Voices("vits", (VoicePlace("default", str(tmp_path)),), 16000)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vits", "num_speakers": 2}))
    assert [place.name for place in read_voices(tmp_path).places] == ["speaker-0", "speaker-1"]


@pytest.mark.parametrize(
    ("tokenizer", "said"),
    [({"is_uroman": True, "language": "kor"}, r"\(kor\).*uroman"), ({"phonemize": True}, "phonemes")],
)
def test_a_language_that_needs_more_than_letters_is_refused(
    tmp_path: Path, tokenizer: dict[str, Any], said: str
) -> None:
    write_vits(tmp_path, **tokenizer)
    with pytest.raises(CheckpointError, match=said):
        read_voices(tmp_path)


def test_a_vits_checkpoint_that_lacks_files_names_them(tmp_path: Path) -> None:
    write_vits(tmp_path)
    (tmp_path / "vocab.json").unlink()
    with pytest.raises(CheckpointError, match=r"without vocab\.json"):
        read_voices(tmp_path)
