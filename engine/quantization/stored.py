"""The stored tensors of one quantised projection: which exist, and their meaning.

``expand`` defines each format: the plain weight [outputs, inputs], computed in float32.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from stentor.kernels import tables
from stentor.kernels.linear_w4 import W4Weight, dequantize, from_awq, from_compressed_tensors, from_gptq

from .formats import FP4Format, FP8Format, GroupedInt8Format, GroupedIntFormat, Int4Format, Int8Format

Stored = Mapping[str, torch.Tensor]
"""Tensors by ending."""


PartFormat = FP8Format | Int8Format | GroupedInt8Format | Int4Format | FP4Format
"""Formats in which each part has its own tensors."""

_WORDS = ("qweight", "qzeros", "weight_packed", "weight_zero_point")
"""Four-bit values come eight to a word."""


_LEAST_TERNARY = 1e-5
"""Least scale of ternary weights that are rounded at load."""


class StoredError(Exception):
    """The tensors contradict their description. The message is a clause about the projection."""


def endings(format: PartFormat) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(required endings, endings that are ignored) of a projection."""
    match format:
        case FP8Format(scale_ending=scale, input_ending=inputs, activations="tensor"):
            return ("weight", scale, inputs), ()
        case FP8Format(scale_ending=scale, input_ending=inputs):
            return ("weight", scale), (inputs,)
        case Int8Format(ternary="rounded"):
            return ("weight",), ("weight_scale",)
        case Int8Format(activations="tensor"):
            return ("weight", "weight_scale", "input_scale"), ()
        case Int8Format():
            return ("weight", "weight_scale"), ("input_scale",)
        case GroupedIntFormat(packing="gptq", act_order=True):
            return ("qweight", "qzeros", "scales", "g_idx"), ()
        case GroupedIntFormat(packing="gptq"):
            return ("qweight", "qzeros", "scales"), ("g_idx",)
        case Int4Format(packing="awq"):
            return ("qweight", "qzeros", "scales"), ()
        case FP4Format(packing="modelopt"):
            return ("weight", "weight_scale", "weight_scale_2"), ("input_scale",)
        case FP4Format(packing="deepseek", scale_ending=scale):
            return ("weight", scale), ()
        case FP4Format(kind="nvfp4"):
            return ("weight_packed", "weight_scale", "weight_global_scale"), ("input_global_scale",)
        case FP4Format():
            return ("weight_packed", "weight_scale"), ("input_global_scale",)
    zeros = () if format.symmetric else ("weight_zero_point",)
    index = ("weight_g_idx",)
    needed = ("weight_packed", "weight_scale", "weight_shape", *zeros)
    return ((*needed, *index), ()) if format.act_order else (needed, index)


