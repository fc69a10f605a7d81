"""The stored tensors of one quantised projection: which there are, and what they stand for.

``expand`` is the definition of each format, in float32: the plain weight [outputs, inputs].
"""

from collections.abc import Mapping

import torch

from stentor.kernels.linear_w4 import W4Weight, dequantize, from_awq, from_compressed_tensors, from_gptq

from .formats import FP8Format, Int4Format, Int8Format

Stored = Mapping[str, torch.Tensor]
"""Tensors by ending."""


_WORDS = ("qweight", "qzeros", "weight_packed", "weight_zero_point")
"""Four-bit values come eight to a word."""


class StoredError(Exception):
    """The tensors contradict their description. The message is a clause about the projection."""


def endings(format: FP8Format | Int8Format | Int4Format) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a projection must have, and what it may have that is passed over."""
    match format:
        case FP8Format(scale_ending=scale, input_ending=inputs, activations="tensor"):
            return ("weight", scale, inputs), ()
        case FP8Format(scale_ending=scale, input_ending=inputs):
            return ("weight", scale), (inputs,)
        case Int8Format(activations="tensor"):
            return ("weight", "weight_scale", "input_scale"), ()
        case Int8Format():
            return ("weight", "weight_scale"), ("input_scale",)
        case Int4Format(packing="gptq", act_order=True):
            return ("qweight", "qzeros", "scales", "g_idx"), ()
        case Int4Format(packing="gptq"):
            return ("qweight", "qzeros", "scales"), ("g_idx",)
        case Int4Format(packing="awq"):
            return ("qweight", "qzeros", "scales"), ()
    zeros = () if format.symmetric else ("weight_zero_point",)
    index = ("weight_g_idx",)
    needed = ("weight_packed", "weight_scale", "weight_shape", *zeros)
    return ((*needed, *index), ()) if format.act_order else (needed, index)


def scale_rows(format: FP8Format | Int8Format, stored: Stored, outputs: int, inputs: int) -> torch.Tensor:
    """The weight's scales, float32: [outputs], or for blocks [ceil(outputs / rows), ceil(inputs / columns)]."""
    ending = format.scale_ending if isinstance(format, FP8Format) else "weight_scale"
    scale = stored[ending].float()
    if isinstance(format, FP8Format) and format.granularity == "block":
        rows, columns = format.block
        expected = (-(-outputs // rows), -(-inputs // columns))
        if scale.dim() == 4 and scale.shape[1::2] == (1, 1):  # ModelOpt keeps the dimensions that it reduced over
            scale = scale[:, 0, :, 0]
        if tuple(scale.shape) != expected:
            raise StoredError(f"{ending} has shape {tuple(scale.shape)}, expected {expected}")
        return scale
    if scale.numel() == 1:
        return scale.reshape(1).expand(outputs)
    if scale.numel() != outputs:
        raise StoredError(f"{ending} has shape {tuple(scale.shape)}, expected one scale or {outputs}")
    return scale.reshape(outputs)


def largest_input_scale(format: FP8Format | Int8Format, stored: Stored) -> torch.Tensor:
    """The stored scale of inputs, float32 []."""
    ending = format.input_ending if isinstance(format, FP8Format) else "input_scale"
    if not stored[ending].numel():
        raise StoredError(f"{ending} is empty, expected one scale")
    return stored[ending].float().max()


def checked_weight(stored: Stored, dtype: torch.dtype, outputs: int, inputs: int) -> torch.Tensor:
    """The stored weight [outputs, inputs] where it is one value an element."""
    weight = stored["weight"]
    if weight.dtype != dtype or tuple(weight.shape) != (outputs, inputs):
        raise StoredError(
            f"weight is {str(weight.dtype).removeprefix('torch.')} {tuple(weight.shape)}, "
            f"expected {str(dtype).removeprefix('torch.')} {(outputs, inputs)}"
        )
    return weight


def pack_int4(format: Int4Format, stored: Stored, outputs: int, inputs: int) -> W4Weight:
    """The four-bit weight in the layout of the kernels."""
    for ending, tensor in stored.items():
        if ending in _WORDS and (tensor.dtype != torch.int32 or tensor.dim() != 2 or not tensor.numel()):
            raise StoredError(
                f"{ending} is {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}, expected a matrix of "
                "int32, each of eight values"
            )
    try:
        weight = _pack_int4(format, stored, outputs, inputs)
    except ValueError as error:
        raise StoredError(str(error)) from error
    if weight.shape != (outputs, inputs):
        raise StoredError(f"it holds a weight of {weight.shape}, expected {(outputs, inputs)}")
    return weight


def _pack_int4(format: Int4Format, stored: Stored, outputs: int, inputs: int) -> W4Weight:
    group = format.group or -1
    match format.packing:
        case "gptq":
            tensors = stored["qweight"], stored["qzeros"], stored["scales"]
            return from_gptq(*tensors, group=group, g_idx=stored.get("g_idx"), version=2 - format.zero_offset)
        case "awq":
            return from_awq(stored["qweight"], stored["qzeros"], stored["scales"], group=group)
        case "compressed-tensors":
            return from_compressed_tensors(
                stored["weight_packed"],
                stored["weight_scale"],
                shape=(outputs, inputs),
                group=group,
                weight_zero_point=stored.get("weight_zero_point"),
                weight_g_idx=stored.get("weight_g_idx"),
            )


def expand(
    format: FP8Format | Int8Format | Int4Format, stored: Stored, outputs: int, inputs: int, dtype: torch.dtype
) -> torch.Tensor:
    """The plain weight [outputs, inputs] of ``dtype``, computed in float32. Raises :class:`StoredError`."""
    if isinstance(format, Int4Format):
        return dequantize(pack_int4(format, stored, outputs, inputs), dtype)
    kind = torch.float8_e4m3fn if isinstance(format, FP8Format) else torch.int8
    weight = checked_weight(stored, kind, outputs, inputs)
    scale = scale_rows(format, stored, outputs, inputs)
    if scale.dim() == 1:
        return (weight.float() * scale.unsqueeze(1)).to(dtype)
    assert isinstance(format, FP8Format)
    rows, columns = format.block
    spread = scale.repeat_interleave(rows, 0)[:outputs].repeat_interleave(columns, 1)[:, :inputs]
    return (weight.float() * spread).to(dtype)


MX_BLOCK = 32
"""Values that share a scale in the formats of the OCP Microscaling specification."""
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_E8M0_BIAS = 127


def expand_mxfp4(blocks: torch.Tensor, scales: torch.Tensor, outputs: int, inputs: int) -> torch.Tensor:
    """The plain weight float32 [outputs, inputs] of MXFP4 (OCP Microscaling Formats specification 1.0).

    Args:
        blocks: uint8 [outputs, blocks, 16]: of each byte the low half is the first value, E2M1 with its sign on top.
        scales: uint8 [outputs, blocks]: E8M0, an exponent of two with a bias of 127; 255 is no number.

    Raises:
        StoredError: shapes or dtypes that do not fit.
    """
    expected = (outputs, inputs // MX_BLOCK, MX_BLOCK // 2)
    if blocks.dtype != torch.uint8 or tuple(blocks.shape) != expected or inputs % MX_BLOCK:
        raise StoredError(f"blocks are {blocks.dtype} {tuple(blocks.shape)}, expected uint8 {expected}")
    if scales.dtype != torch.uint8 or tuple(scales.shape) != expected[:2]:
        raise StoredError(f"scales are {scales.dtype} {tuple(scales.shape)}, expected uint8 {expected[:2]}")
    codes = torch.stack((blocks & 0x0F, blocks >> 4), dim=-1).flatten(2).int()  # [outputs, blocks, 32]
    values = torch.cat((_E2M1, -_E2M1)).to(blocks.device)[codes]
    exponents = (scales.int() - _E8M0_BIAS).unsqueeze(-1)
    values = torch.ldexp(values, exponents).masked_fill_((scales == 255).unsqueeze(-1), torch.nan)
    return values.reshape(outputs, inputs)
