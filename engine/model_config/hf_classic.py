"""Reads the config.json of dense families before Llama: layer norms, biases, networks without a gate, and learned
positions or rotation of a part of each head."""

from dataclasses import replace
from typing import Final

from .attention_spec import RopeConfig
from .config_fields import Fields, UnknownArchitectureError
from .hf_common import common
from .mlp_spec import MLPSpec
from .model_spec import ModelSpec, Norms, dense_mlp, with_layers, with_mixers

_NAMES: Final = {
    "hidden_size": ("n_embd", "n_embed"),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "max_position_embeddings": ("n_positions", "n_ctx"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "hidden_act": ("activation_function", "activation"),
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
        positions="model.decoder.embed_positions",
        positions_before=2,
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
    norms = Norms(mixer_in="ln_1", mlp_in="ln_2", kind="layer", bias=True)
    spec = with_layers(spec, norms=norms, mlp=_network(spec, "mlp.c_fc", "mlp.c_proj"))
    return replace(
        spec,
        prefix="transformer.h",
        embedding="transformer.wte",
        positions="transformer.wpe",
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


def gpt_bigcode(fields: Fields, name: str) -> ModelSpec:
    """StarCoder, SantaCoder: GPT-2 with matrices stored as usual, mostly with one key-value head."""
    spec = _gpt(fields, name, "gelu_pytorch_tanh")
    if fields.flag("multi_query", True):
        return with_mixers(spec, kv_heads=1)
    return with_mixers(spec, by_group=True)


def falcon(fields: Fields, name: str) -> ModelSpec:
    """Falcon with rotary positions: attention and network in parallel, with one norm (7B) or one each (40B)."""
    if fields.flag("alibi"):
        raise UnknownArchitectureError(f"its form of {name}, with a bias to scores by distance, is not native here")
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
    parallel = grouped or fields.flag("parallel_attn", True)
    norms = Norms(mixer_in="input_layernorm", kind="layer", bias=True)
    if grouped and fields.integer("num_ln_in_parallel_attn", 2) == 2:
        norms = replace(norms, mixer_in="ln_attn", mlp_in="ln_mlp")
    elif not parallel:
        norms = replace(norms, mlp_in="post_attention_layernorm")
    network = _network(spec, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=bias)
    spec = with_layers(spec, norms=norms, mlp=network, parallel=parallel)
    return replace(spec, prefix="transformer.h", embedding="transformer.word_embeddings", final_norm="transformer.ln_f")


def gptj(fields: Fields, name: str) -> ModelSpec:
    """GPT-J: adjacent dimensions rotate, in a part of each head; attention and network share a norm."""
    spec = _common(fields, name, activation="gelu_new")
    turned = RopeConfig(rotary_dim=fields.integer("rotary_dim", 64), interleaved=True)
    if turned.rotary_dim == spec.layers[0].attention.head_dim:
        turned = replace(turned, rotary_dim=0)
    spec = with_mixers(spec, rope=turned, name="attn", out="out_proj")
    norms = Norms(mixer_in="ln_1", kind="layer", bias=True)
    spec = with_layers(spec, norms=norms, mlp=_network(spec, "mlp.fc_in", "mlp.fc_out"), parallel=True)
    return replace(
        spec, prefix="transformer.h", embedding="transformer.wte", final_norm="transformer.ln_f", head_bias=True
    )
