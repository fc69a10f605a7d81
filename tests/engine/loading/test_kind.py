"""What a model is for, from the files beside its weights."""

import json
from pathlib import Path

import pytest

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.kind import kind_of
from stentor.server.app.first_engine import check_kind, check_transcribes
from stentor.tests.parity.seeing import MAKERS
from stentor.tests.support.mmproj_files import write_pair


def folder(tmp_path: Path, config: object, *files: str) -> Path:
    text = config if isinstance(config, str) else json.dumps(config)
    (tmp_path / "config.json").write_text(text)
    for name in files:
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("config", "files", "kind"),
    [
        ({"model_type": "whisper"}, [], "transcription"),
        ({"architectures": ["WhisperForConditionalGeneration"]}, [], "transcription"),
        ({"model_type": "voxtral_realtime"}, [], "transcription"),
        ({"model_type": "moonshine"}, [], "transcription"),
        ({"model_type": "canary"}, [], "transcription"),
        ({"architectures": ["CohereAsrForConditionalGeneration"]}, [], "transcription"),
        ({"model_type": "moonshine_streaming"}, [], "transcription"),
        ({"architectures": ["MoonshineForConditionalGeneration"]}, [], "transcription"),
        ({"alignment_heads": [[1, 0]], "suppress_ids": [1], "lang_ids": []}, ["model.bin"], "transcription"),
        ({"model_type": "vits", "architectures": ["VitsModel"]}, [], "speech"),
        ({"model_type": "pocket_tts"}, [], "speech"),
        ({"model_type": "gradium_phonon_tts"}, [], "speech"),
        ({"model_type": "csm"}, [], "speech"),
        ({"model_type": "bark"}, [], "speech"),
        ({"model_type": "musicgen"}, [], "speech"),
        ({"model_type": "seamless_m4t_v2", "architectures": ["SeamlessM4Tv2Model"]}, [], "transcription"),
        ({"model_type": "seamless_m4t_v2", "architectures": ["SeamlessM4Tv2ForTextToText"]}, [], "chat"),
        ({"model_type": "seamless_m4t", "architectures": ["SeamlessM4TForTextToSpeech"]}, [], "speech"),
        ({"model_type": "dia"}, [], "speech"),
        ({"model_type": "vibevoice"}, [], "speech"),
        ({"architectures": ["SpeechT5ForTextToSpeech"]}, [], "speech"),
        ({"architectures": ["PocketTTSForConditionalGeneration"]}, [], "speech"),
        ({"model_type": "style_text_to_speech_2"}, [], "speech"),
        ({"model_type": "bert", "architectures": ["BertModel"]}, [], "embedding"),
        ({"model_type": "modernbert"}, [], "embedding"),
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, ["modules.json"], "embedding"),
        ({"model_type": "qwen2", "architectures": ["Qwen2ForSequenceClassification"]}, [], "embedding"),
        ({"model_type": "qwen2_vl", "architectures": ["JinaVLForRanking"]}, [], "embedding"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, [], "chat"),
        ({"suppress_ids": []}, [], "chat"),
        ({"model_type": ["whisper"]}, [], "chat"),
        ({"architectures": [7, None]}, [], "chat"),
        ([], [], "chat"),
        ("{", [], "chat"),
        ("9" * 5000, [], "chat"),
    ],
)
def test_a_configuration_tells_what_a_model_is_for(tmp_path: Path, config: object, files: list[str], kind: str) -> None:
    assert kind_of(folder(tmp_path, config, *files)) == kind


@pytest.mark.parametrize(
    ("family", "path", "kind"),
    [
        ("qwen3", "Qwen3-Reranker-0.6B", "embedding"),
        ("qwen3", "models--Qwen--Qwen3-Reranker-0.6B/snapshots/6e9e69830b95", "embedding"),
        ("gemma", "models--BAAI--bge-reranker-v2-gemma/snapshots/1787044", "embedding"),
        ("qwen3", "models--Qwen--Qwen3-0.6B/snapshots/c1899de289a0", "chat"),
        ("qwen3", "rerankers/qwen3", "chat"),
        ("llama", "my-reranker", "chat"),
    ],
)
def test_a_reranker_that_says_yes_or_no_is_known_by_its_name(tmp_path: Path, family: str, path: str, kind: str) -> None:
    (tmp_path / path).mkdir(parents=True)
    assert kind_of(folder(tmp_path / path, {"model_type": family})) == kind


def test_files_alone_tell_too(tmp_path: Path, demo_gguf: Path) -> None:
    assert kind_of(demo_gguf) == "chat"
    assert kind_of(tmp_path / "nothing") == "chat"
    assert kind_of(tmp_path / "voice.onnx") == "speech"
    (tmp_path / "voice.onnx").touch()
    assert kind_of(tmp_path) == "speech"


def test_a_model_of_another_kind_is_one_line_that_says_where_it_belongs(tmp_path: Path) -> None:
    ears = folder(tmp_path, {"model_type": "whisper"})
    check_kind("--transcription-model", "owner/ears", ears, "transcription")
    with pytest.raises(CheckpointError) as refused:
        check_kind("MODEL", "owner/ears", ears, "chat")
    assert str(refused.value) == (
        "MODEL: owner/ears is a transcription model, and a chat model is expected; "
        "name it as --transcription-model instead"
    )


def test_chat_models_that_are_asked_for_transcripts_transcribe_too(tmp_path: Path) -> None:
    for name in ("Qwen3ASRForConditionalGeneration", "WhisperForConditionalGeneration"):
        (tmp_path / name).mkdir()
        check_transcribes("owner/ears", folder(tmp_path / name, {"architectures": [name]}))
    model = MAKERS["qwen3_asr"](tmp_path)
    pair = write_pair(tmp_path, model, "qwen3_asr")
    check_transcribes("owner/ears", pair)
    (tmp_path / "gguf" / "mmproj-m.gguf").unlink()
    with pytest.raises(CheckpointError, match=r"owner/text is a chat model, .*; name it as MODEL instead"):
        check_transcribes("owner/text", pair)
    (tmp_path / "text").mkdir()
    text = folder(tmp_path / "text", {"architectures": ["LlamaForCausalLM"]})
    with pytest.raises(CheckpointError, match=r"owner/text is a chat model, .*; name it as MODEL instead"):
        check_transcribes("owner/text", text)