def scale_rows(format: FP8Format | Int8Format, stored: Stored, outputs: int, inputs: int) -> torch.Tensor:
    """The weight's scales, float32: [outputs], or for blocks [ceil(outputs / rows), ceil(inputs / columns)]."""
    ending = format.scale_ending if isinstance(format, FP8Format) else "weight_scale"
    found = stored[ending]
    if isinstance(format, FP8Format) and found.dtype == torch.uint8:
        found = e8m0(found)  # MXFP8's
    scale = _finite(found, ending).float()
    if isinstance(format, FP8Format) and format.granularity == "block":
        rows, columns = format.block
        expected = (-(-outputs // rows), -(-inputs // columns))
        if scale.dim() == 4 and scale.shape[1::2] == (1, 1):  # ModelOpt keeps reduced dimensions
            scale = scale[:, 0, :, 0]
        if tuple(scale.shape) != expected:
            raise StoredError(f"{ending} has shape {tuple(scale.shape)}, expected {expected}")
        return scale
    if scale.numel() == 1:
        return scale.reshape(1).expand(outputs)
    if scale.numel() != outputs:
        raise StoredError(f"{ending} has shape {tuple(scale.shape)}, expected one scale or {outputs}")
    return scale.reshape(outputs)


def _finite(scales: torch.Tensor, ending: str) -> torch.Tensor:
    """The scales. Raises :class:`StoredError` if one is no finite number."""
    if not scales.is_floating_point() or not bool(scales.float().isfinite().all()):
        raise StoredError(f"{ending} is {_dtype(scales)}, or holds a value that is no finite number, expected floats")
    return scales


def largest_input_scale(format: FP8Format | Int8Format, stored: Stored) -> torch.Tensor:
    """The stored scale of inputs, float32 []."""
    ending = format.input_ending if isinstance(format, FP8Format) else "input_scale"
    if not stored[ending].numel():
        raise StoredError(f"{ending} is empty, expected one scale")
    return _finite(stored[ending], ending).float().max()


def checked_weight(stored: Stored, dtype: torch.dtype, outputs: int, inputs: int) -> torch.Tensor:
    """The stored weight [outputs, inputs], of one value an element."""
    weight = stored["weight"]
    if weight.dtype != dtype or tuple(weight.shape) != (outputs, inputs):
        raise StoredError(
            f"weight is {str(weight.dtype).removeprefix('torch.')} {tuple(weight.shape)}, "
            f"expected {str(dtype).removeprefix('torch.')} {(outputs, inputs)}"
        )
    return weight


def read_scaled(
    format: FP8Format | Int8Format, stored: Stored, outputs: int, inputs: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight of a part: values [outputs, inputs], float8_e4m3fn or int8, and their scales: see :func:`scale_rows`.

    Raises:
        StoredError: wrong shapes or dtypes, or a ternary weight without a positive scale.
    """
    if isinstance(format, Int8Format) and format.ternary:
        return _read_ternary(format, stored, outputs, inputs)
    kind = torch.float8_e4m3fn if isinstance(format, FP8Format) else torch.int8
    return checked_weight(stored, kind, outputs, inputs), scale_rows(format, stored, outputs, inputs)


def _read_ternary(format: Int8Format, stored: Stored, outputs: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    if format.ternary == "rounded":
        weight = stored["weight"].float()
        if tuple(weight.shape) != (outputs, inputs):
            raise StoredError(f"weight is {tuple(weight.shape)}, expected {(outputs, inputs)}")
        mean = weight.abs().mean().clamp(min=_LEAST_TERNARY)
        return (weight / mean).round().clamp(-1, 1).to(torch.int8), mean.expand(outputs)
    if outputs % 4:
        raise StoredError(f"it has {outputs} outputs, expected a multiple of the 4 that a byte holds")
    packed = checked_weight(stored, torch.uint8, outputs // 4, inputs)
    codes = torch.cat([packed >> shift & 3 for shift in (0, 2, 4, 6)])  # a byte's rows are outputs / 4 apart
    scale = scale_rows(format, stored, outputs, inputs)
    if not bool((scale > 0).all()) or bool((codes > 2).any()):
        raise StoredError("a scale is not positive, or a weight is none of -1, 0 and 1")
    return codes.to(torch.int8) - 1, 1 / scale if format.ternary == "divided" else scale


def pack_int4(format: Int4Format, stored: Stored, outputs: int, inputs: int) -> W4Weight:
    """The 4-bit weight in the kernels' layout."""
    for ending, tensor in stored.items():
        if ending in _WORDS and (tensor.dtype != torch.int32 or tensor.dim() != 2 or not tensor.numel()):
            raise StoredError(
                f"{ending} is {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}, expected a matrix of "
                "int32, each of eight values"
            )
    ending = "weight_scale" if format.packing == "compressed-tensors" else "scales"
    _finite(stored[ending], ending)
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
    format: PartFormat,
    stored: Stored,
    outputs: int,
    inputs: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The plain weight [outputs, inputs] of ``dtype``, computed in float32. Raises :class:`StoredError`."""
    if isinstance(format, Int4Format) and not format.act_order:
        return dequantize(pack_int4(format, stored, outputs, inputs), dtype)
    if isinstance(format, GroupedIntFormat):
        return read_grouped(format, stored, outputs, inputs).values().to(dtype)
    if isinstance(format, FP4Format):
        return read_fp4(format, stored, outputs, inputs).values().to(dtype)
    weight, scale = read_scaled(format, stored, outputs, inputs)
    if scale.dim() == 1:
        return (weight.float() * scale.unsqueeze(1)).to(dtype)
    assert isinstance(format, FP8Format)
    rows, columns = format.block
    spread = scale.repeat_interleave(rows, 0)[:outputs].repeat_interleave(columns, 1)[:, :inputs]
    return (weight.float() * spread).to(dtype)


class GroupedWeight(NamedTuple):
    """A weight of four or eight bits: value = scale · (code - zero), by the input's group."""

    codes: torch.Tensor
    """uint8 [outputs, inputs]"""
    scales: torch.Tensor
    """float32 [outputs, groups]"""
    zeros: torch.Tensor | None
    """float32 [outputs, groups]; None: 128."""
    order: torch.Tensor
    """int64 [inputs]: the group of each input."""

    def values(self) -> torch.Tensor:
        """The plain weight, float32 [outputs, inputs]."""
        zeros = 128.0 if self.zeros is None else self.zeros[:, self.order]
        return (self.codes.float() - zeros) * self.scales[:, self.order]


def read_grouped(format: GroupedIntFormat, stored: Stored, outputs: int, inputs: int) -> GroupedWeight:
    """The weight of a part. Codes and zero points are stored several to a word, from the lowest bits up.

    Raises:
        StoredError: wrong shapes or dtypes.
    """
    bits, gptq = 4 if isinstance(format, Int4Format) else 8, format.packing == "gptq"
    each = 32 // bits
    ending = "scales" if gptq else "weight_scale"
    scales = _finite(stored[ending], ending)
    if scales.dim() != 2:
        raise StoredError(f"{ending} is {_dtype(scales)} {tuple(scales.shape)}, expected a matrix")
    scales = scales.T if gptq else scales
    index = stored.get("g_idx" if gptq else "weight_g_idx") if format.act_order else None
    if index is not None and tuple(index.shape) != (inputs,):
        raise StoredError(f"the index of groups is {_dtype(index)} {tuple(index.shape)}, expected {inputs} numbers")
    if index is not None and int(index.max()) < 0:
        index = None
    groups = -(-inputs // (format.group or inputs)) if index is None else scales.shape[-1]
    zeros = torch.full((outputs, groups), 8) if bits == 4 else None
    if gptq:
        codes = _codes(stored, "qweight", (-(-inputs // each), outputs), bits, along=0).T[:, :inputs]
        zeros = _codes(stored, "qzeros", (groups, -(-outputs // each)), bits, along=1)[:, :outputs].T.int()
        zeros += format.zero_offset
    else:
        codes = _codes(stored, "weight_packed", (outputs, -(-inputs // each)), bits, along=1)[:, :inputs]
        if not format.symmetric:
            zeros = _codes(stored, "weight_zero_point", (-(-outputs // each), groups), bits, along=0)[:outputs]
    if scales.shape != (outputs, groups):
        raise StoredError(f"scales are {tuple(scales.shape)}, expected {(outputs, groups)}")
    order = torch.arange(inputs, device=codes.device) // (format.group or inputs)
    if index is not None:
        order = index.long()
        if order.shape != (inputs,) or not 0 <= int(order.min()) <= int(order.max()) < groups:
            raise StoredError(f"the index of groups is {tuple(order.shape)}, expected {inputs} of {groups} groups")
    return GroupedWeight(codes, scales.float(), None if zeros is None else zeros.float(), order)


def _codes(stored: Stored, ending: str, shape: tuple[int, int], bits: int, *, along: int) -> torch.Tensor:
    """The codes in words of ``shape``, uint8, ``32 / bits`` times as many along one dimension."""
    words = stored[ending]
    if words.dtype != torch.int32 or tuple(words.shape) != shape:
        raise StoredError(f"{ending} is {_dtype(words)} {tuple(words.shape)}, expected int32 {shape}")
    rows = words.T if along == 0 else words
    values = rows.contiguous().view(torch.uint8)  # little-endian
    if bits == 4:
        values = torch.stack((values & 15, values >> 4), dim=-1).flatten(1)
    return values.T if along == 0 else values


class FP4Weight(NamedTuple):
    """A 4-bit float weight: value = E2M1[code] · (scale · factor)."""

    codes: torch.Tensor
    """uint8 [outputs, inputs], 0…15."""
    scales: torch.Tensor
    """float32 [outputs, groups]"""
    factor: torch.Tensor
    """float32 []"""

    def values(self) -> torch.Tensor:
        """The plain weight, float32 [outputs, inputs]."""
        table = torch.tensor(tables.E2M1, device=self.codes.device)
        outputs, groups = self.scales.shape
        scaled = table[self.codes.int()].view(outputs, groups, -1) * (self.scales * self.factor).unsqueeze(-1)
        return scaled.view(self.codes.shape)


def read_fp4(format: FP4Format, stored: Stored, outputs: int, inputs: int) -> FP4Weight:
    """The weight of a part. The low half of each byte is the first value.

    Raises:
        StoredError: wrong shapes or dtypes, or a scale that is not a positive number.
    """
    if format.packing == "deepseek":
        packed = stored["weight"]
        packed = packed.view(torch.uint8) if packed.dtype == torch.int8 else packed
        return fp4_weight(packed, e8m0(stored[format.scale_ending]), outputs, inputs, format.group)
    packed = stored["weight" if format.packing == "modelopt" else "weight_packed"]
    scales = stored["weight_scale"]
    if format.kind == "mxfp4":
        return fp4_weight(packed, e8m0(scales), outputs, inputs, format.group)
    if scales.dtype != torch.float8_e4m3fn:
        raise StoredError(f"weight_scale is {_dtype(scales)}, expected float8_e4m3fn")
    modelopt = format.packing == "modelopt"
    ending = "weight_scale_2" if modelopt else "weight_global_scale"
    factor = stored[ending].float()
    if factor.numel() != 1 or not bool((factor > 0) & factor.isfinite()):
        raise StoredError(f"{ending} has shape {tuple(factor.shape)}, expected one positive number")
    factor = factor.reshape(()) if modelopt else 1 / factor.reshape(())
    return fp4_weight(packed, scales.float(), outputs, inputs, format.group, factor)


def e8m0(scales: torch.Tensor) -> torch.Tensor:
    """Stored exponents of two (bias 127) as float32. Raises :class:`StoredError` for other types."""
    if scales.dtype not in (torch.uint8, torch.float8_e8m0fnu):
        raise StoredError(f"scales are {_dtype(scales)}, expected uint8")
    return scales.view(torch.float8_e8m0fnu).float()


def fp4_weight(
    packed: torch.Tensor,
    scales: torch.Tensor,
    outputs: int,
    inputs: int,
    group: int,
    factor: torch.Tensor | None = None,
) -> FP4Weight:
    """Unpack bytes [outputs, inputs / 2] with scales float32 [outputs, inputs / group].

    Raises:
        StoredError: wrong shapes or dtypes, or a NaN scale.
    """
    expected, groups = (outputs, inputs // 2), (outputs, inputs // group)
    if packed.dtype != torch.uint8 or tuple(packed.shape) != expected or inputs % group:
        raise StoredError(f"packed weights are {_dtype(packed)} {tuple(packed.shape)}, expected uint8 {expected}")
    if tuple(scales.shape) != groups:
        raise StoredError(f"scales are {tuple(scales.shape)}, expected {groups}")
    if not bool((scales >= 0).all()):
        raise StoredError("a scale is negative or no number")
    codes = torch.stack((packed & 0x0F, packed >> 4), dim=-1).flatten(1)
    return FP4Weight(codes, scales, torch.ones((), device=scales.device) if factor is None else factor)


def gpt_oss_weight(blocks: torch.Tensor, scales: torch.Tensor, outputs: int, inputs: int) -> FP4Weight:
    """One expert's matrix of gpt-oss: blocks uint8 [outputs, blocks, 16], scales uint8 [outputs, blocks].

    Raises:
        StoredError: wrong shapes or dtypes, or a NaN scale.
    """
    if blocks.dim() != 3 or blocks.shape[2] != 16:
        raise StoredError(f"blocks are {_dtype(blocks)} {tuple(blocks.shape)}, expected uint8 [outputs, blocks, 16]")
    return fp4_weight(blocks.flatten(1), e8m0(scales), outputs, inputs, 32)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
