"""A checkpoint of VibeVoice as transformers writes it, with made-up weights."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    VibeVoiceAcousticTokenizerFeatureExtractor,
    VibeVoiceConfig,
    VibeVoiceForConditionalGeneration,
    VibeVoiceProcessor,
)

from stentor.tests.support.audio_models import write_tokenizer

_WORDS = ("<pad>", "<|vision_pad|>", "</s>", "<|vision_start|>", "<|vision_end|>")
_TEMPLATE = (
    "{% for message in messages %}Speaker {{ message['role'] }}:{% for item in message['content'] %}"
    "{% if item['type'] == 'text' %}{{ item['text'] }}{% else %}"
    "{{ '<|vision_start|><|vision_pad|><|vision_end|>' }}{% endif %}{% endfor %}{% endfor %}{{ '<|vision_start|>' }}"
)
RATE = 1000
HOP = 8


def write_tiny_vibevoice(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(3)
    write_tokenizer(folder, _WORDS, _TEMPLATE)
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    ids = {word: tokenizer.convert_tokens_to_ids(word) for word in _WORDS}
    codec: dict[str, Any] = {
        "num_filters": 2,
        "downsampling_ratios": [2, 4],
        "depths": [1, 1, 1],
        "kernel_size": 5,
        "ffn_expansion": 2,
        "layer_scale_init_value": 1.0,
        "initializer_range": 0.22,
    }
    config = VibeVoiceConfig(
        audio_config={**codec, "model_type": "vibevoice_acoustic_tokenizer", "hidden_size": 6},
        semantic_model_config={**codec, "model_type": "vibevoice_acoustic_tokenizer_encoder", "hidden_size": 4},
        text_config={
            "model_type": "qwen2",
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 160,
            "initializer_range": 0.2,
        },
        diffusion_head_config={
            "num_hidden_layers": 1,
            "intermediate_size": 24,
            "hidden_size": 32,
            "latent_size": 6,
            "frequency_embedding_size": 8,
        },
        pad_token_id=ids["<pad>"],
        eos_token_id=ids["</s>"],
        audio_bos_token_id=ids["<|vision_start|>"],
        audio_eos_token_id=ids["<|vision_end|>"],
        audio_token_id=ids["<|vision_pad|>"],
    )
    model = VibeVoiceForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.model.diffusion_head.parameters():
            parameter.normal_(std=0.3)
        model.lm_head.weight.zero_()  # so the first word of those that may follow does: a piece of audio
    model.generation_config = GenerationConfig(
        guidance_scale=1.5,
        num_diffusion_steps=4,
        noise_scheduler_class="DPMSolverMultistepScheduler",
        noise_scheduler_config={"beta_schedule": "squaredcos_cap_v2", "prediction_type": "v_prediction"},
        pad_token_id=ids["<pad>"],
        eos_token_id=ids["</s>"],
    )
    model.save_pretrained(folder)
    extractor = VibeVoiceAcousticTokenizerFeatureExtractor(sampling_rate=RATE, pad_to_multiple_of=HOP)
    VibeVoiceProcessor(extractor, tokenizer, chat_template=_TEMPLATE).save_pretrained(folder)
    return folder
