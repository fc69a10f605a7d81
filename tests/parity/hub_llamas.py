"""Tiny models of Llamas under names of their own, for :mod:`.hub`.

Where transformers has no equal model, one is made of another: ALiBi takes the place of rotation by an attention
function.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import transformers as untyped_transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from stentor.engine.model_config.spec.positions import alibi_slopes
from stentor.tests.parity import hub_loops
from stentor.tests.parity.hub_form import Published, Tensors, Values, joined_qkv, old_rope

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    own_heads = {**shape, "num_key_value_heads": 4}
    llama = transformers.LlamaConfig
    biased = {"attention_bias": True, "partial_rotary_factor": 0.5, "head_dim": 16, "rms_norm_eps": 1e-5}
    return {
        **hub_loops.configs(shape),
        "llama-older": lambda: llama(**own_heads),
        "teleflm": lambda: transformers.GraniteConfig(
            **shape, embedding_multiplier=6.0, logits_scaling=4.0, attention_multiplier=0.25
        ),
        "internlm": lambda: llama(**own_heads, attention_bias=True),
        "orion": lambda: transformers.StableLmConfig(**own_heads, layer_norm_eps=1e-5, partial_rotary_factor=1.0),
        "qwen1": lambda: transformers.Qwen2Config(**own_heads),
        "baichuan": lambda: llama(**own_heads),
        "step1": lambda: llama(**{**shape, "num_attention_heads": 6, "hidden_size": 96}, rms_norm_eps=1e-5),
        "baichuan-13b": lambda: llama(**own_heads),
        "baichuan2-13b": lambda: llama(**own_heads),
        "chatglm": lambda: transformers.GlmConfig(**shape, **biased),
        "chatglm-plain": lambda: transformers.GlmConfig(**own_heads, **{**biased, "attention_bias": False}),
        "stablelm-epoch": lambda: transformers.StableLmConfig(**own_heads, layer_norm_eps=1e-5),
        "refined-web": lambda: _falcon(shape, multi_query=True, parallel_attn=True),
        "refined-web-40b": lambda: _falcon(shape, new_decoder_architecture=True, num_kv_heads=2),
        "refined-web-alibi": lambda: _falcon(shape, alibi=True, bias=True, multi_query=False, parallel_attn=False),
        "rnj1": lambda: transformers.Gemma3TextConfig(
            **shape, head_dim=16, query_pre_attn_scalar=16, layer_types=["full_attention"] * 3
        ),
        "plamo3": lambda: transformers.Gemma3TextConfig(
            **shape,
            **{"head_dim": 16, "query_pre_attn_scalar": 16, "hidden_activation": "silu", "sliding_window": 24},
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={
                "full_attention": {
                    **{"rope_type": "yarn", "rope_theta": 20000.0, "factor": 4.0, "truncate": False},
                    "original_max_position_embeddings": 32,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        ),
        "domyn-edge": lambda: transformers.Gemma3TextConfig(
            **shape,
            **{"head_dim": 16, "query_pre_attn_scalar": 16, "hidden_activation": "silu", "sliding_window": 24},
            layer_types=["full_attention", "sliding_attention", "sliding_attention"],
            rope_parameters={
                kind: {"rope_type": "default", "rope_theta": 20000.0}
                for kind in ("full_attention", "sliding_attention")
            },
        ),
        "telechat": lambda: llama(
            **shape,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0 * 3 ** (16 / 14)},
        ),
        "solar": lambda: transformers.MistralConfig(**{**shape, "num_hidden_layers": 6}, sliding_window=24),
        "jais": lambda: transformers.GraniteConfig(
            **own_heads,
            **{"attention_multiplier": 1 / 16, "embedding_multiplier": 6.0, "logits_scaling": 2.0},
            **dict.fromkeys(("attention_bias", "mlp_bias", "tie_word_embeddings"), True),
        ),
    }


def _falcon(shape: Mapping[str, Any], **fields: Any) -> Any:
    sizes = {name: shape[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
    return transformers.FalconConfig(**sizes, **fields, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)


def _llama(model_type: str, **own: Any) -> Callable[[Any], Values]:
    return lambda config: {
        **{"model_type": model_type, "hidden_act": "silu", "tie_word_embeddings": False, **old_rope(config)},
        **own,
    }


def _teleflm(config: Any) -> Values:
    own = {"use_mup": True, "input_mult": config.embedding_multiplier, "mup_scale_factor": 8.0}
    return {**_llama("TeleFLM")(config), **own, "output_mult": 8.0 / config.logits_scaling}


def _orion(config: Any) -> Values:
    return {**_llama("orion")(config), "rms_norm_eps": config.layer_norm_eps}


def _qwen1(config: Any) -> Values:
    absent = dict.fromkeys(("rms_norm_eps", "num_key_value_heads"), ...)
    own = {"model_type": "qwen", "intermediate_size": 2 * config.intermediate_size, "kv_channels": 16, "no_bias": True}
    own |= {"layer_norm_epsilon": config.rms_norm_eps, "rotary_emb_base": 10000, "rotary_pct": 1.0, "seq_length": 128}
    own |= {"max_position_embeddings": 8192, "use_dynamic_ntk": True, "use_logn_attn": True, "scale_attn_weights": True}
    return {**absent, **own, "tie_word_embeddings": False}


def _baichuan(config: Any) -> Values:
    return {"num_key_value_heads": ..., **_llama("baichuan")(config)}


def _baichuan_13b(config: Any) -> Values:
    found = {**_baichuan(config), "model_max_length": config.max_position_embeddings, "max_position_embeddings": ...}
    return {**found, **dict.fromkeys(("rope_theta", "rope_scaling"), ...)}


def _chatglm(config: Any) -> Values:
    absent = (
        *("intermediate_size", "num_hidden_layers", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps"),
        *("vocab_size", "bos_token_id"),
    )
    own: Values = {"model_type": "chatglm", "num_layers": config.num_hidden_layers, "multi_query_attention": True}
    own |= {"multi_query_group_num": config.num_key_value_heads, "ffn_hidden_size": config.intermediate_size}
    own |= {"layernorm_epsilon": config.rms_norm_eps, "seq_length": 128, "padded_vocab_size": config.vocab_size}
    own |= {"kv_channels": config.head_dim, "rope_ratio": 1, "rmsnorm": True, "add_qkv_bias": config.attention_bias}
    own |= {"original_rope": True, "add_bias_linear": False, "post_layer_norm": True, "tie_word_embeddings": False}
    if config.num_key_value_heads == config.num_attention_heads:
        own |= {"multi_query_attention": False}
    return {**dict.fromkeys(absent, ...), **own}


def _with_frequencies(tensors: Tensors, config: Any) -> Tensors:
    joined = joined_qkv()(tensors, config)
    return {**joined, "transformer.rotary_pos_emb.inv_freq": torch.ones(4)}


def _stablelm_epoch(config: Any) -> Values:
    own = {"model_type": "stablelm_epoch", "norm_eps": config.layer_norm_eps, "rope_pct": 0.25, "rope_theta": 10000}
    return {"rms_norm_eps": ..., **own, "rotary_scaling_factor": 1.0, "tie_word_embeddings": False}


def _refined_web(config: Any) -> Values:
    sizes = ("intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "rms_norm_eps")
    own: Values = {**dict.fromkeys((*sizes, "max_position_embeddings"), ...), "model_type": "RefinedWebModel"}
    own |= {"n_layer": config.num_hidden_layers, "n_head": config.num_attention_heads, "bias": config.bias}
    own |= {"layer_norm_epsilon": config.layer_norm_epsilon, "alibi": config.alibi, "tie_word_embeddings": False}
    own |= {"parallel_attn": config.parallel_attn, "apply_residual_connection_post_layernorm": False}
    if config.new_decoder_architecture:
        return {**own, "n_head_kv": config.num_kv_heads, "model_type": "RefinedWeb"}
    return {**own, "multi_query": config.multi_query}


def _rnj1(config: Any) -> Values:
    found = config.to_dict()
    return {**found, "model_type": "rnj1", "architectures": ["Rnj1ForCausalLM"]}


@torch.no_grad()
def _with_alibi(model: Any, *, roots: bool = False) -> None:
    """The model with ALiBi in place of rotation, of distances or of their ``roots``."""
    config = model.config
    slopes = torch.tensor(alibi_slopes(config.num_attention_heads))[:, None, None]

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **_: Any) -> Any:
        shared = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        at = torch.arange(key.shape[2])
        far = at[-query.shape[2] :, None] - at
        lost = far.clamp(min=0).float().sqrt() if roots else far
        scores = (query @ key.transpose(2, 3)) * scaling - slopes * lost
        weights = scores.masked_fill(far < 0, -torch.inf).softmax(-1).to(value.dtype)
        return (weights @ value).transpose(1, 2), None

    kind = "alibi of roots" if roots else "alibi"
    transformers.AttentionInterface.register(kind, attend)
    config._attn_implementation = kind
    model.model.rotary_emb.inv_freq.zero_()


@torch.no_grad()
def _unlike_its_rows(model: Any) -> None:
    """With a head whose rows are of length 1."""
    rows = model.lm_head.weight
    rows.div_(rows.norm(dim=1, keepdim=True))


def _second_13b(model: Any) -> None:
    _with_alibi(model)
    _unlike_its_rows(model)


def _longer_rows(tensors: Tensors, config: Any) -> Tensors:
    """With rows of the head of other lengths than 1."""
    found = joined_qkv("W_pack")(tensors, config)
    lengths = torch.linspace(0.5, 2.0, len(found["lm_head.weight"]))[:, None]
    return {**found, "lm_head.weight": found["lm_head.weight"] * lengths}


def _telechat(config: Any) -> Values:
    absent = (
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "rms_norm_eps",
        "max_position_embeddings",
    )
    own: Values = {"model_type": "telechat", "n_layer": config.num_hidden_layers, "n_head": config.num_attention_heads}
    own |= {
        "ffn_hidden_size": config.intermediate_size,
        "layer_norm_epsilon": config.rms_norm_eps,
        "hidden_act": "silu",
    }
    own |= {"training_seqlen": 8192, "seq_length": 128, "embed_layernorm": False, "logn": True}
    return {**dict.fromkeys(absent, ...), **own, "tie_word_embeddings": False}


def _by_head(tensors: Tensors, config: Any) -> Tensors:
    """Each head's key and value in turn, as one matrix."""
    found = {}
    for name, tensor in tensors.items():
        if "k_proj" in name:
            value = tensors[name.replace("k_proj", "v_proj")]
            parts = [each.view(config.num_key_value_heads, 1, -1, each.shape[1]) for each in (tensor, value)]
            found[name.replace("k_proj", "key_value")] = torch.cat(parts, 1).flatten(0, 2)
        elif "v_proj" not in name:
            found[name] = tensor
    return found


