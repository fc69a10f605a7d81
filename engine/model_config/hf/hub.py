"""Reads the config.json of families whose code comes with their checkpoints. None of it runs: each is a combination of
parts that other families have, under names of its own."""

import math
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields, UnknownArchitectureError
from ..spec.attention_parts import LoopSpec
from ..spec.layer import LayerSpec, Norms
from ..spec.mlp import FUSED_MLP, MLPSpec
from ..spec.model import Blend, ModelSpec, dense_mlp, looped, with_layers, with_mixers, with_mtp
from ..spec.mtp_form import MIMO
from ..spec.positions import RopeConfig, alibi_slopes
from ..spec.token_input import TokenInputSpec
from .classic import falcon
from .common import alternating, common, expect, local_rope, renamed, slide, sliding_layers, window_of, with_defaults
from .dense import gemma3, llama, qwen2, qwen_windows
from .rope import rope_from_hf, spread_axes
from .variants import LAYER_NORM, glm, stablelm

_FFN_MULTIPLE: Final = 256
_UNKNOWN_PARTS: Final = (
    *("replace_with_linear", "sparsify", "window_length", "num_sink_tokens"),
    *("mamba", "llama4", "moe"),
)
"""What blocks of Nemotron NAS may have in place of attention or a network."""
_BAICHUAN2_VOCABULARY: Final = 125696
_MOST_LOOPS: Final = 64
_EXAONE: Final = {
    "num_layers": "num_hidden_layers",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "rms_norm_eps",
}
_GLM: Final = {
    "num_layers": "num_hidden_layers",
    "padded_vocab_size": "vocab_size",
    "ffn_hidden_size": "intermediate_size",
    "kv_channels": "head_dim",
    "seq_length": "max_position_embeddings",
    "layernorm_epsilon": "rms_norm_eps",
    "add_qkv_bias": "attention_bias",
}
_QWEN: Final = {
    "layer_norm_epsilon": "rms_norm_eps",
    "kv_channels": "head_dim",
    "rotary_emb_base": "rope_theta",
    "rotary_pct": "partial_rotary_factor",
}
_TELECHAT: Final = {
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "ffn_hidden_size": "intermediate_size",
    "layer_norm_epsilon": "rms_norm_eps",
    "seq_length": "max_position_embeddings",
}
_STABLELM: Final = {"norm_eps": "layer_norm_eps", "rope_pct": "partial_rotary_factor"}
"""Names of common fields, by those of each family."""
_NANBEIGE: Final = (
    *("enable_hyper_connection", "enable_mhc", "enable_depth_attention", "enable_double_loop_split", "loop_share_kv"),
    *("ngram_insert_all_layers", "insert_ngram_layer_idx", "emb_neighbor_num", "qk_layernorm"),
)
"""What its authors' code knows besides loops, and no published model uses."""


def older_llama(fields: Fields, name: str) -> ModelSpec:
    """Llama as it was converted before transformers had it."""
    return llama(
        renamed(fields, {"max_sequence_length": "max_position_embeddings"}, max_position_embeddings=2048), name
    )


def orion(fields: Fields, name: str) -> ModelSpec:
    """Orion: a Llama with layer norms."""
    return with_layers(llama(Fields({"rms_norm_eps": 1e-5, **fields.values}), name), norms=LAYER_NORM)


def biased_llama(fields: Fields, name: str) -> ModelSpec:
    """InternLM and openPangu Embedded: a Llama whose ``bias`` is of all projections of attention."""
    bias = fields.flag("bias", True)
    table = Fields(fields.table("rotary") or {})
    rotary: dict[str, object] = {"rope_theta": table.number("base", 10000.0)} if table.values else {}
    if table.text("type", "origin") != "origin":
        # a base that grows with the length does so from the end of the context on
        rotary["rope_scaling"] = {"type": table.text("type"), "factor": table.number("scaling_factor", 1.0)}
    return with_mixers(llama(Fields({**fields.values, **rotary}), name), qkv_bias=bias, output_bias=bias)


