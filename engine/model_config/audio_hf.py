"""From a config.json to an :class:`.audio_spec.AudioSpec`: a reader for each family that hears by our own layers.
Torch-free."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from .audio_spec import AudioSpec, SoundGroups
from .config_fields import MOST_LAYERS, ConfigError, Fields
from .model_spec import LayerSpec
from .vision_fields import activation_of
from .vision_spec import ProjectorNorm, ProjectorProduct, ProjectorSpec
from .whisper_config import MOST_MEL_BINS, MOST_POSITIONS, whisper_layer

_MOST_STACKED: Final = 1 << 10


class _Sizes(NamedTuple):
    """Of an encoder whose files leave them out."""

    width: int
    heads: int
    inner: int
    layers: int
    mel_bins: int


def audio_spec_from_hf(config: Mapping[str, object], hidden: int) -> AudioSpec:
    """``hidden``: the decoder's hidden size. Raises :class:`.config_fields.ConfigError` for one that is not known here,
    naming the field."""
    whole = Fields(config)
    kind = whole.text("model_type", "")
    audio = whole.table("audio_config")
    if kind not in _READERS or audio is None:
        raise ConfigError(f"the encoder of sounds of {kind or 'a model without model_type'} is not native")
    spec = _READERS[kind](whole, Fields(audio), hidden)
    spec.check()
    return spec


class _Whisper(NamedTuple):
    """What Whisper's encoder and its descendants say alike."""

    width: int
    layers: tuple[LayerSpec, ...]
    mel_bins: int
    positions: int


def _whisper(audio: Fields, sizes: _Sizes) -> _Whisper:
    width = audio.integer("d_model", sizes.width)
    heads = audio.integer("encoder_attention_heads", sizes.heads)
    if width % heads:
        raise ConfigError(f"{width} dimensions do not divide among {heads} heads of the encoder")
    layer = whisper_layer(width, heads, audio.integer("encoder_ffn_dim", sizes.inner))
    return _Whisper(
        width,
        (layer,) * audio.integer("encoder_layers", sizes.layers, most=MOST_LAYERS),
        audio.integer("num_mel_bins", sizes.mel_bins, most=MOST_MEL_BINS),
        audio.integer("max_source_positions", 1500, most=MOST_POSITIONS),
    )


def _ultravox(whole: Fields, audio: Fields, hidden: int) -> AudioSpec:
    for name in ("audio_latency_block_size", "num_projector_layers"):
        if whole.integer(name, 0, least=0):
            raise ConfigError(f"{name} is {whole.get(name)}, expected none")
    kind = audio.text("model_type", "whisper")
    if kind != "whisper" or audio.text("activation_function", "gelu") != "gelu" or audio.flag("scale_embedding"):
        raise ConfigError("audio_config is not that of a Whisper encoder with gelu and no factor of its embeddings")
    encoder = _whisper(audio, _Sizes(384, 6, 1536, 4, 80))
    return AudioSpec(
        architecture=whole.text("model_type"),
        vocab_size=0,
        hidden_size=encoder.width,
        layers=encoder.layers,
        max_position=encoder.positions,
        norm_eps=1e-5,
        prefix="layers",
        mel_bins=encoder.mel_bins,
        stack=whole.integer("stack_factor", 8, most=_MOST_STACKED),
        projector=_ultravox_projector(whole, hidden),
    )


def _ultravox_projector(whole: Fields, hidden: int) -> ProjectorSpec:
    """A norm stands behind the first product since version 0.5, and behind the second before."""
    inner = whole.integer("hidden_size", 4096)
    gated = whole.text("projector_act", "swiglu") == "swiglu"
    middle = whole.flag("projector_ln_mid")
    norm = ProjectorNorm(f"projector.ln_{'mid' if middle else 'post'}", "rms", 1e-6)
    first = ProjectorProduct(
        "projector.linear_1",
        inner // (1 + gated),
        False,
        "silu" if gated else activation_of(whole, "projector_act", "swiglu"),
        gated_by_half=gated,
        norm=norm if middle else None,
        norm_last=middle,
    )
    second = ProjectorProduct("projector.linear_2", hidden, False, norm=None if middle else norm)
    return ProjectorSpec((first, second), norm=ProjectorNorm("projector.ln_pre", "rms", 1e-6))


def _funaudiochat(whole: Fields, audio: Fields, hidden: int) -> AudioSpec:
    """Units of speech that the model writes itself are of no prompt: a sound's own are all one, which fills up."""
    encoder = _whisper(audio, _Sizes(1280, 20, 5120, 32, 128))
    window = audio.integer("n_window", 100, most=MOST_POSITIONS)
    outputs = audio.integer("output_dim", 3584)
    if audio.text("activation_function", "gelu") != "gelu":
        raise ConfigError("activation_function of audio_config is not gelu")
    if outputs != hidden:
        raise ConfigError(f"output_dim of audio_config is {outputs}, and the decoder's hidden size {hidden}")
    if window > encoder.positions:
        raise ConfigError(f"n_window is {window}, expected at most the {encoder.positions} of max_source_positions")
    adds = audio.text("continuous_features_mode", "replace") == "add"
    return AudioSpec(
        architecture=whole.text("model_type"),
        vocab_size=0,
        hidden_size=encoder.width,
        layers=encoder.layers,
        max_position=window,
        norm_eps=1e-5,
        prefix="layers",
        mel_bins=encoder.mel_bins,
        projector=ProjectorSpec((ProjectorProduct("proj", outputs, True),)),
        learned=False,
        final_norm="ln_post",
        groups=SoundGroups(
            audio.integer("group_size", 5, most=_MOST_STACKED),
            ProjectorProduct("continual_output_matching", hidden, False),
            ("embed_tokens", "output_matching") if adds else None,
            audio.integer("pad_token_id", 6563, least=0) if adds else 0,
        ),
    )


_READERS: Final[Mapping[str, Callable[[Fields, Fields, int], AudioSpec]]] = {
    "funaudiochat": _funaudiochat,
    "ultravox": _ultravox,
}
"""By the model type of the whole."""
NATIVE_ENCODERS: Final = frozenset(_READERS)
"""Model types that hear by our own layers."""
