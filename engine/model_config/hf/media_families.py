"""What a family of models that take media is, and the families that take sounds alone."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from ..spec.mlp import ExpertNames, MoESpec
from ..spec.model import ModelSpec
from . import fun_asr


class MediaFamily(NamedTuple):
    """A model that takes media."""

    model_type: str
    text: str
    """Default model type of its text part."""
    takes: str = "images"
    """The media besides text that tests cover; "": text alone is served."""
    whole_prompts: bool = False
    """Whether all tokens of a prompt see each other (:attr:`..spec.model.ModelSpec.whole_prompts`)."""
    own_text: bool = False
    """Whether the text part is of this type also where its table names another's."""
    tied_by_text: bool = False
    """Whether the head belongs to the text part's class, so that only ``text_config`` says whether it is tied."""
    of_whole: tuple[str, ...] = ()
    """Fields of the text part that files have beside it."""
    as_stored: Callable[[ModelSpec], ModelSpec] | None = None
    """Gives the text part the names of its files, where they differ from those of the text-only model."""


_NEMO_EXPERTS: Final = ExpertNames(
    router="mixer.gate",
    into=("mixer.experts.gate_and_up_projs",),
    out="mixer.experts.down_projs",
    correction="mixer.gate.e_score_correction_bias",
    transposed=True,
)


def _nemo(spec: ModelSpec) -> ModelSpec:
    """A Nemotron-H as NeMo exports it: matrices of experts have inputs first. Its heads for multi-token prediction are
    ignored."""
    layers = (
        replace(layer, mlp=replace(layer.mlp, names=(_NEMO_EXPERTS, *layer.mlp.names)))
        if isinstance(layer.mlp, MoESpec)
        else layer
        for layer in spec.layers
    )
    return replace(
        spec,
        layers=tuple(layers),
        embedding="backbone.embed_tokens",
        final_norm="backbone.norm",
        mtp=None,
        draft_prefix="mtp.",
    )


OF_SOUNDS: Final[Mapping[str, MediaFamily]] = {
    "AudioFlamingo3ForConditionalGeneration": MediaFamily("audioflamingo3", "qwen2", "audio"),
    "FunASRForConditionalGeneration": MediaFamily(fun_asr.MODEL_TYPE, "qwen3", "audio"),
    "FunAsrNanoForConditionalGeneration": MediaFamily("fun_asr_nano", "qwen3", "audio"),
    "FunAudioChatForConditionalGeneration": MediaFamily("funaudiochat", "qwen3", "audio"),
    "GlmAsrForConditionalGeneration": MediaFamily("glmasr", "llama", "audio"),
    "GraniteSpeechForConditionalGeneration": MediaFamily("granite_speech", "granite", "audio"),
    "GraniteSpeechPlusForConditionalGeneration": MediaFamily("granite_speech_plus", "granite", "audio"),
    "MiDashengLMModel": MediaFamily("midashenglm", "qwen2", "audio", own_text=True),
    "MossTranscribeDiarizeForConditionalGeneration": MediaFamily("moss_transcribe_diarize", "qwen3", "audio"),
    "MusicFlamingoForConditionalGeneration": MediaFamily("musicflamingo", "qwen2", "audio"),
    "Nemotron3_5TranscribeForConditionalGeneration": MediaFamily(
        "nemo_speechlm", "nemotron_h", "audio", as_stored=_nemo
    ),
    "OmniASRForConditionalGeneration": MediaFamily("omniasr", "llama", "audio"),
    "Qwen2AudioForConditionalGeneration": MediaFamily("qwen2_audio", "qwen2", "audio"),
    "Qwen3ASRForConditionalGeneration": MediaFamily("qwen3_asr", "qwen3", "audio"),
    "UltravoxModel": MediaFamily("ultravox", "llama", "audio"),
    "VibeVoiceAsrForConditionalGeneration": MediaFamily("vibevoice_asr", "qwen2", "audio", tied_by_text=True),
    "VoxtralForConditionalGeneration": MediaFamily("voxtral", "llama", "audio"),
}
"""By architecture."""