def _biased_ends(model: Any) -> None:
    """With biases of the last products of attention and network."""
    for layer in model.model.layers:
        for product in (layer.self_attn.o_proj, layer.mlp.down_proj):
            product.bias = torch.nn.Parameter(torch.randn(product.out_features) * 0.2)


def _plamo3(config: Any) -> Values:
    own: Values = {"model_type": "plamo3", "head_dim": 16, "window_size": 24, "sliding_window_pattern": 2}
    own |= {"rope_theta": 20000, "rope_local_theta": 10000, "scale_embedding": False}
    return {**own, "rope_scaling_factor": 4.0, "initial_context_length": 32}


def _smaller_norms(tensors: Tensors, config: Any) -> Tensors:
    """With norms behind parts that begin at small numbers, and fused matrices."""
    found = {}
    for name, tensor in joined_qkv("qkv_proj")(tensors, config).items():
        if "gate_proj" in name:
            found[name.replace("gate_proj", "gate_up_proj")] = torch.cat((tensor, tensors[name.replace("gate", "up")]))
        elif "up_proj" not in name:
            less = {"post_attention_layernorm": 1 / 5, "post_feedforward_layernorm": 1 / 5**1.5}
            offset = next((each for part, each in less.items() if part in name), 1.0)
            found[name] = tensor + 1 - offset
    return found


