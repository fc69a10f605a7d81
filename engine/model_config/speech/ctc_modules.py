"""Reads the config.json of transcription models with a CTC head whose layers are transformers' modules: wav2vec 2.0 and
its relatives. Torch-free; transformers reads all other fields, in the worker."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from stentor.protocols.ipc.audio import MAX_WINDOW_SECONDS, SAMPLE_RATE

from ..config_fields import ConfigError, Fields

Features = Literal["Wav2Vec2FeatureExtractor", "SeamlessM4TFeatureExtractor", "LasrFeatureExtractor"]
"""transformers' class that makes the modules' input of samples."""

_STRIDES: Final = (5, 2, 2, 2, 2, 2, 2)
_KERNELS: Final = (10, 3, 3, 3, 3, 2, 2)
_SEW_STRIDES: Final = (5, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1)
_SEW_KERNELS: Final = (10, 3, 1, 3, 1, 3, 1, 3, 1, 2, 1, 2, 1)
_MOST_CONVOLUTIONS: Final = 64
_MOST_STRIDE: Final = 64
_MOST_SAMPLES_A_POSITION: Final = SAMPLE_RATE // 2
_HOP: Final = 160
"""Samples between frames of a spectrogram."""
_FRAME: Final = 400
"""Samples that a frame sees."""
_SHORTEST: Final = SAMPLE_RATE // 10


@dataclass(frozen=True)
class ModulesEncoderSpec:
    """An encoder with its head: transformers' class makes scores of tokens from a window of samples."""

    module: str
    """transformers' class name."""
    features: Features
    samples_a_position: int
    fewest_samples: int
    """Shorter windows are filled with silence."""
    described: Mapping[str, object] = field(compare=False)
    """The config.json."""

    def positions(self, samples: int) -> int:
        """Most positions of a window of ``samples``."""
        return -(-max(samples, self.fewest_samples) // self.samples_a_position)


class ModulesFamily(NamedTuple):
    """What a config.json of one of transformers' classes does not say."""

    model_type: str
    features: Features
    sizes: Callable[[Fields], tuple[int, int]]
    """Samples of a position, and fewest samples."""
    vocab_size: int = 32


def _waves(fields: Fields, strides: tuple[int, ...] = _STRIDES, kernels: tuple[int, ...] = _KERNELS) -> tuple[int, int]:
    """Of convolutions over samples."""
    return _adapted(fields, *_seen(_whole(fields, "conv_stride", strides), _whole(fields, "conv_kernel", kernels)))


def _frames(fields: Fields) -> tuple[int, int]:
    """Of a spectrogram whose frames are joined in pairs."""
    return _adapted(fields, 2 * _HOP, _FRAME + _HOP)


def _convolved_frames(fields: Fields) -> tuple[int, int]:
    """Of two convolutions over a spectrogram."""
    encoder = Fields(fields.table("encoder_config") or {})
    stride = encoder.integer("subsampling_conv_stride", 2, most=_MOST_STRIDE)
    kernel = encoder.integer("subsampling_conv_kernel_size", 5, most=_MOST_STRIDE)
    step, seen = _seen((stride, stride), (kernel, kernel))
    return _HOP * step, _FRAME + _HOP * (seen - 1)


def _seen(strides: tuple[int, ...], kernels: tuple[int, ...]) -> tuple[int, int]:
    """The steps between positions behind convolutions, and the inputs that the first position sees."""
    if len(strides) != len(kernels):
        raise ConfigError(f"conv_stride has {len(strides)} numbers and conv_kernel {len(kernels)}, expected as many")
    step, seen = 1, 1
    for stride, kernel in zip(strides, kernels, strict=True):
        seen += (kernel - 1) * step
        step *= stride
    return step, seen


def _adapted(fields: Fields, step: int, seen: int) -> tuple[int, int]:
    """Behind the convolutions over positions that ``add_adapter`` asks for."""
    if not fields.flag("add_adapter"):
        return step, seen
    stride = fields.integer("adapter_stride", 2, most=_MOST_STRIDE)
    layers = 1 if fields.text("model_type", "") == "wav2vec2-bert" else 3
    factor = stride ** fields.integer("num_adapter_layers", layers, most=_MOST_CONVOLUTIONS)
    return step * factor, seen + step * factor


def _whole(fields: Fields, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    given = fields.numbers(name) if fields.has(name) else default
    found = tuple(int(each) for each in given)
    most = max(found, default=0)
    if not 0 < len(found) <= _MOST_CONVOLUTIONS or found != tuple(given) or min(found) < 1 or most > _MOST_STRIDE:
        raise ConfigError(
            f"{name} is {list(given)[:8]}, expected up to {_MOST_CONVOLUTIONS} whole numbers from 1 to {_MOST_STRIDE}"
        )
    return found


def _squeezed(fields: Fields) -> tuple[int, int]:
    step, seen = _waves(fields, _SEW_STRIDES, _SEW_KERNELS)
    squeeze = fields.integer("squeeze_factor", 2, most=_MOST_STRIDE)
    return step, seen + step * (squeeze - 1)


MODULES: Final[Mapping[str, ModulesFamily]] = {
    "Wav2Vec2ForCTC": ModulesFamily("wav2vec2", "Wav2Vec2FeatureExtractor", _waves),
    "HubertForCTC": ModulesFamily("hubert", "Wav2Vec2FeatureExtractor", _waves),
    "WavLMForCTC": ModulesFamily("wavlm", "Wav2Vec2FeatureExtractor", _waves),
    "Wav2Vec2BertForCTC": ModulesFamily("wav2vec2-bert", "SeamlessM4TFeatureExtractor", _frames, 0),
    "Wav2Vec2ConformerForCTC": ModulesFamily("wav2vec2-conformer", "Wav2Vec2FeatureExtractor", _waves, 0),
    "UniSpeechForCTC": ModulesFamily("unispeech", "Wav2Vec2FeatureExtractor", _waves),
    "UniSpeechSatForCTC": ModulesFamily("unispeech-sat", "Wav2Vec2FeatureExtractor", _waves),
    "Data2VecAudioForCTC": ModulesFamily("data2vec-audio", "Wav2Vec2FeatureExtractor", _waves),
    "SEWForCTC": ModulesFamily("sew", "Wav2Vec2FeatureExtractor", _squeezed),
    "SEWDForCTC": ModulesFamily("sew-d", "Wav2Vec2FeatureExtractor", _squeezed),
    "LasrForCTC": ModulesFamily("lasr_ctc", "LasrFeatureExtractor", _convolved_frames, 512),
}
"""By name in ``architectures``."""


def modules_encoder(name: str, config: Mapping[str, object]) -> tuple[ModulesEncoderSpec, int]:
    """The encoder of a config.json of architecture ``name``, and the size of its vocabulary.

    Raises :class:`ConfigError` for a missing or wrong field.
    """
    fields, family = Fields(config), MODULES[name]
    step, fewest = family.sizes(fields)
    if step > _MOST_SAMPLES_A_POSITION or fewest > MAX_WINDOW_SECONDS * SAMPLE_RATE:
        raise ConfigError(f"a position has {step / SAMPLE_RATE:.2f} s of audio, expected half a second at most")
    described = {"model_type": family.model_type, **config}
    vocab_size = fields.integer("vocab_size", family.vocab_size or None)
    return ModulesEncoderSpec(name, family.features, step, max(fewest, _SHORTEST), described), vocab_size
