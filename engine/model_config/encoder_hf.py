"""From a config.json to an :class:`EncoderConfig`, in transformers' words or those of a model's makers. Torch-free."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from .config_fields import LONGEST_CONTEXT, MOST_LAYERS, ConfigError, Fields
from .encoder_config import EncoderActivation, EncoderConfig, EncoderFamily, TaskAdapters
from .hf_rope import rope_from_hf
from .model_spec import LayerType, RopeConfig

_ACTIVATIONS: Mapping[str, EncoderActivation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "swiglu": "silu",
    "geglu": "gelu",
}


def encoder_config_from_hf(config: Mapping[str, object]) -> EncoderConfig:
    """Raises :class:`ConfigError`, naming the field, for what cannot be run."""
    fields = Fields(config)
    kind = fields.text("model_type", "")
    read = _READERS.get(kind)
    if read is None:
        raise ConfigError(f"{kind or 'a model without model_type'} is no encoder that is known")
    made = read(fields, config)
    if made.hidden_size % made.num_heads:
        raise ConfigError(f"{made.num_heads} heads do not divide {made.hidden_size} dimensions")
    if made.rope is not None and made.head_dim % 2:
        raise ConfigError(f"heads of {made.head_dim} dimensions cannot rotate")
    if made.layer_types and len(made.layer_types) != made.num_layers:
        raise ConfigError(f"types are given for {len(made.layer_types)} layers, expected {made.num_layers}")
    if made.gated:
        _ = made.gated_activation
    return made


def is_encoder(config: Mapping[str, object]) -> bool:
    """Whether a config.json describes one of these models."""
    return config.get("model_type") in _READERS


def _architecture(config: Mapping[str, object]) -> str:
    named = config.get("architectures")
    return str(named[0])[:80] if isinstance(named, list) and named else str(config.get("model_type"))


def _activation(fields: Fields, name: str, default: str = "gelu") -> EncoderActivation:
    given = fields.text(name, default)
    if given not in _ACTIVATIONS:
        raise ConfigError(f"{name} is {given[:40]!r}, expected one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[given]


def _bert(fields: Fields, config: Mapping[str, object]) -> EncoderConfig:
    kind = fields.text("position_embedding_type", "absolute")
    if kind == "rotary" and fields.text("model_type") == "xlm-roberta":  # the makers' own files of Jina's
        return _jina(fields, config)
    if kind != "absolute":
        raise ConfigError(f"position_embedding_type is {kind[:40]!r}, expected 'absolute'")
    is_roberta = fields.text("model_type") in _ROBERTAS
    # RoBERTa counts positions from behind the one of padding, which takes rows of the table
    offset = fields.integer("pad_token_id", 1, least=0) + 1 if is_roberta else 0
    longest = _positions(fields.integer("max_position_embeddings", most=LONGEST_CONTEXT), offset)
    family: EncoderFamily = "roberta" if is_roberta else "bert"
    bert = _common(fields, config, family, longest, 1e-5 if is_roberta else 1e-12)
    return replace(bert, position_offset=offset, token_types=fields.integer("type_vocab_size", 2, least=0))


def _common(
    fields: Fields, config: Mapping[str, object], family: EncoderFamily, max_position: int, norm_eps: float
) -> EncoderConfig:
    """What BERT and its relatives say in the same words."""
    return EncoderConfig(
        architecture=_architecture(config),
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers", most=MOST_LAYERS),
        num_heads=fields.integer("num_attention_heads"),
        max_position=max_position,
        norm_eps=fields.positive("layer_norm_eps", norm_eps),
        activation=_activation(fields, "hidden_act"),
    )


def _positions(rows: int, offset: int) -> int:
    """Of a table whose first ``offset`` rows stand for none."""
    if rows <= offset:
        raise ConfigError(f"max_position_embeddings is {rows}, expected more than {offset}")
    return rows - offset


def _distilbert(fields: Fields, config: Mapping[str, object]) -> EncoderConfig:
    return EncoderConfig(
        architecture=_architecture(config),
        family="distilbert",
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("dim"),
        intermediate_size=fields.integer("hidden_dim"),
        num_layers=fields.integer("n_layers", most=MOST_LAYERS),
        num_heads=fields.integer("n_heads"),
        max_position=fields.integer("max_position_embeddings", 512, most=LONGEST_CONTEXT),
        norm_eps=1e-12,
        activation=_activation(fields, "activation"),
    )


def _mpnet(fields: Fields, config: Mapping[str, object]) -> EncoderConfig:
    offset = 2
    longest = _positions(fields.integer("max_position_embeddings", 512, most=LONGEST_CONTEXT), offset)
    return replace(
        _common(fields, config, "mpnet", longest, 1e-12),
        position_offset=offset,
        relative_buckets=fields.integer("relative_attention_num_buckets", 32, least=4, most=4096),
    )


def _modernbert(fields: Fields, config: Mapping[str, object]) -> EncoderConfig:
    layers = fields.integer("num_hidden_layers", most=MOST_LAYERS)
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    given = config.get("layer_types")
    if isinstance(given, list):
        slides = [kind == "sliding_attention" for kind in given]
    else:
        every = fields.integer("global_attn_every_n_layers", 3)
        slides = [layer % every != 0 for layer in range(layers)]
    types: tuple[LayerType, ...] = tuple("sliding" if each else "full" for each in slides)

    def rope(layer_type: str, older: str, theta: float) -> RopeConfig:
        return rope_from_hf(config, hidden // heads, theta=fields.positive(older, theta), layer_type=layer_type)

    attention_bias, mlp_bias = fields.flag("attention_bias"), fields.flag("mlp_bias")
    return EncoderConfig(
        architecture=_architecture(config),
        family="modernbert",
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        max_position=fields.integer("max_position_embeddings", 8192, most=LONGEST_CONTEXT),
        norm_eps=fields.positive("norm_eps", 1e-5),
        activation=_activation(fields, "hidden_activation"),
        gated=True,
        pre_norm=True,
        norm_bias=fields.flag("norm_bias"),
        attention_bias=attention_bias,
        mlp_bias=mlp_bias,
        down_bias=mlp_bias,
        learned_positions=False,
        rope=rope("full_attention", "global_rope_theta", 160_000.0),
        rope_sliding=rope("sliding_attention", "local_rope_theta", 10_000.0),
        sliding_window=fields.integer("local_attention", 128, least=2) // 2,
        layer_types=types,
    )


def _nomic(fields: Fields, config: Mapping[str, object]) -> EncoderConfig:
    # the makers' own files say it in the words of GPT-2
    older = fields.has("n_embd")
    hidden = fields.integer("n_embd" if older else "hidden_size")
    heads = fields.integer("n_head" if older else "num_attention_heads")
    inner = fields.integer("n_inner" if older else "intermediate_size")
    if older:
        _check_nomic(fields)
    longest = fields.integer("n_positions" if older else "max_position_embeddings", 2048, most=LONGEST_CONTEXT)
    if older:  # beyond what it was trained for its makers change the rotation with the length of each text
        longest = min(longest, fields.integer("max_trained_positions", 2048))
    theta = fields.positive("rotary_emb_base", 1000.0)
    return EncoderConfig(
        architecture=_architecture(config),
        family="nomic_bert",
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=fields.integer("n_layer" if older else "num_hidden_layers", most=MOST_LAYERS),
        num_heads=heads,
        max_position=longest,
        norm_eps=fields.positive("layer_norm_epsilon" if older else "layer_norm_eps", 1e-12),
        activation=_activation(fields, "activation_function" if older else "hidden_act", "silu"),
        gated=True,
        attention_bias=False,
        mlp_bias=False,
        down_bias=False,
        learned_positions=False,
        token_types=fields.integer("type_vocab_size", 2, least=0),
        rope=RopeConfig(theta=theta) if older else rope_from_hf(config, hidden // heads, theta=theta),
    )


def _check_nomic(fields: Fields) -> None:
    """Raises :class:`ConfigError` for relatives that the makers' files describe alike."""
    for name, expected in (("rotary_emb_fraction", 1.0), ("num_experts", 0.0)):
        if (given := fields.number(name, expected)) != expected:
            raise ConfigError(f"{name} is {given:g}, expected {expected:g}: no other encoder of this kind is known")
    for name in ("prenorm", "use_rms_norm", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"):
        if fields.flag(name):
            raise ConfigError(f"{name} is true, and no such encoder of this kind is known")
    if (gate := fields.text("activation_function", "swiglu")) not in ("swiglu", "geglu"):
        raise ConfigError(f"activation_function is {gate[:40]!r}, expected 'swiglu' or 'geglu'")


def _turned_bert(
    fields: Fields, config: Mapping[str, object], family: EncoderFamily, max_position: int, norm_eps: float
) -> EncoderConfig:
    """BERT's names and layers with turned queries and keys in place of learned positions; ``rope`` is the caller's."""
    longest = fields.integer("max_position_embeddings", max_position, most=LONGEST_CONTEXT)
    bert = _common(fields, config, family, longest, norm_eps)
    return replace(bert, learned_positions=False, token_types=fields.integer("type_vocab_size", 1, least=0))


def _gte(fields: Fields, config: Mapping[str, object]) -> EncoderConfig:
    kind = fields.text("position_embedding_type", "rope")
    if kind != "rope":
        raise ConfigError(f"position_embedding_type is {kind[:40]!r}, expected 'rope'")
    bert = _turned_bert(fields, config, "gte", 8192, 1e-12)
    return replace(bert, gated=True, mlp_bias=False, rope=_gte_rope(fields, config, bert.head_dim))


def _gte_rope(fields: Fields, config: Mapping[str, object], head_dim: int) -> RopeConfig:
    """The makers' ``ntk`` stretches a longer base, and all frequencies by the same factor."""
    table = Fields(fields.table("rope_scaling") or {})
    theta = fields.positive("rope_theta", 160_000.0)
    if table.text("type", "") != "ntk":
        return rope_from_hf(config, head_dim, theta=theta)
    if table.has("mixed_b"):
        raise ConfigError("rope_scaling has mixed_b, which is not known")
    factor = table.positive("factor", 1.0)
    return RopeConfig(theta=theta * factor, kind="linear", factor=factor ** (2 / head_dim))


def _jina(fields: Fields, config: Mapping[str, object]) -> EncoderConfig:
    bert = _turned_bert(fields, config, "jina", 8194, 1e-5)
    rope = rope_from_hf(config, bert.head_dim, theta=fields.positive("rotary_emb_base", 20_000.0))
    return replace(bert, rope=rope, adapters=_task_adapters(fields))


def _task_adapters(fields: Fields) -> TaskAdapters | None:
    names = fields.texts("lora_adaptations")
    if not names:
        return None
    rank = fields.integer("lora_rank", 4, most=1024)
    return TaskAdapters(names, rank, fields.positive("lora_alpha", 1.0) / rank)


_ROBERTAS = ("roberta", "xlm-roberta", "camembert")
_READERS: Mapping[str, Callable[[Fields, Mapping[str, object]], EncoderConfig]] = {
    "bert": _bert,
    **dict.fromkeys(_ROBERTAS, _bert),
    "distilbert": _distilbert,
    "mpnet": _mpnet,
    "modernbert": _modernbert,
    "nomic_bert": _nomic,
    "gte": _gte,
    "new": _gte,
    "jina_embeddings_v3": _jina,
}
