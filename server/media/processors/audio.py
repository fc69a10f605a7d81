"""Audio processors for models without one in transformers, or whose own needs torch or torchaudio. Run in the child.

They use those feature extractors of transformers that need only numpy, and count positions as the model's encoder does.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import transformers as untyped_transformers
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

from stentor.engine.model_config.hf.nemotron_omni import in_transformers_form
from stentor.engine.model_config.towers.media_spec import media_spec

from .model_files import ModelFiles
from .own_processor import OwnProcessor
from .processor_name import FILES

transformers: Any = untyped_transformers

_LEAST_SAMPLES: Final = 8000
"""Of a sound for Qwen3-ASR."""
_FRAMES_A_TOKEN: Final = 8
"""Frames of a Voxtral token: two for a convolution's step, times four."""
_FRAMES_A_POSITION: Final = 2
"""Frames of a position of Ultravox's encoder."""
_UNITS_A_SECOND: Final = 25
"""Speech units of FunAudioChat, by which it counts sounds; the model gets none of them."""


class Qwen3ASRProcessor(transformers.Qwen3ASRProcessor):  # type: ignore[misc]
    """Each second of audio is processed separately; three convolutions reduce it to an eighth. The last second is
    filled up, and so is audio shorter than half of one."""

    def _process_audio(self, audio: Any, n_window: int = 50, **arguments: Any) -> Any:
        filled = [np.pad(each, (0, max(0, _LEAST_SAMPLES - len(each)))) for each in audio]
        found, written = super()._process_audio(filled, n_window=n_window, **arguments)
        missing = -found["input_features"].shape[-1] % (2 * n_window)
        for name in ("input_features", "input_features_mask"):
            values = np.asarray(found[name])
            found[name] = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)])
        return found, written

    def _get_audio_token_length(self, audio_lengths: Any, n_window: int = 50) -> Any:
        seconds, rest = np.divmod(np.asarray(audio_lengths), 2 * n_window)
        for _ in range(3):
            rest = (rest - 1) // 2 + 1
        return seconds * 13 + rest


class VoxtralProcessor(OwnProcessor):
    """Audio is filled up with silence to whole pieces, which are encoded one by one."""

    audio_token = "[AUDIO]"

    def __init__(self, feature_extractor: Any = None) -> None:
        super().__init__(feature_extractor)

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


class _Windows(OwnProcessor):
    """Audio in windows of half a minute, of which the last is filled up; counted as one."""

    def __init__(
        self, feature_extractor: Any, audio_token: str, max_audio_len: float, tokens: Callable[[int], int]
    ) -> None:
        """``tokens`` maps a number of frames to tokens."""
        super().__init__(feature_extractor)
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


class MusicFlamingoProcessor(AudioFlamingo3Processor):
    """As for Audio Flamingo 3, with marks around a sound."""

    def __init__(
        self,
        feature_extractor: Any = None,
        audio_token: str = "<sound>",
        audio_bos_token: str = "<|sound_bos|>",
        audio_eos_token: str = "<|sound_eos|>",
        max_audio_len: float = 1200,
    ) -> None:
        super().__init__(feature_extractor, audio_token, max_audio_len)
        self._around = audio_bos_token, audio_eos_token

    def _process_audio(self, audio: Any, **arguments: Any) -> Any:
        tensors, (written,) = super()._process_audio(audio, **arguments)
        return tensors, [written.join(self._around)]


