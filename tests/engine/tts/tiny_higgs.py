"""A checkpoint of Higgs Audio V2 as transformers writes it, with made-up weights, and its codec within it.

The codec's rate is that of its semantic encoder, so transformers' class resamples nothing: it is imported without
torchaudio, which it uses for that alone.
"""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from unittest.mock import patch

import torch
from transformers import (
    GenerationConfig,
    HiggsAudioV2Config,
    HiggsAudioV2ForConditionalGeneration,
    HiggsAudioV2TokenizerConfig,
    PreTrainedTokenizerFast,
)

from stentor.tests.support.audio_models import write_tokenizer

with patch.dict(sys.modules, {"torchaudio": ModuleType("torchaudio")}):
    from transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer import (
        HiggsAudioV2TokenizerModel as HiggsAudioV2TokenizerModel,
    )

_WORDS: Final = (
    *("<pad>", "</s>", "<|begin_of_text|>", "<|eot_id|>", "<|audio_out_bos|>", "<|audio_eos|>"),
    *("<|AUDIO_OUT|>", "<|reserved_special_token_6|>"),
)
TEMPLATE: Final = (
    "{{ '<|begin_of_text|>' }}{% for message in messages %}{{ '[' ~ message['role'] ~ ']' }}"
    "{% for item in message['content'] %}{% if item['type'] == 'text' %}{{ item['text'] }}{% else %}"
    "{{ '<|audio_out_bos|><|AUDIO_OUT|><|audio_eos|>' }}{% endif %}{% endfor %}{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]<|audio_out_bos|>' }}{% endif %}"
)
CODES: Final = 16
CODEBOOKS: Final = 3
ENDS: Final = 0.6
RATE: Final = 16_000
HOP: Final = 320


def write_tiny_higgs(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(5)
    write_tokenizer(folder, _WORDS, TEMPLATE)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "bos_token": "<|begin_of_text|>"}))
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    ids = {word: tokenizer.convert_tokens_to_ids(word) for word in _WORDS}
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    config = HiggsAudioV2Config(
        **sizes,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        vocab_size=len(tokenizer),
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        num_codebooks=CODEBOOKS,
        codebook_size=CODES + 2,
        audio_stream_bos_id=CODES,
        audio_stream_eos_id=CODES + 1,
        audio_token_id=ids["<|AUDIO_OUT|>"],
        audio_bos_token_id=ids["<|audio_out_bos|>"],
        audio_delay_token_id=ids["<|reserved_special_token_6|>"],
        bos_token_id=ids["<|begin_of_text|>"],
        eos_token_id=ids["<|eot_id|>"],
        pad_token_id=ids["<pad>"],
    )
    model: Any = HiggsAudioV2ForConditionalGeneration(config)
    with torch.no_grad():
        model.audio_lm_head.weight[CODES + 1 :: CODES + 2] *= ENDS  # codes that end a sentence
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.9, top_k=8, pad_token_id=ids["<pad>"], eos_token_id=ids["<|eot_id|>"]
    )
    model.generation_config.ras_win_len, model.generation_config.ras_win_max_num_repeat = 7, 2
    model.save_pretrained(folder)
    ratios = [8, 5, 4, 2]
    heard = {"model_type": "hubert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    heard |= {"intermediate_size": 24, "conv_dim": [4] * 7, "num_conv_pos_embeddings": 4}
    codec = HiggsAudioV2TokenizerConfig(
        target_bandwidths=[0.65],
        sample_rate=RATE,
        codebook_size=CODES,
        codebook_dim=8,
        acoustic_model_config={
            **{"model_type": "dac", "encoder_hidden_size": 2, "decoder_hidden_size": 32, "hidden_size": 8},
            **{"downsampling_ratios": ratios, "upsampling_ratios": ratios},
        },
        semantic_model_config={**heard, "num_conv_pos_embedding_groups": 2},
    )
    made: Any = HiggsAudioV2TokenizerModel(codec)
    with torch.no_grad():
        for module in made.acoustic_decoder.modules():
            if isinstance(module, torch.nn.Conv1d | torch.nn.ConvTranspose1d):
                torch.nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
        for layer in (made.fc2, *(each.project_out for each in made.quantizer.quantizers)):
            torch.nn.init.normal_(layer.weight, 0, layer.in_features**-0.5)
        made.acoustic_decoder.conv2.weight.mul_(0.02)
        for name, buffer in made.quantizer.named_buffers():
            if name.endswith("embed"):
                buffer.normal_()
    made.save_pretrained(folder / "codec")
    named = {"audio_tokenizer_class": "HiggsAudioV2TokenizerModel", "audio_tokenizer_name_or_path": "codec"}
    (folder / "processor_config.json").write_text(json.dumps({"audio_tokenizer": named}))
    return folder
