"""The codec of Pocket TTS, frame by frame: what it decodes in parts is what it decodes at once.

All of it is causal. The upsampling convolution needs one frame before its own, the transformer its keys and values, and
the convolutions to samples (SEANet) a few positions, which are decoded again and left out.
"""

import math
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, PocketTTSAudioTokenizerModel

from ..loading.companions import companion_folder, voice_codec
from .backend import CannotSpeak


def load_codec(folder: Path) -> Any:
    """The codec of a checkpoint of Pocket TTS. Raises :class:`CannotSpeak`."""
    named = voice_codec(folder)
    if named is None:
        raise CannotSpeak(
            f"{folder} names no codec: its processor_config.json has no audio_tokenizer_name_or_path; fetch it again"
        )
    codec: Any = PocketTTSAudioTokenizerModel.from_pretrained(
        companion_folder(named, folder), local_files_only=True, use_safetensors=True, dtype=torch.float32
    )
    config = codec.config
    if codec.decoder is None or not config.use_causal_conv or config.trim_right_ratio != 1.0:
        raise CannotSpeak(f"the codec of {folder} has no decoder, or one that is not causal: serve another checkpoint")
    return codec.eval()


class CodecStream:
    """Decodes one sentence."""

    def __init__(self, codec: Any) -> None:
        self._codec = codec
        self._cache = DynamicCache(config=codec.decoder.config)
        self._frame: Any = None
        """The frame before, projected: [1, hidden, 1]."""
        self._hidden: Any = None
        """The last positions before: [1, hidden, positions]."""
        self._before = _positions_before(codec.config)

    def push(self, latents: Any) -> Any:
        """Samples of ``latents``, [1, frames, dim]."""
        decoder, config = self._codec.decoder, self._codec.config
        frames = latents.shape[1]
        projected = self._codec.latent_proj(latents.transpose(1, 2))
        window = projected if self._frame is None else torch.cat([self._frame, projected], dim=-1)
        self._frame = projected[..., -1:]
        up = window if decoder.upsample is None else decoder.upsample(window)
        up = up[..., -frames * (config.latent_stride if decoder.upsample is not None else 1) :]
        hidden = decoder.decoder_transformer(up.transpose(1, 2), past_key_values=self._cache).last_hidden_state
        hidden = hidden.transpose(1, 2)
        hidden = hidden if self._hidden is None else torch.cat([self._hidden, hidden], dim=-1)
        self._hidden = hidden[..., -self._before :]
        return decoder.decoder_seanet(hidden)[0, 0, -frames * config.frame_size :]


def _positions_before(config: Any) -> int:
    """Positions before its own that a sample of SEANet's depends on."""
    before, rate = float(config.kernel_size - 1), 1
    for ratio in config.upsampling_ratios:
        before += 1 / rate  # a transposed convolution of twice its stride
        rate *= ratio
        dilations = (config.dilation_growth_rate**number for number in range(config.num_residual_layers))
        before += sum((config.residual_kernel_size - 1) * dilation / rate for dilation in dilations)
    whole: int = math.ceil(before + (config.last_kernel_size - 1) / rate)
    return whole
