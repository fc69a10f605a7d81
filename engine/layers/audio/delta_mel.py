"""Log-mel features of Granite Speech 5: frames with their slopes, joined in pairs."""

import msgspec
import torch

from stentor.protocols.ipc.audio import SAMPLE_RATE

from .log_mel import htk_filters

_FLOOR = 1e-10
_STACKED = 2
"""Frames joined to one."""


class DeltaMelSettings(msgspec.Struct, frozen=True):
    """Those of ``preprocessor_config.json``, by its names."""

    sampling_rate: int = SAMPLE_RATE
    num_mel_bins: int = 80
    n_fft: int = 512
    win_length: int = 400
    hop_length: int = 160
    delta_win_length: int = 3
    logmel_floor_db: float = 8.0
    """Powers of ten below a window's loudest point at which values are clipped."""

    @classmethod
    def of(cls, found: dict[str, object]) -> "DeltaMelSettings":
        """Raises ValueError for values that no spectrogram has."""
        settings = cls(**{each.name: found[each.name] for each in msgspec.structs.fields(cls) if each.name in found})  # type: ignore[arg-type]
        sizes: tuple[object, ...] = (settings.num_mel_bins, settings.n_fft, settings.win_length, settings.hop_length)
        if not all(isinstance(size, int) and 0 < size <= 8192 for size in sizes):
            raise ValueError(f"its sizes are {sizes}, expected whole numbers up to 8192")
        width: object = settings.delta_win_length
        if settings.win_length > settings.n_fft or not isinstance(width, int) or not 3 <= width < 64 or width % 2 == 0:
            raise ValueError("win_length is more than n_fft, or delta_win_length no odd number from 3 to 63")
        floor: object = settings.logmel_floor_db
        if not isinstance(floor, int | float):
            raise ValueError(f"logmel_floor_db is {floor!r}, expected a number")
        return settings


class DeltaMel:
    """Converts samples to frames; holds the window and the filters."""

    def __init__(self, settings: DeltaMelSettings) -> None:
        self._set = settings
        self._window = torch.hann_window(settings.win_length)
        self._filters = htk_filters(settings.num_mel_bins, settings.n_fft)

    def __call__(self, samples: torch.Tensor) -> torch.Tensor:
        """float32 [samples] within -1 and 1, more than half an ``n_fft`` → float32 [frames, 4 bins]."""
        told = self._set
        count = _STACKED * -(-(len(samples) // told.hop_length) // _STACKED)
        missing = (count - 1) * told.hop_length + 1 - len(samples)
        samples = torch.nn.functional.pad(samples, (0, max(0, missing)))
        found = torch.stft(
            samples,
            told.n_fft,
            told.hop_length,
            told.win_length,
            window=self._window,
            pad_mode="reflect",
            return_complex=True,
        )
        power = torch.view_as_real(found[:, :count]).square().sum(-1)  # [n_fft // 2 + 1, frames]
        mel = (power.t() @ self._filters).clamp_(min=_FLOOR).log10_()
        mel = torch.maximum(mel, mel.max() - told.logmel_floor_db).div_(4).add_(1)
        return torch.cat([mel, self._slopes(mel)], 1).reshape(count // _STACKED, -1)

    def _slopes(self, mel: torch.Tensor) -> torch.Tensor:
        """By least squares over ``delta_win_length`` frames; those at the ends stand for what is beyond."""
        half, count = self._set.delta_win_length // 2, len(mel)
        first, last = mel[:1].expand(half, -1), mel[-1:].expand(half, -1)
        padded, found = torch.cat([first, mel, last]), torch.zeros_like(mel)
        for step in range(1, half + 1):
            found += step * (padded[half + step : half + step + count] - padded[half - step : half - step + count])
        return found / (half * (half + 1) * (2 * half + 1) / 3)
