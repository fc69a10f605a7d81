"""Reads the config.json of dense families with other layer shapes than Llama: position and kind of norms, parallel
parts, rotating dimensions, activations without a gate."""

from typing import Final

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.layer import PRE, Norms
from ..spec.mlp import FUSED_MLP, UP_MLP
from ..spec.model import ModelSpec, dense_mlp, with_layers, with_mixers
from ..spec.positions import RopeConfig
from ..spec.token_input import TokenInputSpec
from .common import (
    alternating,
    attention_bias,
    clip_of,
    common,
    expect,
    renamed,
    slide,
    sliding_layers,
    softcap_of,
    window_of,
)
from .dense import gemma2, granite, llama, mistral

LAYER_NORM = Norms(mixer_in="input_layernorm", mlp_in="post_attention_layernorm", kind="layer", bias=True)
"""Layer norms at Llama's positions."""
GLM4 = Norms(
    mixer_in="input_layernorm",
    mixer_out="post_self_attn_layernorm",
    mlp_in="post_attention_layernorm",
    mlp_out="post_mlp_layernorm",
)
COHERE = Norms(mixer_in="input_layernorm", kind="layer")
"""One for both parts."""


def _with_default(fields: Fields, **defaults: object) -> Fields:
    """The fields with other defaults than most architectures'."""
    return Fields({**fields.values, **{name: value for name, value in defaults.items() if not fields.has(name)}})


def _rope(spec: ModelSpec) -> RopeConfig:
    rope = spec.layers[0].attention.rope
    assert rope is not None
    return rope


def interleaved(spec: ModelSpec) -> ModelSpec:
    """The spec with adjacent dimensions rotating together."""
    return with_mixers(spec, rope=replace(_rope(spec), interleaved=True))


def glm(fields: Fields, name: str) -> ModelSpec:
    """GLM: half of each head rotates; gate and up are fused."""
    fields = _with_default(fields, partial_rotary_factor=0.5)
    spec = interleaved(common(fields, name, head_dim=128, eps=1.5625e-7))
    spec = with_mixers(spec, qkv_bias=fields.flag("attention_bias", True))
    return with_layers(spec, mlp=replace(dense_mlp(spec), into=FUSED_MLP))


def glm4(fields: Fields, name: str) -> ModelSpec:
    """GLM-4: a GLM with norms before and behind each part."""
    return with_layers(glm(fields, name), norms=GLM4)


def ernie(fields: Fields, name: str) -> ModelSpec:
    fields = _with_default(fields, tie_word_embeddings=True)
    spec = interleaved(common(fields, name, head_dim=128, eps=1e-5, theta=500_000.0))
    bias = fields.flag("use_bias")
    spec = with_layers(spec, mlp=replace(dense_mlp(spec), bias=bias))
    return with_mixers(spec, qkv_bias=bias, output_bias=bias)


def helium(fields: Fields, name: str) -> ModelSpec:
    fields = _with_default(fields, head_dim=128, rms_norm_eps=1e-8)
    spec = interleaved(common(fields, name, theta=100_000.0))
    spec = with_layers(spec, mlp=replace(dense_mlp(spec), bias=fields.flag("mlp_bias")))
    return with_mixers(spec, qkv_bias=fields.flag("attention_bias"))


def internlm3(fields: Fields, name: str) -> ModelSpec:
    """InternLM3: a Llama; published files have other names for its biases."""
    named = {"attention_bias": fields.flag("qkv_bias"), "mlp_bias": fields.flag("bias")}
    return iquest_coder(_with_default(fields, **named), name)


def iquest_coder(fields: Fields, name: str) -> ModelSpec:
    return llama(_with_default(fields, head_dim=128, rms_norm_eps=1e-5), name)


def vault_gemma(fields: Fields, name: str) -> ModelSpec:
    """VaultGemma: Gemma 2 without norms behind its parts."""
    return with_layers(gemma2(fields, name), norms=replace(PRE, mlp_in="pre_feedforward_layernorm"))


