"""Maps GGUF tensor names to transformers', and reads small tensors without torch.

A part of a layer has the same name in all GGUF files; the layer's spec has transformers' name for it.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final, Literal

import msgspec

from ...model_config.hf.draft_head import mtp_head_stored, mtp_layer, mtp_prefix
from ...model_config.spec.attention import AttentionSpec
from ...model_config.spec.latent_attention import LatentAttentionSpec
from ...model_config.spec.layer import BesideSpec, LayerSpec, MixerSpec
from ...model_config.spec.mlp import MLPSpec, MoESpec
from ...model_config.spec.model import ModelSpec
from ...model_config.spec.recurrent import GatedDeltaSpec, Mamba2Spec, MambaSpec, ShortConvSpec
from ...model_config.spec.streams import AltUpSpec, LaurelSpec
from ..errors import CheckpointError
from .file import GGUFFile
from .types import READABLE, GGMLType

Change = Literal["", "log", "log_by_head", "vector", "row", "convolution", "halves_by_head", "stacked"]
"""The converter's change of a tensor: see :mod:`..gguf_weights`."""


class Part(msgspec.Struct, frozen=True):
    """The contents of a stored tensor."""

    names: tuple[str, ...]
    """transformers' names; empty if it holds no weights."""
    change: Change = ""
    heads: int = 0
    """With ``groups``: number of value heads in the rows from ``first`` on, if those of a key head are not adjacent.
    With ``halves_by_head``: number of heads."""
    groups: int = 0
    first: int = 0

    @property
    def by_rows(self) -> bool:
        """Whether its rows of blocks are rows of transformers' tensors, in any order."""
        return self.change in ("", "halves_by_head", "stacked")


CONSUMED = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
"""Tensors that the configuration has read."""

_IGNORED = re.compile(r"blk\.\d+\.attn_rot_embd\.weight|blk\.\d+\.rope_freqs\.weight")
"""Buffers in files of old converters."""

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")

MAX_FACTORS = 1 << 16

