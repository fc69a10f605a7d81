"""Which folders are language models that speak, and what is refused when one is opened."""

import json
from pathlib import Path
from typing import Any

import pytest

from stentor.engine.loading.errors import CheckpointError
from stentor.server.app.first_engine import fetch
from stentor.server.options.reading import read_config
from stentor.server.text.pool import TokenizationBudget
from stentor.server.text.tokenizers.loading import load_tokenizer
from stentor.server.tts import opening
from stentor.server.tts.families import family_of
from stentor.server.tts.model import open_speech
from stentor.server.tts.opening import codec_of, language_of, open_language_model
from stentor.server.tts.prompt_writer import CodeWords
from stentor.tests.engine.tts.tiny_codecs import write_snac
from stentor.tests.engine.tts.tiny_vits import write_tiny_vits
from stentor.tests.fakes import FakeEngine
from stentor.tests.server.tts.tiny_speakers import write_llasa, write_neutts, write_orpheus, write_voice

VOICE: dict[str, Any] = {"text": "As it was said.", "codes": [3, 1, 4, 1, 5]}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    root = tmp_path_factory.mktemp("models")
    return {
        "Orpheus": write_orpheus(root / "orpheus"),
        "NeuTTS": write_neutts(root / "neutts"),
        "Llasa": write_llasa(root / "llasa"),
    }


def refused(folder: Path, codec: Path, voices: Path | None = None) -> str:
    flags = {} if voices is None else {"speech-voices": str(voices)}
    config = read_config({"speech-model": str(folder), **flags}, {})
    located = config.located(Path("/chat"), speech=folder, codec=codec)
    with pytest.raises(CheckpointError) as refusal:
        open_language_model(located, FakeEngine(), TokenizationBudget())  # type: ignore[arg-type]
    return str(refusal.value)


def test_a_family_is_known_by_the_words_of_its_tokenizer(models: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    for name, (folder, _) in models.items():
        family = family_of(load_tokenizer(folder))
        assert family is not None
        assert (family.name, codec_of(folder)) == (name, family.codec_model)
    assert codec_of(models["Orpheus"][1]) is None, "it has no tokenizer"


def test_a_frame_has_words_of_its_own_at_each_place() -> None:
    words = CodeWords(100, 99, 3, 10)
    assert words.grammar == "start: frame*\nframe: <[100-109]> <[110-119]> <[120-129]>\n"
    tokens = [words.token(code, place) for place, code in enumerate([0, 9, 5, 1])]
    assert tokens == [100, 119, 125, 101]
    assert [words.code(token, place) for place, token in enumerate(tokens)] == [0, 9, 5, 1]


def test_the_codec_must_be_the_family_s_and_have_a_word_for_each_code(
    models: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    (orpheus, snac), (_, xcodec2) = models["Orpheus"], models["Llasa"]
    assert "Orpheus needs snac" in refused(orpheus, xcodec2)
    larger = write_snac(tmp_path / "larger", codebook_size=64)
    assert "needs 448 words" in refused(orpheus, larger)
    assert "holds no codec" in refused(orpheus, orpheus)
    assert snac.is_dir()


def test_voices_by_recordings_are_for_models_without_their_own(
    models: dict[str, tuple[Path, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_voice(tmp_path / "voices", "ann", VOICE["text"], VOICE["codes"])
    assert "takes no others" in refused(*models["Orpheus"], tmp_path / "voices")
    monkeypatch.setattr(opening, "find_spec", lambda _name: object())
    assert "--speech-voices" in refused(*models["NeuTTS"])


def test_phonemes_need_piper(models: dict[str, tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda _name: None)
    assert "stentor[speech]" in refused(*models["NeuTTS"])


@pytest.mark.parametrize(
    ("voice", "said"),
    [
        (None, "holds no voice"),
        ("{", "cannot be read"),
        ({"text": "Hello."}, "codes"),
        ({**VOICE, "text": "  "}, "characters"),
        ({**VOICE, "text": "a" * 2001}, "characters"),
        ({**VOICE, "codes": []}, "0 codes"),
        ({**VOICE, "codes": [0] * 60_001}, "at most 60 seconds"),
        ({**VOICE, "codes": [16]}, "outside 0 to 15"),
        ({**VOICE, "codes": [-1]}, "outside 0 to 15"),
    ],
)
def test_a_voice_that_cannot_be_used_is_told_with_its_file(
    models: dict[str, tuple[Path, Path]], tmp_path: Path, voice: Any, said: str
) -> None:
    if voice is not None:
        (tmp_path / "ann.json").write_text(voice if isinstance(voice, str) else json.dumps(voice))
    message = refused(*models["Llasa"], tmp_path)
    assert said in message
    assert "--speech-voices" in message
    assert voice is None or "ann.json" in message


def test_the_language_is_told_by_the_model_s_name() -> None:
    names = ("neuphonic/neutts-air", "neuphonic/neutts-nano-german", "/x/NeuTTS-Nano-French", "neutts-nano-spanish")
    assert [language_of(name) for name in names] == ["en-us", "de", "fr-fr", "es"]


def located(model: Path, **flags: Any) -> Any:
    return fetch(read_config({"model": str(model), **flags}, {}))


def test_a_start_finds_the_codec_of_a_language_model_and_none_for_a_voice(
    models: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    orpheus, snac = models["Orpheus"]
    chat, _ = models["Llasa"]
    speech = {"speech-model": str(orpheus), "speech-codec": str(snac)}
    assert located(chat, **speech).speech.codec_path == str(snac)
    vits = write_tiny_vits(tmp_path / "vits")
    assert located(chat, **{"speech-model": str(vits)}).speech.codec_path == ""
    with pytest.raises(CheckpointError, match="--speech-codec is for language models"):
        located(chat, **{"speech-model": str(vits), "speech-codec": str(snac)})
    with pytest.raises(CheckpointError, match=r"--speech-voices: .* has voices of its own and takes no others"):
        open_speech(located(chat, **{"speech-model": str(vits), "speech-voices": str(tmp_path)}))
    shares = {"speech-memory-share": "0.9", "embedding-memory-share": "0.5"}
    with pytest.raises(CheckpointError, match="--speech-memory-share"):
        located(chat, **speech, **shares, **{"embedding-model": str(chat), "embedding-model-name": ["vectors"]})


def test_a_chat_model_without_words_of_codes_does_not_speak(
    models: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    orpheus, snac = models["Orpheus"]
    plain = tmp_path / "plain"
    plain.mkdir()
    for file in ("config.json", "model.safetensors", "tokenizer_config.json"):
        (plain / file).write_bytes((orpheus / file).read_bytes())
    (plain / "tokenizer.json").write_text((orpheus / "tokenizer.json").read_text().replace("custom_token", "other"))
    with pytest.raises(CheckpointError, match="is a chat model, and a speech model is expected"):
        located(orpheus, **{"speech-model": str(plain), "speech-codec": str(snac)})
