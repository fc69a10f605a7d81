"""Log-mel features as Kaldi makes them, normed over a window's frames (Speech2Text, SeamlessM4T)."""

import math

import torch

from stentor.protocols.ipc.audio import SAMPLE_RATE

from .log_mel import HOP, WINDOW

_FFT = 512
_EMPHASIS = 0.97
_LOWEST = 20.0
_FLOOR = 1.192092955078125e-07
_SCALE = 32768.0
_SPARE_VARIANCE = 1e-7


class KaldiMel:
    """Converts samples to frames; holds the window and the filters."""

    def __init__(self, bins: int, device: torch.device, *, sampled: bool = False) -> None:
        """``sampled``: whether deviations are those of a sample, with a small variance added."""
        self._sampled = sampled
        self._window = torch.hann_window(WINDOW, periodic=False, dtype=torch.float64, device=device) ** 0.85
        self._filters = _filters(bins).to(device)

    def __call__(self, samples: torch.Tensor) -> torch.Tensor:
        """float32 [samples] within -1 and 1, at least :data:`.log_mel.WINDOW` → float32 [frames, bins], of mean 0 and
        deviation 1 in each bin."""
        frames = samples.double().mul(_SCALE).unfold(0, WINDOW, HOP)
        frames = frames - frames.mean(1, keepdim=True)
        before = torch.cat([frames[:, :1], frames[:, :-1]], dim=1)
        spectrum = torch.fft.rfft((frames - _EMPHASIS * before) * self._window, _FFT)
        power = torch.view_as_real(spectrum).square().sum(-1)  # [frames, _FFT // 2 + 1]
        mel = (power @ self._filters).clamp_(min=_FLOOR).log_()
        mel -= mel.mean(0)
        if self._sampled:
            return (mel / (mel.square().sum(0) / (len(mel) - 1) + _SPARE_VARIANCE).sqrt()).float()
        deviation = mel.square().mean(0).sqrt()
        return (mel / torch.where(deviation > 0, deviation, 1.0)).float()  # silence has none


def _filters(bins: int) -> torch.Tensor:
    """float64 [_FFT // 2 + 1, bins]: triangles with straight sides on Kaldi's mel scale, 1127 · ln(1 + f / 700)."""
    mels = 1127.0 * torch.log1p(torch.linspace(0.0, SAMPLE_RATE / 2, _FFT // 2 + 1, dtype=torch.float64) / 700.0)
    lowest, highest = (1127.0 * math.log1p(hertz / 700.0) for hertz in (_LOWEST, SAMPLE_RATE / 2))
    edges = torch.linspace(lowest, highest, bins + 2, dtype=torch.float64)
    slopes, widths = edges.unsqueeze(0) - mels.unsqueeze(1), edges.diff()
    return torch.minimum(-slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]).clamp(min=0.0)
