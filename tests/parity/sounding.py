"""Tiny random models that hear, besides Qwen3-ASR and Voxtral, and sounds as their processors would leave them."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import transformers as untyped_transformers
from safetensors.torch import load_file, save_file

from stentor.tests.parity.pictures import Kind, Picture, Tensors, cat, qwen_picture
from stentor.tests.support.vision_models import PATCH, TEXT, token
from stentor.tests.support.whole_audio_models import granite_speech_config

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

_SOUND: Final = token("<video>")
_BEGIN, _END = token("[INST]"), token("[/INST]")
_WHISPER: Final = {"num_mel_bins": 8, "max_source_positions": 16}


def second(random: torch.Generator, size: int) -> Picture:
    """A second of sound."""
    features = torch.randn(1, 8, 100, generator=random)
    mask = torch.ones(1, 100, dtype=torch.int64)
    tensors = {"input_features": features, "input_features_mask": mask}
    return Picture(tensors, [token("<video>")] * 13, modality="audio")


def _qwen2_audio() -> Any:
    audio = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 96, "d_model": 32}
    return transformers.Qwen2AudioConfig(
        text_config={"model_type": "qwen2", **TEXT}, audio_config={**audio, **_WHISPER}, audio_token_index=_SOUND
    )


def _audio_flamingo() -> Any:
    audio = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "hidden_size": 32}
    return transformers.AudioFlamingo3Config(
        text_config={"model_type": "qwen2", **TEXT}, audio_config={**audio, **_WHISPER}, audio_token_id=_SOUND
    )


def _fun_asr() -> Any:
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "layer_norm_eps": 1e-4}
    audio = {**sizes, "hidden_size": 32, "intermediate_size": 48, "num_mel_bins": 4, "num_stacked_frames": 5}
    return transformers.FunAsrNanoConfig(
        text_config={"model_type": "qwen3", **TEXT},
        audio_config={**audio, "num_timestamp_prediction_layers": 1, "fsmn_kernel_size": 3},
        adaptor_config={**sizes, "hidden_size": 64, "intermediate_size": 16, "projector_hidden_size": 40},
        audio_token_id=_SOUND,
    )


def _moss() -> Any:
    audio = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "hidden_size": 32}
    return transformers.MossTranscribeDiarizeConfig(
        text_config={"model_type": "qwen3", **TEXT},
        audio_config={**audio, **_WHISPER},
        audio_token_id=_SOUND,
        audio_merge_size=2,
    )


def _music_flamingo() -> Any:
    audio = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "hidden_size": 32}
    return transformers.MusicFlamingoConfig(
        text_config={"model_type": "qwen2", **TEXT},
        audio_config={"model_type": "audioflamingo3_encoder", **audio, **_WHISPER},
        audio_token_id=_SOUND,
        audio_bos_token_id=_BEGIN,
        audio_eos_token_id=_END,
    )


def _vibevoice() -> Any:
    """With a noise of 0, of which Stentor adds none, and layers that change what goes through them."""
    codec = {"num_filters": 4, "downsampling_ratios": [2, 4], "depths": [1, 1, 1], "layer_scale_init_value": 1.0}
    codec |= {"model_type": "vibevoice_acoustic_tokenizer_encoder", "vae_std": 0.0, "initializer_range": 0.1}
    return transformers.VibeVoiceAsrConfig(
        text_config={"model_type": "qwen2", **TEXT},
        acoustic_tokenizer_encoder_config={**codec, "hidden_size": 8},
        semantic_tokenizer_encoder_config={**codec, "hidden_size": 12},
        audio_token_id=_SOUND,
        acoustic_tokenizer_chunk_size=24,
    )


def _omniasr() -> Any:
    """With eight samples to an embedding."""
    audio: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    audio |= {"conv_dim": [16, 16], "conv_kernel": [5, 3], "conv_stride": [4, 2]}
    return transformers.OmniASRConfig(
        text_config={"model_type": "llama", **TEXT},
        audio_config={**audio, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2},
        audio_token_id=_SOUND,
    )


def _nemotron() -> Any:
    """With experts, and an encoder in chunks of six embeddings that sees two around them."""
    sizes = {name: value for name, value in TEXT.items() if name != "num_hidden_layers"}
    text = {
        **sizes,
        **{"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "mamba_num_heads": 8},
        **{"mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 8, "head_dim": 16, "model_type": "nemotron_h"},
        **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
        **{"moe_shared_expert_intermediate_size": 40, "routed_scaling_factor": 1.5, "tie_word_embeddings": False},
    }
    encoder = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    encoder |= {"num_mel_bins": 8, "subsampling_factor": 4}
    speakers = {
        "model_type": "nemotron3_diarization",
        "audio_config": encoder,
        "head_config": {"hidden_size": 16, "num_speakers": 2, "audio_hidden_size": 32, "subsampling_factor": 4},
        "streaming_config": {"num_speakers": 2, "subsampling_factor": 4, "speaker_cache_length": 8},
        **{"chunk_length": 6, "chunk_left_context": 2, "chunk_right_context": 2, "fifo_length": 4},
        "speaker_cache_update_period": 4,
    }
    words = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4}
    return transformers.Nemotron3_5TranscribeConfig(
        text_config=text,
        audio_config={"asr_config": encoder, "diarization_config": speakers},
        word_timestamp_config={**words, "vocab_size": 20, "blank_token_id": 19},
        audio_token_id=_SOUND,
        tie_word_embeddings=False,
    )


def _glm_asr() -> Any:
    audio = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "hidden_size": 32}
    return transformers.GlmAsrConfig(
        text_config={"model_type": "llama", **TEXT},
        audio_config={**audio, "num_mel_bins": 8, "max_position_embeddings": 16},
        audio_token_id=_SOUND,
        tie_word_embeddings=False,
    )


def _granite_speech(kind: type = transformers.GraniteSpeechConfig, joined: Sequence[int] = ()) -> Any:
    return granite_speech_config(TEXT, _SOUND, kind, joined)


_OMNI: Final = {
    "audio_start_token_id": _BEGIN,
    "audio_end_token_id": _END,
    "vision_start_token_id": token("<|vision_start|>"),
    "vision_end_token_id": token("<|vision_end|>"),
}
_VISION: Final = {"depth": 2, "hidden_size": 64, "out_hidden_size": 64, "intermediate_size": 96, "num_heads": 4}


def _qwen2_5_omni() -> Any:
    audio = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 96, "d_model": 32}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    thinker = transformers.Qwen2_5OmniThinkerConfig(
        text_config={**TEXT, "rope_parameters": rope},
        vision_config={**_VISION, "patch_size": PATCH, "window_size": 4 * PATCH, "fullatt_block_indexes": [1]},
        audio_config={**audio, **_WHISPER, "n_window": 8, "output_dim": 64},
        audio_token_index=_SOUND,
        image_token_index=token("<|image_pad|>"),
        video_token_index=token("<|video_pad|>"),
        **_OMNI,
    )
    return transformers.Qwen2_5OmniConfig(thinker_config=thinker.to_dict(), enable_audio_output=False)


def _qwen3_omni() -> Any:
    audio = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 96, "d_model": 64}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    text = {**TEXT, "num_hidden_layers": 3, "head_dim": 16, "rope_parameters": rope, "decoder_sparse_step": 1}
    text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    vision = {**_VISION, "depth": 3, "patch_size": PATCH, "num_position_embeddings": 36}
    thinker = transformers.Qwen3OmniMoeThinkerConfig(
        text_config=text,
        vision_config={**vision, "deepstack_visual_indexes": [0, 1]},
        audio_config={**audio, **_WHISPER, "output_dim": 64, "downsample_hidden_size": 16},
        audio_token_id=_SOUND,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        **_OMNI,
    )
    return transformers.Qwen3OmniMoeConfig(thinker_config=thinker.to_dict(), enable_audio_output=False)


def _windowed(name: str, count: Callable[[int], int], *around: int) -> Callable[[torch.Generator, int], Picture]:
    """Of a window that is filled up; ``name`` is that of the mask, ``count`` how many embeddings frames become."""

    def draw(random: torch.Generator, size: int) -> Picture:
        frames = (32, 21)[size]
        mask = (torch.arange(32) < frames).long()[None]
        inside = [_SOUND] * count(frames)
        tokens = [around[0], *inside, around[1]] if around else inside
        features = torch.randn(1, 8, 32, generator=random)
        return Picture({"input_features": features, name: mask}, tokens, modality="audio")

    return draw


def _halved(frames: int) -> int:
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1


def _masked(random: torch.Generator, size: int) -> Picture:
    """Frames of which four are an embedding, filled up to the longest."""
    frames = (42, 15)[size]
    mask = (torch.arange(44) < frames)[None]
    features = torch.randn(1, 44, 8, generator=random) * mask[..., None]
    tensors = {"input_features": features, "input_features_mask": mask}
    return Picture(tensors, [_SOUND] * -(-frames // 4), modality="audio")


def _conformed(random: torch.Generator, size: int) -> Picture:
    features = torch.randn(1, 20, 16, generator=random)
    return Picture({"input_features": features}, [_SOUND] * 8, modality="audio")


def _stacked(random: torch.Generator, size: int) -> Picture:
    count = (9, 4)[size]
    mask = (torch.arange(9) < count).long()[None]
    features = torch.randn(1, 9, 20, generator=random)
    tensors = {"input_features": features, "input_features_mask": mask}
    return Picture(tensors, [_SOUND] * count, modality="audio")


def _merged(random: torch.Generator, size: int) -> Picture:
    """Of a window in which pairs of positions are one embedding, in groups of five with text between them."""
    heard = _windowed("input_features_mask", lambda frames: ((frames + 1) // 2 + 1) // 2)(random, size)
    tokens = [*heard.tokens[:5], token("[INST]"), *heard.tokens[5:]]
    return Picture({**heard.tensors, "padding_mask": torch.ones(1, 1, dtype=torch.int64)}, tokens, modality="audio")


def _waved(random: torch.Generator, size: int) -> Picture:
    """Samples that two convolutions make embeddings."""
    samples = (77, 40)[size]
    values = torch.randn(1, 1, samples, generator=random)
    return Picture({"input_values": values}, [_SOUND] * (((samples - 5) // 4 - 2) // 2 + 1), modality="audio")


def _filled(parts: Sequence[Tensors]) -> dict[str, torch.Tensor]:
    """Samples of several sounds, filled up to the length of the longest, and a mask of what is theirs."""
    lengths = [part["input_values"].shape[-1] for part in parts]
    longest = max(lengths)
    values = [
        torch.nn.functional.pad(part["input_values"], (0, longest - part["input_values"].shape[-1])) for part in parts
    ]
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return {"input_values": torch.cat(values), "padding_mask": mask.long()}


def _sampled(random: torch.Generator, size: int) -> Picture:
    """Samples of which eight are an embedding, in pieces of three embeddings."""
    return Picture({"input_values": torch.randn(1, 1, 56, generator=random)}, [_SOUND] * 7, modality="audio")


def _omni(sound: Callable[[torch.Generator, int], Picture]) -> Kind:
    """A picture, and beside it a sound."""

    def draw(random: torch.Generator, size: int) -> Picture:
        return sound(random, 0) if size else qwen_picture(random, 0)

    return Kind(draw, token("<|image_pad|>"), grouped, (_SOUND,), begins=(_BEGIN, token("<|vision_start|>")))


def grouped(parts: Sequence[Tensors]) -> dict[str, torch.Tensor]:
    """Tensors of the same name as one: not every part has all."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: torch.cat([part[name] for part in parts if name in part]) for name in names}


