"""Processors of models that take sounds, by the name of transformers' processor. Run in the child."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...text.tokenizers.loading import load_tokenizer
from .audio import ParakeetSounds, sound_token
from .model_files import ModelFiles
from .own_processor import OwnProcessor
from .processor_name import FILES
from .waveforms import OmniASRProcessor


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


SOUND_PROCESSORS: Final[Mapping[str, Any]] = {
    "Nemotron3_5TranscribeProcessor": NemotronTranscribeProcessor,
    "OmniASRProcessor": OmniASRProcessor,
}
