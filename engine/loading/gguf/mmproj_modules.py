"""Maps the tensors of a projector file to transformers' names, for towers that run transformers' modules. Torch-free.

:mod:`..module_weights` converts the tensors.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.|\Z)")
LIMITS: Final = tuple(f"{side}_{bound}" for side in ("input", "output") for bound in ("min", "max"))
"""Input and output limits of a product."""


def _below(stored: str, own: str, parts: Mapping[str, str]) -> dict[str, str]:
    return {f"{stored}{part}": f"{own}{name}" for part, name in parts.items()}


_ATTENTION: Final = {f"attn_{part}": f"self_attn.{part}_proj" for part in ("q", "k", "v", "out")}


def _whisper(front: str, last: str) -> dict[str, str]:
    tower = f"{front}audio_tower."
    layer = {"ln1": "self_attn_layer_norm", "ln2": "final_layer_norm", "ffn_up": "fc1", "ffn_down": "fc2"}
    projector = {"mlp.{}": "linear_{}", "fc": "linear", "norm_pre": "ln_pre", "norm_mid": "ln_mid"}
    return {
        **_below("a.blk.{}.", f"{tower}layers.{{}}.", {**layer, **_ATTENTION}),
        **{f"a.conv{each}d.{{}}": f"{tower}conv{'' if each == 1 else '2d'}{{}}" for each in (1, 2)},
        **{"a.conv_out": f"{tower}conv_out", "a.position_embd": f"{tower}embed_positions"},
        "a.post_ln": f"{tower}{last}",
        **_below("mm.a.", f"{front}multi_modal_projector.", projector),
    }


_GRANITE: Final = {
    "a.input_projection": "encoder.input_linear",
    **_below(
        "a.blk.{}.",
        "encoder.layers.{}.",
        {
            **{"ffn_norm": "ff1.pre_norm", "ffn_up": "ff1.up_proj", "ffn_down": "ff1.down_proj"},
            **{"ffn_norm_1": "ff2.pre_norm", "ffn_up_1": "ff2.up_proj", "ffn_down_1": "ff2.down_proj"},
            **{"ln1": "attn.pre_norm", "attn_q": "attn.to_q", "attn_k": "attn.to_kv", "attn_out": "attn.to_out"},
            **{"attn_rel_pos_emb": "attn.rel_pos_emb.weight", "norm_conv": "conv.norm", "conv_pw1": "conv.up_conv"},
            **{"conv_dw": "conv.depth_conv.conv", "conv_norm": "conv.batch_norm", "conv_pw2": "conv.down_conv"},
            "ln2": "post_norm",
        },
    ),
    **{"a.enc_ctc_out": "encoder.out", "a.enc_ctc_out_mid": "encoder.out_mid"},
    **{"a.proj_query": "projector.query", "a.proj_norm": "projector.qformer.layernorm"},
    **_below(
        "a.proj_blk.{}.",
        "projector.qformer.encoder.layer.{}.",
        {
            **{
                f"{kind}_attn_{part}": f"{name}.{module}"
                for kind, name in (("self", "attention"), ("cross", "crossattention"))
                for part, module in (
                    *(("q", "attention.query"), ("k", "attention.key"), ("v", "attention.value")),
                    *(("out", "output.dense"), ("norm", "output.LayerNorm")),
                )
            },
            **{"ffn_up": "intermediate_query.dense", "ffn_down": "output_query.dense"},
            "ffn_norm": "output_query.LayerNorm",
        },
    ),
    "a.proj_linear": "projector.linear",
}
_OMNI: Final = {
    **{"v.patch_embd": "thinker.visual.patch_embed.proj", "v.position_embd": "thinker.visual.pos_embed"},
    **_below(
        "v.blk.{}.",
        "thinker.visual.blocks.{}.",
        {"ln1": "norm1", "ln2": "norm2", **{f"attn_{part}": f"attn.{part}" for part in ("q", "k", "v", "qkv")}},
    ),
    "v.blk.{}.attn_out": "thinker.visual.blocks.{}.attn.proj",
    "v.post_ln": "thinker.visual.merger.ln_q",
    "mm.{}": "thinker.visual.merger.mlp.{}",
    **_whisper("thinker.", "ln_post"),
}


def _network(names: Mapping[str, str]) -> dict[str, str]:
    return _below("v.blk.{}.ffn_", "thinker.visual.blocks.{}.mlp.", names)


_GEMMA4: Final = {
    "v.patch_embd": "model.vision_tower.patch_embedder.input_proj",
    "v.position_embd.weight": "model.vision_tower.patch_embedder.position_embedding_table",
    **_below(
        "v.blk.{}.",
        "model.vision_tower.encoder.layers.{}.",
        {
            **{"ln1": "input_layernorm", "attn_post_norm": "post_attention_layernorm"},
            **{"ln2": "pre_feedforward_layernorm", "ffn_post_norm": "post_feedforward_layernorm"},
            **{f"attn_{part}": f"self_attn.{part}_proj.linear" for part in "qkv"},
            **{"attn_out": "self_attn.o_proj.linear", "attn_q_norm": "self_attn.q_norm"},
            "attn_k_norm": "self_attn.k_norm",
            **{f"ffn_{part}": f"mlp.{part}_proj.linear" for part in ("gate", "up", "down")},
        },
    ),
    **_below("v.", "model.vision_tower.", {"std_bias": "std_bias", "std_scale": "std_scale"}),
    "mm.input_projection": "model.embed_vision.embedding_projection",
    **_below(
        "a.conv1d.{}",
        "model.audio_tower.subsample_conv_projection.layer{}.",
        {"": "conv", ".norm": "norm"},
    ),
    "a.input_projection": "model.audio_tower.subsample_conv_projection.input_proj_linear",
    **_below(
        "a.blk.{}.",
        "model.audio_tower.layers.{}.",
        {
            **{
                f"ffn_{part}{behind}": f"feed_forward{number}.{name}"
                for behind, number in (("", 1), ("_1", 2))
                for part, name in (
                    *(("norm", "pre_layer_norm"), ("post_norm", "post_layer_norm")),
                    *(("up", "ffw_layer_1.linear"), ("down", "ffw_layer_2.linear")),
                )
            },
            **{f"attn_{part}": f"self_attn.{part}_proj.linear" for part in "qkv"},
            **{"attn_out": "self_attn.post.linear", "attn_k_rel": "self_attn.relative_k_proj"},
            **{"per_dim_scale.weight": "self_attn.per_dim_scale", "attn_pre_norm": "norm_pre_attn"},
            **{"attn_post_norm": "norm_post_attn", "ln2": "norm_out", "conv_dw": "lconv1d.depthwise_conv1d"},
            **{"conv_pw1": "lconv1d.linear_start.linear", "conv_pw2": "lconv1d.linear_end.linear"},
            # swapped in files of converters
            **{"conv_norm": "lconv1d.pre_layer_norm", "norm_conv": "lconv1d.conv_norm"},
        },
    ),
    "a.pre_encode.out": "model.audio_tower.output_proj",
    "mm.a.input_projection": "model.embed_audio.embedding_projection",
}


_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "ultravox": _whisper("", "layer_norm"),
    **dict.fromkeys(("voxtral", "qwen2_audio"), _whisper("model.", "layer_norm")),
    "qwen3_asr": _whisper("model.", "ln_post"),
    "granite_speech": _GRANITE,
    "qwen2_5_omni": {
        **{**_OMNI, "mm.a.fc": "thinker.audio_tower.proj"},
        **_network({"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}),
    },
    "qwen3_omni_moe": {
        **{**_OMNI, "mm.a.mlp.{}": "thinker.audio_tower.proj{}"},
        **_network({"up": "linear_fc1", "down": "linear_fc2"}),
        **_below("v.deepstack.{}.", "thinker.visual.merger_list.{}.", {"norm": "ln_q", "fc1": "mlp.0", "fc2": "mlp.2"}),
    },
    "gemma4": _GEMMA4,
}
"""By model type and stored name, of modules, or of tensors with other endings than ``weight`` or ``bias``; ``{}``
stands for a number."""


def template_of(stored: str) -> tuple[str, list[str]]:
    """A tensor's name with ``{}`` for each number, and the numbers."""
    return _NUMBER.sub("{}", stored), _NUMBER.findall(stored)


class ModuleParts(msgspec.Struct, frozen=True):
    """The names of one file."""

    model_type: str
    taps: tuple[int, ...] = ()
    """Vision layers with an extra output."""

    def name(self, stored: str) -> str:
        """transformers' name of a stored tensor; an unknown one keeps its name."""
        names, (form, numbers) = _NAMES[self.model_type], template_of(stored)
        if form.startswith("v.deepstack.") and int(numbers[0]) in self.taps:
            numbers[0] = str(self.taps.index(int(numbers[0])))
        if form in names:
            return names[form].format(*numbers)
        stem, _, ending = form.rpartition(".")
        if stem not in names:
            return stored
        own = names[stem].format(*numbers)
        return f"{own.removesuffix('.linear') if ending in LIMITS else own}.{ending}"
