"""A checkpoint of Dia and its codec as transformers writes them, with made-up weights."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    DacConfig,
    DacModel,
    DiaConfig,
    DiaFeatureExtractor,
    DiaForConditionalGeneration,
    DiaTokenizer,
    GenerationConfig,
)

CODES = 16
DELAYS = [0, 2, 3]
RATE = 1200
HOP = 8


def write_tiny_dia(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(3)
    codec: Any = DacModel(
        DacConfig(
            encoder_hidden_size=4,
            downsampling_ratios=[2, 4],
            decoder_hidden_size=16,
            n_codebooks=len(DELAYS),
            codebook_size=CODES,
            codebook_dim=4,
            sampling_rate=RATE,
        )
    )
    with torch.no_grad():
        codec.decoder.conv2.weight.mul_(9)
        for quantizer in codec.quantizer.quantizers:
            quantizer.codebook.weight.normal_()
    codec.save_pretrained(folder / "codec")
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 8,
        "initializer_range": 0.3,
    }
    config = DiaConfig(
        encoder_config={**sizes, "num_key_value_heads": 4, "max_position_embeddings": 128},
        decoder_config={
            **sizes,
            "num_key_value_heads": 2,
            "cross_num_attention_heads": 4,
            "cross_head_dim": 8,
            "cross_num_key_value_heads": 4,
            "cross_hidden_size": 32,
            "max_position_embeddings": 200,
            "num_channels": len(DELAYS),
            "vocab_size": CODES + 4,
            "eos_token_id": CODES,
            "pad_token_id": CODES + 1,
            "bos_token_id": CODES + 2,
        },
        delay_pattern=DELAYS,
    )
    model = DiaForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.3,
        top_k=10,
        top_p=0.95,
        guidance_scale=2.0,
        bos_token_id=CODES + 2,
        eos_token_id=CODES,
        pad_token_id=CODES + 1,
        decoder_start_token_id=CODES + 2,
    )
    model.save_pretrained(folder)
    DiaFeatureExtractor(sampling_rate=RATE, hop_length=HOP).save_pretrained(folder)
    DiaTokenizer().save_pretrained(folder)
    named = {"audio_tokenizer_class": "DacModel", "audio_tokenizer_name_or_path": "codec"}
    (folder / "audio_tokenizer_config.json").write_text(json.dumps(named))
    return folder
