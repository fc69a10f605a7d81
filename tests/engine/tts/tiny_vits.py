"""A VITS checkpoint as transformers writes it, with made-up weights."""

import json
from pathlib import Path

import torch
from transformers import VitsConfig, VitsModel, VitsTokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz' -"


def write_tiny_vits(folder: Path, speakers: int = 1) -> Path:
    torch.manual_seed(11)
    model = VitsModel(
        VitsConfig(
            vocab_size=len(LETTERS) + 2,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            ffn_dim=32,
            flow_size=16,
            spectrogram_bins=9,
            duration_predictor_num_flows=2,
            duration_predictor_filter_channels=16,
            prior_encoder_num_flows=2,
            prior_encoder_num_wavenet_layers=2,
            posterior_encoder_num_wavenet_layers=2,
            upsample_initial_channel=16,
            upsample_rates=[8, 4],
            upsample_kernel_sizes=[16, 8],
            resblock_kernel_sizes=[3],
            resblock_dilation_sizes=[[1, 3, 5]],
            wavenet_kernel_size=3,
            num_speakers=speakers,
            speaker_embedding_size=8 if speakers > 1 else 0,
            sampling_rate=8000,
        )
    )
    model.save_pretrained(folder)
    vocabulary = {letter: number for number, letter in enumerate(["<pad>", *LETTERS, "<unk>"])}
    (folder / "letters.json").write_text(json.dumps(vocabulary))
    tokenizer = VitsTokenizer(folder / "letters.json", language="eng", phonemize=False, add_blank=True)
    tokenizer.save_pretrained(folder)
    return folder
