"""Reads the config.json of encoders, in transformers' fields or those of a model's authors. Torch-free."""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from ..config_fields import LONGEST_CONTEXT, MOST_LAYERS, ConfigError, Fields
from ..hf.rope import rope_from_hf
from ..spec.attention import AttentionSpec
from ..spec.encoder import EncoderConfig, EncoderFamily
from ..spec.layer import PRE, LayerSpec
from ..spec.mlp import UP_MLP, Activation, MLPSpec
from ..spec.model import POST_SUM, TaskAdapters, checked, dense_mlp, with_layers, with_mixers
from ..spec.positions import RopeConfig

_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "swiglu": "silu",
    "geglu": "gelu",
}


def encoder_config_from_hf(config: Mapping[str, object]) -> EncoderConfig:
    """The encoder's config. Raises :class:`ConfigError`, naming the field, if it is not supported."""
    fields = Fields(config)
    kind = fields.text("model_type", "")
    read = _READERS.get(kind)
    if read is None:
        raise ConfigError(f"{kind or 'a model without model_type'} is no encoder that is known")
    return checked(read(fields, config))


def is_encoder(config: Mapping[str, object]) -> bool:
    """Whether a config.json describes one of these encoders."""
    return config.get("model_type") in _READERS


def _architecture(config: Mapping[str, object]) -> str:
    named = config.get("architectures")
    return str(named[0])[:80] if isinstance(named, list) and named else str(config.get("model_type"))


def _activation(fields: Fields, name: str, default: str = "gelu") -> Activation:
    return fields.one_of(name, _ACTIVATIONS, default)


def _bert(fields: Fields, config: Mapping[str, object]) -> EncoderConfig:
    kind = fields.text("position_embedding_type", "absolute")
    if kind == "rotary" and fields.text("model_type") == "xlm-roberta":  # the original files of Jina's
        return _jina(fields, config)
    if kind != "absolute":
        raise ConfigError(f"position_embedding_type is {kind[:40]!r}, expected 'absolute'")
    is_roberta = fields.text("model_type") in _ROBERTAS
    # RoBERTa's positions begin behind that of padding, whose rows are in the table
    offset = fields.integer("pad_token_id", 1, least=0) + 1 if is_roberta else 0
    longest = _positions(fields.integer("max_position_embeddings", most=LONGEST_CONTEXT), offset)
    family: EncoderFamily = "roberta" if is_roberta else "bert"
    bert = _common(fields, config, family, longest, 1e-5 if is_roberta else 1e-12)
    bert = replace(bert, position_offset=offset, token_types=fields.integer("type_vocab_size", 2, least=0))
    return with_mixers(bert, causal=fields.flag("is_decoder"))


def _ernie(fields: Fields, config: Mapping[str, object]) -> EncoderConfig:
    bert = _bert(fields, config)
    return replace(bert, task_types=fields.integer("task_type_vocab_size", 3)) if fields.flag("use_task_id") else bert


def _electra(fields: Fields, config: Mapping[str, object]) -> EncoderConfig:
    """ELECTRA (arXiv:2003.10555): BERT with embeddings of another size."""
    bert = replace(_bert(fields, config), family="electra")
    size = fields.integer("embedding_size", 128)
    return bert if size == bert.hidden_size else replace(bert, embedding_size=size)


def _common(
    fields: Fields,
    config: Mapping[str, object],
    family: EncoderFamily,
    max_position: int,
    norm_eps: float,
    head_dim: int = 0,
) -> EncoderConfig:
    """The common fields of BERT and its relatives. ``head_dim``: 0 divides the hidden size among the heads."""
    return _of_layers(
        fields,
        config,
        family,
        hidden=fields.integer("hidden_size"),
        heads=fields.integer("num_attention_heads"),
        inner=fields.integer("intermediate_size"),
        activation=_activation(fields, "hidden_act"),
        layers=fields.integer("num_hidden_layers", most=MOST_LAYERS),
        max_position=max_position,
        norm_eps=fields.positive("layer_norm_eps", norm_eps),
        head_dim=head_dim,
    )


def _of_layers(
    fields: Fields,
    config: Mapping[str, object],
    family: EncoderFamily,
    *,
    hidden: int,
    heads: int,
    inner: int,
    activation: Activation,
    layers: int,
    max_position: int,
    norm_eps: float,
    head_dim: int = 0,
) -> EncoderConfig:
    """An encoder of equal layers like BERT's. ``head_dim``: 0 divides ``hidden`` among the heads."""
    if not head_dim and hidden % heads:
        raise ConfigError(f"{heads} heads do not divide {hidden} dimensions")
    head_dim = head_dim or hidden // heads
    mixer = AttentionSpec(heads, heads, head_dim, head_dim**-0.5, None, qkv_bias=True, output_bias=True)
    mlp = MLPSpec(inner, activation, bias=True, into=UP_MLP, gated=False)
    return EncoderConfig(
        architecture=_architecture(config),
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        layers=(LayerSpec(mixer, mlp, POST_SUM),) * layers,
        max_position=max_position,
        norm_eps=norm_eps,
    )


