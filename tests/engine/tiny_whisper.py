"""A Whisper of random weights that hears half a minute in no time, and requests to it."""

from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from stentor.protocols.ipc.audio import Alignment, TokenRules
from stentor.tests.engine.media import Audio

VOCAB, CONTEXT = 120, 64
EOT, SOT, NO_SPEECH, BEGIN = 60, 61, 62, 70
RULES = TokenRules([SOT, NO_SPEECH, *range(63, BEGIN)], [EOT], BEGIN, 20, EOT)


def write_whisper(folder: Path, seed: int = 0) -> Path:
    """A folder with config.json and float32 safetensors."""
    config = WhisperConfig(
        vocab_size=VOCAB,
        num_mel_bins=80,
        encoder_layers=2,
        encoder_attention_heads=2,
        decoder_layers=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        d_model=32,
        max_source_positions=1500,
        max_target_positions=CONTEXT,
        pad_token_id=EOT,
        bos_token_id=EOT,
        eos_token_id=EOT,
        decoder_start_token_id=SOT,
        suppress_tokens=[],
        begin_suppress_tokens=[],
        init_std=0.4,
    )
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(config)
    model.save_pretrained(folder)
    return folder


def window(
    seed: int,
    seconds: float = 2.0,
    *,
    rules: TokenRules | None = RULES,
    no_speech: tuple[int, int] | None = None,
    align: Alignment | None = None,
) -> Audio:
    """Noise that differs from seed to seed."""
    rng = np.random.default_rng(seed)
    times = np.arange(int(seconds * 16_000)) / 16_000
    tones = sum(np.sin(2 * np.pi * rng.uniform(100, 3000) * times) for _ in range(4)) * 1500
    pcm = (tones + rng.normal(0, 400, len(times))).astype("<i2").tobytes()
    return Audio(pcm, blake2b(pcm, digest_size=16).digest(), rules, no_speech, align)
