"""Fields of GGUF architectures with recurrent layers."""

from msgspec.structs import replace

from ..config_fields import ConfigError
from ..spec.model import ModelSpec
from ..spec.recurrent import GatedDeltaSpec
from .translation import GGUFFacts, Values


def gated_delta(facts: GGUFFacts) -> Values:
    heads = facts.fields.integer("ssm.time_step_rank")
    attends = facts.having("attn_output.weight")
    return {
        "linear_num_key_heads": facts.fields.integer("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_key_head_dim": facts.fields.integer("ssm.state_size"),
        "linear_value_head_dim": max(1, facts.fields.integer("ssm.inner_size") // heads),
        "linear_conv_kernel_dim": facts.fields.integer("ssm.conv_kernel"),
        "layer_types": ["full_attention" if each else "linear_attention" for each in attends],
    }


def by_part(spec: ModelSpec, facts: GGUFFacts) -> ModelSpec:
    """Qwen3-Next's projections are stored as Qwen3.5's, except in files of its first converter."""
    if facts.has("ssm_in.weight"):
        return spec
    layers = (
        replace(layer, mixer=replace(layer.mixer, stored="by_part"))
        if isinstance(layer.mixer, GatedDeltaSpec)
        else layer
        for layer in spec.layers
    )
    return replace(spec, layers=tuple(layers))


def tiled(spec: ModelSpec, facts: GGUFFacts) -> ModelSpec:
    """The spec of a model whose value heads of one key head are not adjacent in the file."""
    layers = (
        replace(layer, mixer=replace(layer.mixer, tiled=layer.mixer.v_heads > layer.mixer.k_heads))
        if isinstance(layer.mixer, GatedDeltaSpec)
        else layer
        for layer in spec.layers
    )
    return replace(spec, layers=tuple(layers))


def mamba(facts: GGUFFacts) -> Values:
    """Fields of Mamba-2 layers in hybrid models: Granite 4, Bamba, Falcon-H1."""
    fields = facts.fields
    return {
        "mamba_n_heads": fields.integer("ssm.time_step_rank"),
        "mamba_d_ssm": fields.integer("ssm.inner_size"),
        "mamba_expand": fields.integer("ssm.inner_size") / fields.integer("embedding_length"),
        "mamba_n_groups": fields.integer("ssm.group_count"),
        "mamba_d_state": fields.integer("ssm.state_size"),
        "mamba_d_conv": fields.integer("ssm.conv_kernel"),
        "mamba_conv_bias": facts.has("ssm_conv1d.bias"),
        "mamba_proj_bias": facts.has("ssm_in.bias"),
        "projectors_bias": facts.has("ssm_in.bias"),
        "mamba_rms_norm": facts.has("ssm_norm.weight"),
        "mlp_bias": facts.has("ffn_down.bias"),
    }


def granite_hybrid(facts: GGUFFacts) -> Values:
    if facts.fields.flag("rope.scaling.finetuned", True) and facts.has("ssm_in.weight"):
        raise ConfigError("it is a Bamba, whose rotated heads a GGUF file stores in no known order")
    stem = "ffn_up_shexp" if facts.has("ffn_gate_inp.weight") else "ffn_up"
    return {
        **mamba(facts),
        "num_local_experts": facts.count("expert_count"),
        "shared_intermediate_size": facts.outputs(f"{stem}.weight", 0),
        "position_embedding_type": "nope" if facts.has("ssm_in.weight") else "rope",
        "layer_types": ["mamba" if each else "attention" for each in facts.having("ssm_in.weight")],
    }


def nemotron(facts: GGUFFacts) -> Values:
    fields = facts.fields
    stored = {"M": "ssm_in.weight", "*": "attn_q.weight", "E": "ffn_gate_inp.weight", "-": "ffn_up.weight"}
    having = {letter: facts.having(tensor) for letter, tensor in stored.items()}
    heads = fields.integer("ssm.time_step_rank")
    return {
        "hybrid_override_pattern": "".join(
            next((letter for letter in having if having[letter][layer]), "?") for layer in range(facts.layers)
        ),
        "mamba_num_heads": heads,
        "mamba_head_dim": max(1, fields.integer("ssm.inner_size") // heads),
        "n_groups": fields.integer("ssm.group_count"),
        "ssm_state_size": fields.integer("ssm.state_size"),
        "conv_kernel": fields.integer("ssm.conv_kernel"),
        "use_conv_bias": facts.has("ssm_conv1d.bias"),
        "use_bias": facts.has("ssm_in.bias"),
        "mlp_bias": facts.has("ffn_down.bias"),
        "time_step_min": 0.0,  # as in llama.cpp
    }


def mamba_alone(facts: GGUFFacts) -> Values:
    fields = facts.fields
    return {
        "intermediate_size": fields.integer("ssm.inner_size"),
        "time_step_rank": fields.integer("ssm.time_step_rank"),
        **_state_and_convolution(facts),
    }


def _state_and_convolution(facts: GGUFFacts) -> Values:
    """Fields of the state and the convolution of Mamba and Mamba-2."""
    return {
        "state_size": facts.fields.integer("ssm.state_size"),
        "conv_kernel": facts.fields.integer("ssm.conv_kernel"),
        "use_conv_bias": facts.has("ssm_conv1d.bias"),
        "use_bias": facts.has("ssm_in.bias"),
    }


def mamba_class(facts: GGUFFacts) -> str:
    return "FalconMambaForCausalLM" if facts.fields.flag("ssm.dt_b_c_rms") else "MambaForCausalLM"


def jamba(facts: GGUFFacts) -> Values:
    fields = facts.fields
    return {
        "mamba_expand": fields.integer("ssm.inner_size") // fields.integer("embedding_length"),
        "mamba_dt_rank": fields.integer("ssm.time_step_rank"),
        "mamba_d_state": fields.integer("ssm.state_size"),
        "mamba_d_conv": fields.integer("ssm.conv_kernel"),
        "mamba_conv_bias": facts.has("ssm_conv1d.bias"),
        "mamba_proj_bias": facts.has("ssm_in.bias"),
        **_periodic("attn_layer", facts.having("attn_q.weight")),
        **_periodic("expert_layer", facts.having("ffn_gate_inp.weight")),
    }


def _periodic(what: str, having: list[bool]) -> Values:
    """The period and offset of these layers, by the first two; with fewer, a period past the last layer."""
    first, second, *_ = [*(layer for layer, has in enumerate(having) if has), *[len(having)] * 2]
    period = second - first if second < len(having) else len(having) + 1
    return {f"{what}_period": period, f"{what}_offset": first}


def mamba2(facts: GGUFFacts) -> Values:
    fields = facts.fields
    inner, heads = fields.integer("ssm.inner_size"), fields.integer("ssm.time_step_rank")
    return {
        "num_heads": heads,
        "head_dim": max(1, inner // heads),
        "expand": inner / fields.integer("embedding_length"),
        "n_groups": fields.integer("ssm.group_count"),
        **_state_and_convolution(facts),
    }


def lfm2(facts: GGUFFacts) -> Values:
    return {
        "block_auto_adjust_ff_dim": False,
        "conv_bias": facts.has("shortconv.conv.bias"),
        "layer_types": ["conv" if each else "full_attention" for each in facts.having("shortconv.conv.weight")],
        "num_dense_layers": facts.dense_first(),
        "use_expert_bias": facts.has("exp_probs_b.bias"),
    }
