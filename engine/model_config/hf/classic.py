"""Reads the config.json of dense families before Llama: layer norms, biases, networks without a gate, and learned
positions or rotation of a part of each head."""

from typing import Final

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields, UnknownArchitectureError
from ..spec.layer import Norms
from ..spec.mlp import MLPSpec
from ..spec.model import ModelSpec, dense_mlp, with_layers, with_mixers
from ..spec.positions import RopeConfig, alibi_slopes
from ..spec.token_input import TokenInputSpec
from .common import clip_of, common, expect, slide
from .variants import LAYER_NORM

_NAMES: Final = {
    "hidden_size": ("n_embd", "n_embed", "d_model"),
    "num_hidden_layers": ("n_layer", "num_layers", "n_layers"),
    "num_attention_heads": ("n_head", "num_heads", "n_heads", "attention_heads"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len", "seq_length"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "hidden_act": ("activation_function", "activation", "afn"),
}
"""Alternative names of common fields."""


def _common(
    fields: Fields, name: str, *, activation: str, eps_field: str = "layer_norm_epsilon", longest: int = 2048
) -> ModelSpec:
    """The common part. Networks are four times as wide as the stream by default. ``longest``: the default context."""
    usual = {ours: fields.get(theirs) for ours, names in _NAMES.items() for theirs in names if fields.has(theirs)}
    fields = Fields({"max_position_embeddings": longest, **fields.values, **usual})
    if not fields.has("intermediate_size"):
        fields = Fields({**fields.values, "intermediate_size": 4 * fields.integer("hidden_size")})
    heads = fields.integer("num_attention_heads")
    fields = Fields({**fields.values, "num_key_value_heads": heads, "head_dim": None})
    return common(fields, name, eps=1e-5, activation=activation, eps_field=eps_field)


def _network(spec: ModelSpec, into: str, out: str, *, bias: bool = True) -> MLPSpec:
    return replace(dense_mlp(spec), into=(into,), out=out, gated=False, bias=bias)


def opt(fields: Fields, name: str) -> ModelSpec:
    """OPT, Galactica. The first position is the third row of the table."""
    fields = Fields({"activation_function": "relu", "tie_word_embeddings": True, **fields.values})
    spec = _common(fields, name, activation="relu")
    projected = fields.integer("word_embed_proj_dim", spec.hidden_size)
    if projected != spec.hidden_size or not fields.flag("do_layer_norm_before", True):
        raise UnknownArchitectureError(
            f"its form of {name}, with norms behind the parts of a layer or embeddings of another size (word_embed_"
            f"proj_dim {projected}, hidden_size {spec.hidden_size}: OPT-350m), is not native here"
        )
    if fields.flag("_remove_final_layer_norm"):
        raise UnknownArchitectureError(f"its form of {name}, without a last norm, is not native here")
    bias, weighted = fields.flag("enable_bias", True), fields.flag("layer_norm_elementwise_affine", True)
    norms = Norms(
        mixer_in="self_attn_layer_norm", mlp_in="final_layer_norm", kind="layer", bias=weighted, weighted=weighted
    )
    spec = with_mixers(spec, rope=None, qkv_bias=bias, output_bias=bias, out="out_proj")
    spec = with_layers(spec, norms=norms, mlp=_network(spec, "fc1", "fc2", bias=bias))
    return replace(
        spec,
        norm_eps=1e-5,
        prefix="model.decoder.layers",
        embedding="model.decoder.embed_tokens",
        input=TokenInputSpec(positions="model.decoder.embed_positions", first=2),
        final_norm="model.decoder.final_layer_norm",
    )


def gpt2(fields: Fields, name: str) -> ModelSpec:
    """GPT-2: matrices are stored as [inputs, outputs], with queries, keys and values fused."""
    spec = _gpt(fields, name, "gelu_new")
    spec = with_mixers(spec, transposed=True)
    spec = with_layers(spec, mlp=replace(dense_mlp(spec), transposed=True))
    if not fields.flag("scale_attn_by_inverse_layer_idx"):
        return spec
    layers = tuple(
        replace(layer, mixer=replace(layer.attention, scale=layer.attention.scale / number))
        for number, layer in enumerate(spec.layers, start=1)
    )
    return replace(spec, layers=layers)


def _gpt(fields: Fields, name: str, activation: str) -> ModelSpec:
    """The names and positions of GPT-2 and its descendants."""
    if fields.flag("add_cross_attention"):
        raise UnknownArchitectureError(f"its form of {name}, with cross-attention, is not native here")
    spec = _common(Fields({"tie_word_embeddings": True, **fields.values}), name, activation=activation, longest=1024)
    scale = spec.layers[0].attention.scale if fields.flag("scale_attn_weights", True) else 1.0
    spec = with_mixers(
        spec,
        rope=None,
        scale=scale,
        qkv_bias=True,
        output_bias=True,
        fused=True,
        name="attn",
        into="c_attn",
        out="c_proj",
    )
    return _as_gpt(spec)


def jais(fields: Fields, name: str) -> ModelSpec:
    """JAIS: a GPT-2 with ALiBi, a gated network, and factors on embeddings, scores and logits (µP)."""
    expect(fields, {"position_embedding_type": "alibi", "activation_function": "swiglu"})
    stretch = Fields(fields.table("alibi_scaling") or {})
    if stretch.has("factor"):
        raise ConfigError("alibi_scaling has a factor, expected none: slopes are not scaled")
    spec = _gpt(Fields({**fields.values, "activation_function": "silu"}), name, "silu")
    mixer = spec.layers[0].attention
    by_dim = fields.flag("scale_qk_dot_by_d", fields.flag("mup_scale_qk_dot_by_d"))
    scale = mixer.head_dim ** (-1.0 if by_dim else -0.5)
    spec = with_mixers(spec, scale=scale, slopes=alibi_slopes(mixer.heads), transposed=True)
    mlp = replace(dense_mlp(spec), into=("mlp.c_fc2", "mlp.c_fc"), gated=True, transposed=True)
    of_logits = fields.positive("mup_output_alpha", 1.0) * fields.positive("mup_width_scale", 1.0)
    return replace(
        with_layers(spec, mlp=mlp),
        max_position=min(spec.max_position, stretch.integer("train_seq_len", spec.max_position)),
        input=TokenInputSpec(fields.positive("embeddings_scale", fields.positive("mup_embeddings_scale", 1.0))),
        logits_divisor=1 / fields.positive("width_scale", of_logits),
        unused=("transformer.relative_pe.slopes",),
    )


def _as_gpt(spec: ModelSpec) -> ModelSpec:
    """The spec with GPT-2's norms, MLP and tensor names."""
    norms = Norms(mixer_in="ln_1", mlp_in="ln_2", kind="layer", bias=True)
    spec = with_layers(spec, norms=norms, mlp=_network(spec, "mlp.c_fc", "mlp.c_proj"))
    return replace(
        spec,
        prefix="transformer.h",
        embedding="transformer.wte",
        input=TokenInputSpec(positions="transformer.wpe"),
        final_norm="transformer.ln_f",
    )


def gpt_neox(fields: Fields, name: str) -> ModelSpec:
    """Pythia, GPT-NeoX: a part of each head rotates; attention and network run in parallel, each with a norm."""
    turning = {"partial_rotary_factor": fields.number("rotary_pct", 0.25)}
    turning["rope_theta"] = fields.number("rotary_emb_base", 10000.0)
    spec = _common(Fields({**turning, **fields.values}), name, activation="gelu", eps_field="layer_norm_eps")
    bias = fields.flag("attention_bias", True)
    spec = with_mixers(
        spec,
        qkv_bias=bias,
        output_bias=bias,
        fused=True,
        by_group=True,
        name="attention",
        into="query_key_value",
        out="dense",
    )
    norms = Norms(mixer_in="input_layernorm", mlp_in="post_attention_layernorm", kind="layer", bias=True)
    network = _network(spec, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    spec = with_layers(spec, norms=norms, mlp=network, parallel=fields.flag("use_parallel_residual", True))
    return replace(
        spec,
        prefix="gpt_neox.layers",
        embedding="gpt_neox.embed_in",
        final_norm="gpt_neox.final_layer_norm",
    )


def gpt_neo(fields: Fields, name: str) -> ModelSpec:
    """GPT-Neo: GPT-2 with scores that are not scaled, and a window in every other layer."""
    spec = _common(Fields({"tie_word_embeddings": True, **fields.values}), name, activation="gelu_new")
    spec = with_mixers(spec, rope=None, scale=1.0, output_bias=True, name="attn.attention", out="out_proj")
    spec = slide(spec, fields.integer("window_size", 256), [kind == "local" for kind in _neo_kinds(fields, spec)])
    return _as_gpt(spec)


def _neo_kinds(fields: Fields, spec: ModelSpec) -> list[str]:
    """The kind of each layer, listed or as patterns with their number of repeats."""
    count = len(spec.layers)
    kinds = list(fields.texts("attention_layers") or ())
    told = [] if kinds else fields.get("attention_types")
    if told is None:
        kinds = (["global", "local"] * count)[:count]
    for each in told if isinstance(told, list) else []:
        if not isinstance(each, list) or len(each) != 2 or not isinstance(each[1], int) or each[1] > count:
            raise ConfigError(f"attention_types holds {str(each)[:60]!r}, expected a pattern and its repeats")
        kinds += [*(Fields({"attention_types": each[0]}).texts("attention_types") or ())] * each[1]
    if len(kinds) != count or not {*kinds} <= {"global", "local"}:
        raise ConfigError(f"attention_types gives {len(kinds)} layers, expected {count} that are global or local")
    return kinds


def gpt_bigcode(fields: Fields, name: str) -> ModelSpec:
    """StarCoder, SantaCoder: GPT-2 with matrices stored as usual, mostly with one key-value head."""
    spec = _gpt(fields, name, "gelu_pytorch_tanh")
    if fields.flag("multi_query", True):
        return with_mixers(spec, kv_heads=1)
    return with_mixers(spec, by_group=True)


def falcon(fields: Fields, name: str) -> ModelSpec:
    """Falcon: attention and network in parallel, with one norm (7B) or one each (40B), or one behind the other with
    ALiBi in place of rotation (RW)."""
    spec = _common(Fields({"tie_word_embeddings": True, **fields.values}), name, activation="gelu")
    grouped, bias = fields.flag("new_decoder_architecture"), fields.flag("bias")
    kv_heads = spec.layers[0].attention.heads
    if grouped:
        kv_heads = fields.integer("num_kv_heads", fields.integer("n_head_kv", kv_heads))
    elif fields.flag("multi_query", True):
        kv_heads = 1
    spec = with_mixers(
        spec,
        kv_heads=kv_heads,
        qkv_bias=bias,
        output_bias=bias,
        fused=True,
        by_group=True,
        name="self_attention",
        into="query_key_value",
        out="dense",
    )
    if fields.flag("alibi"):
        mixer = spec.layers[0].attention
        slopes = tuple(mixer.scale * slope for slope in alibi_slopes(mixer.heads))  # added before the scale
        spec = with_mixers(spec, rope=None, slopes=slopes)
    parallel = grouped or fields.flag("parallel_attn", True)
    norms = Norms(mixer_in="input_layernorm", kind="layer", bias=True)
    if grouped and fields.integer("num_ln_in_parallel_attn", 2) == 2:
        norms = replace(norms, mixer_in="ln_attn", mlp_in="ln_mlp")
    elif not parallel:
        norms = replace(norms, mlp_in="post_attention_layernorm")
    network = _network(spec, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=bias)
    spec = with_layers(spec, norms=norms, mlp=network, parallel=parallel)
    return replace(spec, prefix="transformer.h", embedding="transformer.word_embeddings", final_norm="transformer.ln_f")


def bloom(fields: Fields, name: str) -> ModelSpec:
    """Bloom, with ALiBi and a norm of embeddings."""
    if fields.flag("apply_residual_connection_post_layernorm"):
        raise UnknownArchitectureError(f"its form of {name}, whose stream goes on from norms, is not native here")
    fields = Fields({"tie_word_embeddings": True, **fields.values})
    spec = _common(fields, name, activation="gelu_new")
    spec = with_mixers(
        spec,
        rope=None,
        slopes=alibi_slopes(spec.layers[0].attention.heads),
        qkv_bias=True,
        output_bias=True,
        fused=True,
        by_group=True,
        name="self_attention",
        into="query_key_value",
        out="dense",
    )
    network = _network(spec, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    spec = with_layers(spec, norms=LAYER_NORM, mlp=network)
    return replace(
        spec,
        prefix="transformer.h",
        embedding="transformer.word_embeddings",
        input=TokenInputSpec(norm="transformer.word_embeddings_layernorm"),
        final_norm="transformer.ln_f",
    )


def mpt(fields: Fields, name: str) -> ModelSpec:
    """MPT, with ALiBi and without biases. transformers takes no notice of ``alibi_bias_max``, which its authors' code
    does (MPT-7B-StoryWriter)."""
    attending = Fields(fields.table("attn_config") or {})
    expect(attending, {"prefix_lm": False, "qk_ln": False})
    expect(fields, {"no_bias": True})
    if not attending.flag("alibi", True) or attending.text("attn_type", "multihead_attention") != "multihead_attention":
        raise ConfigError(
            "attn_config asks for learned positions or one key-value head, expected alibi and multihead_attention"
        )
    if fields.has("logit_scale"):
        raise ConfigError(f"logit_scale is {fields.get('logit_scale')!r}, expected null")
    sizes: dict[str, object] = {
        "vocab_size": 50368,
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    }
    if fields.has("expansion_ratio"):
        sizes["intermediate_size"] = fields.integer("expansion_ratio") * fields.integer("d_model", 2048)
    spec = _common(Fields({**sizes, **fields.values}), name, activation="gelu")
    mixer = spec.layers[0].attention
    spec = with_mixers(
        spec,
        rope=None,
        scale=attending.positive("softmax_scale", mixer.scale),
        slopes=alibi_slopes(mixer.heads, attending.positive("alibi_bias_max", 8.0)),
        clip=clip_of(attending),
        fused=True,
        name="attn",
        into="Wqkv",
        out="out_proj",
    )
    norms = Norms(mixer_in="norm_1", mlp_in="norm_2", kind="layer")
    spec = with_layers(spec, norms=norms, mlp=_network(spec, "ffn.up_proj", "ffn.down_proj", bias=False))
    return replace(spec, prefix="transformer.blocks", embedding="transformer.wte", final_norm="transformer.norm_f")


def persimmon(fields: Fields, name: str) -> ModelSpec:
    """Persimmon: heads are normed and half of each rotates."""
    fields = Fields({"hidden_act": "relu2", "partial_rotary_factor": 0.5, **fields.values})
    spec = _common(fields, name, activation="relu2", eps_field="layer_norm_eps", longest=16384)
    spec = with_mixers(
        spec,
        qk_norm="layer" if fields.flag("qk_layernorm", True) else "none",
        qk_norm_names=("q_layernorm", "k_layernorm"),
        qkv_bias=True,
        output_bias=True,
        fused=True,
        by_group=True,
        into="query_key_value",
        out="dense",
    )
    spec = with_layers(spec, norms=LAYER_NORM, mlp=_network(spec, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"))
    return replace(spec, final_norm="model.final_layernorm")


def biogpt(fields: Fields, name: str) -> ModelSpec:
    """BioGPT: an OPT with scaled embeddings and other names."""
    spec = _common(Fields({"tie_word_embeddings": True, **fields.values}), name, activation="gelu", longest=1024)
    spec = with_mixers(spec, rope=None, qkv_bias=True, output_bias=True, out="out_proj")
    norms = Norms(mixer_in="self_attn_layer_norm", mlp_in="final_layer_norm", kind="layer", bias=True)
    spec = with_layers(spec, norms=norms, mlp=_network(spec, "fc1", "fc2"))
    scale = spec.hidden_size**0.5 if fields.flag("scale_embedding", True) else 1.0
    return replace(
        spec,
        norm_eps=1e-5,
        prefix="biogpt.layers",
        embedding="biogpt.embed_tokens",
        input=TokenInputSpec(scale, positions="biogpt.embed_positions", first=2),
        final_norm="biogpt.layer_norm",
    )


def gptj(fields: Fields, name: str) -> ModelSpec:
    """GPT-J: adjacent dimensions rotate, in a part of each head; attention and network share a norm."""
    spec = _common(fields, name, activation="gelu_new")
    rope = RopeConfig(rotary_dim=fields.integer("rotary_dim", 64), interleaved=True)
    if rope.rotary_dim == spec.layers[0].attention.head_dim:
        rope = replace(rope, rotary_dim=0)
    spec = with_mixers(spec, rope=rope, name="attn", out="out_proj")
    norms = Norms(mixer_in="ln_1", kind="layer", bias=True)
    spec = with_layers(spec, norms=norms, mlp=_network(spec, "mlp.fc_in", "mlp.fc_out"), parallel=True)
    return replace(
        spec, prefix="transformer.h", embedding="transformer.wte", final_norm="transformer.ln_f", head_bias=True
    )


def codegen(fields: Fields, name: str) -> ModelSpec:
    """CodeGen: a GPT-J whose queries, values and keys are stored in four parts."""
    return with_mixers(gptj(fields, name), fused=True, into="qkv_proj", shards=4)


def openai_gpt(fields: Fields, name: str) -> ModelSpec:
    """GPT: a GPT-2 with norms behind its sums and none at the end."""
    told = {"tie_word_embeddings": True, "n_positions": 512, **fields.values}
    fields = Fields({**told, "intermediate_size": 4 * _width(fields)})
    if fields.text("afn", "gelu") == "gelu":  # which means the approximation here
        fields = Fields({**fields.values, "afn": "gelu_new"})
    spec = _gpt(fields, name, "gelu_new")
    spec = with_mixers(spec, transposed=True)
    norms = Norms(mixer_sum="ln_1", mlp_sum="ln_2", kind="layer", bias=True)
    spec = with_layers(spec, norms=norms, mlp=replace(dense_mlp(spec), transposed=True))
    learned = TokenInputSpec(positions="transformer.positions_embed")
    return replace(spec, embedding="transformer.tokens_embed", input=learned, final_norm="")


def _width(fields: Fields) -> int:
    return fields.integer("n_embd", fields.integer("hidden_size", 768))


def gpt_neox_japanese(fields: Fields, name: str) -> ModelSpec:
    """GPT-NeoX Japanese: attention and network one behind the other, without biases but for the last attention's."""
    turning = {"partial_rotary_factor": fields.number("rotary_pct", 1.0)}
    turning["rope_theta"] = fields.number("rotary_emb_base", 10000.0)
    inner = fields.integer("hidden_size") * fields.integer("intermediate_multiple_size", 4)
    fields = Fields({"tie_word_embeddings": True, **turning, **fields.values, "intermediate_size": inner})
    spec = _common(fields, name, activation="gelu", eps_field="layer_norm_eps")
    spec = with_mixers(spec, fused=True, by_group=True, name="attention", into="query_key_value", out="dense")
    network = _network(spec, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=False)
    spec = with_layers(spec, norms=LAYER_NORM, mlp=network)
    last = len(spec.layers) - 1
    spec = with_mixers(spec, [at == last for at in range(last + 1)], output_bias=True)
    return replace(
        spec,
        prefix="gpt_neox_japanese.layers",
        embedding="gpt_neox_japanese.embed_in",
        final_norm="gpt_neox_japanese.final_layer_norm",
    )


def xglm(fields: Fields, name: str) -> ModelSpec:
    """XGLM: a BioGPT with sinusoidal positions."""
    if fields.flag("add_cross_attention"):
        raise UnknownArchitectureError(f"its form of {name}, with cross-attention, is not native here")
    if (pad := fields.integer("pad_token_id", 1, least=0)) > 1:
        raise ConfigError(f"pad_token_id is {pad}, expected 0 or 1: a later one has the place of a position")
    spec = biogpt(fields, name)
    return replace(
        spec,
        max_position=fields.integer("max_position_embeddings", 2048),
        prefix="model.layers",
        embedding="model.embed_tokens",
        input=replace(spec.input, positions="", sinusoids="closed"),
        final_norm="model.layer_norm",
    )
