"""The plain torch reference of each instruction, in float32."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..activation.reference import activation, gated_activation
from ..attention import AttentionBatch
from ..attention.arguments import AttentionArgs
from ..attention.reference import paged_attention
from ..kv_cache.reference import write_kv_
from ..linear_packed import ActivationFormat, activation_format_of
from ..linear_packed.reference import dequantize, linear_packed, round_input
from ..low_rank import AdapterRows, add_low_rank_
from ..moe.reference import packed_experts_mlp, route
from ..norm.reference import layer_norm
from ..rotary.reference import rotary_
from .instruction import NONE, Instruction
from .program import Program


def run_program(
    program: Program,
    buffers: Sequence[Tensor],
    caches: Sequence[tuple[Tensor, ...]],
    ids: Tensor | None,
    positions: Tensor | None,
    batches: Sequence[AttentionBatch],
    adapted: AdapterRows | None,
    besides: object,
) -> None:
    """Runs the instructions in order; writes buffers and caches."""
    prepared = torch.empty(0)
    for i in program.instructions:
        match i.op:
            case "embed":
                assert ids is not None
                assert i.weight is not None
                buffers[i.dst].copy_(dequantize(i.weight)[ids] * i.scale)
                if i.second_weight is not None:
                    assert positions is not None
                    buffers[i.dst].add_(dequantize(i.second_weight)[positions])
            case "norm_and_quantize":
                src = _added(i, buffers)
                prepared = src if i.norm is None else _normed(i, src)
                prepared = prepared.clone()
            case "add":
                _added(i, buffers)
            case "norm":
                stretch = buffers[i.src][:, i.column : i.column + i.groups * i.width]
                stretch.copy_(_normed(i, stretch.unflatten(1, (i.groups, i.width))).flatten(1))
            case "linear":
                assert i.weight is not None
                buffers[i.dst][:, i.column : i.column + i.weight.shape[0]] = linear_packed(prepared, i.weight, i.bias)
            case "rotate":
                assert positions is not None
                cache = caches[i.layer] + (i.cache_scales or ())
                _rotate(i, buffers[i.src], cache, positions, batches[i.group].slots)
            case "attend":
                k_cache, v_cache, *scales = (part.float() for part in caches[i.layer] + (i.cache_scales or ()))
                k_scale, v_scale = scales or (None, None)
                q = buffers[i.src][:, : i.heads * i.dim].reshape(-1, i.heads, i.dim)
                args = AttentionArgs.of(
                    q,
                    k_cache,
                    v_cache,
                    batches[i.group],
                    scale=i.scale,
                    window=i.window,
                    softcap=i.softcap,
                    sinks=i.sinks,
                    slopes=i.slopes,
                    k_scale=k_scale,
                    v_scale=v_scale,
                )
                buffers[i.dst].copy_(paged_attention(args).flatten(1))
            case "activate":
                activated = gated_activation if i.gated else activation
                prepared = activated(buffers[i.src], i.activation)
            case "moe":
                buffers[i.dst].copy_(_mixed(i, buffers[i.src], prepared))
            case "call":
                i.call(buffers, len(buffers[i.src]), besides)
            case "gate_up_activate":
                assert i.weight is not None
                assert i.second_weight is not None
                gate, up = (
                    linear_packed(prepared, i.weight, i.bias),
                    linear_packed(prepared, i.second_weight, i.second_bias),
                )
                both = torch.cat([gate, up], dim=1)
                _add_low_rank(i, both, prepared, activation_format_of(i.weight.kind), adapted)
                prepared = gated_activation(both, i.activation)
            case "add_low_rank":
                _add_low_rank(i, buffers[i.dst], prepared, i.activation_format, adapted)


def _add_low_rank(
    i: Instruction, y: Tensor, x: Tensor, activation_format: ActivationFormat, adapted: AdapterRows | None
) -> None:
    if i.adapters is not None and adapted is not None:
        add_low_rank_(y, round_input(x, activation_format), adapted, i.adapters, variant="reference")


def _added(i: Instruction, buffers: Sequence[Tensor]) -> Tensor:
    src = buffers[i.src]
    return src if i.add == NONE else src.add_(buffers[i.add] * i.scale)


def _normed(i: Instruction, x: Tensor) -> Tensor:
    assert i.norm is not None
    if i.centred:
        return layer_norm(x, i.norm, i.bias, i.eps)
    return _rms_normed(x, i.norm, i.eps)


def _rms_normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _mixed(i: Instruction, src: Tensor, x: Tensor) -> Tensor:
    assert i.router is not None
    assert i.weight is not None
    assert i.second_weight is not None
    routing = route(src[:, i.column : i.column + i.experts], i.router, i.score_bias)
    weights = i.weight, i.second_weight
    return packed_experts_mlp(x, routing, i.experts, *weights, i.activation, i.bias, i.second_bias, i.weight_input)


def _rotate(i: Instruction, row: Tensor, cache: tuple[Tensor, ...], positions: Tensor, slots: Tensor) -> None:
    assert i.rotary is not None
    heads = row.view(len(row), -1, i.dim)
    q, k, v = heads.split([i.heads, i.kv_heads, i.kv_heads], dim=1)
    if i.rotated_first:
        rotary_(q, k, *i.rotary, positions, i.interleaved, None)
    if i.norm is not None and i.second_norm is not None:
        q.copy_(_rms_normed(q, i.norm, i.eps))
        k.copy_(_rms_normed(k, i.second_norm, i.eps))
    if not i.rotated_first:
        rotary_(q, k, *i.rotary, positions, i.interleaved, None)
    if i.query_scales is not None:
        q.mul_(i.query_scales[positions, None, None])
    k_cache, v_cache, *scales = cache
    if scales:
        write_kv_(k, v, k_cache, v_cache, slots, *scales)
    else:
        write_kv_(k.to(k_cache.dtype), v.to(v_cache.dtype), k_cache, v_cache, slots, None, None)
