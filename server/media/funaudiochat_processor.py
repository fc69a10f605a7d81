"""Sounds for FunAudioChat, whose own processor transformers does not have, and which needs torch. Runs in the child."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import transformers as untyped_transformers
from transformers.processing_utils import ProcessorMixin

from stentor.engine.model_config.media_spec import media_spec

from .model_files import ModelFiles

transformers: Any = untyped_transformers

_UNITS_A_SECOND: Final = 25
"""Of speech, that the model counts sounds by; it is given none of them."""


class FunAudioChatProcessor(ProcessorMixin):
    """Log-mel frames as Whisper has them of a sound with silence behind it, in windows that are encoded one by one."""

    def __init__(self, feature_extractor: Any = None) -> None:
        super().__init__(feature_extractor)  # type: ignore[no-untyped-call]
        self._placeholder = ""
        self._window, self._group = 200, 5
        self._around = "<|audio_bos|>", "<|audio_eos|>"

    @classmethod
    def of(cls, folder: Path) -> "FunAudioChatProcessor":
        """As the files of a model say."""
        config = ModelFiles(folder).read("config.json")
        audio = config.get("audio_config") or {}
        made = cls(transformers.WhisperFeatureExtractor.from_pretrained(folder))
        made._window = 2 * int(audio.get("n_window") or 100)
        made._group = int(audio.get("group_size") or 5)
        spec = media_spec(config)
        if spec is None or "audio" not in spec.placeholders:
            raise ValueError("config.json has no audio_token_index, expected the token that stands for sounds")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        made._placeholder = tokenizer.convert_ids_to_tokens(spec.placeholders["audio"])
        return made

    @property
    def audio_token(self) -> str:
        """What stands for a sound in a text, with the marks around it."""
        return self._placeholder.join(self._around)

    def _process_audio(self, audio: Any, **arguments: Any) -> Any:
        (samples,), extractor = audio, self.feature_extractor
        if len(samples) > extractor.n_samples:
            raise ValueError(f"it takes {extractor.n_samples / extractor.sampling_rate:g} seconds at most")
        samples = np.pad(samples, (0, max(0, extractor.n_fft - len(samples))))
        frames = -(-len(samples) // extractor.hop_length)
        settings = {"padding": "longest", "pad_to_multiple_of": extractor.hop_length, "truncation": False}
        silent = np.pad(samples, (0, extractor.n_fft))  # a frame at the end hears what is behind it
        values = np.asarray(extractor([silent], **{**arguments, **settings})["input_features"])[0, :, :frames]
        starts = range(0, frames, self._window)
        values = np.pad(values, ((0, 0), (0, len(starts) * self._window - frames)))
        units = max(1, int(len(samples) / extractor.sampling_rate * _UNITS_A_SECOND))
        tensors = {
            "audio_values": np.stack([values[:, start : start + self._window] for start in starts]),
            "audio_lens": np.array([min(self._window, frames - start) for start in starts]),
            "audio_embeddings": np.array([-(-units // self._group)]),
        }
        return tensors, [(self._placeholder * int(tensors["audio_embeddings"][0])).join(self._around)]
