"""Processors of models that hear, where transformers' own needs torch or torchaudio. Run in the child.

They have what transformers makes features with and numpy is enough for, and count as the model's encoder does.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import transformers as untyped_transformers
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function
from transformers.processing_utils import ProcessorMixin

from .processor_name import FILES

transformers: Any = untyped_transformers

_FRAMES_A_TOKEN: Final = 8
"""That a token of Voxtral's stands for: two of a convolution's steps, four times."""


class Qwen3ASRProcessor(transformers.Qwen3ASRProcessor):  # type: ignore[misc]
    """Each second of audio by itself, which three convolutions make an eighth of."""

    def _get_audio_token_length(self, audio_lengths: Any, n_window: int = 50) -> Any:
        seconds, rest = np.divmod(np.asarray(audio_lengths), 2 * n_window)
        for _ in range(3):
            rest = (rest - 1) // 2 + 1
        return seconds * 13 + rest


class VoxtralProcessor(ProcessorMixin):
    """Audio is filled up with silence to whole pieces, which are encoded one by one."""

    audio_token: Final = "[AUDIO]"

    def __init__(self, feature_extractor: Any = None) -> None:
        super().__init__(feature_extractor)  # type: ignore[no-untyped-call]

    def _process_audio(self, audio: Any, **arguments: Any) -> Any:
        extractor = self.feature_extractor
        whole = {"padding": True, "truncation": False, "pad_to_multiple_of": extractor.n_samples}
        (features,) = extractor(audio, **{**arguments, **whole})["input_features"]
        pieces = features.reshape(len(features), -1, extractor.nb_max_frames).swapaxes(0, 1)
        count = len(pieces) * (extractor.nb_max_frames // _FRAMES_A_TOKEN)
        return {"input_features": pieces}, [self.audio_token * count]

    @property
    def unused_input_names(self) -> list[str]:
        return []


class _Windows(ProcessorMixin):
    """Audio in windows of half a minute, of which the last is filled up; counted as one."""

    def __init__(
        self, feature_extractor: Any, audio_token: str, max_audio_len: float, tokens: Callable[[int], int]
    ) -> None:
        """``tokens`` are what so many frames become."""
        super().__init__(feature_extractor)  # type: ignore[no-untyped-call]
        self.audio_token = audio_token
        self._seconds, self._tokens = max_audio_len, tokens

    def _process_audio(self, audio: Any, **arguments: Any) -> Any:
        (samples,), extractor = audio, self.feature_extractor
        if len(samples) > self._seconds * extractor.sampling_rate:
            raise ValueError(f"it takes {self._seconds:g} seconds at most")
        most = extractor.n_samples
        windows = [samples[begin : begin + most] for begin in range(0, len(samples), most)]
        found = extractor(windows, **{**arguments, "return_attention_mask": True})
        mask = found["attention_mask"]
        tensors = {"input_features": found["input_features"], "input_features_mask": mask}
        return tensors, [self.audio_token * self._tokens(int(mask.sum()))]

    @property
    def unused_input_names(self) -> list[str]:
        return []


class AudioFlamingo3Processor(_Windows):
    def __init__(self, feature_extractor: Any = None, audio_token: str = "<sound>", max_audio_len: float = 600) -> None:
        super().__init__(feature_extractor, audio_token, max_audio_len, lambda frames: (_halved(frames) - 2) // 2 + 1)


class GlmAsrProcessor(_Windows):
    def __init__(self, feature_extractor: Any = None, audio_token: str = "<|pad|>", max_audio_len: float = 655) -> None:
        super().__init__(feature_extractor, audio_token, max_audio_len, lambda frames: _halved(frames) // 4)


def _halved(frames: int) -> int:
    return (frames - 1) // 2 + 1


class GraniteSpeechProcessor(ProcessorMixin):
    """Mel features as torchaudio makes them, two frames beside each other; a window of these becomes a few tokens."""

    _SETTINGS: Final = {
        **{"sampling_rate": 16_000, "n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 80},
        **{"projector_window_size": 15, "projector_downsample_rate": 5},
    }

    def __init__(self, audio_token: str = "<|audio|>") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.audio_token = audio_token
        self._set: Mapping[str, int] = self._SETTINGS

    @classmethod
    def of(cls, folder: Path) -> "GraniteSpeechProcessor":
        """As the files of a model say."""
        said: dict[str, Any] = {}
        for name in reversed(FILES):
            file = folder / name
            whole = json.loads(file.read_text()) if file.is_file() else {}
            for part in (whole, whole.get("feature_extractor"), whole.get("audio_processor")):
                said |= {**(part or {}), **(part or {}).get("melspec_kwargs", {})}
        token = said.get("audio_token")
        made = cls(token) if isinstance(token, str) else cls()
        made._set = {name: int(said.get(name) or value) for name, value in cls._SETTINGS.items()}
        return made

    @property
    def feature_extractor(self) -> Any:
        """Itself: it makes what others have a part for."""
        return self

    def _process_audio(self, audio: Any, **_: Any) -> Any:
        ((samples,), told) = audio, self._set
        frame, hop = told["n_fft"], told["hop_length"]
        mel = spectrogram(
            np.asarray(samples, np.float64),
            window_function(told["win_length"], "hann", frame_length=frame),
            frame_length=frame,
            hop_length=hop,
            fft_length=frame,
            power=2.0,
            mel_filters=mel_filter_bank(
                frame // 2 + 1, told["n_mels"], 0.0, told["sampling_rate"] / 2, told["sampling_rate"], mel_scale="htk"
            ),
            mel_floor=1e-10,
        )
        loud = np.log10(mel.T)
        loud = np.maximum(loud, loud.max() - 8.0) / 4 + 1
        pairs = loud[: len(loud) // 2 * 2].reshape(1, -1, 2 * told["n_mels"]).astype(np.float32)
        window = told["projector_window_size"]
        count = -(-pairs.shape[1] // window) * (window // told["projector_downsample_rate"])
        return {"input_features": pairs}, [self.audio_token * count]

    @property
    def unused_input_names(self) -> list[str]:
        return []