class GlmAsrProcessor(_Windows):
    def __init__(self, feature_extractor: Any = None, audio_token: str = "<|pad|>", max_audio_len: float = 655) -> None:
        super().__init__(feature_extractor, audio_token, max_audio_len, lambda frames: _halved(frames) // 4)


class MossTranscribeDiarizeProcessor(OwnProcessor):
    """Audio in windows of half a minute, each of which is filled up and becomes a whole number of tokens; the number of
    seconds stands between tokens every few of them."""

    def __init__(
        self,
        feature_extractor: Any = None,
        audio_token: str = "<|audio_pad|>",
        audio_tokens_per_second: float = 12.5,
        audio_merge_size: int = 4,
        time_marker_every_seconds: int = 2,
    ) -> None:
        super().__init__(feature_extractor)
        self.audio_token = audio_token
        self._rate, self._merged, self._every = audio_tokens_per_second, audio_merge_size, time_marker_every_seconds

    def _process_audio(self, audio: Any, **arguments: Any) -> Any:
        (samples,), extractor = audio, self.feature_extractor
        found = extractor([samples], **arguments)
        frames = np.asarray(found["input_features_mask"])
        count = sum(-(-_halved(int(each)) // self._merged) for each in frames.sum(1))
        tensors = {
            "input_features": np.asarray(found["input_features"]),
            "input_features_mask": frames,
            "padding_mask": np.ones((1, 1), np.int64),  # it is not read
        }
        return tensors, [self._marked(count)]

    def _marked(self, count: int) -> str:
        step = int(self._rate * self._every)
        if step <= 0:
            return self.audio_token * count
        whole = int(count / self._rate) // self._every
        marked = (f"{self.audio_token * step}{(place + 1) * self._every}" for place in range(whole))
        return "".join(marked) + self.audio_token * (count - whole * step)

    @property
    def unused_input_names(self) -> list[str]:
        return []


def _halved(frames: int) -> int:
    return (frames - 1) // 2 + 1


class GraniteSpeechProcessor(OwnProcessor):
    """Mel features as torchaudio makes them, two frames beside each other; a window of these becomes a few tokens."""

    _SETTINGS: Final = {
        "sampling_rate": 16_000,
        "n_fft": 512,
        "win_length": 400,
        "hop_length": 160,
        "n_mels": 80,
        "projector_window_size": 15,
        "projector_downsample_rate": 5,
    }

    def __init__(self, audio_token: str = "<|audio|>", settings: Mapping[str, int] | None = None) -> None:
        """``settings``: those that are not as in published models."""
        super().__init__()
        self.audio_token = audio_token
        self._set: Mapping[str, int] = {**self._SETTINGS, **(settings or {})}

    @classmethod
    def of(cls, folder: Path) -> "GraniteSpeechProcessor":
        """From the files of a model."""
        said: dict[str, Any] = {}
        for name in reversed(FILES):
            file = folder / name
            whole = json.loads(file.read_text()) if file.is_file() else {}
            for part in (whole, whole.get("feature_extractor"), whole.get("audio_processor")):
                said |= {**(part or {}), **(part or {}).get("melspec_kwargs", {})}
        token, settings = said.get("audio_token"), {name: int(said[name]) for name in cls._SETTINGS if said.get(name)}
        return cls(token, settings) if isinstance(token, str) else cls(settings=settings)

    @property
    def feature_extractor(self) -> Any:
        """Itself: it also is the feature extractor."""
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


class UltravoxProcessor(OwnProcessor):
    """Log-mel frames as for Whisper, in windows; the last window of a long sound is padded with zeros. The checkpoint's
    own processor does the same."""

    audio_token = "<|audio|>"

    def __init__(
        self,
        feature_extractor: Any = None,
        placeholder: str = "",
        stack_factor: int = 8,
        audio_context_size: int = 3000,
    ) -> None:
        super().__init__(feature_extractor)
        self._placeholder = placeholder
        self._window, self._stack = audio_context_size, stack_factor

    @classmethod
    def of(cls, folder: Path) -> "UltravoxProcessor":
        """From the files of a model."""
        files = ModelFiles(folder)
        config, settings = files.read("config.json"), files.read("processor_config.json")
        audio = config.get("audio_config") or {}
        return cls(
            transformers.WhisperFeatureExtractor(feature_size=int(audio.get("num_mel_bins", 80))),
            sound_token(folder, config),
            int(config.get("stack_factor") or 8),
            int(settings.get("audio_context_size") or 3000),
        )

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


class FunAudioChatProcessor(OwnProcessor):
    """Log-mel frames as Whisper has them of a sound with silence behind it, in windows that are encoded one by one."""

    def __init__(self, feature_extractor: Any = None) -> None:
        super().__init__(feature_extractor)
        self._placeholder = ""
        self._window, self._group = 200, 5
        self._around = "<|audio_bos|>", "<|audio_eos|>"

    @classmethod
    def of(cls, folder: Path) -> "FunAudioChatProcessor":
        """From the files of a model."""
        config = ModelFiles(folder).read("config.json")
        audio = config.get("audio_config") or {}
        made = cls(transformers.WhisperFeatureExtractor.from_pretrained(folder))
        made._window = 2 * int(audio.get("n_window") or 100)
        made._group = int(audio.get("group_size") or 5)
        made._placeholder = sound_token(folder, config)
        return made

    @property
    def audio_token(self) -> str:
        """The text of a sound, with the marks around it."""
        return self._placeholder.join(self._around)

    def _process_audio(self, audio: Any, **arguments: Any) -> Any:
        (samples,), extractor = audio, self.feature_extractor
        if len(samples) > extractor.n_samples:
            raise ValueError(f"it takes {extractor.n_samples / extractor.sampling_rate:g} seconds at most")
        samples = np.pad(samples, (0, max(0, extractor.n_fft - len(samples))))
        frames = -(-len(samples) // extractor.hop_length)
        settings = {"padding": "longest", "pad_to_multiple_of": extractor.hop_length, "truncation": False}
        silent = np.pad(samples, (0, extractor.n_fft))  # the last frame includes samples behind the end
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


def sound_token(folder: Path, config: Mapping[str, Any]) -> str:
    """Raises ValueError where the model's files name none."""
    spec = media_spec(config)
    if spec is None or "audio" not in spec.placeholders:
        raise ValueError("config.json has no audio_token_index, expected the token that stands for sounds")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    found: str = tokenizer.convert_ids_to_tokens(spec.placeholders["audio"])
    return found


def _to_bfloat16(values: Any) -> Any:
    """The nearest values of bfloat16, ties to even ones."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return nearest.view(np.float32).astype(np.float64)


_ROUNDED: Final[Mapping[str, Callable[[Any], Any]]] = {"float32": np.asarray, "bfloat16": _to_bfloat16}
"""What the type of window and filters makes of these."""


class ParakeetSounds:
    """Log-mel frames of sounds, each band normed over the sound, as Parakeet's encoder takes them."""

    def __init__(self, **settings: Any) -> None:
        told = {"sampling_rate": 16_000, "n_fft": 512, "win_length": 400, "hop_length": 160, "feature_size": 80}
        self._hop, self._fft, self.sampling_rate, window, bands = (
            int(settings.get(name) or told[name])
            for name in ("hop_length", "n_fft", "sampling_rate", "win_length", "feature_size")
        )
        self._rounded = _ROUNDED[settings.get("mel_filters_dtype") or "float32"]
        emphasis = settings.get("preemphasis", 0.97)
        self._emphasis = 0.0 if emphasis is None else float(emphasis)
        beside = self._fft - window
        self._window = self._rounded(np.pad(np.hanning(window), (beside // 2, beside - beside // 2)))
        rate = self.sampling_rate
        self._filters = self._rounded(
            mel_filter_bank(self._fft // 2 + 1, bands, 0.0, rate / 2, rate, norm="slaney", mel_scale="slaney")
        )

    @classmethod
    def of(cls, files: ModelFiles) -> "ParakeetSounds | None":
        """From the files of a model; None if it has no encoder of sounds."""
        encoder = in_transformers_form(files.read("config.json")).get("audio_config")
        if not isinstance(encoder, Mapping):
            return None
        told = {"feature_size": encoder.get("num_mel_bins"), "sampling_rate": encoder.get("sampling_rate")}
        for name in reversed(FILES):
            told |= files.read(name).get("feature_extractor") or {}
        return cls(**told)

    def frames(self, samples: Any) -> tuple[Any, int]:
        """Log-mel frames, float64 [frames, bands], and how many are the sound's: the last one is not. Raises
        ValueError."""
        waveform = np.asarray(samples, np.float64)
        frames = len(waveform) // self._hop
        if frames < 2:
            raise ValueError(f"it is too short: it has {len(waveform)} samples, expected at least {2 * self._hop}")
        waveform = np.concatenate((waveform[:1], waveform[1:] - self._emphasis * waveform[:-1]))
        mel = spectrogram(
            *(waveform, self._window, self._fft, self._hop),
            fft_length=self._fft,
            power=2.0,
            pad_mode="constant",
            mel_filters=self._filters,
            mel_floor=0.0,
            dtype=np.dtype(np.float64),
        )
        return np.log(mel + 2.0**-24).T, frames

    def __call__(self, samples: Any) -> tuple[dict[str, Any], int]:
        """Tensors of a sound, and how many embeddings the encoder makes of it. Raises ValueError."""
        values, frames = self.frames(samples)
        there = values[:frames]
        values = (values - there.mean(0)) / (there.std(0, ddof=1) + 1e-5)
        mask = np.arange(len(values)) < frames
        count = len(values)
        for _ in range(3):  # convolutions of every second frame
            count = (count - 1) // 2 + 1
        features = (values * mask[:, None]).astype(np.float32)
        return {"input_features": features[None], "input_features_mask": mask[None]}, count
