"""Log-mel features of speech models, as Whisper was trained on them (arXiv:2212.04356)."""

import math
from collections.abc import Sequence

import torch

from stentor.protocols.ipc.audio import SAMPLE_RATE

WINDOW = 400
HOP = 160
_HIGHEST = SAMPLE_RATE / 2
_FLOOR = 1e-10
_RANGE = 8.0
"""Powers of ten below a window's loudest point at which values are clipped."""


class LogMel:
    """Converts samples to log-mel frames; holds the window and the filters."""

    def __init__(self, bins: int, device: torch.device) -> None:
        self._device = device
        self._window = torch.hann_window(WINDOW, device=device)
        self._filters = mel_filters(bins).to(device)

    def __call__(self, windows: Sequence[bytes | memoryview], samples: int) -> torch.Tensor:
        """Windows of signed 16-bit little-endian samples at 16 kHz → float32 [windows, samples // 160, bins].

        Each is padded with silence to ``samples`` and cut there.
        """
        padded = samples_of(windows, samples, self._device)
        frames = torch.nn.functional.pad(padded, (WINDOW // 2, WINDOW // 2), mode="reflect").unfold(1, WINDOW, HOP)
        spectrum = torch.fft.rfft(frames[:, : samples // HOP] * self._window)  # [windows, frames, WINDOW // 2 + 1]
        power = torch.view_as_real(spectrum).square().sum(-1)
        mel = (power @ self._filters).clamp_(min=_FLOOR).log10_()
        loudest = mel.amax(dim=(1, 2), keepdim=True)
        return torch.maximum(mel, loudest - _RANGE).add_(4.0).div_(4.0)


def samples_of(windows: Sequence[bytes | memoryview], samples: int, device: torch.device) -> torch.Tensor:
    """Windows of signed 16-bit little-endian samples → float32 [windows, samples] within -1 and 1.

    Each is padded with silence to ``samples`` and cut there.
    """
    padded = torch.zeros(len(windows), samples, device=device)
    for row, pcm in zip(padded, windows, strict=True):
        count = min(len(pcm) // 2, samples)
        if count:
            values = torch.frombuffer(bytearray(pcm[: 2 * count]), dtype=torch.int16)
            row[:count] = values.to(device).float() / 32768.0
    return padded


def mel_filters(bins: int, fft: int = WINDOW) -> torch.Tensor:
    """float32 [fft // 2 + 1, bins]: triangles of equal area on the mel scale of Slaney's toolbox."""
    frequencies = torch.linspace(0.0, _HIGHEST, fft // 2 + 1, dtype=torch.float64)
    edges = _hertz(torch.linspace(0.0, _mel(_HIGHEST), bins + 2, dtype=torch.float64))
    return (_triangles(frequencies, edges) * (2.0 / (edges[2:] - edges[:-2]))).float()


def htk_filters(bins: int, fft: int) -> torch.Tensor:
    """float32 [fft // 2 + 1, bins]: triangles of equal height on the mel scale of HTK, 2595 · log10(1 + f / 700)."""
    frequencies = torch.linspace(0.0, _HIGHEST, fft // 2 + 1, dtype=torch.float64)
    mels = torch.linspace(0.0, 2595.0 * math.log10(1.0 + _HIGHEST / 700.0), bins + 2, dtype=torch.float64)
    return _triangles(frequencies, 700.0 * (10.0 ** (mels / 2595.0) - 1.0)).float()


def _triangles(frequencies: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """[frequencies, edges - 2]: each rises from one edge to the next, and falls to the one after it."""
    slopes = edges.unsqueeze(0) - frequencies.unsqueeze(1)  # [frequencies, edges]
    widths = edges.diff()
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    return torch.minimum(rising, falling).clamp(min=0.0)


_LINEAR_HERTZ = 200.0 / 3.0
"""Hertz of one mel below the bend."""
_BEND = 1000.0
_STEP = math.log(6.4) / 27.0
"""Logarithm of the frequency ratio of one mel above the bend."""


def _mel(hertz: float) -> float:
    if hertz < _BEND:
        return hertz / _LINEAR_HERTZ
    return _BEND / _LINEAR_HERTZ + math.log(hertz / _BEND) / _STEP


def _hertz(mels: torch.Tensor) -> torch.Tensor:
    bend = _BEND / _LINEAR_HERTZ
    return torch.where(mels < bend, mels * _LINEAR_HERTZ, _BEND * torch.exp((mels - bend) * _STEP))
