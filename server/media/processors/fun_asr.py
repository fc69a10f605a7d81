"""Processors of Fun-ASR-Nano: Kaldi's frames, several beside each other. Run in the child."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

from stentor.engine.model_config.hf.fun_asr import FRAMES, embeddings_of
from stentor.engine.model_config.towers.media_spec import SOUND_TOKENS

from .audio import sound_token
from .model_files import ModelFiles
from .own_processor import OwnProcessor
from .processor_name import FILES


class FunAsrNanoProcessor(OwnProcessor):
    """Log-mel frames as Kaldi makes them, seven beside each other at every sixth, without torchaudio."""

    _SETTINGS: Final = {
        "sampling_rate": 16_000,
        "feature_size": 80,
        "frame_length": 25,
        "frame_shift": 10,
        "num_frames_lfr": 7,
        "stride_lfr": 6,
    }
    _WINDOW: Final = "hamming"

    def __init__(self, audio_token: str = "", positions: int = 2049, settings: Mapping[str, int] | None = None) -> None:
        """``positions``: rows of the encoder's table, which are counted from 1; ``settings``: those that are not as in
        published models."""
        super().__init__()
        self.audio_token, self._most = audio_token, positions - 1
        self._set: Mapping[str, int] = {**self._SETTINGS, **(settings or {})}

    @classmethod
    def of(cls, folder: Path) -> "FunAsrNanoProcessor":
        """From the files of a model."""
        files = ModelFiles(folder)
        config, told = files.read("config.json"), dict[str, Any]()
        for name in reversed(FILES):
            whole = files.read(name)
            told |= {**whole, **(whole.get("feature_extractor") or {})}
        if (window := told.get("window") or cls._WINDOW) != cls._WINDOW:
            raise ValueError(f"its frames have a window of kind {window!r}, expected {cls._WINDOW!r}")
        positions = (config.get("audio_config") or {}).get("max_position_embeddings") or 2049
        settings = {name: int(told[name]) for name in cls._SETTINGS if told.get(name)}
        return cls(sound_token(folder, config), int(positions), settings)

    @property
    def feature_extractor(self) -> Any:
        """Itself: it also is the feature extractor."""
        return self

    @property
    def sampling_rate(self) -> int:
        return self._set["sampling_rate"]

    def _process_audio(self, audio: Any, **_: Any) -> Any:
        ((samples,), told) = audio, self._set
        rate = told["sampling_rate"]
        frame, hop = (rate * told[name] // 1000 for name in ("frame_length", "frame_shift"))
        fft = 1 << (frame - 1).bit_length()
        filters = mel_filter_bank(
            *(fft // 2 + 1, told["feature_size"], 20, rate // 2, rate),
            mel_scale="kaldi",
            triangularize_in_mel_space=True,
        )
        frames = spectrogram(
            np.pad(np.asarray(samples, np.float64), (0, max(0, frame - len(samples)))),
            window_function(frame, self._WINDOW, periodic=False),
            frame_length=frame,
            hop_length=hop,
            fft_length=fft,
            power=2.0,
            center=False,
            preemphasis=0.97,
            mel_filters=filters,
            log_mel="log",
            mel_floor=float(np.finfo(np.float32).eps),
            remove_dc_offset=True,
        ).T
        joined, step = told["num_frames_lfr"], told["stride_lfr"]
        count = -(-len(frames) // step)
        if count > self._most:
            raise ValueError(f"it takes {self._most * step * told['frame_shift'] / 1000:g} seconds at most")
        places = np.arange(count)[:, None] * step + np.arange(joined) - (joined - 1) // 2
        features = frames[places.clip(0, len(frames) - 1)].reshape(1, count, -1).astype(np.float32)
        tensors = {"input_features": features, "input_features_mask": np.ones((1, count), np.int64)}
        return tensors, [self.audio_token * count]

    @property
    def unused_input_names(self) -> list[str]:
        return []


class FunAsrProcessor(FunAsrNanoProcessor):
    """Of the files for vLLM: samples are scaled as 16-bit integers, as in the makers' code, and about an eighth of the
    embeddings stand in a prompt."""

    _SCALE: Final = 1 << 15
    _NAMES: Final[Mapping[str, str]] = {
        **{"fs": "sampling_rate", "n_mels": "feature_size", "lfr_m": "num_frames_lfr", "lfr_n": "stride_lfr"},
        **{name: name for name in ("frame_length", "frame_shift")},
    }
    """Names of ``frontend_conf``."""

    @classmethod
    def of(cls, folder: Path) -> "FunAsrProcessor":
        """From the files of a model."""
        files = ModelFiles(folder)
        told = files.read("preprocessor_config.json").get("frontend_conf") or {}
        expected = {"window": cls._WINDOW, "cmvn_file": None, "upsacle_samples": True, "snip_edges": True}
        for name, value in expected.items():
            if name in told and told[name] != value:
                raise ValueError(f"frontend_conf.{name} is {told[name]!r}, expected {value!r}")
        settings = {own: int(told[name]) for name, own in cls._NAMES.items() if told.get(name)}
        made = cls(SOUND_TOKENS["funasr"], settings=settings)
        if (found := (made._set["num_frames_lfr"], made._set["feature_size"])) != FRAMES:
            raise ValueError(f"its frames are {found[0]} of {found[1]} bins, expected {FRAMES[0]} of {FRAMES[1]}")
        return made

    def _process_audio(self, audio: Any, **_: Any) -> Any:
        (samples,) = audio
        tensors, _all = super()._process_audio([np.asarray(samples, np.float64) * self._SCALE])
        return tensors, [self.audio_token * embeddings_of(tensors["input_features"].shape[1])]