def _gated(spec: EncoderConfig, *, bias: bool = False, out_bias: bool = False) -> EncoderConfig:
    mlp = dense_mlp(spec)
    return with_layers(spec, mlp=MLPSpec(mlp.inner, mlp.activation, bias, out_bias=out_bias))


def _positions(rows: int, offset: int) -> int:
    """Number of positions in a table whose first ``offset`` rows are not positions."""
    if rows <= offset:
        raise ConfigError(f"max_position_embeddings is {rows}, expected more than {offset}")
    return rows - offset


def _distilbert(fields: Fields, config: Mapping[str, object]) -> EncoderConfig:
    return _of_layers(
        fields,
        config,
        "distilbert",
        hidden=fields.integer("dim"),
        heads=fields.integer("n_heads"),
        inner=fields.integer("hidden_dim"),
        activation=_activation(fields, "activation"),
        layers=fields.integer("n_layers", most=MOST_LAYERS),
        max_position=fields.integer("max_position_embeddings", 512, most=LONGEST_CONTEXT),
        norm_eps=1e-12,
    )


def _mpnet(fields: Fields, config: Mapping[str, object]) -> EncoderConfig:
    offset, buckets = 2, 32
    if (given := fields.integer("relative_attention_num_buckets", buckets)) != buckets:
        raise ConfigError(
            f"relative_attention_num_buckets is {given}, expected {buckets}: transformers divides distances among "
            f"{buckets} whatever the file says"
        )
    longest = _positions(fields.integer("max_position_embeddings", 512, most=LONGEST_CONTEXT), offset)
    return replace(
        _common(fields, config, "mpnet", longest, 1e-12),
        position_offset=offset,
        relative_buckets=buckets,
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

    def rope(layer_type: str, older: str, theta: float) -> RopeConfig:
        return _whole_rope(config, hidden // heads, fields.positive(older, theta), layer_type)

    bias, mlp_bias = fields.flag("attention_bias"), fields.flag("mlp_bias")
    spec = _of_layers(
        fields,
        config,
        "modernbert",
        hidden=hidden,
        heads=heads,
        inner=fields.integer("intermediate_size"),
        activation=_activation(fields, "hidden_activation"),
        layers=layers,
        max_position=fields.integer("max_position_embeddings", 8192, most=LONGEST_CONTEXT),
        norm_eps=fields.positive("norm_eps", 1e-5),
    )
    spec = _gated(spec, bias=mlp_bias, out_bias=mlp_bias)
    full = rope("full_attention", "global_rope_theta", 160_000.0)
    spec = with_mixers(spec, qkv_bias=bias, output_bias=bias, rope=full)
    window = fields.integer("local_attention", 128, least=2) // 2 + 1  # the file has the number for both sides together
    sliding = rope("sliding_attention", "local_rope_theta", 10_000.0)
    spec = with_mixers(spec, slides, window=window, rope=sliding)
    spec = with_layers(spec, norms=replace(PRE, kind="layer", bias=fields.flag("norm_bias")))
    # the embedding's norm replaces that of the first layer
    first = replace(spec.layers[0], norms=replace(spec.layers[0].norms, mixer_in=""))
    return replace(spec, layers=(first, *spec.layers[1:]), learned_positions=False)


def _whole_rope(config: Mapping[str, object], head_dim: int, theta: float, layer_type: str | None = None) -> RopeConfig:
    """A rotation of whole heads; ``theta``: a default. Raises :class:`ConfigError` for one of parts of heads."""
    rope = rope_from_hf(config, head_dim, theta=theta, layer_type=layer_type)
    if rope.rotary_dim not in (0, head_dim):
        raise ConfigError(
            f"partial_rotary_factor rotates {rope.rotary_dim} of {head_dim} dimensions of a head, expected 1.0: "
            "heads of this encoder rotate whole"
        )
    return rope


def _nomic(fields: Fields, config: Mapping[str, object]) -> EncoderConfig:
    # the authors' files use GPT-2's field names
    older = fields.has("n_embd")
    hidden = fields.integer("n_embd" if older else "hidden_size")
    heads = fields.integer("n_head" if older else "num_attention_heads")
    inner = fields.integer("n_inner" if older else "intermediate_size")
    if older:
        _check_nomic(fields)
    longest = fields.integer("n_positions" if older else "max_position_embeddings", 2048, most=LONGEST_CONTEXT)
    if older:  # beyond, the authors' code changes the rotation with the length of each text
        longest = min(longest, fields.integer("max_trained_positions", 2048))
    theta = fields.positive("rotary_emb_base", 1000.0)
    spec = _of_layers(
        fields,
        config,
        "nomic_bert",
        hidden=hidden,
        heads=heads,
        inner=inner,
        activation=_activation(fields, "activation_function" if older else "hidden_act", "silu"),
        layers=fields.integer("n_layer" if older else "num_hidden_layers", most=MOST_LAYERS),
        max_position=longest,
        norm_eps=fields.positive("layer_norm_epsilon" if older else "layer_norm_eps", 1e-12),
        head_dim=0 if older else fields.integer("head_dim", 0, least=0),
    )
    rope = RopeConfig(theta=theta) if older else _whole_rope(config, spec.layers[0].attention.head_dim, theta)
    spec = with_mixers(_gated(spec), qkv_bias=False, output_bias=False, rope=rope)
    return replace(spec, learned_positions=False, token_types=fields.integer("type_vocab_size", 2, least=0))


def _check_nomic(fields: Fields) -> None:
    """Raise :class:`ConfigError` for related models with the same description."""
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
    """BERT with rotary queries and keys in place of learned positions; the caller sets ``rope``."""
    longest = fields.integer("max_position_embeddings", max_position, most=LONGEST_CONTEXT)
    bert = _common(fields, config, family, longest, norm_eps, fields.integer("head_dim", 0, least=0))
    return replace(bert, learned_positions=False, token_types=fields.integer("type_vocab_size", 1, least=0))


def _gte(fields: Fields, config: Mapping[str, object]) -> EncoderConfig:
    kind = fields.text("position_embedding_type", "rope")
    if kind != "rope":
        raise ConfigError(f"position_embedding_type is {kind[:40]!r}, expected 'rope'")
    bert = _turned_bert(fields, config, "gte", 8192, 1e-12)
    rope = _gte_rope(fields, config, bert.layers[0].attention.head_dim)
    return with_mixers(_gated(bert, out_bias=True), rope=rope)


def _gte_rope(fields: Fields, config: Mapping[str, object], head_dim: int) -> RopeConfig:
    """The authors' ``ntk`` scales the base, and all frequencies by the same factor."""
    table = Fields(fields.table("rope_scaling") or {})
    theta = fields.positive("rope_theta", 160_000.0)
    if table.text("type", "") != "ntk":
        return _whole_rope(config, head_dim, theta)
    if table.has("mixed_b"):
        raise ConfigError("rope_scaling has mixed_b, which is not known")
    factor = table.positive("factor", 1.0)
    return RopeConfig(theta=theta * factor, kind="linear", factor=factor ** (2 / head_dim))


def _jina(fields: Fields, config: Mapping[str, object]) -> EncoderConfig:
    bert = _turned_bert(fields, config, "jina", 8194, 1e-5)
    head_dim = bert.layers[0].attention.head_dim
    rope = _whole_rope(config, head_dim, fields.positive("rotary_emb_base", 20_000.0))
    return replace(with_mixers(bert, rope=rope), adapters=_task_adapters(fields))


def _task_adapters(fields: Fields) -> TaskAdapters | None:
    names = fields.texts("lora_adaptations")
    if not names:
        return None
    rank = fields.integer("lora_rank", 4, most=1024)
    return TaskAdapters(names, rank, fields.positive("lora_alpha", 1.0) / rank)


_ROBERTAS = ("roberta", "xlm-roberta", "camembert", "data2vec-text")


def _clip(fields: Fields, config: Mapping[str, object]) -> EncoderConfig:
    spec = _beside_pictures(fields, config, 49_408, 512, 8, "quick_gelu", 77, 1e-5)
    return replace(with_mixers(spec, causal=True), projection=fields.integer("projection_dim", 512))


def _siglip(fields: Fields, config: Mapping[str, object]) -> EncoderConfig:
    spec = _beside_pictures(fields, config, 32_000, 768, 12, "gelu_pytorch_tanh", 64, 1e-6)
    text = Fields(fields.table("text_config") or {})
    size = text.integer("projection_size", spec.hidden_size)
    return replace(spec, projection=size, projection_bias=True, filled=True)


def _beside_pictures(
    fields: Fields,
    config: Mapping[str, object],
    vocabulary: int,
    hidden: int,
    heads: int,
    activation: str,
    longest: int,
    eps: float,
) -> EncoderConfig:
    """The text tower beside a vision tower; the numbers are defaults, which published files omit."""
    text = Fields({"vocab_size": vocabulary, **(fields.table("text_config") or {})})
    hidden = text.integer("hidden_size", hidden)
    spec = _of_layers(
        text,
        config,
        "clip",
        hidden=hidden,
        heads=text.integer("num_attention_heads", heads),
        inner=text.integer("intermediate_size", 4 * hidden),
        activation=_activation(text, "hidden_act", activation),
        layers=text.integer("num_hidden_layers", 12, most=MOST_LAYERS),
        max_position=text.integer("max_position_embeddings", longest, most=LONGEST_CONTEXT),
        norm_eps=text.positive("layer_norm_eps", eps),
    )
    spec = with_layers(spec, norms=replace(PRE, kind="layer", bias=True))
    return replace(spec, embedding_norm=False, text_part=True)


_READERS: Mapping[str, Callable[[Fields, Mapping[str, object]], EncoderConfig]] = {
    "bert": _bert,
    "electra": _electra,
    "ernie": _ernie,
    **dict.fromkeys(_ROBERTAS, _bert),
    "distilbert": _distilbert,
    "mpnet": _mpnet,
    "modernbert": _modernbert,
    "nomic_bert": _nomic,
    "gte": _gte,
    "new": _gte,
    "jina_embeddings_v3": _jina,
    "clip": _clip,
    "siglip": _siglip,
    "siglip2": _siglip,
}
