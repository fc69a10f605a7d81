"""Describes SeamlessM4T (arXiv:2308.11596) and its second version (arXiv:2312.05187) as a model that transcribes and
translates speech: a Conformer over filter banks joined in pairs, an adapter that joins positions, and NLLB's decoder.
Torch-free."""

from collections.abc import Mapping
from typing import Final

import msgspec

from stentor.protocols.ipc.audio import MAX_WINDOW_SECONDS, SAMPLE_RATE

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..seq2seq.seamless import (
    MODEL_TYPES,
    SECOND,
    TEXT_NAMES,
    seamless_ends,
    seamless_longest,
    seamless_stack,
    version_of,
)
from ..seq2seq.text import UNUSED_PART, Decoding, Rename, Stack, renamed
from ..spec.mlp import MLPSpec
from .encoder_decoder import LONGEST_TRANSCRIPT, EncoderDecoderConfig
from .fast_conformer import ConformerSpec, KeyDistances
from .moonshine import activation_of

SPEECH_TO_TEXT: Final = tuple(
    f"{version}{which}" for version in MODEL_TYPES for which in ("ForSpeechToText", "Model", "ForSpeechToSpeech")
)
"""Architectures; files of the whole model serve speech to text too."""
_HOP, _FRAME, _JOINED = 160, 400, 2
FEWEST_SAMPLES: Final = _FRAME + _HOP
"""Of two frames, which are a position; shorter audio is filled with silence."""
_MOST_SAMPLES: Final = MAX_WINDOW_SECONDS * SAMPLE_RATE
_MOST_WIDTH: Final = 1023
_SPEECH: Final = "model.encoder"
_NAMES: Final = (
    Rename(r"text_encoder\..+", UNUSED_PART),
    *TEXT_NAMES,
    *(
        Rename(rf"speech_encoder\.encoder\.layers\.(\d+)\.{theirs}", rf"{_SPEECH}.layers.\1.{ours}")
        for theirs, ours in (
            (r"ffn([12])_layer_norm(?=\.)", r"norm_feed_forward\2"),
            (r"ffn([12])\.intermediate_dense(?=\.)", r"feed_forward\2.linear1"),
            (r"ffn([12])\.output_dense(?=\.)", r"feed_forward\2.linear2"),
            (r"self_attn_layer_norm(?=\.)", "norm_self_att"),
            (r"self_attn\.linear_([qkv])(?=\.)", r"self_attn.\2_proj"),
            (r"self_attn\.linear_out(?=\.)", "self_attn.o_proj"),
            (r"self_attn\.linear_pos(?=\.)", "self_attn.relative_k_proj"),
            (r"self_attn\.pos_bias_(?=[uv])", "self_attn.bias_"),
            (r"conv_module\.layer_norm(?=\.)", "norm_conv"),
            (r"conv_module\.(?:depthwise_layer|batch)_norm(?=\.)", "conv.norm"),
            (r"conv_module(?=\.)", "conv"),
            (r"final_layer_norm(?=\.)", "norm_out"),
        )
    ),
    Rename(r"speech_encoder\.encoder\.layer_norm(?=\.)", f"{_SPEECH}.layers_norm"),
    Rename(r"speech_encoder\.encoder(?=\.)", _SPEECH),
    Rename(r"speech_encoder(?=\.)", _SPEECH),
    Rename(r"(t2u_model|vocoder)\..+", UNUSED_PART),
)


class AdapterSpec(msgspec.Struct, frozen=True):
    """Layers behind the Conformer, each of which joins positions by convolutions and attends to all of them."""

    layers: int
    width: int
    stride: int

    @property
    def pad(self) -> int:
        """Positions of zeros on either side."""
        return self.stride // 2

    def positions(self, count: int) -> int:
        """How many are left of so many."""
        for _ in range(self.layers):
            count = (count + 2 * self.pad - self.width) // self.stride + 1
        return count


class SeamlessConfig(Decoding, EncoderDecoderConfig, frozen=True, kw_only=True):
    """A window has as many positions as audio."""

    decoder_stack: Stack
    encoder: ConformerSpec
    adapter: AdapterSpec
    mel_bins: int
    norm_eps: float
    """Of the norms before and behind the Conformer."""

    @property
    def samples(self) -> int:
        return _MOST_SAMPLES

    @property
    def frame_size(self) -> int:
        """Values of a joined pair of frames."""
        return _JOINED * self.mel_bins

    def network(self, name: str) -> MLPSpec:
        """A network of the adapter, or before it."""
        into, out = (f"{name}.intermediate_dense",), f"{name}.output_dense"
        return MLPSpec(self.encoder.intermediate_size, "relu", True, into, out, gated=False)

    def positions(self, samples: int) -> int:
        return self.adapter.positions(_pairs(samples))

    def name_of(self, stored: str) -> str:
        return renamed(stored, _NAMES)


