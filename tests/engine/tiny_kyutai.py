"""A Kyutai speech-to-text model of random weights."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import KyutaiSpeechToTextConfig, KyutaiSpeechToTextForConditionalGeneration

from stentor.engine.layers.audio.prompt_resample import PromptResampler

VOCAB, BEGIN_ROW, STEP = 80, 333, 1280
"""``BEGIN_ROW``: as in the published 2.6 B model, that of a code."""
WINDOW = 13
CODEBOOKS = 5


def write_kyutai(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A folder with config.json and float32 safetensors."""
    fields: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "ffn_dim": 96,
        "max_position_embeddings": 40,
        "sliding_window": WINDOW,
        "num_codebooks": CODEBOOKS,
        "codebook_vocab_size": 65,
        "audio_bos_token_id": 64,
        "audio_pad_token_id": VOCAB + CODEBOOKS * 65,
        "bos_token_id": BEGIN_ROW,
        "pad_token_id": 3,
        "initializer_range": 0.3,
        "codec_config": {
            "model_type": "mimi",
            "hidden_size": 16,
            "num_filters": 2,
            "codebook_size": 64,
            "codebook_dim": 8,
            "vector_quantization_hidden_dimension": 8,
            "num_quantizers": CODEBOOKS,
            "upsample_groups": 16,
            "num_hidden_layers": 2,
            "intermediate_size": 24,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "sliding_window": 7,
            "layer_scale_initial_scale": 0.5,
            "initializer_range": 0.3,
        },
        **changes,
    }
    torch.manual_seed(seed)
    model: Any = KyutaiSpeechToTextForConditionalGeneration(KyutaiSpeechToTextConfig(**fields))
    for name, tensor in model.named_buffers():
        if name.endswith("embed_sum"):
            torch.nn.init.normal_(tensor)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    vars(model.generation_config)["audio_window_size"] = 1
    model.save_pretrained(folder)
    return folder


def kyutai_of(folder: Path) -> Any:
    """transformers' model of a folder."""
    return KyutaiSpeechToTextForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").eval()


def resampled(pcm: bytes) -> torch.Tensor:
    """The codec's samples of 16 kHz, float32 [1, 1, samples]."""
    made = PromptResampler(16_000, 24_000).finish(pcm)
    return torch.from_numpy(np.frombuffer(made, "<i2").astype(np.float32) / 32768).view(1, 1, -1)


def generated_by_kyutai(theirs: Any, pcm: bytes) -> list[int]:
    """The tokens that transformers writes of whole audio, greedily."""
    found = theirs.generate(input_values=resampled(pcm), do_sample=False)
    tokens: list[int] = found[0, 1:].tolist()
    return tokens
