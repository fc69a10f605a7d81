"""Mimi, and the codec of Pocket TTS, frame by frame: what is decoded in parts is what is decoded at once.

All of it is causal. The upsampling convolution needs one frame before its own, the transformer its keys and values, and
the convolutions to samples (SEANet) a few positions, which are decoded again and left out.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, PocketTTSAudioTokenizerModel

from ...loading.companions import companion_folder, require_voice_codec
from ...models.transformers.names import with_cache
from ..backend import CannotSpeak
from .generation import pretrained


def load_codec(folder: Path) -> Any:
    """The codec of a checkpoint of Pocket TTS, to be called within :func:`.generation.loading`."""
    codec = pretrained(PocketTTSAudioTokenizerModel, companion_folder(require_voice_codec(folder), folder))
    check_causal(codec, folder)
    return codec


def check_causal(codec: Any, folder: Path) -> None:
    """Raises :class:`CannotSpeak` if a frame of the codec depends on later ones."""
    if codec.decoder is None or not codec.config.use_causal_conv or codec.config.trim_right_ratio != 1.0:
        raise CannotSpeak(f"the codec of {folder} has no decoder, or one that is not causal: serve another checkpoint")


class CodecStream:
    """Decodes one sentence: a :class:`.frames.FrameDecoder`."""

    def __init__(self, codec: Any, project: Callable[[Any], Any]) -> None:
        """``project``: from frames, [1, frames, …], to what the decoder reads, [1, hidden, frames]."""
        self._decoder = codec.decoder
        self._project = project
        self._cache = DynamicCache(config=codec.decoder.config)
        self._frame: Any = None
        """The frame before, projected: [1, hidden, 1]."""
        self._hidden: Any = None
        """The last positions before: [1, hidden, positions]."""
        self._before = _positions_before(codec.config)
        self._stride: int = 1 if codec.decoder.upsample is None else codec.decoder.upsample.conv.stride[0]
        """Positions of a frame."""
        self._samples = self._stride * math.prod(codec.config.upsampling_ratios)
        """Of a frame."""

    def push(self, frames: Any) -> Any:
        """Samples of ``frames``: [samples]."""
        count, decoder = frames.shape[1], self._decoder
        projected = self._project(frames)
        window = projected if self._frame is None else torch.cat([self._frame, projected], dim=-1)
        self._frame = projected[..., -1:]
        up = window if decoder.upsample is None else decoder.upsample(window)
        up = up[..., -count * self._stride :]
        forward = decoder.decoder_transformer.forward
        hidden = decoder.decoder_transformer(up.transpose(1, 2), **with_cache(forward, self._cache)).last_hidden_state
        hidden = hidden.transpose(1, 2)
        hidden = hidden if self._hidden is None else torch.cat([self._hidden, hidden], dim=-1)
        self._hidden = hidden[..., -self._before :]
        return decoder.decoder_seanet(hidden)[0, 0, -count * self._samples :]

    def finish(self) -> Any:
        """Nothing waits: the codec is causal."""
        return torch.empty(0)


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