def bitnet(fields: Fields, name: str) -> ModelSpec:
    """BitNet b1.58: a Llama with squared ReLU and norms of the inputs of each part's last product."""
    sizes = {"num_key_value_heads": 5, "hidden_act": "relu2", "max_position_embeddings": 2048}
    if "num_key_value_heads" in fields.values and not fields.has("num_key_value_heads"):
        sizes["num_key_value_heads"] = fields.integer("num_attention_heads")
    spec = attention_bias(fields, common(_with_default(fields, **sizes), name, eps=1e-5, theta=500_000.0))
    spec = with_mixers(spec, out_norm="attn_sub_norm")
    return with_layers(spec, mlp=replace(dense_mlp(spec), norm="mlp.ffn_sub_norm"))


def hyperclovax(fields: Fields, name: str) -> ModelSpec:
    """HyperCLOVA X: a Granite with norms behind its parts too, whose logits are multiplied, not divided."""
    multiplier = fields.positive("logits_scaling", 1.0)
    spec = replace(granite(fields, name), logits_divisor=1 / multiplier)
    if not fields.has("attention_multiplier"):
        spec = with_mixers(spec, scale=spec.layers[0].attention.head_dim ** -0.5)
    if not fields.flag("use_post_norm", True):
        return spec
    return with_layers(spec, norms=replace(PRE, mixer_out="post_norm1", mlp_out="post_norm2"))


def ministral(fields: Fields, name: str) -> ModelSpec:
    """Ministral: a Mistral with full attention in some layers."""
    return slide(common(fields, name), window_of(fields), sliding_layers(fields) or None)


