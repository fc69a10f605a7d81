"""Matrices as codes, which kernels expand while they multiply: those of all experts of a layer, or one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from .. import tables

CodeKind = Literal["mxfp4", "nvfp4", "int4", "fp8"]
_DTYPES: Final[Mapping[CodeKind, tuple[torch.dtype, ...]]] = {
    "mxfp4": (torch.uint8, torch.uint8),
    "nvfp4": (torch.uint8, torch.float8_e4m3fn),
    "int4": (torch.uint8, torch.float16, torch.bfloat16, torch.float32),
    "fp8": (torch.float8_e4m3fn, torch.float32),
}
"""Of codes, and those that scales may have."""
SYMMETRIC_ZERO: Final = 8
"""Of four-bit codes without zero points."""


@dataclass(frozen=True)
class CodedMatrices:
    """[experts, outputs, inputs]: value = (number of the code - zero) · (scale · factor)."""

    kind: CodeKind
    codes: Tensor
    """uint8 [experts, outputs, inputs / 2], of each byte the low half first; for fp8 float8_e4m3fn [experts, outputs,
    inputs]."""
    scales: Tensor
    """[experts, outputs / rows, inputs / group], rounded up. Of mxfp4 uint8, exponents of two with a bias of 127 (the
    least stands for 0 here), of nvfp4 float8_e4m3fn, of int4 as they are stored, of fp8 float32."""
    group: int
    """Inputs that share a scale."""
    rows: int = 1
    """Outputs that share one."""
    factors: Tensor | None = None
    """float32 [experts, outputs], of nvfp4."""
    zeros: Tensor | None = None
    """uint8, of the shape of the scales, of int4; without them all are 8."""

    @property
    def shape(self) -> tuple[int, int, int]:
        experts, outputs, width = self.codes.shape
        return experts, outputs, width if self.kind == "fp8" else 2 * width

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self.codes, self.scales, self.factors, self.zeros) if each is not None)

    def __len__(self) -> int:
        return len(self.codes)

    def values(self, expert: int, dtype: torch.dtype) -> Tensor:
        """One expert's matrix [outputs, inputs], computed in float32."""
        _, outputs, inputs = self.shape
        codes = self.codes[expert]
        if self.kind == "fp8":
            numbers = codes.float()
        else:
            halves = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(1)
            numbers = halves.float()
            if self.kind != "int4":
                numbers = torch.tensor(tables.E2M1, device=codes.device)[halves.int()]
        if self.kind == "int4":
            zeros = SYMMETRIC_ZERO if self.zeros is None else self._spread(self.zeros[expert].float(), outputs, inputs)
            numbers = numbers - zeros
        scales = self.scales[expert]
        if self.kind == "mxfp4":
            scales = (scales.int() << 23).view(torch.float32)
        scales = scales.float() if self.factors is None else scales.float() * self.factors[expert].unsqueeze(1)
        return (numbers * self._spread(scales, outputs, inputs)).to(dtype)

    def _spread(self, groups: Tensor, outputs: int, inputs: int) -> Tensor:
        return groups.repeat_interleave(self.rows, 0)[:outputs].repeat_interleave(self.group, 1)[:, :inputs]

    def check(self) -> None:
        """Raises ValueError for shapes or dtypes that do not fit."""
        _, outputs, inputs = self.shape
        codes, *scales = _DTYPES[self.kind]
        groups = (len(self), -(-outputs // self.rows), -(-inputs // self.group))
        if self.codes.dtype != codes or self.scales.dtype not in scales or self.scales.shape != groups:
            raise ValueError(
                f"experts in {self.kind}: codes {self.codes.dtype} and scales {self.scales.dtype} "
                f"{tuple(self.scales.shape)}, expected {codes} and {' or '.join(map(str, scales))} {groups}"
            )
        if outputs % self.rows:
            raise ValueError(f"experts in {self.kind}: {outputs} outputs are no whole blocks of {self.rows}")
        for name, given, shape in (("factors", self.factors, (groups[0], outputs)), ("zeros", self.zeros, groups)):
            if given is not None and given.shape != shape:
                raise ValueError(f"experts in {self.kind}: {name} {tuple(given.shape)}, expected {shape}")


def empty_coded(
    kind: CodeKind,
    experts: int,
    outputs: int,
    inputs: int,
    *,
    group: int,
    rows: int = 1,
    zeros: bool = False,
    scales: torch.dtype | None = None,
    device: torch.device | None = None,
) -> CodedMatrices:
    """Not filled yet; ``scales`` is for kinds that may have them in several dtypes."""
    groups = (experts, -(-outputs // rows), -(-inputs // group))
    codes, usual, *_ = _DTYPES[kind]

    def made(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    found = CodedMatrices(
        kind,
        made(codes, experts, outputs, inputs if kind == "fp8" else inputs // 2),
        made(scales or usual, *groups),
        group,
        rows,
        made(torch.float32, experts, outputs) if kind == "nvfp4" else None,
        made(torch.uint8, *groups) if zeros else None,
    )
    found.check()
    return found
