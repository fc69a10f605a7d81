"""What a family of models that take media is, and the families that take sounds alone."""

from collections.abc import Mapping
from typing import Final, NamedTuple


class MediaFamily(NamedTuple):
    """A model that takes media."""

    model_type: str
    text: str
    """Default model type of its text part."""
    takes: str = "images"
    """The media besides text that tests cover; "": text alone is served."""
    whole_prompts: bool = False
    """Whether all tokens of a prompt see each other (:attr:`..spec.model.ModelSpec.whole_prompts`)."""
    tied_by_text: bool = False
    """Whether the head belongs to the text part's class, so that only ``text_config`` says whether it is tied."""


OF_SOUNDS: Final[Mapping[str, MediaFamily]] = {
    "AudioFlamingo3ForConditionalGeneration": MediaFamily("audioflamingo3", "qwen2", "audio"),
    "FunAsrNanoForConditionalGeneration": MediaFamily("fun_asr_nano", "qwen3", "audio"),
    "FunAudioChatForConditionalGeneration": MediaFamily("funaudiochat", "qwen3", "audio"),
    "GlmAsrForConditionalGeneration": MediaFamily("glmasr", "llama", "audio"),
    "GraniteSpeechForConditionalGeneration": MediaFamily("granite_speech", "granite", "audio"),
    "GraniteSpeechPlusForConditionalGeneration": MediaFamily("granite_speech_plus", "granite", "audio"),
    "MossTranscribeDiarizeForConditionalGeneration": MediaFamily("moss_transcribe_diarize", "qwen3", "audio"),
    "MusicFlamingoForConditionalGeneration": MediaFamily("musicflamingo", "qwen2", "audio"),
    "OmniASRForConditionalGeneration": MediaFamily("omniasr", "llama", "audio"),
    "Qwen2AudioForConditionalGeneration": MediaFamily("qwen2_audio", "qwen2", "audio"),
    "Qwen3ASRForConditionalGeneration": MediaFamily("qwen3_asr", "qwen3", "audio"),
    "UltravoxModel": MediaFamily("ultravox", "llama", "audio"),
    "VibeVoiceAsrForConditionalGeneration": MediaFamily("vibevoice_asr", "qwen2", "audio", tied_by_text=True),
    "VoxtralForConditionalGeneration": MediaFamily("voxtral", "llama", "audio"),
}
"""By architecture."""