_MINISTRAL3_ROPE: Final = {
    **{"rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0, "original_max_position_embeddings": 16_384},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1},
}


def ministral3(fields: Fields, name: str) -> ModelSpec:
    """Ministral 3: a Mistral with query scaling by position."""
    fields = _with_default(fields, sliding_window=0, rms_norm_eps=1e-5, head_dim=128)
    if not any(map(fields.has, ("rope_theta", "rope_scaling"))):
        fields = _with_default(fields, rope_parameters=_MINISTRAL3_ROPE)
    spec = mistral(fields, name)
    rope = Fields(fields.table("rope_parameters") or {})
    beta = rope.number("llama_4_scaling_beta", 0.0)
    floor = rope.integer("original_max_position_embeddings", 16384)
    return with_mixers(spec, temperature_beta=beta, temperature_floor=floor) if beta else spec


def cohere(fields: Fields, name: str) -> ModelSpec:
    """Command R: attention and network share a norm of the stream."""
    return command(fields, name, theta=500_000.0)


def cohere2(fields: Fields, name: str) -> ModelSpec:
    """Command R7B, Command A: a Cohere that rotates only in layers with a window."""
    spec = command(fields, name, theta=10000.0)
    window = window_of(fields)
    period = fields.integer("sliding_window_pattern", 4)
    slides = sliding_layers(fields) or alternating(spec, period)
    return slide(with_mixers(spec, [not (each and window) for each in slides], rope=None), window, slides)


def command(fields: Fields, name: str, *, theta: float, head_dim: int | None = None) -> ModelSpec:
    """The common part of all Coheres; the options are defaults."""
    fields = _with_default(fields, tie_word_embeddings=True)
    spec = common(fields, name, head_dim=head_dim, eps=1e-5, theta=theta, eps_field="layer_norm_eps")
    spec = with_layers(interleaved(attention_bias(fields, spec)), norms=COHERE, parallel=True)
    if fields.flag("use_qk_norm"):
        spec = with_mixers(spec, qk_norm="layer_own")
    return replace(spec, logits_divisor=1 / fields.positive("logit_scale", 0.0625))


def hunyuan(fields: Fields, name: str) -> ModelSpec:
    """HunYuan: heads are normed after rotation. A fixed ``alpha`` scales the rotary base (NTK-aware scaling)."""
    rope = Fields(fields.table("rope_scaling") or fields.table("rope_parameters") or {})
    alpha = rope.number("alpha", 0.0) if rope.text("rope_type", rope.text("type", "default")) == "dynamic" else 0.0
    if alpha:
        theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
        fields = Fields({**fields.values, "rope_scaling": None, "rope_parameters": {"rope_theta": theta}})
    spec = attention_bias(fields, common(fields, name, eps=1e-5))
    if alpha:
        dim = spec.layers[0].attention.head_dim
        spec = with_mixers(spec, rope=replace(_rope(spec), theta=_rope(spec).theta * alpha ** (dim / (dim - 2))))
    names = ("query_layernorm", "key_layernorm")
    return with_mixers(spec, qk_norm="head", qk_norm_names=names, rotated_first=True)


def arcee(fields: Fields, name: str) -> ModelSpec:
    """Arcee: a Llama without a gate in its network."""
    return _ungated(llama(_with_default(fields, rms_norm_eps=1e-5, hidden_act="relu2"), name))


def nemotron(fields: Fields, name: str) -> ModelSpec:
    """Nemotron-4, Minitron: an Arcee with layer norms stored less one; half of each head rotates."""
    fields = _with_default(fields, partial_rotary_factor=0.5)
    spec = common(fields, name, eps=1e-5, activation="relu2", eps_field="norm_eps")
    spec = with_layers(attention_bias(fields, spec), norms=LAYER_NORM)
    spec = with_layers(spec, mlp=replace(dense_mlp(spec), bias=fields.flag("mlp_bias")))
    return replace(_ungated(spec), norm_plus_one=True)


def jais2(fields: Fields, name: str) -> ModelSpec:
    """Jais 2: an Arcee with layer norms and biases everywhere."""
    fields = _with_default(fields, attention_bias=True, mlp_bias=True)
    spec = common(fields, name, eps=1e-5, activation="relu2", eps_field="layer_norm_eps")
    spec = with_layers(attention_bias(fields, spec), norms=LAYER_NORM)
    return _ungated(with_layers(spec, mlp=replace(dense_mlp(spec), bias=fields.flag("mlp_bias"))))


def apertus(fields: Fields, name: str) -> ModelSpec:
    fields = _with_default(fields, hidden_act="xielu")
    if not fields.has("rope_parameters") and not fields.has("rope_scaling"):
        stretch = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
        fields = _with_default(fields, rope_parameters=stretch)
    spec = attention_bias(fields, common(fields, name, eps=1e-5, theta=12_000_000.0))
    norms = Norms(mixer_in="attention_layernorm", mlp_in="feedforward_layernorm")
    return with_layers(_ungated(with_mixers(spec, qk_norm="head")), norms=norms)


def apertus15(fields: Fields, name: str) -> ModelSpec:
    """Apertus 1.5: an Apertus whose head may lack the last tokens, which stand for pictures and sounds."""
    spec = apertus(fields, name)
    said = fields.integer("output_vocab_size", spec.vocab_size, most=spec.vocab_size)
    if said < spec.vocab_size and spec.tie_embeddings:
        raise ConfigError("tie_word_embeddings is true, expected false: a head of output_vocab_size rows is its own")
    return replace(spec, unsaid=spec.vocab_size - said)


def starcoder2(fields: Fields, name: str) -> ModelSpec:
    fields = _with_default(fields, tie_word_embeddings=True)
    spec = common(fields, name, eps=1e-5, activation="gelu_pytorch_tanh", eps_field="norm_epsilon")
    bias = fields.flag("use_bias", True)
    spec = with_mixers(spec, qkv_bias=bias, output_bias=bias)
    mlp = replace(dense_mlp(spec), bias=bias, into=("mlp.c_fc",), out="mlp.c_proj", gated=False)
    return slide(with_layers(spec, mlp=mlp, norms=LAYER_NORM), fields.integer("sliding_window", 0, least=0))


def stablelm(fields: Fields, name: str) -> ModelSpec:
    """StableLM: a quarter of each head rotates; some models run attention and network in parallel."""
    fields = _with_default(fields, partial_rotary_factor=0.25)
    spec = common(fields, name, eps=1e-5, eps_field="layer_norm_eps")
    spec = with_mixers(spec, qkv_bias=fields.flag("use_qkv_bias"))
    if fields.flag("qk_layernorm"):
        names = ("q_layernorm.norms.{}", "k_layernorm.norms.{}")
        spec = with_mixers(spec, qk_norm="layer_own", qk_norm_names=names)
    if fields.flag("use_parallel_residual"):
        return with_layers(spec, norms=replace(LAYER_NORM, mlp_in=""), parallel=True)
    return with_layers(spec, norms=LAYER_NORM)


def phi(fields: Fields, name: str) -> ModelSpec:
    """Phi 1 to 2: attention and network in parallel, and biases everywhere."""
    fields = _with_default(fields, partial_rotary_factor=0.5)
    spec = common(fields, name, eps=1e-5, activation="gelu_new", eps_field="layer_norm_eps")
    spec = with_mixers(spec, qkv_bias=True, output_bias=True, out="dense")
    if fields.flag("qk_layernorm"):
        spec = with_mixers(spec, qk_norm="layer", qk_norm_names=("q_layernorm", "k_layernorm"))
    mlp = replace(dense_mlp(spec), bias=True, into=("mlp.fc1",), out="mlp.fc2", gated=False)
    spec = with_layers(spec, mlp=mlp, norms=replace(LAYER_NORM, mlp_in=""), parallel=True)
    return replace(spec, head_bias=True, final_norm="model.final_layernorm")


def cwm(fields: Fields, name: str) -> ModelSpec:
    """Code World Model: a Llama with a window in three of four layers."""
    fields = _with_default(fields, head_dim=128, rms_norm_eps=1e-5)
    if not fields.has("rope_parameters") and not fields.has("rope_scaling"):
        stretch = {"rope_type": "llama3", "factor": 16.0, "original_max_position_embeddings": 8192}
        fields = _with_default(fields, rope_parameters=stretch)
    spec = llama(_with_default(fields, rope_theta=1_000_000.0), name)
    slides = sliding_layers(fields) or [layer % 4 != 0 for layer in range(len(spec.layers))]
    return slide(spec, fields.integer("sliding_window", 8192, least=0), slides)


def olmo(fields: Fields, name: str) -> ModelSpec:
    """OLMo: a Llama with layer norms without weights."""
    spec = with_mixers(attention_bias(fields, common(fields, name)), clip=clip_of(fields))
    return replace(with_layers(spec, norms=replace(PRE, kind="layer", weighted=False)), norm_eps=1e-5)


def granite_swa(fields: Fields, name: str) -> ModelSpec:
    fields = _with_default(fields, rms_norm_eps=1e-5, tie_word_embeddings=True)
    return granite_windows(fields, granite(fields, name))


def granite_windows(fields: Fields, spec: ModelSpec) -> ModelSpec:
    """The spec with sinks, and a window in three of four layers; layers may have their own rotary base, 0 for no
    rotation."""
    rope, spec = _rope(spec), with_mixers(spec, sinks=True)
    bases = fields.numbers("layer_rope_theta")
    for base in dict.fromkeys(bases):
        own = replace(rope, theta=base) if base else None
        spec = with_mixers(spec, [each == base for each in bases], rope=own)
    slides = sliding_layers(fields) or [layer % 4 != 0 for layer in range(len(spec.layers))]
    return slide(spec, fields.integer("sliding_window", 128, least=0), slides)


def nanochat(fields: Fields, name: str) -> ModelSpec:
    """nanochat: norms without weights, also of embeddings; heads rotate backwards and are normed afterwards."""
    spec = attention_bias(fields, common(fields, name, activation="relu2"))
    rope = replace(_rope(spec), backwards=True)
    spec = with_mixers(spec, rope=rope, qk_norm="head", qk_norm_names=None, rotated_first=True)
    mlp = replace(dense_mlp(spec), into=("mlp.fc1",), out="mlp.fc2", gated=False)
    spec = with_layers(spec, mlp=mlp, norms=replace(PRE, weighted=False))
    softcap = softcap_of(fields, "final_logit_softcapping", 15.0)
    return replace(spec, input=TokenInputSpec(norm=""), logits_softcap=softcap)


def _ungated(spec: ModelSpec) -> ModelSpec:
    return with_layers(spec, mlp=replace(dense_mlp(spec), into=UP_MLP, gated=False))


def molmo(fields: Fields, name: str) -> ModelSpec:
    """Molmo: Qwen 2, or OLMo 2 by its norms, with gates behind ups and further embeddings as in Molmo 2."""
    expect(fields, {"layer_norm_type": "rms", "clip_qkv": None, "weight_tying": False, "moe_num_experts": 0})
    fields = renamed(fields, {"qkv_bias": "attention_bias", "layer_norm_eps": "rms_norm_eps"})
    inner, vocab = fields.integer("intermediate_size", 37_888), fields.integer("vocab_size", 152_064)
    sizes = {"intermediate_size": inner // 2, "vocab_size": fields.integer("embedding_size", vocab)}
    usual = {"max_position_embeddings": 4096, "rope_theta": 1e6, "tie_word_embeddings": False}
    norms = {"qk_norm_type": "olmo", "use_qk_norm": True}
    spec = molmo2(Fields({**usual, **fields.values, **sizes, **norms}), name)
    if not fields.flag("attention_layer_norm"):
        spec = with_mixers(spec, qk_norm="none")
    mlp = replace(dense_mlp(spec), into=("ff_proj",), out="ff_out")
    return with_layers(with_mixers(spec, whole_spans=False), mlp=mlp)


def molmo2(fields: Fields, name: str) -> ModelSpec:
    """Molmo 2: Qwen 3 or OLMo 2, by its norms, with embeddings of tokens that have no logits behind the vocabulary."""
    spec = common(renamed(fields, {"qkv_bias": "attention_bias", "layer_norm_eps": "rms_norm_eps"}), name)
    if spec.tie_embeddings:
        raise ConfigError("tie_word_embeddings is true, expected a head of its own: additional tokens have no logit")
    normed = fields.text("qk_norm_type", "qwen3")
    if normed not in ("qwen3", "olmo") or not fields.flag("use_qk_norm", True):
        raise ConfigError(f"qk_norm_type is {normed!r}, expected 'qwen3' or 'olmo', with use_qk_norm true")
    of_mixer, of_mlp = "attn_norm", "ff_norm"
    norms = Norms(mixer_in=of_mixer, mlp_in=of_mlp)
    if fields.flag("norm_after"):
        norms = Norms(mixer_out=of_mixer, mlp_out=of_mlp)
    unsaid = fields.integer("additional_vocab_size", 128, least=0)
    spec = with_mixers(
        spec,
        qkv_bias=fields.flag("attention_bias", fields.flag("qkv_bias")),
        qk_norm="head" if normed == "qwen3" else "full",
        fused=True,
        into="att_proj",
        out="attn_out",
        whole_spans=True,
    )
    mlp = replace(dense_mlp(spec), into=("mlp.ff_proj",), out="mlp.ff_out", gate_last=True)
    if fields.has("rope_scaling_layers"):
        scaled = set(fields.numbers("rope_scaling_layers"))
        plain = [layer not in scaled for layer in range(len(spec.layers))]
        spec = with_mixers(spec, plain, rope=RopeConfig(theta=_rope(spec).theta))
    return replace(
        with_layers(spec, norms=norms, mlp=mlp),
        vocab_size=spec.vocab_size + unsaid,
        unsaid=unsaid,
        embedding_parts=("embedding", "new_embedding"),
    )


_PICTURE_WORD: Final = "IMGIMG"
"""Beginning of the names of Chameleon's tokens of pictures."""
_CHAMELEON_EPS: Final = 1e-5
"""Of the norms of its heads."""


def chameleon(fields: Fields, name: str) -> ModelSpec:
    """Chameleon: a Llama whose heads are normed, which generates no tokens of pictures. In the larger model norms stand
    behind the parts of a layer (``swin_norm``)."""
    spec = with_mixers(llama(_with_default(fields, rms_norm_eps=_CHAMELEON_EPS), name), qk_norm="layer_own_biased")
    if spec.norm_eps != _CHAMELEON_EPS:
        raise ConfigError(f"rms_norm_eps is {spec.norm_eps}, expected {_CHAMELEON_EPS}, which norms of heads have")
    words = fields.table("vocabulary_map") or {}
    pictures = sorted(each for word, each in words.items() if word.startswith(_PICTURE_WORD) and isinstance(each, int))
    ends = [at for at, each in enumerate(pictures) if pictures[at + 1 : at + 2] != [each + 1]]
    starts = [0, *(at + 1 for at in ends[:-1])]
    silent = tuple((pictures[first], pictures[last] + 1) for first, last in zip(starts, ends, strict=False))
    norms = Norms(mixer_out=PRE.mixer_in, mlp_out=PRE.mlp_in) if fields.flag("swin_norm") else PRE
    return replace(with_layers(spec, norms=norms), silent=silent)