def pangu_vl(fields: Fields, name: str) -> ModelSpec:
    """openPangu with pictures, whose heads turn by frame, row and column."""
    spec = biased_llama(fields, name)
    mixer = spec.layers[0].attention
    assert mixer.rope is not None
    return with_mixers(spec, rope=replace(mixer.rope, axes=spread_axes(fields.values, mixer.head_dim // 2)))


def teleflm(fields: Fields, name: str) -> ModelSpec:
    """Tele-FLM: a Llama with factors on embeddings and logits (µP)."""
    spec = llama(fields, name)
    if not fields.flag("use_mup"):
        return spec
    scale = fields.positive("output_mult", 1.0) / fields.positive("mup_scale_factor", 1.0)
    scaled = TokenInputSpec(scale=fields.positive("input_mult", 1.0))
    return replace(spec, input=scaled, logits_divisor=1 / scale)


def qwen1(fields: Fields, name: str) -> ModelSpec:
    """Qwen 1: biases of queries, keys and values alone, and GPT-2's names. Beyond ``seq_length`` its authors' code
    changes angles and scores with the length, so that is its context."""
    expect(fields, {"no_bias": True, "scale_attn_weights": True})
    fields = renamed(fields, _QWEN)
    stretched = fields.flag("use_dynamic_ntk", True) or fields.flag("use_logn_attn", True)
    if stretched and fields.has("seq_length"):
        fields = Fields({**fields.values, "max_position_embeddings": fields.integer("seq_length")})
    # of both parts of the gated network
    inner = fields.integer("intermediate_size", least=2) // 2
    spec = common(Fields({**fields.values, "intermediate_size": inner}), name)
    spec = with_mixers(spec, qkv_bias=True, fused=True, name="attn", into="c_attn", out="c_proj")
    mlp = replace(dense_mlp(spec), into=("mlp.w2", "mlp.w1"), out="mlp.c_proj")
    spec = with_layers(spec, mlp=mlp, norms=Norms(mixer_in="ln_1", mlp_in="ln_2"))
    return replace(spec, prefix="transformer.h", embedding="transformer.wte", final_norm="transformer.ln_f")


def baichuan(fields: Fields, name: str) -> ModelSpec:
    """Baichuan: queries, keys and values are one matrix. Those of 13 billion parameters have ALiBi and name no
    ``max_position_embeddings``. The second generation normalises the rows of its head."""
    alibi = name == "BaichuanForCausalLM" and not fields.has("max_position_embeddings")
    spec = llama(renamed(fields, {"model_max_length": "max_position_embeddings"} if alibi else {}), name)
    spec = with_mixers(spec, fused=True, into="W_pack")
    if alibi:
        mixer = spec.layers[0].attention
        spec = with_mixers(spec, rope=None, slopes=alibi_slopes(mixer.heads))
    second = fields.has("z_loss_weight") or spec.vocab_size == _BAICHUAN2_VOCABULARY
    return replace(spec, head_norm="rows" if second else None)


def chatglm(fields: Fields, name: str) -> ModelSpec:
    """ChatGLM 2 and 3, GLM-4-9b-chat in their authors' files: a GLM under other names."""
    if fields.has("position_encoding_2d"):
        raise UnknownArchitectureError(
            f"its form of {name}, with two positions of each token (ChatGLM-6B), is not native here"
        )
    for field, what in (("vision_config", "that sees"), ("pre_seq_len", "with a learned prefix")):
        if fields.has(field):
            raise UnknownArchitectureError(f"its form of {name}, {what} ({field}), is not native here")
    if fields.integer("quantization_bit", 0, least=0):
        raise ConfigError(
            f"quantization_bit is {fields.get('quantization_bit')}, expected 0: its authors' integer weights are not "
            "read; use the files without quantisation, with --quantization"
        )
    expect(fields, {"rmsnorm": True, "post_layer_norm": True, "interleaved_qkv": False})
    expect(fields, {"apply_residual_connection_post_layernorm": False})
    usual = {"add_qkv_bias": False, "layernorm_epsilon": 1e-5, "seq_length": 2048}
    fields = renamed(Fields({**usual, **fields.values}), _GLM)
    bias = fields.flag("add_bias_linear")
    groups = fields.integer("num_attention_heads")
    if fields.flag("multi_query_attention"):
        groups = fields.integer("multi_query_group_num", 1)
    values = {"num_key_value_heads": groups, "rope_theta": 10000.0 * fields.positive("rope_ratio", 1.0)}
    spec = glm(Fields({**fields.values, **values}), name)
    rope = spec.layers[0].attention.rope
    assert rope is not None
    spec = with_mixers(
        spec,
        rope=replace(rope, interleaved=fields.flag("original_rope", True)),
        qkv_bias=bias or spec.layers[0].attention.qkv_bias,
        output_bias=bias,
        fused=True,
        name="self_attention",
        into="query_key_value",
        out="dense",
    )
    mlp = replace(dense_mlp(spec), into=("mlp.dense_h_to_4h",), out="mlp.dense_4h_to_h", bias=bias)
    return replace(
        with_layers(spec, mlp=mlp),
        prefix="transformer.encoder.layers",
        embedding="transformer.embedding.word_embeddings",
        final_norm="transformer.encoder.final_layernorm",
        unused=("transformer.rotary_pos_emb.inv_freq",),
    )


def stablelm_epoch(fields: Fields, name: str) -> ModelSpec:
    """StableLM under its authors' names."""
    expect(fields, {"rotary_scaling_factor": 1.0})
    return stablelm(renamed(fields, _STABLELM), name)


def refined_web(fields: Fields, name: str) -> ModelSpec:
    """Falcon under its authors' names. Those with several key-value heads (40B) have a norm for each part."""
    expect(fields, {"apply_residual_connection_post_layernorm": False})
    grouped = fields.has("n_head_kv")
    usual = {"multi_query": False, "parallel_attn": False, "new_decoder_architecture": grouped}
    return falcon(Fields({**usual, **fields.values}), name)


def telechat(fields: Fields, name: str) -> ModelSpec:
    """TeleChat 1 and 2: keys and values are one matrix. Its context is that of its training, beyond which its authors'
    code changes angles with the length."""
    expect(fields, {"embed_layernorm": False, "apply_residual_connection_post_layernorm": False})
    trained = fields.integer("training_seqlen", 8192)
    base = fields.integer("base_seqlen", 4096)
    if fields.has("base_seqlen") and trained > base:
        raise ConfigError(
            f"training_seqlen is {trained}, expected at most base_seqlen, {base}: its angles are not known"
        )
    fields = renamed(Fields({"seq_length": trained, **fields.values}), _TELECHAT)
    spec = common(fields, name, eps=1e-5)
    mixer = spec.layers[0].attention
    # without base_seqlen the base grew with every doubling of 4,096 tokens
    alpha = max(1, 2 ** math.ceil(math.log2(trained / base) + 1) - 1)
    rope = RopeConfig(theta=10000.0 * alpha ** (mixer.head_dim / (mixer.head_dim - 2)))
    paired = "query", "key_value"
    spec = with_mixers(spec, rope=rope, output_bias=True, paired=paired, name="self_attention", out="dense")
    spec = with_layers(spec, mlp=replace(dense_mlp(spec), out_bias=True))
    spec = replace(spec, max_position=min(trained, spec.max_position))
    return replace(spec, prefix="transformer.h", embedding="transformer.word_embeddings", final_norm="transformer.ln_f")


def solar(fields: Fields, name: str) -> ModelSpec:
    """Solar Pro: a Llama with a window, whose stream is blended at some layers with what it was at earlier ones."""
    spec = llama(fields, name)
    share = (*fields.numbers("bskcn_tv"), 0.0, 0.0)[1]  # the first is of training
    keeps, blends = (
        [[int(layer) for layer in fields.numbers(f"bskcn_{number}")] for number in numbers]
        for numbers in ((1, 2), (3, 4))
    )
    found: list[Blend] = []
    for layer in range(len(spec.layers)):
        for kept, blended in zip(keeps, blends, strict=True):
            source = max((each for each in kept if each <= layer), default=-1)
            if layer in blended and source < 0:
                raise ConfigError(
                    f"bskcn_3 or bskcn_4 names layer {layer}, expected one behind those of bskcn_1 and bskcn_2"
                )
            if layer in blended and source < layer:
                found.append(Blend(layer, source, share))
    window = window_of(fields, 2047)
    return replace(slide(spec, window), blends=tuple(found))


def rnj1(fields: Fields, name: str) -> ModelSpec:
    """Rnj-1: a Gemma 3 whose layers are all full."""
    kinds = fields.texts("layer_types") or ()
    if (other := next((kind for kind in kinds if kind != "full_attention"), None)) is not None or not kinds:
        raise UnknownArchitectureError(
            f"its form of {name}, with layers of {other or 'an unnamed kind'} (layer_types), is not native here"
        )
    return gemma3(fields, name)


def nanbeige(fields: Fields, name: str) -> ModelSpec:
    """Nanbeige: a Llama whose layers run several times (4.2)."""
    if (other := next((field for field in _NANBEIGE if fields.get(field) not in (None, False, [])), None)) is not None:
        raise UnknownArchitectureError(f"its form of {name}, with {other}, is not native here")
    spec = llama(Fields({"rms_norm_eps": 1e-5, **fields.values}), name)
    loops = len(fields.numbers("loop_loss_weights")) + 1
    if loops == 1:
        loops = fields.integer("num_loops", 1, most=_MOST_LOOPS)
    return looped(spec, loops, norm=not fields.flag("skip_loop_final_norm"))


def plamo3(fields: Fields, name: str) -> ModelSpec:
    """PLaMo 3: a Gemma 3 without a factor on embeddings, whose norms behind parts begin at small numbers."""
    expect(fields, {"scale_embedding": False})
    fields = Fields({"tie_word_embeddings": True, **fields.values})
    window = fields.get("window_size") or fields.get("sliding_window")
    if isinstance(window, list):
        window = next((each for each in window if each is not None), None)
    slides = Fields({"sliding_window": window}).integer("sliding_window", least=1)
    factor = fields.positive("rope_scaling_factor", 1.0)
    if factor != 1.0 and not fields.has("rope_parameters"):
        stretch = {"rope_type": "yarn", "factor": factor, "truncate": False, "rope_theta": fields.number("rope_theta")}
        stretch["original_max_position_embeddings"] = fields.integer("initial_context_length")
        fields = Fields({**fields.values, "rope_parameters": {"full_attention": stretch}})
    elif not fields.has("rope_parameters"):
        fields.number("rope_theta")  # versions of its code differ in what a missing one is
    spec = common(fields, name, head_dim=128)
    dim = spec.layers[0].attention.head_dim
    local = local_rope(fields, dim, fields.number("rope_local_theta", 10000.0))
    kinds = sliding_layers(fields) or alternating(spec, fields.integer("sliding_window_pattern", 8))
    full = rope_from_hf(fields.values, dim, layer_type="full_attention")
    spec = with_mixers(spec, qk_norm="head", rope=full, fused=True, name="mixer")
    spec = slide(with_mixers(spec, kinds, rope=local), slides, kinds)
    norms = Norms(
        mixer_in="pre_mixer_norm",
        mixer_out="post_mixer_norm",
        mlp_in="pre_mlp_norm",
        mlp_out="post_mlp_norm",
        offsets=(("post_mixer_norm", 1 / 5), ("post_mlp_norm", 1 / 5**1.5)),
    )
    spec = with_layers(spec, norms=norms, mlp=replace(dense_mlp(spec), into=FUSED_MLP))
    longest = fields.integer("max_position_embeddings")
    return replace(spec, prefix="model.layers.layers", norm_plus_one=True, max_position=longest)


def domyn_edge(fields: Fields, name: str) -> ModelSpec:
    """Domyn Edge: norms before and behind parts, and layers that differ in size of heads, window and rotation. Queries
    are normed without weights."""
    expect(fields, {"attention_bias": False})
    fields = Fields({"tie_word_embeddings": True, "num_key_value_heads": 8, **fields.values})
    spec = common(fields, name)
    count, layers = len(spec.layers), list[LayerSpec]()
    kinds, windows = fields.texts("position_layers") or (), fields.get("window_sizes")
    sizes = [int(size) for size in fields.numbers("head_sizes")]
    if (own := fields.table("per_layer_config")) is not None and not sizes:
        usual = spec.layers[0].attention.head_dim
        tables = (Fields(Fields(own).table(str(layer)) or {}) for layer in range(count))
        sizes = [table.integer("head_dim", usual) for table in tables]
    for field, found in (("position_layers", kinds), ("window_sizes", windows), ("head_sizes", sizes)):
        if not isinstance(found, list | tuple) or len(found) != count:
            raise ConfigError(f"{field} is not a list of {count} layers")
    assert isinstance(windows, list | tuple)
    for layer, kind, seen, dim in zip(spec.layers, kinds, windows, sizes, strict=True):
        if kind not in ("rope", "nope"):
            raise ConfigError(f"position_layers holds {kind[:40]!r}, expected rope or nope")
        before = (*Fields({"window_sizes": seen}).numbers("window_sizes"), -1)[0]
        if dim < 2 or before >= spec.max_position:
            raise ConfigError(
                f"a layer has heads of {dim} and a window of {before:.0f}, expected sizes within the context"
            )
        mixer = replace(
            layer.attention,
            head_dim=dim,
            scale=dim**-0.5,
            rope=rope_from_hf(fields.values, dim) if kind == "rope" else None,
            window=int(before) + 1 if before > 0 else 0,
            qk_norm="head",
            qk_norm_names=("", "k_norm"),
            name="attention",
        )
        layers.append(replace(layer, mixer=mixer))
    norms = Norms(
        mixer_in="pre_attention_norm",
        mixer_out="post_attention_norm",
        mlp_in="pre_feedforward_norm",
        mlp_out="post_feedforward_norm",
    )
    into = "feedforward.gate_proj", "feedforward.up_proj"
    mlp = replace(dense_mlp(spec), into=into, out="feedforward.down_proj")
    return with_layers(replace(spec, layers=tuple(layers)), norms=norms, mlp=mlp)


def loop_coder(fields: Fields, name: str) -> ModelSpec:
    """IQuest LoopCoder: a Llama whose layers run several times; later runs see their own last tokens and the first
    run's keys and values."""
    fields = Fields({"rms_norm_eps": 1e-5, **fields.values})
    if fields.has("dual_chunk_attention_config"):
        raise UnknownArchitectureError(f"its form of {name}, with attention in two chunks, is not native here")
    spec = qwen_windows(fields, common(fields, name))
    count, window = len(spec.layers), fields.integer("loop_window_size", 64)
    spec = looped(spec, fields.integer("loop_num", 2, most=_MOST_LOOPS), norm=False)
    layers = list(spec.layers)
    for number in range(count, len(layers)):
        first = number % count
        loop = LoopSpec(first, f"model.gate_projections.{first}")
        layers[number] = replace(layers[number], mixer=replace(layers[number].attention, window=window, loop=loop))
    return replace(spec, layers=tuple(layers))


def ouro(fields: Fields, name: str) -> ModelSpec:
    """Ouro: a Llama with norms behind its parts, whose layers run several times. All tokens run all of them."""
    if (threshold := fields.number("early_exit_threshold", 1.0)) < 1.0:
        raise ConfigError(f"early_exit_threshold is {threshold}, expected 1.0: no token leaves the loops early")
    if fields.has("early_exit_step"):
        raise ConfigError(f"early_exit_step is {fields.get('early_exit_step')!r}, expected null")
    norms = Norms(
        mixer_in="input_layernorm",
        mixer_out="input_layernorm_2",
        mlp_in="post_attention_layernorm",
        mlp_out="post_attention_layernorm_2",
    )
    spec = with_layers(qwen_windows(fields, common(fields, name)), norms=norms)
    spec = looped(spec, fields.integer("total_ut_steps", 4, most=_MOST_LOOPS), norm=True)
    return replace(spec, unused=("model.early_exit_gate.weight", "model.early_exit_gate.bias"))


def internlm2(fields: Fields, name: str) -> ModelSpec:
    """InternLM 2 and 2.5: a Llama whose queries, keys and values are stored as one matrix, head by head."""
    bias = fields.flag("bias", True)
    spec = with_mixers(
        common(fields, name),
        qkv_bias=bias,
        output_bias=bias,
        fused=True,
        by_group=True,
        name="attention",
        into="wqkv",
        out="wo",
    )
    mlp = replace(dense_mlp(spec), into=("feed_forward.w1", "feed_forward.w3"), out="feed_forward.w2")
    spec = with_layers(spec, mlp=mlp, norms=Norms(mixer_in="attention_norm", mlp_in="ffn_norm"))
    return replace(spec, embedding="model.tok_embeddings")


def exaone(fields: Fields, name: str) -> ModelSpec:
    """EXAONE 3, 3.5 and Deep: a Llama with GPT-2's names."""
    fields = renamed(fields, _EXAONE, tie_word_embeddings=True)
    fields = with_defaults(fields, intermediate_size=4 * fields.integer("hidden_size"))
    spec = with_mixers(common(fields, name, eps=1e-5), name="attn.attention", out="out_proj")
    mlp = replace(dense_mlp(spec), into=("mlp.c_fc_0", "mlp.c_fc_1"), out="mlp.c_proj")
    spec = with_layers(spec, mlp=mlp, norms=Norms(mixer_in="ln_1", mlp_in="ln_2"))
    return replace(spec, prefix="transformer.h", embedding="transformer.wte", final_norm="transformer.ln_f")


def minicpm(fields: Fields, name: str) -> ModelSpec:
    """MiniCPM 1, 2 and 4: a Llama with factors on embeddings, parts of layers and logits. Attention is dense, also of
    files that allow a sparse one in long texts (``sparse_config``)."""
    if fields.integer("num_experts", 0, least=0):
        raise UnknownArchitectureError(f"its form of {name}, with experts, is not native here")
    fields = Fields({"tie_word_embeddings": True, **fields.values})
    spec = llama(fields, name)
    return replace(
        spec,
        input=TokenInputSpec(scale=fields.number("scale_emb", 1.0)),
        residual_scale=fields.number("scale_depth", 1.0) / math.sqrt(len(spec.layers)),
        logits_divisor=spec.hidden_size / fields.positive("dim_model_base", 1.0),
    )


def mimo(fields: Fields, name: str) -> ModelSpec:
    """MiMo 7B: a Qwen 2 with layers that predict further tokens."""
    return with_mtp(qwen2(fields, name), MIMO, fields.integer("num_nextn_predict_layers", 1, least=0))


def nemotron_nas(fields: Fields, name: str) -> ModelSpec:
    """Llama Nemotron Super and Ultra: a Llama whose layers differ in heads and width, and may lack a part."""
    blocks = fields.get("block_configs")
    if not isinstance(blocks, list):
        raise UnknownArchitectureError(f"its form of {name}, without block_configs, is not native here")
    # no layer has this width
    spec = llama(Fields({**fields.values, "intermediate_size": fields.integer("hidden_size")}), name)
    if len(blocks) != len(spec.layers):
        raise ConfigError(f"block_configs is of {len(blocks)} layers, expected {len(spec.layers)}")
    layers = (_block(block, layer, spec.hidden_size) for block, layer in zip(blocks, spec.layers, strict=True))
    return replace(spec, layers=tuple(layers))


def _block(block: object, layer: LayerSpec, hidden: int) -> LayerSpec:
    """The layer of Nemotron NAS as ``block_configs`` has it."""
    if not isinstance(block, Mapping):
        raise ConfigError(f"block_configs holds {str(block)[:40]}, expected a table for each layer")
    attention, network = (Fields(Fields(block).table(part) or {}) for part in ("attention", "ffn"))
    for part in (attention, network):
        if (unknown := next((field for field in _UNKNOWN_PARTS if part.values.get(field)), None)) is not None:
            raise ConfigError(f"block_configs has {unknown}, expected layers of attention and an MLP")
    mixer, mlp, norms = layer.attention, layer.mlp, layer.norms
    if attention.flag("no_op") or not (attention.has("n_heads_in_group") or attention.has("num_key_value_heads")):
        layer, norms = replace(layer, mixer=None), replace(norms, mixer_in="")
    else:
        shared = mixer.heads // attention.integer("num_key_value_heads", mixer.heads, most=mixer.heads)
        kv_heads = mixer.heads // attention.integer("n_heads_in_group", shared, most=mixer.heads)
        layer = replace(layer, mixer=replace(mixer, kv_heads=kv_heads))
    if network.flag("no_op") or not (network.has("ffn_mult") or network.has("intermediate_size")):
        return replace(layer, mlp=None, norms=replace(norms, mlp_in=""))
    width = int(2 * network.positive("ffn_mult", 1.0) * hidden / 3)
    if not network.has("intermediate_size"):
        network = Fields({"intermediate_size": -(-width // _FFN_MULTIPLE) * _FFN_MULTIPLE})
    assert isinstance(mlp, MLPSpec)
    return replace(layer, mlp=replace(mlp, inner=network.integer("intermediate_size")), norms=norms)
