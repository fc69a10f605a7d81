"""Log-mel features of NVIDIA's speech models: of emphasised high frequencies, mostly normed over a window's frames."""

import torch

from .log_mel import HOP, WINDOW, mel_filters

_FFT = 512
MARGIN = _FFT // 2
"""Samples that a frame takes on either side of its middle."""
HALF_WINDOW = WINDOW // 2
"""Those of them that the window does not make 0."""
_EMPHASIS = 0.97
_FLOOR = 2.0**-24
_EPS = 1e-5


class PreemphasizedMel:
    """Converts samples to log-mel frames; holds the window and the filters."""

    def __init__(self, bins: int, dither: float, device: torch.device, *, normed: bool = True) -> None:
        """``dither``: deviation of noise that is added to samples, the same for equal numbers of them."""
        self._dither, self._normed = dither, normed
        self._window = torch.hann_window(WINDOW, periodic=False, device=device)
        self._filters = mel_filters(bins, _FFT).to(device)

    def __call__(self, samples: torch.Tensor) -> torch.Tensor:
        """float32 [samples] within -1 and 1, at least two hops → float32 [samples // 160, bins]."""
        if self._dither:
            generator = torch.Generator().manual_seed(len(samples))
            samples = samples + self._dither * torch.randn(len(samples), generator=generator).to(samples.device)
        padded = torch.nn.functional.pad(emphasised(samples), (MARGIN, MARGIN))
        mel = self.of_stretch(padded, len(samples) // HOP)
        if not self._normed:
            return mel
        deviation, mean = torch.std_mean(mel, dim=0)
        return (mel - mean) / (deviation + _EPS)

    def of_stretch(self, samples: torch.Tensor, count: int) -> torch.Tensor:
        """The first frames of emphasised samples, which begin :data:`MARGIN` before the first frame's middle:
        float32 [count, bins], not normed."""
        found = torch.stft(samples, _FFT, HOP, WINDOW, window=self._window, center=False, return_complex=True)
        power = torch.view_as_real(found[:, :count]).square().sum(-1)  # [_FFT // 2 + 1, frames]
        return (power.t() @ self._filters + _FLOOR).log()


def emphasised(samples: torch.Tensor) -> torch.Tensor:
    """Each sample less most of the one before it; the first stays."""
    return torch.cat([samples[:1], samples[1:] - _EMPHASIS * samples[:-1]])
