"""Processors of models that take sounds, by the name of transformers' processor. Run in the child."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

from stentor.engine.model_config.towers.audio_spec import PATCH_FRAMES

from ...text.tokenizers.loading import load_tokenizer
from ..decoding.decode_audio import SAMPLE_RATE
from .audio import ParakeetSounds, sound_token
from .model_files import ModelFiles
from .own_processor import OwnProcessor
from .processor_name import FILES
from .waveforms import OmniASRProcessor

_DECIBELS: Final = 120.0
"""Below a sound's loudest point at which MiDashengLM's frames are clipped."""


class NemotronTranscribeProcessor(OwnProcessor):
    """Log-mel frames that are not normed, filled up to whole embeddings."""

    def __init__(self, audio_token: str, placeholder: str, frames: int, settings: Mapping[str, Any]) -> None:
        """``placeholder``: the token in the text of a sound, which a template writes as ``audio_token``; ``frames``: of
        an embedding; ``settings``: of the frames."""
        super().__init__()
        self.audio_token, self._placeholder, self._frames = audio_token, placeholder, frames
        self._sounds = ParakeetSounds(**settings)

    @classmethod
    def of(cls, folder: Path) -> "NemotronTranscribeProcessor":
        """From the files of a model."""
        files, told = ModelFiles(folder), dict[str, Any]()
        for name in reversed(FILES):
            whole = files.read(name)
            told |= {**whole, **(whole.get("feature_extractor") or {})}
        config = files.read("config.json")
        encoder = (config.get("audio_config") or {}).get("asr_config") or {}
        told = {"feature_size": encoder.get("num_mel_bins") or 128, **told}
        frames = int(encoder.get("subsampling_factor") or 8)
        placeholder = sound_token(folder, config)
        if len(found := load_tokenizer(folder).encode(placeholder, False)) != 1:
            raise ValueError(f"the tokenizer reads {placeholder!r} as {len(found)} tokens, expected one")
        return cls(str(told.get("audio_token") or "<|audio|>"), placeholder, frames, told)

    @property
    def feature_extractor(self) -> Any:
        """Itself: it also is the feature extractor."""
        return self

    def _process_audio(self, audio: Any, **_: Any) -> Any:
        (samples,) = audio
        values, frames = self._sounds.frames(samples)
        mask = np.arange(len(values)) < frames
        missing = -len(values) % self._frames
        features = np.pad((values * mask[:, None]).astype(np.float32), ((0, missing), (0, 0)))
        tensors = {"input_features": features[None], "input_features_mask": np.pad(mask, (0, missing))[None]}
        return tensors, [self._placeholder * -(-frames // self._frames)]

    @property
    def unused_input_names(self) -> list[str]:
        return []


class MiDashengLMProcessor(OwnProcessor):
    """Log-mel frames in decibels, in windows that are encoded one by one; the last one is filled up with zeros."""

    _SETTINGS: Final[Mapping[str, float]] = {
        **{"n_fft": 512, "win_length": 512, "hop_length": 160, "n_mels": 64, "f_min": 0.0, "f_max": 8000.0},
        "target_length": 1012,
    }
    """Of the encoder, where files leave them out."""

    def __init__(self, audio_token: str = "", stack: int = 5, settings: Mapping[str, Any] | None = None) -> None:
        """``stack``: positions of an embedding; ``settings``: of the encoder, that are not as in published models."""
        super().__init__()
        self.audio_token, self._stack = audio_token, stack
        self._set = {**self._SETTINGS, **(settings or {})}

    @classmethod
    def of(cls, folder: Path) -> "MiDashengLMProcessor":
        """From the files of a model."""
        files = ModelFiles(folder)
        config, extractor = files.read("config.json"), files.read("preprocessor_config.json")
        if extractor.get("do_normalize"):
            raise ValueError("preprocessor_config.json has do_normalize, expected samples as they are")
        encoder = config.get("audio_encoder_config") or {}
        settings = {name: encoder[name] for name in cls._SETTINGS if encoder.get(name) is not None}
        return cls(sound_token(folder, config), int(config.get("subsample_factor") or 5), settings)

    @property
    def feature_extractor(self) -> Any:
        """Itself: it also is the feature extractor."""
        return self

    def _process_audio(self, audio: Any, **_: Any) -> Any:
        ((samples,), told) = audio, self._set
        frame, hop = int(told["n_fft"]), int(told["hop_length"])
        least = PATCH_FRAMES * self._stack * hop  # of an embedding
        wave = np.pad(np.asarray(samples, np.float64), (0, max(0, least - len(samples))))
        mel = spectrogram(
            wave,
            window_function(int(told["win_length"]), "hann", frame_length=frame),
            frame_length=frame,
            hop_length=hop,
            fft_length=frame,
            power=2.0,
            mel_filters=mel_filter_bank(
                *(frame // 2 + 1, int(told["n_mels"]), told["f_min"], told["f_max"], SAMPLE_RATE), mel_scale="htk"
            ),
            mel_floor=1e-10,
            dtype=np.dtype(np.float64),
        )
        loud = 10 * np.log10(mel)
        loud = np.maximum(loud, loud.max() - _DECIBELS).astype(np.float32)
        window = int(told["target_length"]) // PATCH_FRAMES * PATCH_FRAMES
        positions = loud.shape[1] // PATCH_FRAMES
        starts = range(0, positions * PATCH_FRAMES, window)
        loud = np.pad(loud, ((0, 0), (0, max(0, len(starts) * window - loud.shape[1]))))
        frames = len(wave) // hop
        tensors = {
            "audio_values": np.stack([loud[:, start : start + window] for start in starts]),
            "audio_lens": np.array([min(window, frames - start) for start in starts]),
        }
        if len(starts) == 1:
            tensors["audio_values"] = tensors["audio_values"][:, :, : positions * PATCH_FRAMES + PATCH_FRAMES]
        return tensors, [self.audio_token * (positions // self._stack)]

    @property
    def unused_input_names(self) -> list[str]:
        return []


SOUND_PROCESSORS: Final[Mapping[str, Any]] = {
    "MiDashengLMProcessor": MiDashengLMProcessor,
    "Nemotron3_5TranscribeProcessor": NemotronTranscribeProcessor,
    "OmniASRProcessor": OmniASRProcessor,
}
