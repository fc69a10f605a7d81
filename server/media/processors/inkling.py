"""Pictures and sounds of Inkling. Run in the child.

transformers' own processor needs torchvision for pictures, and torch for sounds.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import transformers as untyped_transformers
from transformers.audio_utils import mel_filter_bank

from .images.inkling import InklingImages
from .model_files import ModelFiles
from .own_processor import OwnProcessor

transformers: Any = untyped_transformers

_FILES = ("processor_config.json", "preprocessor_config.json")
"""May describe the processor; the first comes first."""


class InklingSounds:
    """Frames of sounds as the numbers of bins of their log-mel energies."""

    def __init__(self, **settings: Any) -> None:
        told: Mapping[str, Any] = {
            **{"feature_size": 80, "sampling_rate": 16_000, "audio_token_duration_s": 0.05},
            **{"window_size_multiplier": 2.0, "num_dmel_bins": 16, "dmel_min_value": -7.0, "dmel_max_value": 2.0},
            **{name: value for name, value in settings.items() if value is not None},
        }
        self.sampling_rate = rate = int(told["sampling_rate"])
        self._hop, self._length = (
            _whole(told["audio_token_duration_s"] * factor * rate, "samples of a frame")
            for factor in (1.0, told["window_size_multiplier"])
        )
        self._fft = int(told.get("n_fft") or self._length)
        if self._length > self._fft:
            raise ValueError(f"n_fft is {self._fft}, expected at least the {self._length} samples of a window")
        before = (self._fft - self._length) // 2
        window = np.hanning(self._length + 1)[:-1]
        self._window = np.pad(window, (before, self._fft - self._length - before))
        self._filters = mel_filter_bank(
            *(self._fft // 2 + 1, int(told["feature_size"]), 0.0, rate / 2, rate), norm="slaney", mel_scale="slaney"
        )
        least, most = float(told["dmel_min_value"]), float(told["dmel_max_value"])
        self._centers = np.linspace(least, most, int(told["num_dmel_bins"])).astype(np.float32)

    def __call__(self, samples: Any) -> tuple[dict[str, Any], int]:
        """Tensors of a sound, and how many embeddings the encoder makes of it."""
        waveform = np.asarray(samples, np.float64)
        count = math.ceil(len(waveform) / self._hop)
        before = max(self._fft - self._hop, 0)
        waveform = np.pad(waveform, (before, count * self._hop - len(waveform)))
        starts = np.arange(count) * self._hop
        frames = waveform[starts[:, None] + np.arange(self._fft)] * self._window
        energies = np.abs(np.fft.rfft(frames)) ** 2
        mel = np.sqrt(np.maximum(energies, 1e-10)) @ self._filters
        values = np.log10(np.maximum(mel, 1e-10)).astype(np.float32)
        values = values.clip(self._centers[0], self._centers[-1])
        bins = np.abs(values[:, :, None] - self._centers).argmin(-1).astype(np.int32)
        return {"audio_input_ids": bins[None]}, count


def _whole(number: float, what: str) -> int:
    if abs(number - round(number)) > 1e-6 or round(number) < 1:
        raise ValueError(f"there are {number:g} {what}, expected a whole number")
    return round(number)


class InklingProcessor(OwnProcessor):
    """A picture is a token a square, a sound a token a frame. The template writes the token that begins either."""

    def __init__(
        self, image_processor: Any = None, sounds: InklingSounds | None = None, names: Mapping[str, str] | None = None
    ) -> None:
        """``names``: the tokens of media that files name otherwise."""
        super().__init__(image_processor)
        self._sounds = sounds
        told = {"image_token": "<|unused_200054|>", "audio_token": "<|unused_200053|>", **(names or {})}
        self.image_token, self.audio_token = told["image_token"], told["audio_token"]

    @classmethod
    def of(cls, folder: Path) -> "InklingProcessor":
        """From the files of a model."""
        files = ModelFiles(folder)
        settings: dict[str, Any] = {}
        for name in reversed(_FILES):
            told = files.read(name)
            settings |= {**told, **(told.get("feature_extractor") or {})}
        tokenizer = files.read("tokenizer_config.json")
        known = ("image_token", "audio_token")
        names = {name: said for name in known if isinstance(said := tokenizer.get(name, settings.get(name)), str)}
        return cls(InklingImages.from_pretrained(folder), InklingSounds(**settings), names)

    @property
    def feature_extractor(self) -> Any:
        """The feature extractor of audio."""
        return self._sounds

    @property
    def unused_input_names(self) -> list[str]:
        return ["num_patches"]

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        found: str = self.image_token * int(image_inputs["num_patches"][image_idx])
        return found

    def _process_audio(self, audio: Any, **_: Any) -> Any:
        assert self._sounds is not None
        found, count = self._sounds(audio[0])
        return found, [self.audio_token * count]