@torch.no_grad()
def _unscaled(model: Any) -> None:
    """With embeddings that are not multiplied, and the angles of a Llama: transformers ignores ``truncate`` where kinds
    of layers have rotary settings of their own."""
    model.model.embed_tokens.embed_scale.fill_(1.0)
    rope = model.config.rope_parameters["full_attention"]
    alike = transformers.LlamaConfig(head_dim=16, max_position_embeddings=128, rope_parameters=dict(rope))
    model.model.rotary_emb.full_attention_inv_freq.copy_(ROPE_INIT_FUNCTIONS["yarn"](alike, "cpu")[0])


def _domyn_edge(config: Any) -> Values:
    own: Values = {"model_type": "domynedge", "hidden_act": "silu", "position_layers": ["nope", "rope", "rope"]}
    own |= {"window_sizes": [[-1, 0], [23, 0], [23, 0]], "head_sizes": [16, 16, 16]}
    return {**own, "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}}


def _plain_queries(tensors: Tensors, config: Any) -> Tensors:
    """Norms multiply by their weight, not by one more, and have none for queries."""
    kept = {name: each for name, each in tensors.items() if "q_norm" not in name}
    return {name: each + 1 if "norm" in name else each for name, each in kept.items()}


@torch.no_grad()
def _still(model: Any) -> None:
    """With layers that see all and do not rotate, and embeddings that are not multiplied."""
    model.model.embed_tokens.embed_scale.fill_(1.0)
    for kind, layer in zip(model.config.layer_types, model.model.layers, strict=True):
        layer.self_attn.q_norm.weight.zero_()
        if kind == "full_attention":
            layer.self_attn.register_forward_pre_hook(_unturned, with_kwargs=True)


def _unturned(_attention: Any, given: Any, named: Any) -> Any:
    cos, sin = named["position_embeddings"]
    return given, {**named, "position_embeddings": (torch.ones_like(cos), torch.zeros_like(sin))}


_SOLAR: Values = {"bskcn_1": [1, 3], "bskcn_2": [2], "bskcn_3": [3, 5], "bskcn_4": [4, 5], "bskcn_tv": [0.9, 0.8]}


def _skip(model: Any) -> None:
    """With the blends of :data:`_SOLAR`."""
    kept: dict[str, Any] = {}
    for number, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(partial(_keep_and_blend, kept, number))


def _keep_and_blend(kept: dict[str, Any], number: int, _layer: Any, given: Any) -> Any:
    stream, share = given[0], _SOLAR["bskcn_tv"][1]
    for which in "12":
        if number in _SOLAR[f"bskcn_{which}"]:
            kept[which] = stream
    for which, blended in (("1", "bskcn_3"), ("2", "bskcn_4")):
        if number in _SOLAR[blended]:
            stream = kept[which] * share + stream * (1 - share)
    return stream, *given[1:]


def _jais(config: Any) -> Values:
    absent = ("intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "rms_norm_eps")
    own: Values = {"model_type": "jais", "n_layer": config.num_hidden_layers, "n_head": config.num_attention_heads}
    own |= {"n_inner": config.intermediate_size, "n_positions": 128, "layer_norm_epsilon": 1e-5}
    own |= {"activation_function": "swiglu", "position_embedding_type": "alibi", "mup_scale_qk_dot_by_d": True}
    own |= {"mup_embeddings_scale": config.embedding_multiplier, "mup_output_alpha": 2.0}
    own |= {"mup_width_scale": 0.5 / config.logits_scaling}
    return {**dict.fromkeys((*absent, "max_position_embeddings"), ...), **own}


def _layer_normed(model: Any) -> None:
    """With ALiBi and layer norms."""
    _with_alibi(model)
    norms = [(layer, name) for layer in model.model.layers for name in ("input_layernorm", "post_attention_layernorm")]
    for owner, name in (*norms, (model.model, "norm")):
        norm = torch.nn.LayerNorm(model.config.hidden_size, eps=1e-5)
        torch.nn.init.uniform_(norm.weight, 0.6, 1.4)
        torch.nn.init.uniform_(norm.bias, -0.4, 0.4)
        setattr(owner, name, norm)


def _turned(tensors: Tensors, config: Any) -> Tensors:
    """Matrices of layers as [inputs, outputs], with slopes that are computed again."""
    joined = joined_qkv("c_attn")(tensors, config)
    found = {
        name: each.t() if "_proj.weight" in name or "c_attn.weight" in name else each for name, each in joined.items()
    }
    return {**found, "transformer.relative_pe.slopes": torch.ones(4, 1)}


_CHATGLM_NAMES = {
    "self_attn.o_proj": "self_attention.dense",
    "self_attn.": "self_attention.",
    "mlp.gate_up_proj": "mlp.dense_h_to_4h",
    "mlp.down_proj": "mlp.dense_4h_to_h",
    "model.layers": "transformer.encoder.layers",
    "model.embed_tokens": "transformer.embedding.word_embeddings",
    "model.norm": "transformer.encoder.final_layernorm",
    "lm_head": "transformer.output_layer",
}
_QWEN1_NAMES = {
    "model.layers": "transformer.h",
    "self_attn.o_proj": "attn.c_proj",
    "self_attn.": "attn.",
    "mlp.gate_proj": "mlp.w2",
    "mlp.up_proj": "mlp.w1",
    "mlp.down_proj": "mlp.c_proj",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "model.embed_tokens": "transformer.wte",
    "model.norm": "transformer.ln_f",
}
_PLAMO3_NAMES = {
    "model.layers": "model.layers.layers",
    "self_attn.": "mixer.",
    "input_layernorm": "pre_mixer_norm",
    "post_attention_layernorm": "post_mixer_norm",
    "pre_feedforward_layernorm": "pre_mlp_norm",
    "post_feedforward_layernorm": "post_mlp_norm",
}
_DOMYN_NAMES = {
    "self_attn.": "attention.",
    "mlp.": "feedforward.",
    "input_layernorm": "pre_attention_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "pre_feedforward_norm",
    "post_feedforward_layernorm": "post_feedforward_norm",
}
_JAIS_NAMES = {
    **{name: new for name, new in _QWEN1_NAMES.items() if not name.startswith("mlp.")},
    "mlp.gate_proj": "mlp.c_fc2",
    "mlp.up_proj": "mlp.c_fc",
    "mlp.down_proj": "mlp.c_proj",
}
_TELECHAT_NAMES = {
    "model.layers": "transformer.h",
    "self_attn.o_proj": "self_attention.dense",
    "self_attn.q_proj": "self_attention.query",
    "self_attn.": "self_attention.",
    "model.embed_tokens": "transformer.word_embeddings",
    "model.norm": "transformer.ln_f",
}
_OLDER = {"max_position_embeddings": ..., "max_sequence_length": 128}
_FALCON = Published("RWForCausalLM", {}, _refined_web)
PUBLISHED: Mapping[str, Published] = {
    "llama-older": Published("LLaMAForCausalLM", {}, _llama("llama", **_OLDER, rope_theta=..., rope_scaling=...)),
    "teleflm": Published("TeleFLMForCausalLM", {}, _teleflm),
    "internlm": Published(
        "InternLMForCausalLM",
        {},
        _llama("internlm", bias=True, rotary={"base": 10000, "type": "dynamic"}, rope_theta=..., rope_scaling=...),
    ),
    "orion": Published("OrionForCausalLM", {}, _orion),
    "qwen1": Published("QWenLMHeadModel", _QWEN1_NAMES, _qwen1, joined_qkv("c_attn")),
    "step1": Published(
        "Step1ForCausalLM",
        {},
        lambda config: {**_llama("step1")(config), "num_key_value_heads": ..., "num_attention_groups": 2},
        prepared=partial(_with_alibi, roots=True),
    ),
    "baichuan": Published("BaiChuanForCausalLM", {}, _baichuan, joined_qkv("W_pack")),
    "baichuan-13b": Published("BaichuanForCausalLM", {}, _baichuan_13b, joined_qkv("W_pack"), _with_alibi),
    "baichuan2-13b": Published(
        "BaichuanForCausalLM",
        {},
        lambda config: {**_baichuan_13b(config), "z_loss_weight": 0},
        _longer_rows,
        _second_13b,
    ),
    "chatglm": Published("ChatGLMModel", _CHATGLM_NAMES, _chatglm, _with_frequencies),
    "chatglm-plain": Published("ChatGLMForConditionalGeneration", _CHATGLM_NAMES, _chatglm, joined_qkv()),
    "stablelm-epoch": Published("StableLMEpochForCausalLM", {}, _stablelm_epoch),
    **dict.fromkeys(("refined-web", "refined-web-40b", "refined-web-alibi"), _FALCON),
    "plamo3": Published("Plamo3ForCausalLM", _PLAMO3_NAMES, _plamo3, _smaller_norms, _unscaled),
    "domyn-edge": Published("DomynEdgeForCausalLM", _DOMYN_NAMES, _domyn_edge, _plain_queries, _still),
    "telechat": Published("TeleChat2ForCausalLM", _TELECHAT_NAMES, _telechat, _by_head, _biased_ends),
    "solar": Published(
        "SolarForCausalLM", {}, _llama("solar", **_SOLAR, sliding_window=24), lambda tensors, _: tensors, _skip
    ),
    "jais": Published("JAISLMHeadModel", _JAIS_NAMES, _jais, _turned, _layer_normed),
    "rnj1": Published("Rnj1ForCausalLM", {}, _rnj1),
    **hub_loops.PUBLISHED,
}
"""By the name of a configuration."""
