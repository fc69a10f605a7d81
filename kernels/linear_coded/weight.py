"""Matrices as codes, which kernels expand while they multiply: those of all experts of a layer, or one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

import torch
from torch import Tensor

from .. import tables

CodeKind = Literal["mxfp4", "nvfp4", "int4", "fp8", "iq4nl", "int8"]
_DTYPES: Final[Mapping[CodeKind, tuple[torch.dtype, ...]]] = {
    "mxfp4": (torch.uint8, torch.uint8),
    "nvfp4": (torch.uint8, torch.float8_e4m3fn),
    "int4": (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.uint8),
    "fp8": (torch.float8_e4m3fn, torch.float32),
    "iq4nl": (torch.uint8, torch.float16),
    "int8": (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.uint8, torch.int8),
}
"""Of codes, and those that scales may have."""
BYTES: Final[frozenset[CodeKind]] = frozenset({"fp8", "int8"})
"""Kinds whose codes have eight bits."""
USUAL_ZEROS: Final[Mapping[CodeKind, int]] = {"int4": 8, "int8": 128}
"""Of codes with neither zero points nor minima; with minima they count from 0."""
_TABLES: Final[Mapping[CodeKind, tuple[float, ...]]] = {
    "mxfp4": tables.E2M1,
    "nvfp4": tables.E2M1,
    "iq4nl": tables.IQ4_NL,
}


@dataclass(frozen=True)
class CodedMatrices:
    """[experts, outputs, inputs]: value = (number of the code - zero) · (scale · factor) + minimum · its factor."""

    kind: CodeKind
    codes: Tensor
    """uint8 [experts, outputs, inputs / 2], of each byte the low half first; of :data:`BYTES` uint8, or for fp8
    float8_e4m3fn [experts, outputs, inputs]."""
    scales: Tensor
    """[experts, outputs / rows, inputs / group], rounded up. Of mxfp4 uint8, exponents of two with a bias of 127 (the
    least stands for 0 here), of nvfp4 float8_e4m3fn, of int4, int8 and iq4nl as they are stored, of fp8 float32."""
    group: int
    """Inputs that share a scale."""
    rows: int = 1
    """Outputs that share one."""
    factors: Tensor | None = None
    """float32 [experts, outputs, 1] of nvfp4; of scales that are whole numbers float16 [experts, outputs, inputs /
    span], with minima each beside that of the minima."""
    zeros: Tensor | None = None
    """uint8 of int4 and int16 of int8, of the shape of the scales; without them see :data:`USUAL_ZEROS`."""
    mins: Tensor | None = None
    """float16, or uint8 where there are factors, of the shape of the scales."""
    span: int = 0
    """Inputs that share a factor; 0: all."""

    @property
    def shape(self) -> tuple[int, int, int]:
        experts, outputs, width = self.codes.shape
        return experts, outputs, width if self.kind in BYTES else 2 * width

    @property
    def present(self) -> tuple[str, ...]:
        """The names of its tensors."""
        return tuple(field.name for field in fields(self) if isinstance(getattr(self, field.name), Tensor))

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in self.present)

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def concat(cls, matrices: Sequence["CodedMatrices"]) -> "CodedMatrices":
        """Outputs after outputs, of matrices of one form with scales of their own for each output."""
        first = matrices[0]
        planes: dict[str, Any] = {
            name: torch.cat([getattr(each, name) for each in matrices], dim=1) for name in first.present
        }
        return replace(first, **planes)

    def put_(self, expert: int, first: int, matrix: "CodedMatrices") -> None:
        """Puts a matrix of the same form, [1, outputs, inputs], at outputs [first, ...) of an expert."""
        for name in self.present:
            rows = getattr(matrix, name)[0]
            getattr(self, name)[expert, first : first + len(rows)].copy_(rows)

    def values(self, expert: int, dtype: torch.dtype) -> Tensor:
        """One expert's matrix [outputs, inputs], computed in float32."""
        codes = self.codes[expert]
        if self.kind not in BYTES:
            codes = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(1)
        numbers = codes.float()
        if self.kind in _TABLES:
            numbers = torch.tensor(_TABLES[self.kind], device=codes.device)[codes.int()]
        elif self.zeros is not None:
            numbers = numbers - self._spread(self.zeros[expert].float())
        elif self.mins is None:
            numbers = numbers - USUAL_ZEROS.get(self.kind, 0)
        scales = self.scales[expert]
        if self.kind == "mxfp4":
            scales = (scales.int() << 23).view(torch.float32)
        scales = self._spread(scales.float())
        step = 1 if self.mins is None else 2
        if self.factors is not None:
            scales = scales * self._by_span(self.factors[expert, :, ::step])
        values = numbers * scales
        if self.mins is not None:
            low = self._spread(self.mins[expert].float())
            values += low if self.factors is None else low * self._by_span(self.factors[expert, :, 1::step])
        return values.to(dtype)

    def _spread(self, groups: Tensor) -> Tensor:
        _, outputs, inputs = self.shape
        return groups.repeat_interleave(self.rows, 0)[:outputs].repeat_interleave(self.group, 1)[:, :inputs]

    def _by_span(self, factors: Tensor) -> Tensor:
        inputs = self.shape[2]
        return factors.float().repeat_interleave(self.span or inputs, 1)[:, :inputs]

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
        spans = -(-inputs // (self.span or inputs)) * (1 if self.mins is None else 2)
        for name, given, shape in (
            ("factors", self.factors, (groups[0], outputs, spans)),
            ("zeros", self.zeros, groups),
            ("mins", self.mins, groups),
        ):
            if given is not None and given.shape != shape:
                raise ValueError(f"experts in {self.kind}: {name} {tuple(given.shape)}, expected {shape}")


def tensors_of(weight: Tensor | CodedMatrices) -> tuple[Tensor | None, ...]:
    """What :func:`.triton_weights.weights_at` reads: weights or codes, scales, factors, and zeros or minima."""
    if isinstance(weight, CodedMatrices):
        return weight.codes, weight.scales, weight.factors, weight.mins if weight.zeros is None else weight.zeros
    return weight, None, None, None


def code_form_of(weight: Tensor | CodedMatrices) -> tuple[str, int, int, str, int]:
    """Its kind of codes, inputs (0: all) and outputs that share a scale, whether it has ``zeros`` or ``mins``, and
    inputs that share a factor (-1: there is none)."""
    if not isinstance(weight, CodedMatrices):
        return "plain", 1, 1, "", -1
    group = 0 if weight.group >= weight.shape[2] else weight.group
    shift = "zeros" if weight.zeros is not None else "mins" if weight.mins is not None else ""
    return weight.kind, group, weight.rows, shift, -1 if weight.factors is None else weight.span


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
    mins: bool = False,
    span: int = 0,
    device: torch.device | None = None,
) -> CodedMatrices:
    """Not filled yet. ``scales`` is for kinds that may have them in several dtypes; whole numbers have factors for
    each ``span`` of inputs."""
    groups = (experts, -(-outputs // rows), -(-inputs // group))
    codes, usual, *_ = _DTYPES[kind]

    def made(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    factors = None
    if kind == "nvfp4":
        factors = made(torch.float32, experts, outputs, 1)
    elif span:
        factors = made(torch.float16, experts, outputs, -(-inputs // span) * (2 if mins else 1))
    found = CodedMatrices(
        kind,
        made(codes, experts, outputs, inputs if kind in BYTES else inputs // 2),
        made(scales or usual, *groups),
        group,
        rows,
        factors,
        made(torch.uint8 if kind == "int4" else torch.int16, *groups) if zeros else None,
        made(torch.uint8 if span else torch.float16, *groups) if mins else None,
        span,
    )
    found.check()
    return found