def _seconds(random: torch.Generator, size: int) -> Picture:
    """A second of 100 frames and some of the next, each by itself."""
    features = torch.randn(1, 8, 130, generator=random)
    mask = torch.ones(1, 130, dtype=torch.int64)
    tokens = [_BEGIN, *[_SOUND] * (13 + 4), _END]
    return Picture({"input_features": features, "feature_attention_mask": mask}, tokens, modality="audio")


_OMNI_SOUND: Final = _windowed("feature_attention_mask", _halved, _BEGIN, _END)
SOUNDING: Final[Mapping[str, tuple[Callable[[], Any], Kind]]] = {
    "qwen2_audio": (_qwen2_audio, Kind(_windowed("feature_attention_mask", _halved), _SOUND, cat())),
    "audio_flamingo_3": (_audio_flamingo, Kind(_windowed("input_features_mask", _halved), _SOUND, cat())),
    "fun_asr_nano": (_fun_asr, Kind(_stacked, _SOUND, cat())),
    "moss_transcribe_diarize": (_moss, Kind(_merged, _SOUND, cat())),
    "music_flamingo": (
        _music_flamingo,
        Kind(_windowed("input_features_mask", _halved, _BEGIN, _END), _SOUND, cat()),
    ),
    "glm_asr": (_glm_asr, Kind(_windowed("input_features_mask", lambda n: (n + 1) // 2 // 4), _SOUND, cat())),
    "nemotron_transcribe": (_nemotron, Kind(_masked, _SOUND, cat())),
    "omniasr": (_omniasr, Kind(_waved, _SOUND, _filled)),
    "vibevoice_asr": (_vibevoice, Kind(_sampled, _SOUND, cat())),
    "granite_speech": (_granite_speech, Kind(_conformed, _SOUND, cat())),
    "granite_speech_plus": (
        partial(_granite_speech, transformers.GraniteSpeechPlusConfig, (0, 1)),
        Kind(_conformed, _SOUND, cat()),
    ),
    "qwen2_5_omni": (_qwen2_5_omni, _omni(_OMNI_SOUND)),
    "qwen3_omni": (_qwen3_omni, _omni(_seconds)),
    "qwen2_5_omni_thinker": (lambda: _qwen2_5_omni().thinker_config, _omni(_OMNI_SOUND)),
    "qwen3_omni_thinker": (lambda: _qwen3_omni().thinker_config, _omni(_seconds)),
}
_CLASSES: Final = {
    "musicflamingo": "MusicFlamingoForConditionalGeneration",
    "audioflamingo3": "AudioFlamingo3ForConditionalGeneration",
    "qwen2_5_omni": "Qwen2_5OmniThinkerForConditionalGeneration",
    "qwen3_omni_moe": "Qwen3OmniMoeThinkerForConditionalGeneration",
}
"""Of model types for which transformers' own choice of a class is none, or speaks."""


def model_of(config: Any) -> Any:
    if config.model_type not in _CLASSES:
        return transformers.AutoModelForMultimodalLM.from_config(config)
    return getattr(transformers, _CLASSES[config.model_type])._from_config(getattr(config, "thinker_config", config))


def with_a_talker(folder: Path, config: Any) -> None:
    """Turns a saved thinker into the published form: a part of a model with speech output."""
    whole = {**config.to_dict(), "architectures": [type(config).__name__.replace("Config", "ForConditionalGeneration")]}
    (folder / "config.json").write_text(json.dumps(whole))
    file = folder / "model.safetensors"
    tensors = {
        name if name.startswith("thinker.") else f"thinker.{name}": each for name, each in load_file(file).items()
    }
    save_file({**tensors, "talker.model.norm.weight": torch.ones(3)}, file)
