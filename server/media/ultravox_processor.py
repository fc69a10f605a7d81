"""Sounds for Ultravox, whose own processor comes with its checkpoint and needs torch. Runs in the child."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import transformers as untyped_transformers
from transformers.processing_utils import ProcessorMixin

from stentor.engine.model_config.media_spec import media_spec

from .model_files import ModelFiles

transformers: Any = untyped_transformers

_FRAMES_A_POSITION: Final = 2


class UltravoxProcessor(ProcessorMixin):
    """Log-mel frames as Whisper has them, in windows; a long sound's last window is filled up with zeros."""

    audio_token = "<|audio|>"

    def __init__(self, feature_extractor: Any = None) -> None:
        super().__init__(feature_extractor)  # type: ignore[no-untyped-call]
        self._placeholder = ""
        self._window, self._stack = 3000, 8

    @classmethod
    def of(cls, folder: Path) -> "UltravoxProcessor":
        """As the files of a model say."""
        files = ModelFiles(folder)
        config, settings = files.read("config.json"), files.read("processor_config.json")
        audio = config.get("audio_config") or {}
        made = cls(transformers.WhisperFeatureExtractor(feature_size=int(audio.get("num_mel_bins", 80))))
        made._window = int(settings.get("audio_context_size") or 3000)
        made._stack = int(config.get("stack_factor") or 8)
        spec = media_spec(config)
        if spec is None or "audio" not in spec.placeholders:
            raise ValueError("config.json has no audio_token_index, expected the token that stands for sounds")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        made._placeholder = tokenizer.convert_ids_to_tokens(spec.placeholders["audio"])
        return made

    def _process_audio(self, audio: Any, **arguments: Any) -> Any:
        (samples,), extractor = audio, self.feature_extractor
        hop = extractor.hop_length
        samples = np.pad(samples, (0, max(0, 2 * hop - len(samples))))
        settings = {"padding": "longest", "pad_to_multiple_of": hop, "truncation": False}
        found = extractor([samples], **{**arguments, **settings, "return_attention_mask": True})
        values, frames = np.asarray(found["input_features"])[0], int(np.asarray(found["attention_mask"]).sum())
        starts = range(0, frames, self._window)
        lengths = [min(self._window, frames - start) for start in starts]
        if len(starts) > 1:
            values = np.pad(values, ((0, 0), (0, max(0, len(starts) * self._window - values.shape[1]))))
        windows = [values[:, start : start + self._window] for start in starts]
        tokens = sum(-(-length // (_FRAMES_A_POSITION * self._stack)) for length in lengths)
        tensors = {"audio_values": np.stack(windows), "audio_lens": np.array(lengths)}
        return tensors, [self._placeholder * tokens]
