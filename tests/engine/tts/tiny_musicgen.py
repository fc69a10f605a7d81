"""A checkpoint of MusicGen as transformers writes it, with made-up weights."""

from pathlib import Path
from typing import Any

import torch
import transformers as untyped_transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing

transformers: Any = untyped_transformers

RATE = 1600
CODES, BOOKS = 16, 4
LETTERS = "abcdefghijklmnopqrstuvwxyz ."


def write_tiny_musicgen(folder: Path, channels: int = 1) -> Path:
    """``channels``: of its sound."""
    torch.manual_seed(3)
    words = ["<pad>", "</s>", "<unk>", *LETTERS]
    backend = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = Split("", "isolated")
    backend.add_special_tokens(words[:3])
    backend.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    fast: Any = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>")
    fast.save_pretrained(folder)
    text = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    codec = {
        **{"sampling_rate": RATE, "target_bandwidths": [25.6 * channels], "num_filters": 4, "hidden_size": 8},
        **{"codebook_size": CODES, "codebook_dim": 8, "upsampling_ratios": [2, 2], "num_lstm_layers": 1},
        "num_residual_layers": 1,
    }
    decoder = {
        **{"vocab_size": CODES, "hidden_size": 16, "ffn_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"num_codebooks": BOOKS * channels, "audio_channels": channels, "pad_token_id": CODES, "bos_token_id": CODES},
        "initializer_factor": 0.6,
    }
    config = transformers.MusicgenConfig(
        text_encoder=transformers.T5Config(**text).to_dict(),
        audio_encoder=transformers.EncodecConfig(**codec).to_dict(),
        decoder=transformers.MusicgenDecoderConfig(**decoder).to_dict(),
    )
    model = transformers.MusicgenForConditionalGeneration(config)
    with torch.no_grad():
        for layer in model.audio_encoder.quantizer.layers:
            layer.codebook.embed.normal_()
    told = model.generation_config
    told.do_sample, told.guidance_scale, told.max_length = True, 3.0, 24
    told.decoder_start_token_id = told.pad_token_id = told.bos_token_id = CODES
    model.save_pretrained(folder)
    return folder