def _pairs(samples: int) -> int:
    """Pairs of frames; one that is left over is not heard."""
    return ((max(samples, FEWEST_SAMPLES) - _FRAME) // _HOP + 1) // _JOINED


def seamless_config_from_hf(
    name: str, config: Mapping[str, object], generation: Mapping[str, object]
) -> SeamlessConfig:
    """Read the config.json of the architecture ``name`` and a generation_config.json, which may be empty.

    Raises :class:`ConfigError` for a missing or wrong field.
    """
    fields = Fields(config)
    longest = min(seamless_longest(name, config), LONGEST_TRANSCRIPT)
    stack = seamless_stack(name, config, "decoder", longest)
    layers = stack.layers
    adapter, size = _adapter(fields), fields.integer("feature_projection_input_dim", 160, most=2048)
    if size % _JOINED:
        raise ConfigError(f"feature_projection_input_dim is {size}, expected that of two frames")
    return SeamlessConfig(
        architecture=name,
        vocab_size=layers.vocab_size,
        hidden_size=layers.hidden_size,
        source_positions=adapter.positions(_pairs(_MOST_SAMPLES)),
        num_layers=len(layers.layers),
        num_heads=layers.layers[0].attention.heads,
        max_position=longest,
        bos_token_id=fields.token_id("bos_token_id"),
        eos_token_ids=seamless_ends(name, config, generation),
        decoder_stack=stack,
        encoder=_conformer(name, fields, layers.hidden_size),
        adapter=adapter,
        mel_bins=size // _JOINED,
        norm_eps=fields.positive("layer_norm_eps", 1e-5),
    )


def _conformer(name: str, fields: Fields, hidden: int) -> ConformerSpec:
    second = version_of(name) == SECOND
    heads, width = (
        fields.integer("speech_encoder_attention_heads", 16),
        fields.integer("conv_depthwise_kernel_size", 31),
    )
    if hidden % (2 * heads):
        raise ConfigError(f"{hidden} dimensions do not divide among {heads} heads of the speech encoder")
    if width % 2 == 0 or width > _MOST_WIDTH:
        raise ConfigError(f"conv_depthwise_kernel_size is {width}, expected an odd number up to {_MOST_WIDTH}")
    expected = "relative_key" if second else "relative"
    if (kind := fields.text("position_embeddings_type", expected)) != expected:
        raise ConfigError(f"position_embeddings_type is {kind!r}, expected {expected!r}")
    whole = _pairs(_MOST_SAMPLES)
    if second and (chunk := fields.integer("speech_encoder_chunk_size", 20_000)) < whole:
        raise ConfigError(f"speech_encoder_chunk_size is {chunk}, expected at least {whole}, all of a window")
    keys = None
    if second:
        ends = (("left_max_position_embeddings", 64), ("right_max_position_embeddings", 8))
        keys = KeyDistances(*(fields.integer(end, default, least=0, most=1 << 16) for end, default in ends))
    return ConformerSpec(
        hidden_size=hidden,
        layers=fields.integer("speech_encoder_layers", 24, most=MOST_LAYERS),
        heads=heads,
        intermediate_size=fields.integer("speech_encoder_intermediate_size", 4096),
        activation=activation_of(fields, "speech_encoder_hidden_act", "silu"),
        bias=True,
        convolution_bias=False,
        width=width,
        keys=keys,
    )


def _adapter(fields: Fields) -> AdapterSpec:
    if not fields.flag("add_adapter", True):
        raise ConfigError("add_adapter is off, expected a speech encoder with an adapter")
    width, stride = (fields.integer(f"adaptor_{which}", 8, most=256) for which in ("kernel_size", "stride"))
    layers = fields.integer("num_adapter_layers", 1, most=MOST_LAYERS)
    if width // 2 != stride // 2:
        raise ConfigError(f"adaptor_kernel_size is {width} and adaptor_stride {stride}, expected the same")
    found = AdapterSpec(layers, width, stride)
    if found.positions(1) < 1:
        raise ConfigError(f"adaptor_kernel_size is {width}, and nothing is left of a position")
    return found
