"""The plain torch reference: unpacks the weight, rounds activations as the kind needs, and multiplies in float32."""

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from ..activation.gated import ActivationKind
from ..activation.reference import activation as activate
from .weight import (
    BLOCK,
    FOUR_BITS,
    HALVES,
    MINS,
    OFFSETS,
    SPAN,
    TABLES,
    TILE,
    USUAL_ZEROS,
    ZEROS,
    ActivationFormat,
    PackedWeight,
    activation_format_of,
)

FURTHEST = 127 * 16


def dequantize(weight: PackedWeight) -> Tensor:
    """Returns float32 [N, K]."""
    outputs, inputs = weight.shape
    tiles = len(weight.codes)
    match weight.kind:
        case "f32":
            values = weight.codes.view(torch.float32).view(tiles, inputs, TILE).transpose(1, 2)
        case "bf16":
            pairs = weight.codes.view(torch.bfloat16).view(tiles, -1, TILE, 2)
            values = pairs.permute(0, 2, 1, 3).reshape(tiles, TILE, -1).float()
        case kind:
            codes = _codes(weight)  # [tiles, blocks, 32, 16]
            scales = _of_blocks(weight, weight.scales)  # [tiles, blocks, parts, 16]
            if weight.spans is not None:
                spans = weight.spans.float().repeat_interleave(SPAN, 1)[:, : scales.shape[1]]
                scales = scales * (spans if kind in MINS else spans.expand_as(scales))
            if weight.factors is not None:
                scales = scales * weight.factors.view(tiles, 1, 1, TILE)
            centred = torch.tensor(TABLES[kind])[codes.long()] if kind in TABLES else codes - OFFSETS[kind]
            if kind in ZEROS:
                zeros = USUAL_ZEROS[kind] if weight.zeros is None else _of_blocks(weight, weight.zeros).unsqueeze(2)
                blocks = centred * scales + scales * (OFFSETS[kind] - zeros)
            elif kind in MINS:
                blocks = centred * scales[:, :, :1] + scales[:, :, 1:]
            else:
                blocks = centred * scales.repeat_interleave(BLOCK // (2 if kind in HALVES else 1), 2)
            values = blocks.permute(0, 3, 1, 2)
    return values.reshape(tiles * TILE, -1)[:outputs, :inputs].contiguous()


def _of_blocks(weight: PackedWeight, plane: Tensor) -> Tensor:
    """Expands a plane [tiles, groups, ...] to float32 [tiles, blocks, ...]."""
    return plane.float().repeat_interleave(weight.shared, 1)[:, : -(-weight.shape[1] // BLOCK)]


def _codes(weight: PackedWeight) -> Tensor:
    """Returns float32 [tiles, blocks, 32, 16]."""
    tiles = len(weight.codes)
    if weight.kind in FOUR_BITS:
        both = weight.codes.view(tiles, -1, 4, 64)
        vectors = torch.cat([both & 15, both >> 4], dim=2)
    else:
        vectors = weight.codes.view(tiles, -1, 8, 64)
    lanes = vectors.view(*vectors.shape[:3], TILE, 4).transpose(3, 4)
    return lanes.reshape(tiles, -1, BLOCK, TILE).float()


def round_input(x: Tensor, activation_format: ActivationFormat) -> Tensor:
    """Returns x [T, K] float32 rounded as this format multiplies it.

    bfloat16 rounds each value. int8 rounds each 32 values in steps of 1/127 of the second largest one. The largest one
    is kept exactly if it is more than FURTHEST steps out.
    """
    match activation_format:
        case "f32":
            return x
        case "bf16":
            return x.bfloat16().float()
        case "int8":
            tokens, inputs = x.shape
            blocks = pad(x, (0, -inputs % BLOCK)).view(tokens, -1, BLOCK)
            at = blocks.abs().argmax(2, keepdim=True)
            scale = blocks.scatter(2, at, 0.0).abs().amax(2, keepdim=True) / 127
            inverse = torch.where(scale >= torch.finfo(torch.float32).tiny, 1 / scale, 0.0)
            places = blocks * inverse
            reached = (inverse > 0) & (places.abs() <= FURTHEST)
            rounded = torch.where(reached, torch.round(places) * scale, blocks)
            others = torch.where(inverse > 0, rounded, 0.0)
            return others.scatter(2, at, rounded.gather(2, at)).view(tokens, -1)[:, :inputs]


def linear_packed(
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None,
    activation: ActivationKind | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    sums = linear(round_input(x.float(), activation_format_of(weight.kind)), dequantize(weight), bias)
    return (sums if activation is None else activate(sums, activation)).to(x.dtype if dtype is None else dtype)
