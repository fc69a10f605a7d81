"""From a config.json to an :class:`.audio_spec.AudioSpec`: a reader for each family that hears by our own layers.
Torch-free."""

from collections.abc import Callable, Mapping
from typing import Final

from .audio_spec import AudioSpec
from .config_fields import MOST_LAYERS, ConfigError, Fields
from .vision_fields import activation_of
from .vision_spec import ProjectorNorm, ProjectorProduct, ProjectorSpec
from .whisper_config import MOST_MEL_BINS, MOST_POSITIONS, whisper_layer

_MOST_STACKED: Final = 1 << 10


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


def _ultravox(whole: Fields, audio: Fields, hidden: int) -> AudioSpec:
    for name in ("audio_latency_block_size", "num_projector_layers"):
        if whole.integer(name, 0, least=0):
            raise ConfigError(f"{name} is {whole.get(name)}, expected none")
    kind = audio.text("model_type", "whisper")
    if kind != "whisper" or audio.text("activation_function", "gelu") != "gelu" or audio.flag("scale_embedding"):
        raise ConfigError("audio_config is not that of a Whisper encoder with gelu and no factor of its embeddings")
    width = audio.integer("d_model", 384)
    heads, inner = audio.integer("encoder_attention_heads", 6), audio.integer("encoder_ffn_dim", 1536)
    if width % heads:
        raise ConfigError(f"{width} dimensions do not divide among {heads} heads of the encoder")
    return AudioSpec(
        architecture=whole.text("model_type"),
        vocab_size=0,
        hidden_size=width,
        layers=(whisper_layer(width, heads, inner),) * audio.integer("encoder_layers", 4, most=MOST_LAYERS),
        max_position=audio.integer("max_source_positions", 1500, most=MOST_POSITIONS),
        norm_eps=1e-5,
        prefix="layers",
        mel_bins=audio.integer("num_mel_bins", 80, most=MOST_MEL_BINS),
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


_READERS: Final[Mapping[str, Callable[[Fields, Fields, int], AudioSpec]]] = {"ultravox": _ultravox}
"""By the model type of the whole."""
NATIVE_ENCODERS: Final = frozenset(_READERS)
"""Model types that hear by our own layers."""
