"""Common parts of config.json readers: uniform layers, and which of them have a window."""

from collections.abc import Mapping, Sequence

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.attention import AttentionSpec
from ..spec.layer import LayerSpec
from ..spec.mlp import Activation, MLPSpec
from ..spec.model import LayerType, ModelSpec, alternating_layers, with_mixers
from ..spec.positions import RopeConfig
from .rope import rope_from_hf, stretched_context

_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "xielu": "xielu",
}

_LAYER_TYPES: Mapping[str, LayerType] = {"full_attention": "full", "sliding_attention": "sliding"}


def check_silu(fields: Fields, field: str = "hidden_act") -> None:
    """Check the activation of recurrent layers' convolutions and gates. Raises :class:`ConfigError`."""
    if (activation := fields.text(field, "silu")) not in ("silu", "swish"):
        raise ConfigError(f"{field} is {activation!r}, expected 'silu'")


def expect(fields: Fields, known: Mapping[str, object]) -> None:
    """Raises :class:`ConfigError` if a field has another value than the ``known`` one, which a missing field has."""
    for field, value in known.items():
        found = fields.get(field)
        if found is not None and (found != value or isinstance(found, bool) is not isinstance(value, bool)):
            raise ConfigError(f"{field} is {_spelled(found)}, expected {_spelled(value)}: no other form is known")


def _spelled(value: object) -> str:
    return repr(value)[:40].lower() if isinstance(value, bool) else repr(value)[:40]


def renamed(fields: Fields, names: Mapping[str, str], **defaults: object) -> Fields:
    """The fields under their usual names too. ``names``: the usual name by that of the file, which comes first."""
    found = {usual: fields.get(own) for own, usual in names.items() if fields.has(own)}
    return Fields({**defaults, **fields.values, **found})


def with_defaults(fields: Fields, **defaults: object) -> Fields:
    """The fields with values for those that are missing or null."""
    return Fields({**fields.values, **{name: value for name, value in defaults.items() if not fields.has(name)}})


def gelu_tanh(fields: Fields) -> str:
    """The activation of a Gemma whose layers have an embedding of each token. Raises :class:`ConfigError`."""
    activation = fields.text("hidden_activation", "gelu_pytorch_tanh")
    if activation not in ("gelu_pytorch_tanh", "gelu_new", "gelu_fast"):
        raise ConfigError(f"hidden_activation is {activation!r}, expected 'gelu_pytorch_tanh'")
    return activation


def common(
    fields: Fields,
    name: str,
    *,
    head_dim: int | None = None,
    eps: float = 1e-6,
    theta: float = 10000.0,
    activation: str = "silu",
    eps_field: str = "rms_norm_eps",
) -> ModelSpec:
    """The spec of uniform layers, from the fields that all architectures share.

    The options are defaults: ``head_dim`` if it does not follow from the sizes, ``theta`` the rotary base.
    ``eps_field``: name of the norms' epsilon.
    """
    hidden = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", head_dim or max(1, hidden // heads))
    rope = rope_from_hf(fields.values, head_dim, theta=theta)
    layer = LayerSpec(
        AttentionSpec(
            heads=heads,
            kv_heads=fields.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=rope,
        ),
        MLPSpec(fields.integer("intermediate_size"), activation_of(fields, "hidden_act", activation)),
    )
    return ModelSpec(
        architecture=name,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        layers=(layer,) * fields.integer("num_hidden_layers", most=MOST_LAYERS),
        max_position=stretched_context(rope, fields.integer("max_position_embeddings")),
        norm_eps=fields.number(eps_field, eps),
        tie_embeddings=fields.flag("tie_word_embeddings"),
        bos_token_id=fields.token_id("bos_token_id"),
        eos_token_ids=fields.token_ids("eos_token_id"),
    )


def activation_of(fields: Fields, field: str, default: str) -> Activation:
    """The activation that a field names. Raises :class:`ConfigError` for an unknown one."""
    return fields.one_of(field, _ACTIVATIONS, default)


def attention_bias(fields: Fields, spec: ModelSpec) -> ModelSpec:
    bias = fields.flag("attention_bias")
    return with_mixers(spec, qkv_bias=bias, output_bias=bias)


def local_rope(fields: Fields, head_dim: int, theta: float) -> RopeConfig:
    """Rotary settings of layers with a window, without the file's top-level extension; ``theta``: default base."""
    parameters = fields.table("rope_parameters") or {}
    local: Mapping[str, object] = Fields(parameters).table("sliding_attention") or {}
    values = {
        "max_position_embeddings": fields.integer("max_position_embeddings"),
        "partial_rotary_factor": fields.get("partial_rotary_factor"),
        "rope_theta": theta,
        "rope_parameters": local,
    }
    return rope_from_hf(values, head_dim)


def clip_of(fields: Fields) -> float:
    """The bound of queries, keys and values; null means none (0)."""
    return fields.positive("clip_qkv", 0.0) if fields.has("clip_qkv") else 0.0


def softcap_of(fields: Fields, name: str, default: float) -> float:
    """The soft cap; null means none, and a missing field the default."""
    return fields.number(name, 0.0 if name in fields.values else default)


def sliding_layers(fields: Fields) -> list[bool]:
    """Which layers have a window; empty if the file does not say."""
    named = fields.texts("layer_types") or ()
    unknown = next((kind for kind in named if kind not in _LAYER_TYPES), None)
    if unknown is not None:
        raise ConfigError(f"layer_types holds {unknown!r}, expected {' or '.join(_LAYER_TYPES)}")
    return [_LAYER_TYPES[kind] == "sliding" for kind in named]


def alternating(spec: ModelSpec, period: int) -> list[bool]:
    return [kind == "sliding" for kind in alternating_layers(len(spec.layers), period)]


def window_of(fields: Fields, default: int = 4096) -> int:
    """The window; null means none (0), and a missing field the default."""
    return fields.integer("sliding_window", 0 if "sliding_window" in fields.values else default, least=0)


def slide(spec: ModelSpec, window: int, slides: Sequence[bool] | None = None) -> ModelSpec:
    """The spec with a window in all layers, or in ``slides``. A window longer than the context counts as none."""
    return with_mixers(spec, slides, window=window if window < spec.max_position else 0)
