"""Weights kept in the codes of their checkpoint, for kernels that expand them while multiplying."""

import torch

from stentor import kernels
from stentor.kernels import ActivationScheme, CodedMatrices, CodeKind, empty_coded
from stentor.kernels.linear_coded.blocks import BLOCK_KINDS, BlockKind, coded_blocks, empty_blocks
from stentor.kernels.linear_w4.planes import unpack_codes

from ...quantization.formats import Format, FP4Format, FP8Format, GGUFFormat, GroupedInt8Format, Int4Format, Int8Format
from ...quantization.stored import (
    FP4Weight,
    Stored,
    endings,
    pack_int4,
    read_fp4,
    read_grouped,
    read_scaled,
)
from .layer_context import LinearParts
from .weights import WeightError, WeightMap


class CodedLinear:
    """Coded weights of parts fused along the outputs. Takes plain inputs."""

    input_scheme: ActivationScheme | None = None
    input_scale: torch.Tensor | None = None

    def __init__(self, of: LinearParts, format: Format) -> None:
        self._weight = coded_matrices(format, 1, sum(of.outputs.values()), of.inputs, of.context.place)
        self._bias = of.bias
        first = 0
        for part, outputs in of.outputs.items():
            nbytes = self._weight.nbytes * outputs // self._weight.shape[1]
            gather_coded(of.weights, part, self._weight, 0, first, outputs, format, nbytes)
            first += outputs

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, inputs] → [tokens, outputs]"""
        return kernels.linear_coded(x, self._weight, self._bias)


def coded_matrices(format: Format, experts: int, outputs: int, inputs: int, device: torch.device) -> CodedMatrices:
    """Empty matrices [experts, outputs, inputs] in the codes of ``format``."""
    rows, zeros, scales = 1, False, None
    kind: CodeKind
    match format:
        case FP4Format(kind=kind, group=group):
            pass
        case FP8Format(granularity="block", block=(rows, group)):
            kind = "fp8"
        case FP8Format():
            kind, group = "fp8", inputs
        case Int4Format():
            kind, group, zeros = "int4", format.group or inputs, not format.symmetric
            scales = getattr(torch, format.scales)
        case GroupedInt8Format():
            kind, group, zeros = "int8", format.group or inputs, not format.symmetric
            scales = getattr(torch, format.scales)
        case Int8Format():
            kind, group, scales = "int8", inputs, torch.float32
        case GGUFFormat():
            return empty_blocks(block_kind(format), experts, outputs, inputs, device)
        case _:
            raise AssertionError(format)
    return empty_coded(
        kind, experts, outputs, inputs, group=group, rows=rows, zeros=zeros, scales=scales, device=device
    )


def gather_coded(
    weights: WeightMap,
    part: str,
    whole: CodedMatrices,
    expert: int,
    first: int,
    outputs: int,
    format: Format | None,
    nbytes: int,
) -> None:
    """Register the tensors that fill outputs [first, first + outputs) of one expert, stored in ``format``."""
    assert isinstance(format, FP4Format | FP8Format | Int4Format | Int8Format | GroupedInt8Format)
    shape = (outputs, whole.shape[2])

    def place(stored: dict[str, torch.Tensor]) -> None:
        match format:
            case FP4Format():
                put_fp4(whole, expert, first, read_fp4(format, stored, *shape))
            case FP8Format():
                put_fp8(whole, expert, first, format, stored, shape)
            case Int4Format():
                _put_int4(whole, expert, first, format, stored, shape)
            case Int8Format():
                codes, scales = read_scaled(format, stored, *shape)
                _put_int8(whole, expert, first, codes.view(torch.uint8) ^ 0x80, scales.unsqueeze(1), None)
            case GroupedInt8Format():
                _put_int8(whole, expert, first, *read_grouped(format, stored, *shape)[:3])

    needed, ignored = endings(format)
    weights.gather(part, needed, place, nbytes=nbytes, ignored=ignored)


def gather_blocks(
    weights: WeightMap, name: str, whole: CodedMatrices, first: int, outputs: int, format: GGUFFormat, nbytes: int
) -> None:
    """Register the tensor of blocks that fills outputs [first, first + outputs) of all experts."""
    stem, _, ending = name.rpartition(".")

    def place(stored: dict[str, torch.Tensor]) -> None:
        try:
            for expert, rows in enumerate(stored[ending].view(len(whole), outputs, -1)):
                whole.put_(expert, first, coded_blocks(rows.to(whole.codes.device), block_kind(format)))
        except (RuntimeError, ValueError) as error:
            raise WeightError(f"{name}: {error}") from error

    weights.ask_raw(name)
    weights.gather(stem, (ending,), place, nbytes=nbytes)


def block_kind(format: GGUFFormat) -> BlockKind:
    found = next((kind for kind in BLOCK_KINDS if kind == format.kind), None)
    assert found is not None, f"{format.kind} has no kernel"
    return found


def put_fp4(whole: CodedMatrices, expert: int, first: int, matrix: FP4Weight) -> None:
    """Copy a matrix to outputs [first, ...) of an expert."""
    rows = slice(first, first + len(matrix.codes))
    _put_halves(whole.codes[expert, rows], matrix.codes)
    scales = matrix.scales
    if whole.kind == "mxfp4":  # exponents of float32, whose bias is that of the format
        scales = (scales.view(torch.int32) >> 23).to(torch.uint8)
    whole.scales[expert, rows] = scales.to(whole.scales.device, whole.scales.dtype)
    if whole.factors is not None:
        whole.factors[expert, rows] = matrix.factor.to(whole.factors.device)


def _put_halves(target: torch.Tensor, codes: torch.Tensor) -> None:
    """Pack uint8 [outputs, inputs] below 16 two a byte, the first in the low half."""
    target.copy_(codes[:, 0::2] | (codes[:, 1::2] << 4))


def put_fp8(
    whole: CodedMatrices, expert: int, first: int, format: FP8Format, stored: Stored, shape: tuple[int, int]
) -> None:
    """Copy a matrix of ``shape`` to outputs [first, ...) of an expert."""
    codes, scales = read_scaled(format, stored, *shape)
    whole.codes[expert, first : first + shape[0]].copy_(codes)
    scales = scales.unsqueeze(1) if scales.dim() == 1 else scales
    begin = first // whole.rows
    whole.scales[expert, begin : begin + len(scales)].copy_(scales)


def _put_int4(
    whole: CodedMatrices, expert: int, first: int, format: Int4Format, stored: Stored, shape: tuple[int, int]
) -> None:
    weight = pack_int4(format, stored, *shape)
    rows, (scales, zeros) = slice(first, first + shape[0]), weight.groups
    _put_halves(whole.codes[expert, rows], unpack_codes(weight.codes, shape[1]))
    whole.scales[expert, rows].copy_(scales)
    if whole.zeros is not None:
        whole.zeros[expert, rows].copy_(zeros)


def _put_int8(
    whole: CodedMatrices, expert: int, first: int, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None
) -> None:
    rows = slice(first, first + len(codes))
    whole.codes[expert, rows].copy_(codes)
    whole.scales[expert, rows].copy_(scales)
    if whole.zeros is not None and zeros is not None:
        whole.zeros[expert, rows].copy_(zeros)
