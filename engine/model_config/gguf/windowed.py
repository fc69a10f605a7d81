"""Fields of GGUF architectures whose layers with a window differ from full ones in more than the window."""

from statistics import NormalDist

from msgspec.structs import replace

from ..config_fields import ConfigError
from ..spec.model import ModelSpec, with_mixers
from .translation import GGUFFacts, Values


def mimo2(facts: GGUFFacts) -> Values:
    fields, slides = facts.fields, facts.slides(6)
    by_layer = facts.each("attention.head_count_kv")
    sparse = facts.having("ffn_gate_inp.weight")
    rotating = fields.integer("rope.dimension_count") / fields.integer("attention.key_length")
    return {
        "num_key_value_heads": _heads_of(by_layer, [not each for each in slides]),
        "swa_num_key_value_heads": _heads_of(by_layer, slides),
        "layer_types": facts.layer_types(6),
        "mlp_layer_types": ["sparse" if each else "dense" for each in sparse],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": rotating}
            for kind, theta in (
                ("full_attention", fields.number("rope.freq_base", 5_000_000.0)),
                ("sliding_attention", fields.number("rope.freq_base_swa", 10_000.0)),
            )
        },
    }


def _heads_of(heads: list[int], which: list[bool]) -> int:
    """The heads of the first layer that is marked in ``which``; of the first layer if none is."""
    return next((each for each, has in zip(heads, which, strict=True) if has), heads[0])


def step35(facts: GGUFFacts) -> Values:
    """Layers with a window have other heads. Full layers rotate half of each head, which no key says."""
    fields, slides = facts.fields, facts.slides(4)
    heads, clamped = facts.each("attention.head_count"), ("swiglu_clamp_exp", "swiglu_clamp_shexp")
    limits = {key: list(fields.numbers(key))[: facts.layers] for key in clamped}
    turning = {"rope_type": "default", "rope_theta": fields.number("rope.freq_base", 10_000.0)}
    return {
        "num_attention_heads": _heads_of(heads, [not each for each in slides]),
        "num_sliding_attention_heads": _heads_of(heads, slides),
        "layer_types": facts.layer_types(4),
        "mlp_layer_types": ["sparse" if each else "dense" for each in facts.having("ffn_gate_inp.weight")],
        "swiglu_limits": limits["swiglu_clamp_exp"] or None,
        "swiglu_limits_shared": limits["swiglu_clamp_shexp"] or None,
        "rope_parameters": {
            "full_attention": {**turning, "partial_rotary_factor": 0.5},
            "sliding_attention": {**turning, "rope_theta": fields.number("rope.freq_base_swa", 10_000.0)},
        },
    }


def stretched_full(spec: ModelSpec, facts: GGUFFacts) -> ModelSpec:
    """The spec with frequency divisors in its full layers. The file pads them to all pairs of a head; only those of
    pairs that rotate are used."""
    if "rope_freqs.weight" not in facts.shapes:
        return spec
    full = [not layer.attention.window for layer in spec.layers]
    attention = next((layer.attention for layer, has in zip(spec.layers, full, strict=True) if has), None)
    if attention is None or attention.rope is None:
        return spec
    pairs = (attention.rope.rotary_dim or attention.head_dim) // 2
    divisors = facts.read_floats("rope_freqs.weight")[:pairs]
    return with_mixers(spec, full, rope=replace(attention.rope, frequency_divisors=divisors))


def gemma4(facts: GGUFFacts) -> Values:
    """Layers with a window and full ones have different heads. Dimensions of full layers that do not rotate have a
    divisor that stops them."""
    fields, slides = facts.fields, facts.slides(6)
    by_layer, sizes = facts.each("attention.head_count_kv"), facts.each("feed_forward_length")
    divisors = facts.read_floats("rope_freqs.weight") if "rope_freqs.weight" in facts.shapes else (1.0,)
    own = facts.count("attention.shared_kv_layers")
    valued = facts.having("attn_v.weight")[: facts.layers - own]
    table = facts.shapes.get("per_layer_token_embd.weight", (0, 1))
    if len(table) != 2:
        raise ConfigError("the tensor per_layer_token_embd.weight is no matrix")
    sparse = facts.has("ffn_gate_inp.weight")
    return {
        "layer_types": facts.layer_types(6),
        "head_dim": fields.integer("attention.key_length_swa"),
        "global_head_dim": fields.integer("attention.key_length"),
        "num_key_value_heads": _heads_of(by_layer, slides),
        "num_global_key_value_heads": _heads_of(by_layer, [not each for each in slides]),
        "attention_k_eq_v": not all(valued),
        "num_kv_shared_layers": own,
        "hidden_size_per_layer_input": facts.count("embedding_length_per_layer_input") or None,
        "vocab_size_per_layer_input": table[1],
        "intermediate_size": sizes[0],
        "use_double_wide_mlp": sizes[-1] == 2 * sizes[0],
        "enable_moe_block": sparse,
        "top_k_experts": facts.count("expert_used_count", 1) or 1,
        "rope_parameters": {
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": fields.number("rope.freq_base_swa", 10_000.0),
                "partial_rotary_factor": fields.integer(
                    "rope.dimension_count_swa", fields.integer("attention.key_length_swa")
                )
                / fields.integer("attention.key_length_swa"),
            },
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": fields.number("rope.freq_base", 1_000_000.0),
                "partial_rotary_factor": sum(each == 1.0 for each in divisors) / len(divisors),
            },
        },
    }


def gemma3n(facts: GGUFFacts) -> Values:
    """Stored of how sparse gates are is how many deviations above the mean they are cut off; -inf is not."""
    fields = facts.fields
    cutoffs = fields.get("activation_sparsity_scale")
    if not isinstance(cutoffs, list) or not all(isinstance(each, float) for each in cutoffs):
        raise ConfigError("activation_sparsity_scale is missing, expected a list of numbers")
    table = facts.shapes.get("per_layer_token_embd.weight", ())
    if len(table) != 2:
        raise ConfigError("the tensor per_layer_token_embd.weight is missing")
    return {
        "layer_types": facts.layer_types(5),
        "num_kv_shared_layers": facts.count("attention.shared_kv_layers"),
        "vocab_size_per_layer_input": table[1],
        "intermediate_size": facts.each("feed_forward_length"),
        "activation_sparsity_pattern": [NormalDist().cdf(each) for each in cutoffs],
        "laurel_rank": facts.outputs("laurel_l.weight", 0),
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": fields.number("rope.freq_base_swa", 10_000.0)},
            "full_attention": {"rope_type": "default", "rope_theta": fields.number("rope.freq_base", 1_000_000.0)},
        },
    }
