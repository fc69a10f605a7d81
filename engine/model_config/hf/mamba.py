"""Reads the config.json of Mamba and Mamba-2, and of families with such layers in other arrangements."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.attention import AttentionSpec
from ..spec.layer import LayerSpec, Norms
from ..spec.mlp import ExpertNames, MLPSpec, MoESpec, RouterSpec
from ..spec.model import ModelSpec, dense_mlp, with_layers, with_mixers, with_mtp
from ..spec.mtp_form import NEMOTRON
from ..spec.recurrent import Mamba2Spec, MambaNorm, MambaSpec
from ..spec.shared_block import SharedBlockSpec
from ..spec.token_input import TokenInputSpec
from .common import attention_bias, check_silu, common, renamed
from .hybrid import mamba2, mixed
from .moe import experts_of, with_experts

_KINDS: Final[Mapping[str, str]] = {
    "M": "linear_attention",
    "mamba": "linear_attention",
    "*": "full_attention",
    "attention": "full_attention",
    "-": "mlp",
    "E": "moe",
}
"""Older files' names for the kinds of layers."""
_PUZZLE_KINDS: Final[Mapping[str, str]] = {"mamba": "linear_attention", "attention": "full_attention", "moe": "moe"}
_PUZZLE_FIELDS: Final = (
    *("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_shared_expert_intermediate_size"),
    *("moe_latent_size", "n_group", "topk_group", "routed_scaling_factor", "norm_topk_prob"),
)
"""Fields that its layers may have of their own."""
_ZAMBA2: Final = (
    "mamba",
    *(*("mamba",) * 5, "hybrid") * 7,
    *(*("mamba",) * 4, "hybrid", *("mamba",) * 3, "hybrid", *("mamba",) * 2),
)
"""Default kinds of Zamba2's layers."""
_LONGEST: Final = 1 << 20
"""Default context length, as in llama.cpp."""
_NEMOTRON_EXPERTS: Final = (
    ExpertNames(
        router="mixer.gate",
        into=("mixer.experts.{}.up_proj.weight",),
        out="mixer.experts.{}.down_proj.weight",
        correction="mixer.gate.e_score_correction_bias",
    ),
    ExpertNames(
        router="mixer.gate",
        into=("mixer.experts.up_proj",),
        out="mixer.experts.down_proj",
        correction="mixer.gate.e_score_correction_bias",
    ),
)
_JAMBA_EXPERTS: Final = (
    ExpertNames(
        router="feed_forward.router",
        into=("feed_forward.experts.{}.gate_proj.weight", "feed_forward.experts.{}.up_proj.weight"),
        out="feed_forward.experts.{}.down_proj.weight",
    ),
    ExpertNames(
        router="feed_forward.router",
        into=("feed_forward.experts.gate_up_proj",),
        out="feed_forward.experts.down_proj",
    ),
)


def mamba_alone(fields: Fields, name: str) -> ModelSpec:
    """Mamba."""
    return _mamba_alone(fields, name, "none")


def falcon_mamba(fields: Fields, name: str) -> ModelSpec:
    """Falcon Mamba: norms of steps, B and C."""
    return _mamba_alone(fields, name, "plain")


