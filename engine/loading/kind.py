"""Determines the kind of a model from its small files, without loading it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from ..model_config.encoders.hf import is_encoder
from ..model_config.hf.qwen3_asr import is_aligner
from .voice_files import KOKORO_TYPE

ModelKind = Literal["chat", "transcription", "speech", "embedding"]

_SEAMLESS: Final = ("SeamlessM4T", "SeamlessM4Tv2")
_TRANSCRIPTION: Final = frozenset(
    {
        *("whisper", "voxtral_realtime", "moonshine", "moonshine_streaming"),
        *("WhisperForConditionalGeneration", "MoonshineForConditionalGeneration"),
        *("MoonshineStreamingForConditionalGeneration", "canary", "CanaryForConditionalGeneration"),
        *("cohere_asr", "CohereAsrForConditionalGeneration"),
        *("parakeet_ctc", "parakeet_rnnt", "ParakeetForRNNT", "parakeet_tdt", "ParakeetForTDT"),
        *("kyutai_speech_to_text", "KyutaiSpeechToTextForConditionalGeneration"),
        *(f"{version}{which}" for version in _SEAMLESS for which in ("ForSpeechToText", "Model", "ForSpeechToSpeech")),
        *("speech_to_text", "Speech2TextForConditionalGeneration"),
        *("nemotron_asr_streaming", "NemotronAsrStreamingForRNNT", "nemotron3_5_asr", "Nemotron3_5AsrForRNNT"),
    }
)
_CTC: Final = "ForCTC"
"""Ending of the architectures of transcription models with a CTC head."""
_SPEAKING: Final = frozenset(
    {
        *("vits", "VitsModel", "pocket_tts", "PocketTTSForConditionalGeneration", KOKORO_TYPE),
        *("gradium_phonon_tts", "GradiumPhononTTSForConditionalGeneration"),
        *("csm", "CsmForConditionalGeneration", "dia", "DiaForConditionalGeneration"),
        *("bark", "BarkModel", "musicgen", "MusicgenForConditionalGeneration"),
        *(f"{version}ForTextToSpeech" for version in _SEAMLESS),
        *("higgs_audio_v2", "HiggsAudioV2ForConditionalGeneration"),
        *("vibevoice", "VibeVoiceForConditionalGeneration", "SpeechT5ForTextToSpeech"),
    }
)
_SENTENCES: Final = "modules.json"
"""A file of sentence-transformers."""
_ENCODING: Final = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "RewardModel",
    "ForMaskedLM",
    "EncoderModel",
    "BidirectionalModel",
    "ColQwen3",
    "ColQwen3_5",
    "ColQwen3Model",
    "EmbeddingsV4Model",
    "EmbeddingsV5Model",
    "EmbeddingGemma2Model",
    "EmbeddingGemma2TextModel",
    "EuroBertModel",
    "EmbedModel",
    "NemotronVLModel",
    "ForRetrieval",
    "ForRanking",
)
"""Endings of architectures that do not generate text."""
_RERANKERS: Final = frozenset({"qwen3", "qwen3_vl", "gemma"})
_CTRANSLATE2_WEIGHTS: Final = "model.bin"
_CTRANSLATE2_WHISPER: Final = frozenset({"suppress_ids", "suppress_ids_begin", "alignment_heads", "lang_ids"})
"""Fields of CTranslate2's configuration of Whisper that other models do not have."""
_MAX_CONFIG_BYTES: Final = 16 << 20


def kind_of(path: Path) -> ModelKind:
    """The kind of the model at ``path``, a folder or file; "chat" if unknown."""
    if path.suffix == ".onnx" or (path.is_dir() and not _config_file(path).is_file() and any(path.glob("*.onnx"))):
        return "speech"
    config = _config_of(path)
    kinds = {*_texts([config.get("model_type")]), *_texts(config.get("architectures"))}
    if kinds & _TRANSCRIPTION or any(kind.endswith(_CTC) for kind in kinds):
        return "transcription"
    if kinds & _SPEAKING:
        return "speech"
    if (path / _CTRANSLATE2_WEIGHTS).is_file() and config.keys() & _CTRANSLATE2_WHISPER:
        return "transcription"
    encodes = isinstance(config.get("model_type"), str) and is_encoder(config)
    if is_named_reranker(path, config) or is_aligner(config):
        return "embedding"
    if encodes or (path / _SENTENCES).is_file() or any(kind.endswith(_ENCODING) for kind in kinds):
        return "embedding"
    return "chat"


def architectures_of(path: Path) -> list[str]:
    """Architectures in the config.json of the model at ``path``; empty if there is none that can be read."""
    return _texts(_config_of(path).get("architectures"))


def is_named_reranker(folder: Path, config: Mapping[str, object]) -> bool:
    """Whether the model is a reranker by yes and no of a language model, known by its name only: Qwen's and BGE's."""
    hub = folder.parent.name == "snapshots"  # models--OWNER--NAME/snapshots/REVISION
    name = folder.parent.parent.name if hub else folder.name
    family = config.get("model_type")
    return isinstance(family, str) and family in _RERANKERS and "reranker" in name.lower()


def _config_file(path: Path) -> Path:
    return path / "config.json"


def _config_of(path: Path) -> dict[str, object]:
    """The config; empty if it cannot be read, which loading the model reports better."""
    return readable_json(_config_file(path), _MAX_CONFIG_BYTES)


def readable_json(file: Path, most_bytes: int) -> dict[str, Any]:
    """Empty if there is no readable file."""
    try:
        if not file.is_file() or file.stat().st_size > most_bytes:
            return {}
        found = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
