"""A checkpoint of Bark as transformers writes it, with made-up weights, and two presets."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BarkConfig, BarkModel, BertTokenizer

RATE = 1600
CODES, BOOKS = 16, 4
SEMANTIC = 20
"""Semantic tokens, behind which their padding has a number."""
LETTERS = "abcdefghijklmnopqrstuvwxyz.?!,"


def write_tiny_bark(folder: Path) -> Path:
    """The presets ``v2/ann`` and ``v2/bob``."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(3)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{each}" for each in LETTERS)]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    sub: dict[str, Any] = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "block_size": 128}
    sub |= {"initializer_range": 0.6, "bias": False}
    coarse = SEMANTIC + 2 * CODES
    config = BarkConfig(
        semantic_config={**sub, "input_vocab_size": 120, "output_vocab_size": SEMANTIC + 5},
        coarse_acoustics_config={**sub, "input_vocab_size": coarse + 2, "output_vocab_size": coarse + 2},
        fine_acoustics_config={
            **sub,
            **{"input_vocab_size": CODES + 1, "output_vocab_size": CODES + 1, "n_codes_total": BOOKS},
        },
        codec_config={
            **{"model_type": "encodec", "sampling_rate": RATE, "target_bandwidths": [16.0], "num_filters": 4},
            **{"hidden_size": 8, "codebook_size": CODES, "codebook_dim": 8, "upsampling_ratios": [2, 2]},
            **{"num_lstm_layers": 1, "num_residual_layers": 1},
        },
    )
    model: Any = BarkModel(config)
    with torch.no_grad():
        for layer in model.codec_model.quantizer.layers:
            layer.codebook.embed.normal_()
    drawn = {"do_sample": True, "temperature": 0.7}
    model.save_pretrained(folder)
    generation = {
        "semantic_config": {
            **{"eos_token_id": SEMANTIC, "semantic_vocab_size": SEMANTIC, "text_encoding_offset": 30},
            **{"text_pad_token": 110, "semantic_infer_token": 111, "max_input_semantic_length": 24},
            **{"max_new_tokens": 30, "semantic_rate_hz": 50.0, **drawn},
        },
        "coarse_acoustics_config": {
            **{"coarse_semantic_pad_token": coarse, "coarse_infer_token": coarse + 1, "coarse_rate_hz": 75},
            **{"max_coarse_input_length": 24, "max_coarse_history": 40, "sliding_window_len": 12, **drawn},
        },
        "fine_acoustics_config": {
            **{"max_fine_history_length": 16, "max_fine_input_length": 32, "n_fine_codebooks": BOOKS},
            "temperature": 0.5,
        },
        **{"sample_rate": RATE, "codebook_size": CODES},
    }
    # as published: transformers 5.24 cannot save its own
    (folder / "generation_config.json").write_text(json.dumps(generation))
    presets: dict[str, Any] = {"repo_or_path": "made/up"}
    (folder / "speaker_embeddings" / "v2").mkdir(parents=True)
    random = np.random.default_rng(5)
    for name in ("v2/ann", "v2/bob"):
        arrays = {
            "semantic_prompt": random.integers(0, SEMANTIC, 17),
            "coarse_prompt": random.integers(0, CODES, (2, 25)),
            "fine_prompt": random.integers(0, CODES, (BOOKS, 25)),
        }
        presets[name] = {part: f"speaker_embeddings/{name}_{part}.npy" for part in arrays}
        for part, array in arrays.items():
            np.save(folder / presets[name][part], array)
    presets["v2/gone"] = {part: f"speaker_embeddings/v2/gone_{part}.npy" for part in presets["v2/ann"]}
    (folder / "speaker_embeddings_path.json").write_text(json.dumps(presets))
    return folder
