"""Processors of models whose encoders take samples of sounds in place of frames. Run in the child."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import soxr
import transformers as untyped_transformers

from ..decoding.decode_audio import SAMPLE_RATE
from .audio import sound_token
from .model_files import ModelFiles
from .own_processor import OwnProcessor
from .processor_name import FILES

transformers: Any = untyped_transformers

_RATIOS: Final = (2, 2, 4, 5, 5, 8)
"""By which the layers of VibeVoice's encoders shorten a sound, where files leave them out."""

_KERNELS: Final = (10, 3, 3, 3, 3, 2, 2)
_STRIDES: Final = (5, 2, 2, 2, 2, 2, 2)
"""Of the convolutions of OmniASR's encoder, where files leave them out."""
_EPSILON: Final = 1e-5


class OmniASRProcessor(OwnProcessor):
    """A sound with a mean of 0 and a deviation of 1, filled up with silence to what the first position sees."""

    def __init__(
        self,
        audio_token: str = "",
        kernels: Sequence[int] = _KERNELS,
        strides: Sequence[int] = _STRIDES,
        *,
        normed: bool = True,
    ) -> None:
        """``kernels`` and ``strides``: of the encoder's convolutions."""
        super().__init__()
        self.audio_token, self._normed = audio_token, normed
        self._convolutions = list(zip(kernels, strides, strict=True))

    @classmethod
    def of(cls, folder: Path) -> "OmniASRProcessor":
        """From the files of a model."""
        files, told = ModelFiles(folder), dict[str, Any]()
        for name in reversed(FILES):
            whole = files.read(name)
            told |= {**whole, **(whole.get("feature_extractor") or {})}
        if (rate := told.get("sampling_rate") or SAMPLE_RATE) != SAMPLE_RATE:
            raise ValueError(f"sampling_rate is {rate}, expected {SAMPLE_RATE}")
        config = files.read("config.json")
        audio = config.get("audio_config") or {}
        kernels, strides = audio.get("conv_kernel") or _KERNELS, audio.get("conv_stride") or _STRIDES
        return cls(sound_token(folder, config), kernels, strides, normed=told.get("do_normalize") is not False)

    @property
    def feature_extractor(self) -> Any:
        """Itself: it also is the feature extractor."""
        return self

    def _process_audio(self, audio: Any, **_: Any) -> Any:
        (samples,) = audio
        fewest = 1
        for kernel, stride in reversed(self._convolutions):
            fewest = (fewest - 1) * stride + kernel
        wave = np.pad(np.asarray(samples, np.float32), (0, max(0, fewest - len(samples))))
        if self._normed:
            wave = (wave - wave.mean()) / np.sqrt(wave.var() + np.float32(_EPSILON))
        count = len(wave)
        for kernel, stride in self._convolutions:
            count = (count - kernel) // stride + 1
        return {"input_values": wave[None, None]}, [self.audio_token * count]

    @property
    def unused_input_names(self) -> list[str]:
        return []


class VibeVoiceAsrProcessor(OwnProcessor):
    """A sound at one loudness, at the model's rate and filled up with silence to a whole number of tokens."""

    _SETTINGS: Final[Mapping[str, Any]] = {
        "sampling_rate": 24_000,
        "normalize_audio": True,
        "target_dB_FS": -25,
        "eps": 1e-6,
        "audio_token": "<|box_start|>",
    }

    def __init__(self, samples: int = math.prod(_RATIOS), settings: Mapping[str, Any] | None = None) -> None:
        """``samples``: of a token; ``settings``: those that are not as in published models."""
        super().__init__()
        self._samples = samples
        self._set: Mapping[str, Any] = {**self._SETTINGS, **(settings or {})}
        self.audio_token: str = self._set["audio_token"]

    @classmethod
    def of(cls, folder: Path) -> "VibeVoiceAsrProcessor":
        """From the files of a model."""
        files, found = ModelFiles(folder), dict[str, Any]()
        for name in reversed(FILES):
            whole = files.read(name)
            for part in (whole, whole.get("feature_extractor") or {}):
                found |= {each: part[each] for each in cls._SETTINGS if part.get(each) is not None}
        encoder = files.read("config.json").get("acoustic_tokenizer_encoder_config") or {}
        return cls(math.prod(encoder.get("downsampling_ratios") or _RATIOS), found)

    @property
    def feature_extractor(self) -> Any:
        """Itself: it also is the feature extractor."""
        return self

    def _process_audio(self, audio: Any, **_: Any) -> Any:
        ((samples,), told) = audio, self._set
        wave = soxr.resample(np.asarray(samples, np.float32), SAMPLE_RATE, told["sampling_rate"])
        if told["normalize_audio"] and len(wave):
            wave = wave * (10 ** (told["target_dB_FS"] / 20) / (np.sqrt(np.mean(wave**2)) + told["eps"]))
            if (peak := np.abs(wave).max()) > 1.0:
                wave = wave / (peak + told["eps"])
        count = -(-len(wave) // self._samples)
        filled = np.pad(wave, (0, count * self._samples - len(wave))).astype(np.float32)
        return {"input_values": filled[None, None]}, [self.audio_token * count]

    @property
    def unused_input_names(self) -> list[str]:
        return []


class ApertusProcessor(getattr(transformers, "Apertus1p5Processor", object)):  # type: ignore[misc]  # 5.17 has none
    """transformers', for sounds of any rate."""

    def _process_audio(self, audio: Any, sampling_rate: int, **arguments: Any) -> Any:
        rate = self.feature_extractor.sampling_rate
        waves = [soxr.resample(np.asarray(samples, np.float32), sampling_rate, rate) for samples in audio]
        return super()._process_audio(waves, sampling_rate=rate, **arguments)