_HEAD: Final = "nextn."
_ATTENTION: Mapping[str, str] = {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj"}
_LATENT: Mapping[str, str] = {
    "attn_q": "q_proj",
    "attn_q_a": "q_a_proj",
    "attn_q_b": "q_b_proj",
    "attn_q_a_norm": "q_a_layernorm",
    "attn_kv_a_mqa": "kv_a_proj_with_mqa",
    "attn_kv_a_norm": "kv_a_layernorm",
    "attn_kv_b": "kv_b_proj",
    "attn_k_b": "k_b_proj",
    "attn_v_b": "v_b_proj",
    "attn_output": "o_proj",
}

_BY_CHANNEL: Mapping[str, str] = {
    "attn_q": "q_proj",
    "attn_k": "k_proj",
    "attn_v": "v_proj",
    "ssm_beta": "b_proj",
    "ssm_f_a": "f_a_proj",
    "ssm_f_b": "f_b_proj",
    "ssm_g_a": "g_a_proj",
    "ssm_g_b": "g_b_proj",
    "ssm_norm": "o_norm",
    "attn_output": "o_proj",
}
"""The gated delta rule of Kimi Linear."""
_PER_LAYER: Mapping[str, str] = {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
_LAYER_INPUT: Mapping[str, str] = {
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
"""Of Gemma 3n and 4."""
_STREAMS: Mapping[str, str] = {
    "altup_proj": "model.altup_projections.{}",
    "altup_unembd_proj": "model.altup_unembed_projections.{}",
}
_ALTUP: Mapping[str, str] = {
    "altup_correct_coef": "altup.correction_coefs",
    "altup_predict_coef": "altup.prediction_coefs",
    "altup_router": "altup.modality_router",
    "altup_router_norm": "altup.router_norm",
}
_LAUREL: Mapping[str, str] = {
    "laurel_l": "linear_left",
    "laurel_r": "linear_right",
    "laurel_post_norm": "post_laurel_norm",
}
"""Of Gemma 3n."""


def stored_part(name: str, spec: ModelSpec) -> Part:
    """The contents of a stored tensor; an unknown one keeps its name."""
    if name in CONSUMED or _IGNORED.fullmatch(name):
        return Part(())
    block = _BLOCK.fullmatch(name)
    if block is None:
        stem, _, ending = name.rpartition(".")
        if isinstance(spec.streams, AltUpSpec) and (each := _STREAMS.get(stem)) is not None:
            others = range(spec.streams.streams - 1)
            return Part(tuple(f"{each.format(at)}.{ending}" for at in others), "stacked")
        outer = {
            "token_embd": spec.embedding,
            "output": "lm_head",
            "output_norm": spec.final_norm,
            "token_embd_norm": spec.input.norm or spec.final_norm,  # LFM2's is the last
            **({"position_embd": spec.input.positions} if spec.input.positions else {}),
            **(_PER_LAYER if spec.per_layer else {}),
        }.get(stem)
        return Part((f"{outer}.{ending}",)) if outer else Part((name,))
    layer, inner = int(block[1]), block[2]
    if layer >= len(spec.layers) and not mtp_head_stored(spec):
        return Part(()) if spec.draft_layers or spec.draft_prefix else Part((name,))  # heads of another form
    if layer > len(spec.layers):
        return Part(())  # only the first of several heads for multi-token prediction is used
    if layer < len(spec.layers):
        own, prefix = spec.layers[layer], f"{spec.prefix}.{layer}"
    elif inner.startswith(_HEAD):
        return _of_head(inner.removeprefix(_HEAD), spec)
    else:
        assert spec.mtp is not None
        own, prefix = mtp_layer(spec), (mtp_prefix(spec) + spec.mtp.layer).removesuffix(".")
    parts = _parts(own, spec.per_layer is not None, isinstance(spec.streams, AltUpSpec))
    if (whole := parts.get(inner)) is not None:
        return _named(whole, prefix, ".weight" if inner == "ffn_norm" else "")  # Falcon-H1's has no ending
    stem, _, ending = inner.rpartition(".")
    found = parts.get(stem)
    return _named(found, prefix, f".{ending}") if found is not None else Part((name,))


def _of_head(inner: str, spec: ModelSpec) -> Part:
    """Parts of a multi-token prediction head besides its layer. Embeddings and output head are the model's."""
    assert spec.mtp is not None
    stem, _, ending = inner.rpartition(".")
    found = {
        "enorm": spec.mtp.embedding_norm,
        "hnorm": spec.mtp.hidden_norm,
        "eh_proj": spec.mtp.fc,
        "shared_head_norm": spec.mtp.norm,
    }.get(stem)
    return Part((f"{mtp_prefix(spec)}{found}{ending}",) if found else ())


def _named(part: Part, prefix: str, ending: str) -> Part:
    names = tuple(f"{prefix}.{name}{ending}" for name in part.names)
    return Part(names, part.change, part.heads, part.groups, part.first)


@cache
def _parts(layer: LayerSpec, per_layer: bool, altup: bool) -> Mapping[str, Part]:
    """The parts of a layer by their names in the file, with or without ending; ``per_layer``: it has its own
    embedding; ``altup``: several residual streams."""
    names = layer.norms
    first = (names.mixer_in, names.mlp_in) if names.mixer_in != "ln_attn" else (names.mlp_in, names.mixer_in)  # Falcon
    pairs = [
        ("attn_norm", first[0] or first[1]),
        ("attn_norm_2", names.mixer_in),
        ("ffn_norm", names.mlp_in),
        ("attn_output_norm", names.mlp_in),  # DBRX
        ("post_attention_norm", names.mixer_out or names.mlp_in),  # in some models the network's input norm
        ("post_ffw_norm", names.mlp_out),
    ]
    found = {name: Part((target,)) for name, target in pairs if target}
    if layer.scalar:
        found["layer_output_scale.weight"] = Part((layer.scalar,))
    if per_layer:
        found |= {name: Part((target,)) for name, target in _LAYER_INPUT.items()}
    if altup:
        found |= {name: Part((target,)) for name, target in _ALTUP.items()}
        found["altup_correct_scale.weight"] = Part(("altup.correct_output_scale",))
    for mixer in layer.mixers:
        found |= dict(_of_mixer(mixer))
    if isinstance(layer.mlp, MLPSpec):
        found |= dict(_of_network(layer.mlp, ""))
    elif isinstance(layer.mlp, MoESpec):
        found |= dict(_of_experts(layer.mlp))
    return found


def _of_mixer(mixer: MixerSpec | BesideSpec) -> Iterator[tuple[str, Part]]:
    name = mixer.name
    match mixer:
        case AttentionSpec():
            yield from ((stored, Part((f"{name}.{part}",))) for stored, part in _ATTENTION.items())
            yield "attn_qkv", Part((f"{name}.{mixer.into}",))
            yield "attn_output", Part((f"{name}.{mixer.out}",))
            if mixer.sinks:
                yield "attn_sinks.weight", Part((f"{name}.{mixer.sinks_name}",))
            if mixer.gate:
                yield "attn_gate", Part((f"{name}.{mixer.gate}",))
            for stored, part in zip(("attn_q_norm", "attn_k_norm"), mixer.qk_norm_names or (), strict=False):
                yield stored, Part((f"{name}.{part}",))
        case LatentAttentionSpec():
            yield from ((stored, Part((f"{name}.{part}",))) for stored, part in _LATENT.items())
        case GatedDeltaSpec():
            yield from _of_delta(mixer)
        case Mamba2Spec() | MambaSpec():
            yield "ssm_in", Part((f"{name}.in_proj",))
            yield "ssm_out", Part((f"{name}.out_proj",))
            yield "ssm_conv1d.weight", Part((f"{name}.conv1d.weight",), "convolution")
            yield "ssm_conv1d.bias", Part((f"{name}.conv1d.bias",))
            yield "ssm_a", Part((f"{name}.A_log",), "log")
            yield "ssm_d", Part((f"{name}.D",), "vector")
            yield "ssm_norm", Part((f"{name}.norm",), "vector")
            if isinstance(mixer, Mamba2Spec):
                yield "ssm_dt.bias", Part((f"{name}.dt_bias",))
            else:
                yield "ssm_dt", Part((f"{name}.dt_proj",))
                yield "ssm_x", Part((f"{name}.x_proj",))
                yield from ((f"ssm_{part}_norm", Part((f"{name}.{part}_layernorm",))) for part in ("dt", "b", "c"))
        case LaurelSpec():
            yield from ((stored, Part((f"{name}.{part}",))) for stored, part in _LAUREL.items())
        case ShortConvSpec():
            yield "shortconv.in_proj", Part((f"{name}.in_proj",))
            yield "shortconv.out_proj", Part((f"{name}.out_proj",))
            yield "shortconv.conv.weight", Part((f"{name}.conv.weight",), "convolution")
            yield "shortconv.conv.bias", Part((f"{name}.conv.bias",))


def _of_delta(mixer: GatedDeltaSpec) -> Iterator[tuple[str, Part]]:
    name = mixer.name
    if mixer.by_channel:
        yield from ((stored, Part((f"{name}.{part}",))) for stored, part in _BY_CHANNEL.items())
        for part in "qkv":
            yield f"ssm_conv1d_{part}.weight", Part((f"{name}.{part}_conv1d.weight",), "convolution")
        yield "ssm_dt.bias", Part((f"{name}.dt_bias",))
        yield "ssm_a", Part((f"{name}.A_log",), "log_by_head")
        return
    heads, groups = (mixer.v_heads, mixer.k_heads) if mixer.tiled else (0, 0)
    yield "attn_qkv", Part((f"{name}.in_proj_qkv",), "", heads, groups, 2 * mixer.keys)
    yield "attn_gate", Part((f"{name}.in_proj_z",), "", heads, groups)
    yield "ssm_alpha", Part((f"{name}.in_proj_a",), "", heads, groups)
    yield "ssm_beta", Part((f"{name}.in_proj_b",), "", heads, groups)
    yield "ssm_conv1d.weight", Part((f"{name}.conv1d.weight",), "convolution", heads, groups, 2 * mixer.keys)
    yield "ssm_dt.bias", Part((f"{name}.dt_bias",), "", heads, groups)
    yield "ssm_a", Part((f"{name}.A_log",), "log", heads, groups)
    yield "ssm_norm", Part((f"{name}.norm",))
    yield "ssm_out", Part((f"{name}.out_proj",))
    yield "ssm_in", Part((f"{name}.in_proj_qkvz",))
    if mixer.stored == "by_part":
        yield "ssm_ba", Part((f"{name}.in_proj_b", f"{name}.in_proj_a"), "halves_by_head", mixer.k_heads)
    else:
        yield "ssm_ba", Part((f"{name}.in_proj_ba",))


def _of_network(mlp: MLPSpec, ending: str) -> Iterator[tuple[str, Part]]:
    if len(mlp.into) > 1:
        yield f"ffn_gate{ending}", Part((mlp.into[0],))
    yield f"ffn_up{ending}", Part((mlp.into[-1],))
    yield f"ffn_down{ending}", Part((mlp.out,))


def _of_experts(moe: MoESpec) -> Iterator[tuple[str, Part]]:
    (names, *_) = moe.names
    yield "ffn_gate_inp", Part((names.router,))
    for stored in ("exp_probs_b", "exp_probs_b.bias"):
        yield stored, Part((names.correction,), "vector")  # ERNIE's has one row
    fused = len(names.into) == 1 and moe.gated
    into = ("ffn_gate_up_exps",) if fused else ("ffn_gate_exps", "ffn_up_exps") if moe.gated else ("ffn_up_exps",)
    for stored, name in zip((*into, "ffn_down_exps"), (*names.into, names.out), strict=True):
        yield stored, Part((name.removesuffix(".weight"),))
    for stored, name in zip(("ffn_latent_down", "ffn_latent_up"), moe.latent_names if moe.latent else (), strict=False):
        yield stored, Part((name,))
    if moe.shared is not None:
        yield from _of_network(moe.shared, "" if moe.part_norms else "_shexp")
    if norms := moe.part_norms:
        yield "ffn_norm", Part((norms.shared_in,))
        yield "pre_ffw_norm_2", Part((norms.experts_in,))
        yield "post_ffw_norm_1", Part((norms.shared_out,))
        yield "post_ffw_norm_2", Part((norms.experts_out,))
        yield "ffn_gate_inp.scale", Part((norms.router_scale,))
        yield "ffn_down_exps.scale", Part((norms.expert_scale,))
    if moe.shared_gate:
        yield "ffn_gate_inp_shexp.weight", Part((f"{moe.shared_gate}.weight",), "row")


def check_tensors(gguf: GGUFFile) -> None:
    """Raise :class:`CheckpointError` if a tensor's type cannot be decoded."""
    for tensor in gguf.tensors.values():
        if tensor.type not in READABLE:
            raise CheckpointError(
                f"Cannot load {gguf.path}: {tensor.name!r} is stored as {tensor.type.name}, "
                f"expected one of {', '.join(kind.name for kind in sorted(READABLE))}; quantise the model again, for "
                "example to Q4_K_M."
            )


def read_floats(gguf: GGUFFile, name: str) -> tuple[float, ...]:
    """The values of a small float32 vector. Raises :class:`CheckpointError`."""
    tensor = gguf.tensors[name]
    if tensor.type is not GGMLType.F32 or len(tensor.shape) != 1 or tensor.shape[0] > MAX_FACTORS:
        raise CheckpointError(f"Cannot load {gguf.path}: {name} is expected to be a short vector of F32.")
    return struct.unpack(f"<{tensor.shape[0]}f", gguf.read(tensor))