def _mamba_alone(fields: Fields, name: str, norm: MambaNorm) -> ModelSpec:
    fields = Fields(
        {"vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 32, "tie_word_embeddings": True, **fields.values}
    )
    check_silu(fields)
    hidden = fields.integer("hidden_size")
    mixer = MambaSpec(
        inner=fields.integer("intermediate_size", int(fields.number("expand", 2) * hidden)),
        rank=_rank(fields, "time_step_rank", hidden),
        state_dim=fields.integer("state_size", 16),
        width=fields.integer("conv_kernel", 4),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias"),
        norm=norm,
        norm_eps=fields.number("mixer_rms_eps", 1e-6),
        name="mixer",
    )
    return _recurrent_alone(fields, name, LayerSpec(mixer, None, Norms(mixer_in="norm")))


def _rank(fields: Fields, field: str, hidden: int) -> int:
    """Rank of steps; "auto": a sixteenth of the hidden size."""
    return -(-hidden // 16) if fields.get(field) in (None, "auto") else fields.integer(field)


def jamba(fields: Fields, name: str) -> ModelSpec:
    """Jamba: a Llama without rotation, with Mamba in most layers and experts in every other."""
    check_silu(fields)
    sizes = {"intermediate_size": 14336, "max_position_embeddings": 262144, "num_key_value_heads": 8}
    fields = Fields({**sizes, **fields.values})
    spec = with_mixers(_named(fields, common(fields, name)), rope=None)
    count, hidden = len(spec.layers), spec.hidden_size
    experts = fields.integer("num_experts", 16)
    if experts > 1:
        router = RouterSpec(fields.integer("num_experts_per_tok", 2), renormalize=False)
        moe = experts_of(fields, spec, router, experts=experts, inner="intermediate_size")
        spec = with_experts(spec, replace(moe, names=_JAMBA_EXPERTS), _every(fields, "expert_layer", 2, 1, count))
    mixer = MambaSpec(
        inner=fields.integer("mamba_expand", 2) * hidden,
        rank=_rank(fields, "mamba_dt_rank", hidden),
        state_dim=fields.integer("mamba_d_state", 16),
        width=fields.integer("mamba_d_conv", 4),
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("mamba_proj_bias"),
        norm="weighted",
    )
    return mixed(spec, _every(fields, "attn_layer", 8, 4, count), mixer)


def _every(fields: Fields, what: str, period: int, offset: int, count: int) -> list[bool]:
    """Which of ``count`` layers are at ``offset`` in a period."""
    period = fields.integer(f"{what}_period", period)
    offset = fields.integer(f"{what}_offset", offset, least=0)
    return [layer % period == offset for layer in range(count)]


def mamba2_alone(fields: Fields, name: str) -> ModelSpec:
    """Mamba-2. No file gives a context length, which is unlimited."""
    check_silu(fields)
    mixer = _mixer(fields, heads="num_heads", head_dim="head_dim", state="state_size")
    inner = int(fields.number("expand", 2) * fields.integer("hidden_size", 4096))
    if mixer.heads * mixer.head_dim != inner:
        raise ConfigError(f"num_heads is {mixer.heads}, expected {inner} channels among heads of head_dim")
    return _recurrent_alone(fields, name, LayerSpec(mixer, None, Norms(mixer_in="norm")))


def _recurrent_alone(fields: Fields, name: str, layer: LayerSpec) -> ModelSpec:
    """A model of equal recurrent layers, with Mamba's names."""
    return ModelSpec(
        architecture=name,
        vocab_size=fields.integer("vocab_size", 32768),
        hidden_size=fields.integer("hidden_size", 4096),
        layers=(layer,) * fields.integer("num_hidden_layers", 64, most=MOST_LAYERS),
        max_position=fields.integer("max_position_embeddings", _LONGEST),
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        tie_embeddings=fields.flag("tie_word_embeddings"),
        bos_token_id=fields.token_id("bos_token_id"),
        eos_token_ids=fields.token_ids("eos_token_id"),
        prefix="backbone.layers",
        embedding="backbone.embeddings",
        final_norm="backbone.norm_f",
    )


def nemotron_h(fields: Fields, name: str) -> ModelSpec:
    """Nemotron-H and Nemotron 3: each layer is a Mamba-2, attention without rotation, a network or experts."""
    spec = _nemotron(fields, name, _nemotron_kinds(fields))
    heads = fields.integer("num_nextn_predict_layers", 0, least=0)
    if not heads:
        return with_mtp(spec, NEMOTRON, heads)
    attends = next((layer for layer in spec.layers if isinstance(layer.mixer, AttentionSpec)), None)
    works = next((layer for layer in spec.layers if isinstance(layer.mlp, MoESpec)), None)
    if attends is None or works is None or _nemotron_kinds(fields, of_head=True) != ["full_attention", "moe"]:
        return spec
    return with_mtp(spec, NEMOTRON, heads, _nemotron_head(attends, works))


def nemotron_puzzle(fields: Fields, name: str) -> ModelSpec:
    """Nemotron 3 Puzzle: a Nemotron 3 whose experts differ in number, size and choice from layer to layer. Its head for
    multi-token prediction is ignored."""
    blocks = fields.get("block_configs")
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        raise ConfigError("block_configs is missing or no list of tables, expected one for each layer")
    kinds = [_PUZZLE_KINDS.get(Fields(block).text("block_type")) for block in blocks]
    if (odd := next((block for block, kind in zip(blocks, kinds, strict=True) if kind is None), None)) is not None:
        raise ConfigError(
            f"block_configs holds a block of type {str(odd['block_type'])[:40]!r}, expected "
            f"{' or '.join(map(repr, _PUZZLE_KINDS))}"
        )
    for field, value in {field: value for block in blocks for field, value in block.items()}.items():
        if field not in ("block_type", *_PUZZLE_FIELDS) and value != fields.get(field):
            raise ConfigError(
                f"block_configs has {field} {str(value)[:40]!r}, expected {str(fields.get(field))[:40]!r} as beside it"
            )
    eps = fields.get("layer_norm_epsilon") or fields.get("norm_eps")
    fields = Fields({**fields.values, "layer_norm_epsilon": eps})
    spec = _nemotron(fields, name, [kind for kind in kinds if kind], blocks)
    return replace(spec, draft_layers=fields.integer("num_nextn_predict_layers", 0, least=0))


def _nemotron(
    fields: Fields, name: str, kinds: Sequence[str], blocks: Sequence[Mapping[str, object]] | None = None
) -> ModelSpec:
    """The spec of layers of these kinds; ``blocks``: the fields of each layer that differ from the others'."""
    sizes = {"intermediate_size": 21504, "max_position_embeddings": 4096, "num_key_value_heads": 8}
    activation = fields.text("mlp_hidden_act", "relu2")
    values = {**sizes, **fields.values, "hidden_act": activation, "num_hidden_layers": len(kinds)}
    spec = common(Fields(values), name, head_dim=128, eps=1e-5, eps_field="layer_norm_epsilon")
    bias = fields.flag("mlp_bias")
    mlp = replace(dense_mlp(spec), bias=bias, into=("mixer.up_proj",), out="mixer.down_proj", gated=False)
    mixing, working = Norms(mixer_in="norm"), Norms(mlp_in="norm")
    mixer = _mixer(fields, heads="mamba_num_heads", head_dim="mamba_head_dim", state="ssm_state_size")
    mixer = replace(mixer, least_step=max(mixer.least_step, fields.number("time_step_min", 0.001)))
    made = {
        "linear_attention": LayerSpec(mixer, None, mixing),
        "full_attention": LayerSpec(replace(spec.layers[0].attention, rope=None, name="mixer"), None, mixing),
        "mlp": LayerSpec(None, mlp, working),
    }
    layers = []
    for kind, block in zip(kinds, blocks or [{}] * len(kinds), strict=True):
        own = Fields({**fields.values, **{field: block[field] for field in _PUZZLE_FIELDS if field in block}})
        layers.append(made[kind] if kind in made else LayerSpec(None, _nemotron_experts(own, mlp), working))
    return replace(
        spec,
        layers=tuple(layers),
        prefix="backbone.layers",
        embedding="backbone.embeddings",
        final_norm="backbone.norm_f",
        draft_prefix=NEMOTRON.prefix,
    )


def _nemotron_head(attends: LayerSpec, works: LayerSpec) -> LayerSpec:
    """Both layers of the head for multi-token prediction as one; names of the second begin with ``experts.``."""
    moe = works.mlp
    assert isinstance(moe, MoESpec)
    assert moe.shared is not None
    assert NEMOTRON.also is not None
    within = NEMOTRON.also[1]
    names = tuple(
        replace(
            each,
            router=within + each.router,
            into=tuple(within + part for part in each.into),
            out=within + each.out,
            correction=within + each.correction,
        )
        for each in moe.names
    )
    there, back = moe.latent_names
    shared = replace(moe.shared, into=(within + moe.shared.into[0],), out=within + moe.shared.out)
    moe = replace(moe, names=names, shared=shared, latent_names=(within + there, within + back))
    return LayerSpec(attends.mixer, moe, Norms(mixer_in="norm", mlp_in=f"{within}norm"))


def _nemotron_kinds(fields: Fields, *, of_head: bool = False) -> list[str]:
    """The kind of each layer, by the newest field that has it; ``of_head``: of a head for multi-token prediction."""
    tables, pattern = ("layers_block_type", "layer_types"), "hybrid_override_pattern"
    if of_head:
        tables, pattern = ("mtp_layers_block_type", "mtp_layer_types"), "mtp_hybrid_override_pattern"
    field = next((each for each in tables if fields.has(each)), pattern)
    if of_head and not fields.has(field):
        return []
    named = list(fields.text(field)) if field == pattern else fields.texts(field) or ()
    kinds = [_KINDS.get(kind, kind) for kind in named]
    known = ("linear_attention", "full_attention", "mlp", "moe")
    if (odd := next((kind for kind in kinds if kind not in known), None)) is not None:
        raise ConfigError(f"{field} holds {odd!r}, expected {' or '.join(map(repr, known))}")
    if len(kinds) > MOST_LAYERS:
        raise ConfigError(f"{field} says what {len(kinds)} layers are, expected at most {MOST_LAYERS}")
    return kinds


def _mixer(fields: Fields, *, heads: str, head_dim: str, state: str) -> Mamba2Spec:
    """The mixer named ``mixer``, with a norm for each group; the arguments are the names of three fields."""
    check_silu(fields, "mamba_hidden_act")
    least, most = fields.bounds("time_step_limit")
    groups = fields.integer("n_groups", 8)
    return Mamba2Spec(
        heads=fields.integer(heads, 128),
        head_dim=fields.integer(head_dim, 64),
        groups=groups,
        state_dim=fields.integer(state, 128),
        width=fields.integer("conv_kernel", 4),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias"),
        least_step=max(0.0, least),
        most_step=most,
        norm_groups=groups,
        name="mixer",
    )


def _nemotron_experts(fields: Fields, mlp: MLPSpec) -> MoESpec:
    """Experts without a gate, routed as in DeepSeek-V3; Nemotron 3 Super's work on latents."""
    if mlp.activation not in ("silu", "gelu_tanh", "gelu", "relu2"):
        raise ConfigError(f"mlp_hidden_act is {mlp.activation!r}, and experts take 'relu2', 'silu' or 'gelu' alone")
    if mlp.bias:
        raise ConfigError("mlp_bias is set, expected false in a model with experts: theirs have none")
    router = RouterSpec(
        fields.integer("num_experts_per_tok", 2),
        score="sigmoid",
        renormalize=fields.flag("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", 1.0),
        groups=fields.integer("n_group", 1),
        top_groups=fields.integer("topk_group", 1),
    )
    shared = replace(
        mlp,
        inner=fields.integer("moe_shared_expert_intermediate_size", 7688),
        into=("mixer.shared_experts.up_proj",),
        out="mixer.shared_experts.down_proj",
    )
    return MoESpec(
        fields.integer("n_routed_experts", 8),
        fields.integer("moe_intermediate_size", 7688),
        router,
        mlp.activation,
        gated=False,
        latent=fields.integer("moe_latent_size", 0, least=0),
        correction=True,
        names=_NEMOTRON_EXPERTS,
        shared=shared,
    )


def falcon_h1(fields: Fields, name: str) -> ModelSpec:
    """Attention and Mamba-2 in parallel in each layer, with many factors. Those of attention's input and keys are moved
    to its scores and output, since there is no bias in between."""
    spec = _named(fields, common(fields, name, eps=1e-5))
    taken = fields.number("attention_in_multiplier", 1.0)
    if taken != 1.0 and fields.flag("attention_bias"):
        raise ConfigError(f"attention_in_multiplier is {taken} where attention_bias is set, expected 1.0")
    gate, down = _factors(fields, "mlp_multipliers", 2)
    scale = spec.layers[0].attention.scale * fields.number("key_multiplier", 1.0) * taken**2
    spec = with_mixers(spec, scale=scale)
    return replace(
        with_layers(
            spec,
            mlp=replace(dense_mlp(spec), gate_scale=gate),
            beside=_falcon_mamba(fields, spec.hidden_size),
            mixer_scale=taken * fields.number("attention_out_multiplier", 1.0),
            beside_scale=fields.number("ssm_out_multiplier", 1.0),
            mlp_scale=down,
        ),
        input=TokenInputSpec(scale=fields.number("embedding_multiplier", 1.0)),
        logits_divisor=1 / fields.positive("lm_head_multiplier", 1.0),
    )


def _falcon_mamba(fields: Fields, hidden: int) -> Mamba2Spec:
    """The Mamba-2 mixer of Falcon-H1, whose norm is optional."""
    taken = fields.number("ssm_in_multiplier", 1.0)
    if taken != 1.0 and fields.flag("mamba_proj_bias"):
        raise ConfigError(f"ssm_in_multiplier is {taken} where mamba_proj_bias is set, expected 1.0")
    if fields.flag("projectors_bias") != fields.flag("mamba_proj_bias"):
        raise ConfigError("projectors_bias differs from mamba_proj_bias, expected both true or both false")
    gates, x, b, c, steps = (taken * factor for factor in _factors(fields, "ssm_multipliers", 5))
    stretched = "mamba_d_ssm" in fields.values and not fields.has("mamba_d_ssm")  # null: by mamba_expand
    spec = mamba2(fields, hidden, None if stretched else fields.integer("mamba_d_ssm", 1024))
    normed = fields.flag("mamba_rms_norm")
    return replace(
        spec,
        norm="none" if not normed else "ungated" if fields.flag("mamba_norm_before_gate", True) else "gated",
        scales=None if {gates, x, b, c, steps} == {1.0} else (gates, x, b, c, steps),
    )


def _factors(fields: Fields, name: str, count: int) -> tuple[float, ...]:
    found = fields.numbers(name) or (1.0,) * count
    if len(found) != count:
        raise ConfigError(f"{name} is {len(found)} numbers, expected {count}")
    return found


def bamba(fields: Fields, name: str) -> ModelSpec:
    """Bamba: a Llama with Mamba-2 in most layers; half of each head rotates."""
    rope = fields.table("rope_parameters")
    partial = {"partial_rotary_factor": 0.5}
    values = {**fields.values, **partial, **({} if rope is None else {"rope_parameters": {**rope, **partial}})}
    spec = _named(fields, common(Fields(values), name, eps=1e-5))
    attending = set(fields.numbers("attn_layer_indices"))
    attends = [layer in attending for layer in range(len(spec.layers))]
    return mixed(spec, attends, mamba2(fields, spec.hidden_size), "attn_layer_indices")


def _named(fields: Fields, spec: ModelSpec) -> ModelSpec:
    """A Llama with other names for network and norms."""
    into, out = ("feed_forward.gate_proj", "feed_forward.up_proj"), "feed_forward.down_proj"
    mlp = replace(dense_mlp(spec), bias=fields.flag("mlp_bias"), into=into, out=out)
    norms = Norms(mixer_in="input_layernorm", mlp_in="pre_ff_layernorm")
    spec = with_layers(attention_bias(fields, spec), mlp=mlp, norms=norms)
    return replace(spec, final_norm="model.final_layernorm")


def hybrid_kinds(fields: Fields, default: Sequence[str]) -> Sequence[str]:
    """The kinds of Zamba's layers: "hybrid", or others without a shared block. Raises :class:`ConfigError`."""
    kinds = fields.texts("layers_block_type") or fields.texts("layer_types") or default
    if odd := next((kind for kind in kinds if kind not in ("mamba", "linear_attention", "hybrid")), None):
        raise ConfigError(f"layers_block_type holds {odd[:40]!r}, expected 'linear_attention' or 'hybrid'")
    if len(kinds) > MOST_LAYERS or len(kinds) != fields.integer("num_hidden_layers", len(kinds)):
        raise ConfigError(f"layers_block_type says what {len(kinds)} layers are, expected as many as num_hidden_layers")
    return kinds


def zamba2(fields: Fields, name: str) -> ModelSpec:
    """Zamba2: Mamba-2 in all layers; in some, a transformer block that they share is added to its input."""
    if fields.flag("add_bias_linear"):
        raise ConfigError("add_bias_linear is set, expected false")
    if not fields.flag("tie_word_embeddings", True):
        raise ConfigError("tie_word_embeddings is false, expected true: layers would not share their blocks either")
    hidden = fields.integer("hidden_size", 2560)
    heads = fields.integer("num_attention_heads", 32)
    longest = 16_384 if fields.flag("use_long_context") else fields.integer("max_position_embeddings", 4096)
    kinds = hybrid_kinds(fields, _ZAMBA2)
    if 2 * hidden % heads:
        raise ConfigError(f"num_attention_heads is {heads}, expected a divisor of twice hidden_size, {2 * hidden}")
    values = {
        **fields.values,
        **{"hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": len(kinds)},
        **{"head_dim": 2 * hidden // heads, "max_position_embeddings": longest},
        "intermediate_size": fields.integer("intermediate_size", 4 * hidden),
        "vocab_size": fields.integer("vocab_size", 32_000),
        "tie_word_embeddings": True,
    }
    spec = common(Fields(values), name, eps=1e-5, activation="gelu")
    if spec.norm_eps != 1e-5:
        raise ConfigError(f"rms_norm_eps is {spec.norm_eps}, expected 1e-05: that of the norms within Mamba-2")
    names = {"n_mamba_heads": "mamba_n_heads", "mamba_ngroups": "mamba_n_groups"}
    state = {**renamed(fields, names, mamba_n_heads=8, mamba_d_state=64).values, "hidden_act": "silu"}
    least = fields.number("time_step_min", 0.001)
    mixer = replace(mamba2(Fields({**state, "time_step_limit": None}), hidden), least_step=least)
    attention = replace(
        spec.layers[0].attention,
        scale=(hidden / heads) ** -0.5,
        rope=spec.layers[0].attention.rope if fields.flag("use_mem_rope") else None,
        inputs=2,
        name="shared_transformer.self_attn",
    )
    network = replace(
        dense_mlp(spec),
        into=("shared_transformer.feed_forward.gate_up_proj",),
        out="shared_transformer.feed_forward.down_proj",
    )
    adapts = fields.flag("use_shared_attention_adapter")
    if adapts and attention.kv_heads != heads:
        raise ConfigError(
            f"num_key_value_heads is {attention.kv_heads}, expected {heads}: additions are of as many keys as queries"
        )
    blocks = fields.integer("num_mem_blocks", 1)
    uses = [number for number, kind in enumerate(kinds) if kind == "hybrid"]
    layers = [LayerSpec(mixer, None, Norms(mixer_in="input_layernorm"))] * len(kinds)
    for use, number in enumerate(uses):
        block = SharedBlockSpec(
            attention,
            network,
            source=uses[use % blocks],
            use=use,
            rank=fields.integer("adapter_rank", 128),
            adapts_attention=adapts,
        )
        norms = Norms(mixer_in="mamba_decoder.input_layernorm")
        layers[number] = LayerSpec(replace(mixer, name="mamba_decoder.mamba"), None, norms, block=block)
    return replace(spec, layers=tuple(layers), final_norm="model.final_layernorm")
