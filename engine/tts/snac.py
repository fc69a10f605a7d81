"""The decoder of SNAC (github.com/hubertsiuzdak/snac), in float32 on the CPU.

    z = Σ over levels of repeat(W_level · codebook_level[codes], stride_level)
    samples = tanh(conv(snake(blocks(conv(z)))))
    block(x) = units(y + n ⊙ (W · y)),  y = conv_transposed(snake(x)),  n ~ N(0, 1)
    unit(x) = x + conv_1(snake(conv_7(snake(x)))),  snake(x) = x + sin²(a · x) / a

The noise n is drawn from a seed for each block and frame, counted from the beginning of the sentence. So a frame sounds
alike in every decoding of it, and stretches that are decoded one by one, with the context of
:attr:`.codecs.Codec.context`, join to the samples of the whole.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F

from ..loading.errors import CheckpointError
from ..loading.safetensors_index import read_json
from .backend import CannotSpeak, Stop, Stopped
from .codec_weights import CodecWeights, pcm_of
from .codecs import frame_order

_DILATIONS: Final = (1, 3, 9)
_SEEDS: Final = 1 << 40
"""Frames of a sentence, for the seeds of noise; far more than there are."""


class SnacDecoder:
    """One codec."""

    def __init__(self, folder: Path, threads: int) -> None:
        """Load the weights. Raises :class:`CannotSpeak`."""
        torch.set_num_threads(threads)
        try:
            config = read_json(folder / "config.json")
            weights = CodecWeights(folder, ("decoder.", "quantizer."))
        except CheckpointError as error:
            raise CannotSpeak(str(error)) from error
        self._weights = weights
        self._strides = [int(each) for each in _listed(config["vq_strides"])]
        self._rates = [int(each) for each in _listed(config["decoder_rates"])]
        self._depthwise = config.get("depthwise", True) is True
        self._noise = config.get("noise", True) is True
        self._order = frame_order(self._strides)
        try:
            with torch.inference_mode():
                self._samples([0] * len(self._order), 0, Stop())
        except (KeyError, RuntimeError) as error:
            raise CannotSpeak(f"{folder} does not hold the weights that its config.json describes: {error}") from error

    def decode(self, codes: Sequence[int], first: int, skip: int, keep: int, stop: Stop) -> bytes:
        """As :meth:`.backend.CodecDecoder.decode`."""
        with torch.inference_mode():
            samples = self._samples(codes, first, stop)
        frame = len(samples) // (len(codes) // len(self._order))
        return pcm_of(samples[skip * frame : (skip + keep) * frame])

    def _samples(self, codes: Sequence[int], first: int, stop: Stop) -> torch.Tensor:
        """[frames x samples of a frame]"""
        hidden = self._latents(torch.tensor(codes).view(-1, len(self._order)))  # [1, latent, steps]
        place = 0
        if self._depthwise:
            hidden = self._conv(hidden, f"decoder.model.{place}", groups=hidden.shape[1])
            place += 1
        hidden = self._conv(hidden, f"decoder.model.{place}")
        for number, stride in enumerate(self._rates):
            place += 1
            if stop.is_set:
                raise Stopped
            hidden = self._block(hidden, f"decoder.model.{place}.block", number, stride, first)
        hidden = self._snake(hidden, f"decoder.model.{place + 1}")
        return self._conv(hidden, f"decoder.model.{place + 2}").tanh().flatten()

    def _latents(self, codes: torch.Tensor) -> torch.Tensor:
        """The sum of all levels; ``codes`` are [frames, codes of a frame]."""
        total: torch.Tensor | None = None
        for level, stride in enumerate(self._strides):
            places = [at for at, (its_level, _) in enumerate(self._order) if its_level == level]
            name = f"quantizer.quantizers.{level}"
            found = F.embedding(codes[:, places].flatten(), self._weights.named(f"{name}.codebook.weight"))
            hidden = self._conv(found.T.unsqueeze(0), f"{name}.out_proj").repeat_interleave(stride, dim=-1)
            total = hidden if total is None else total + hidden
        assert total is not None, "there is a level"
        return total

    def _block(self, hidden: torch.Tensor, name: str, number: int, stride: int, first: int) -> torch.Tensor:
        weight, bias = self._weights.normed(f"{name}.1")
        hidden = F.conv_transpose1d(
            self._snake(hidden, f"{name}.0"),
            weight,
            bias,
            stride,
            padding=(stride + 1) // 2,
            output_padding=stride % 2,
        )
        place = 2
        if self._noise:
            noise = self._drawn(hidden.shape[-1], number, first)
            hidden = hidden + noise * self._conv(hidden, f"{name}.{place}.linear")
            place += 1
        groups = hidden.shape[1] if self._depthwise else 1
        for at, dilation in enumerate(_DILATIONS):
            unit = f"{name}.{place + at}.block"
            inner = self._conv(self._snake(hidden, f"{unit}.0"), f"{unit}.1", dilation, groups)
            hidden = hidden + self._conv(self._snake(inner, f"{unit}.2"), f"{unit}.3")
        return hidden

    def _drawn(self, steps: int, number: int, first: int) -> torch.Tensor:
        """Noise of one block, frame by frame: [steps]."""
        rate = self._strides[0]
        for stride in self._rates[: number + 1]:
            rate *= stride
        generator = torch.Generator()
        frames = [
            torch.randn(rate, generator=generator.manual_seed(number * _SEEDS + first + frame))
            for frame in range(steps // rate)
        ]
        return torch.cat(frames)

    def _conv(self, hidden: torch.Tensor, name: str, dilation: int = 1, groups: int = 1) -> torch.Tensor:
        """Convolve ``hidden``, padded so that its length stays."""
        weight, bias = self._weights.normed(name)
        padding = (weight.shape[-1] - 1) * dilation // 2
        return F.conv1d(hidden, weight, bias, padding=padding, dilation=dilation, groups=groups)

    def _snake(self, hidden: torch.Tensor, name: str) -> torch.Tensor:
        alpha = self._weights.named(f"{name}.alpha")
        return hidden + (alpha + 1e-9).reciprocal() * torch.sin(alpha * hidden).square()


def _listed(value: object) -> list[float]:
    return list(value) if isinstance(value, list) else []
