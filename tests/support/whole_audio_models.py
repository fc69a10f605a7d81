"""Tiny random checkpoints of models that hear, whole as the published ones are: weights, tokenizer, processor."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import transformers as untyped_transformers

from stentor.server.text.tokenizers.loading import load_tokenizer
from stentor.tests.support import audio_models
from stentor.tests.support.vision_models import SIZES, randomised

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""


def _text(folder: Path, **more: object) -> dict[str, Any]:
    tokenizer = load_tokenizer(folder)
    return {
        **SIZES,
        "vocab_size": tokenizer.vocab_size,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "eos_token_id": tokenizer.encode("</s>", False)[0],
        "pad_token_id": tokenizer.encode("<pad>", False)[0],
        **more,
    }


def _qwen2_audio(folder: Path) -> Any:
    audio = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 96, "d_model": 32}
    return transformers.Qwen2AudioConfig(
        text_config={"model_type": "qwen2", **_text(folder)},
        audio_config={**audio, "num_mel_bins": 16, "max_source_positions": 200},
        audio_token_index=_token(folder, "<|AUDIO|>"),
    )


def qwen3_asr_config(folder: Path) -> Any:
    audio = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 96, "d_model": 64}
    text = _text(folder, head_dim=16, tie_word_embeddings=True)
    return transformers.Qwen3ASRConfig(
        text_config={"model_type": "qwen3", **text},
        audio_config={**audio, "num_mel_bins": 8, "max_source_positions": 16, "output_dim": 64},
        audio_token_id=_token(folder, "<|audio_pad|>"),
        pad_token_id=text["pad_token_id"],
        eos_token_id=text["eos_token_id"],
    )


def _voxtral(folder: Path) -> Any:
    audio = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "hidden_size": 32}
    audio |= {"num_mel_bins": 8, "max_source_positions": 1500, "head_dim": 8, "num_key_value_heads": 4}
    return transformers.VoxtralConfig(
        text_config={"model_type": "llama", **_text(folder, head_dim=16, bos_token_id=1)},
        audio_config=audio,
        audio_token_id=_token(folder, "[AUDIO]"),
    )


def granite_speech_config(
    text: Mapping[str, object],
    audio_token: int,
    kind: type = transformers.GraniteSpeechConfig,
    joined: Sequence[int] = (),
) -> Any:
    """``joined``: layers of the encoder whose outputs stand beside the last one's before the projector."""
    encoder: dict[str, object] = {"input_dim": 16, "num_layers": 2, "hidden_dim": 32, "num_heads": 4, "output_dim": 10}
    encoder |= {"context_size": 8, "max_pos_emb": 16, "conv_kernel_size": 3, "feedforward_mult": 2, "dropout": 0.0}
    encoder |= {"cat_hidden_layers": [*joined]} if joined else {}
    former = {"model_type": "blip_2_qformer", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    former |= {"intermediate_size": 48, "encoder_hidden_size": 32 * (1 + len(joined)), "cross_attention_frequency": 1}
    return kind(
        text_config={"model_type": "granite", **text, "embedding_multiplier": 6.0, "residual_multiplier": 0.3},
        encoder_config=encoder,
        projector_config=former,
        audio_token_index=audio_token,
        has_lora_adapter=False,
        window_size=6,
        downsample_rate=3,
        tie_word_embeddings=False,
    )


def _fun_asr_nano(folder: Path) -> Any:
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}
    text = _text(folder, head_dim=16, tie_word_embeddings=True)
    return transformers.FunAsrNanoConfig(
        text_config={"model_type": "qwen3", **text},
        audio_config={**sizes, "hidden_size": 32, "num_mel_bins": 8, "num_stacked_frames": 5, "fsmn_kernel_size": 3},
        adaptor_config={**sizes, "hidden_size": 64, "projector_hidden_size": 40},
        audio_token_id=_token(folder, "<|object_ref_start|>"),
    )


def _moss(folder: Path) -> Any:
    audio = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "hidden_size": 32}
    text = _text(folder, head_dim=16, tie_word_embeddings=True)
    return transformers.MossTranscribeDiarizeConfig(
        text_config={"model_type": "qwen3", **text},
        audio_config={**audio, "num_mel_bins": 8, "max_source_positions": 200},
        audio_token_id=_token(folder, "<|audio_pad|>"),
        audio_chunk_size=64_000,
    )


def _granite_speech_plus(folder: Path) -> Any:
    token = _token(folder, "<|audio|>")
    return granite_speech_config(_text(folder), token, transformers.GraniteSpeechPlusConfig, (0, 1))


def _token(folder: Path, text: str) -> int:
    (found,) = load_tokenizer(folder).encode(text, False)
    return found


_MAKERS: Final[Mapping[str, tuple[Callable[[Path], None], Callable[[Path], Any]]]] = {
    "fun_asr_nano": (audio_models.fun_asr_nano, _fun_asr_nano),
    "granite_speech_plus": (audio_models.granite_speech, _granite_speech_plus),
    "moss_transcribe_diarize": (audio_models.moss, _moss),
    "qwen2_audio": (audio_models.qwen2_audio, _qwen2_audio),
    "qwen3_asr": (audio_models.qwen3_asr, qwen3_asr_config),
    "voxtral": (audio_models.voxtral, _voxtral),
}
FAMILIES: Final = tuple(_MAKERS)


def whole(family: str, folder: Path) -> Any:
    """Writes a model of one of the :data:`FAMILIES`; returns transformers'."""
    write, config_of = _MAKERS[family]
    write(folder)
    config = config_of(folder)
    model = randomised(family, partial(transformers.AutoModelForMultimodalLM.from_config, config))
    model.generation_config.eos_token_id = config.text_config.eos_token_id
    model.save_pretrained(folder)
    return model
