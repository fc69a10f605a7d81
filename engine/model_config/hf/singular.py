"""Reads the config.json of families of transformers whose attention or network no other family has."""

from math import exp

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.attention_parts import ChosenHeadsSpec, DifferenceSpec
from ..spec.layer import PRE, LayerSpec, Norms
from ..spec.mlp import ExpertNames, RouterSpec
from ..spec.model import HeadTransformSpec, ModelSpec, dense_mlp, with_layers, with_mixers
from ..spec.recurrent import MambaSpec
from ..spec.shared_block import SharedBlockSpec
from ..spec.token_input import TokenInputSpec
from .common import activation_of, attention_bias, clip_of, common, expect, renamed, slide, sliding_layers
from .mamba import hybrid_kinds
from .moe import experts_of
from .rope import rope_from_hf


def dbrx(fields: Fields, name: str) -> ModelSpec:
    """DBRX: an MPT with rotation and experts. Files have the rotary base beside the clip of queries, keys and
    values."""
    attending = Fields(fields.table("attn_config") or {})
    network = Fields(fields.table("ffn_config") or {})
    activation = Fields(network.table("ffn_act_fn") or {}).text("name", "silu")
    sizes = renamed(
        fields,
        {
            "d_model": "hidden_size",
            "n_heads": "num_attention_heads",
            "n_layers": "num_hidden_layers",
            "max_seq_len": "max_position_embeddings",
        },
        **{"hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 24, "max_position_embeddings": 2048},
        vocab_size=32000,
    )
    usual: dict[str, object] = {
        "num_key_value_heads": attending.integer("kv_n_heads", 1),
        "intermediate_size": network.integer("ffn_hidden_size", 3584),
        "num_experts": network.integer("moe_num_experts", 4),
        "hidden_act": activation,
        "head_dim": None,
    }
    if attending.has("rope_theta") and not fields.has("rope_parameters"):
        usual["rope_theta"] = attending.number("rope_theta")
    sizes = Fields({**sizes.values, **usual})
    spec = common(sizes, name, eps=1e-5, eps_field="layer_norm_epsilon")
    power = network.number(
        "moe_normalize_expert_weights", 0.0 if "moe_normalize_expert_weights" in network.values else 1.0
    )
    if power not in (0, 1):
        raise ConfigError(f"ffn_config.moe_normalize_expert_weights is {power}, expected 1 or null: no other is known")
    router = RouterSpec(network.integer("moe_top_k", 1), renormalize=power == 1)
    names = ExpertNames(
        router="ffn.router.layer",
        into=("ffn.experts.mlp.w1", "ffn.experts.mlp.v1"),
        out="ffn.experts.mlp.w2",
        flat=True,
        out_transposed=True,
    )
    inner = "norm_attn_norm"
    spec = with_mixers(spec, clip=clip_of(attending), fused=True, name=f"{inner}.attn", into="Wqkv", out="out_proj")
    moe = replace(experts_of(sizes, spec, router, experts=4, inner="intermediate_size"), names=(names,))
    norms = Norms(mixer_in=f"{inner}.norm_1", mlp_in=f"{inner}.norm_2", kind="layer")
    return replace(
        with_layers(spec, norms=norms, mlp=moe),
        prefix="transformer.blocks",
        embedding="transformer.wte",
        final_norm="transformer.norm_f",
    )


def jetmoe(fields: Fields, name: str) -> ModelSpec:
    """JetMoe: tokens choose experts of attention too, which have a query head of every key (arXiv:2404.07413)."""
    top_k, keys = fields.integer("num_experts_per_tok", 2), fields.integer("num_key_value_heads", 16)
    expect(fields, {"num_attention_heads": top_k * keys})
    sizes = {
        "num_attention_heads": top_k * keys,
        "num_key_value_heads": keys,
        "head_dim": fields.integer("kv_channels", fields.integer("head_dim", 128)),
        "hidden_act": fields.text("activation_function", "silu"),
    }
    fields = Fields({**fields.values, **sizes, "tie_word_embeddings": fields.flag("tie_word_embeddings", True)})
    spec = common(fields, name)
    router = RouterSpec(top_k)
    moe = experts_of(fields, spec, router, experts=8, inner="intermediate_size")
    names = ExpertNames(router="mlp.router.layer", into=("mlp.input_linear.weight",), out="mlp.output_linear.weight")
    chosen = ChosenHeadsSpec(moe.experts, top_k)
    spec = with_mixers(spec, name="self_attention", chosen=chosen, output_bias=True)
    # only the last norm's epsilon is that of the file
    return with_layers(spec, norms=replace(PRE, in_eps=1e-6), mlp=replace(moe, names=(names,), sum_bias="mlp.bias"))


def diffllama(fields: Fields, name: str) -> ModelSpec:
    """DiffLlama: a Llama whose attention is a difference (arXiv:2410.05258)."""
    spec = attention_bias(fields, common(fields, name, eps=1e-5))
    layers = []
    for number, layer in enumerate(spec.layers):
        mixer, first = layer.attention, 0.8 - 0.6 * exp(-0.3 * number)
        heads, kv_heads = 2 * mixer.heads, 2 * mixer.kv_heads
        mixer = replace(mixer, difference=DifferenceSpec(first), heads=heads, kv_heads=kv_heads)
        layers.append(replace(layer, mixer=mixer))
    return replace(spec, layers=tuple(layers))


def zamba(fields: Fields, name: str) -> ModelSpec:
    """Zamba: Mamba in all layers, whose channels are heads; in some, a transformer block that they share is added to
    its input (arXiv:2405.16712)."""
    expect(fields, {"tie_word_embeddings": True, "hidden_mamba_act": "silu"})
    hidden, heads = fields.integer("hidden_size", 3712), fields.integer("num_attention_heads", 16)
    expect(fields, {"attention_hidden_size": 2 * hidden})
    layers = fields.integer("num_hidden_layers", 76, most=MOST_LAYERS)
    period, offset = fields.integer("attn_layer_period", 6), fields.integer("attn_layer_offset", 4, least=0)
    every = ("hybrid" if layer % period == offset else "mamba" for layer in range(max(0, layers - 3)))
    kinds = hybrid_kinds(fields, ("mamba", "mamba", "hybrid", *every))
    values = {
        **{"vocab_size": 32_000, "num_key_value_heads": 16, "max_position_embeddings": 4096},
        **fields.values,
        **{"hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": len(kinds)},
        "head_dim": fields.integer("attention_head_dim", max(1, 2 * hidden // heads)),
        "intermediate_size": fields.integer("intermediate_size", 14_848),
        "tie_word_embeddings": True,
    }
    spec = common(Fields(values), name, eps=1e-5, activation="gelu")
    mixer = MambaSpec(
        inner=fields.integer("mamba_expand", 2) * hidden,
        rank=-(-hidden // 16) if fields.get("mamba_dt_rank") in (None, "auto") else fields.integer("mamba_dt_rank"),
        state_dim=fields.integer("mamba_d_state", 16),
        width=fields.integer("mamba_d_conv", 4),
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("mamba_proj_bias"),
        heads=fields.integer("n_mamba_heads", 2),
    )
    block = "shared_transf"
    attention = spec.layers[0].attention
    scale = (attention.head_dim / 2) ** -0.5
    attention = replace(attention, scale=scale, rope=None, inputs=2, name=f"{block}.self_attn")
    into = f"{block}.feed_forward.gate_proj", f"{block}.feed_forward.up_proj"
    network = replace(dense_mlp(spec), into=into, out=f"{block}.feed_forward.down_proj")
    uses = [number for number, kind in enumerate(kinds) if kind == "hybrid"]
    made = [LayerSpec(mixer, None, Norms(mixer_in="input_layernorm"))] * len(kinds)
    for use, number in enumerate(uses):
        shared = SharedBlockSpec(attention, network, uses[0], use, rank=0, adapts_attention=False, name=block)
        norms = Norms(mixer_in="mamba_decoder.input_layernorm")
        made[number] = LayerSpec(replace(mixer, name="mamba_decoder.mamba"), None, norms, block=shared)
    return replace(spec, layers=tuple(made), final_norm="model.final_layernorm")


def modernbert_decoder(fields: Fields, name: str) -> ModelSpec:
    """ModernBERT's decoder (Ettin, arXiv:2507.11412): a window in two of three layers, and a network before the head.

    The file's window is that of an encoder, of which earlier tokens are half.
    """
    usual = renamed(
        fields,
        {"hidden_activation": "hidden_act"},
        **{"hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22, "num_attention_heads": 12},
        **{"vocab_size": 50368, "max_position_embeddings": 8192, "tie_word_embeddings": True},
    )
    usual = Fields({**usual.values, "num_key_value_heads": None, "head_dim": None})
    spec = common(usual, name, eps=1e-5, activation="gelu", eps_field="norm_eps")
    bias, biased, mlp_bias = (fields.flag(each) for each in ("attention_bias", "norm_bias", "mlp_bias"))
    mixer = spec.layers[0].attention
    spec = with_mixers(spec, name="attn", out="Wo", qkv_bias=bias, output_bias=bias)
    mlp = replace(dense_mlp(spec), into=("mlp.Wi",), out="mlp.Wo", bias=mlp_bias)
    spec = with_layers(spec, mlp=mlp, norms=Norms(mixer_in="attn_norm", mlp_in="mlp_norm", kind="layer", bias=biased))
    every = fields.integer("global_attn_every_n_layers", 3)
    slides = sliding_layers(fields) or [layer % every != 0 for layer in range(len(spec.layers))]
    for which, older, theta in (("full", "global_rope_theta", 160_000.0), ("sliding", "local_rope_theta", 10_000.0)):
        default = fields.positive(older, theta)
        rope = rope_from_hf(fields.values, mixer.head_dim, theta=default, layer_type=f"{which}_attention")
        spec = with_mixers(spec, [each == (which == "sliding") for each in slides], rope=rope)
    spec = slide(spec, fields.integer("local_attention", 128, least=2) // 2, slides)
    first, *others = spec.layers  # the embedding's norm replaces that of the first layer
    activation = activation_of(fields, "classifier_activation", "gelu")
    return replace(
        spec,
        layers=(replace(first, norms=replace(first.norms, mixer_in="")), *others),
        embedding="model.embeddings.tok_embeddings",
        input=TokenInputSpec(norm="model.embeddings.norm"),
        final_norm="model.final_norm",
        head_bias=fields.flag("decoder_bias", True),
        head_transform=HeadTransformSpec(activation, fields.flag("classifier_bias")),
    )
