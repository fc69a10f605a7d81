"""Unpacks GGUF blocks into codes that kernels dequantise to exactly the file's values."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ..linear_gguf import FORMATS, GGUFWeight
from ..linear_gguf import Kind as PlaneKind
from ..linear_w4.planes import SUPER, unpack_codes, unpack_factors, unpack_pairs
from .weight import USUAL_ZEROS, CodedMatrices, CodeKind, empty_coded

BlockKind = Literal["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "Q5_0", "Q5_1", "Q5_K", "IQ4_NL", "MXFP4"]
BLOCK_KINDS: Final[tuple[BlockKind, ...]] = get_args(BlockKind)


class _Form(NamedTuple):
    kind: CodeKind
    group: int = 32
    mins: bool = False
    span: int = 0
    scales: torch.dtype | None = None


BLOCK_FORMS: Final[Mapping[BlockKind, _Form]] = {
    "Q4_0": _Form("int4"),
    "Q4_1": _Form("int4", mins=True),
    "Q8_0": _Form("int8"),
    "Q4_K": _Form("int4", 32, True, SUPER, torch.uint8),
    "Q6_K": _Form("int8", 16, False, SUPER, torch.int8),
    "Q5_0": _Form("int8"),
    "Q5_1": _Form("int8", mins=True),
    "Q5_K": _Form("int8", 32, True, SUPER, torch.uint8),
    "IQ4_NL": _Form("iq4nl"),
    "MXFP4": _Form("mxfp4"),
}
"""The coded form of each block type. Codes of five and six bits take a byte."""
_SMALL: Final[Mapping[BlockKind, int]] = {"IQ4_NL": 18, "MXFP4": 17}
"""Bytes per block, for blocks of a scale and 32 codes that index a table."""


def empty_blocks(
    stored: BlockKind, experts: int, outputs: int, inputs: int, device: torch.device | None = None
) -> CodedMatrices:
    """Returns uninitialised codes for weights of a block type."""
    form = BLOCK_FORMS[stored]
    return empty_coded(
        form.kind,
        experts,
        outputs,
        inputs,
        group=form.group,
        scales=form.scales,
        mins=form.mins,
        span=form.span,
        device=device,
    )


def coded_blocks(blocks: Tensor, stored: BlockKind) -> CodedMatrices:
    """Returns one matrix from rows of blocks, uint8 [outputs, bytes of a row]. Raises ValueError if rows are not whole
    blocks."""
    if stored not in _SMALL:
        kind: PlaneKind = next(kind for kind in FORMATS if kind == stored)
        return _from_planes(GGUFWeight.from_blocks(blocks, kind), BLOCK_FORMS[stored])
    nbytes = _SMALL[stored]
    if blocks.dim() != 2 or blocks.dtype != torch.uint8 or blocks.shape[1] % nbytes:
        raise ValueError(f"{tuple(blocks.shape)} {blocks.dtype} are not rows of {stored}'s blocks of {nbytes} bytes")
    taken = blocks.reshape(len(blocks), -1, nbytes)
    scales, nibbles = taken[:, :, : nbytes - 16], taken[:, :, nbytes - 16 :]
    codes = torch.cat((nibbles & 15, nibbles >> 4), dim=2).flatten(1)
    scales = scales.contiguous().view(torch.float16 if stored == "IQ4_NL" else torch.uint8).squeeze(2)
    return CodedMatrices(BLOCK_FORMS[stored].kind, _halves(codes), scales.unsqueeze(0), 32)


def _from_planes(weight: GGUFWeight, form: _Form) -> CodedMatrices:
    planes, (_, inputs) = weight.planes, weight.shape
    groups = inputs // form.group
    if planes.bits == 8:
        codes = planes.codes.transpose(0, 1).flatten(1)[:, :inputs].int()
    else:
        codes = unpack_codes(planes.codes, inputs).int()
        if planes.high is not None:
            codes |= unpack_pairs(planes.high, inputs).int() << 4
    codes = (codes - planes.offset + (0 if form.mins else USUAL_ZEROS[form.kind])).to(torch.uint8)
    scales, mins, factors = planes.scales, planes.mins, None
    if planes.sub_scales is not None:
        each = [scales.T] if mins is None else [scales.T, -mins.T]
        factors = torch.stack(each, dim=2).flatten(1).unsqueeze(0)
        scales, mins = planes.sub_scales, planes.sub_mins

    def by_output(plane: Tensor) -> Tensor:
        rows = plane.T[:, :groups] if plane.dim() == 2 else unpack_factors(plane, inputs, form.group)
        return rows.contiguous().unsqueeze(0)

    return CodedMatrices(
        form.kind,
        _halves(codes) if form.kind == "int4" else codes.unsqueeze(0),
        by_output(scales),
        form.group,
        factors=factors,
        mins=None if mins is None else by_output(mins),
        span=form.span,
    )


def _halves(codes: Tensor) -> Tensor:
    """Packs uint8 [outputs, inputs] below 16 → [1, outputs, inputs / 2], the first of two in the low half."""
    return (codes[:, 0::2] | (codes[:, 1::2] << 4)).unsqueeze(0)
