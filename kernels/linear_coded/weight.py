"""Matrices kept as codes, which kernels dequantise while they multiply: one, or those of all experts of a layer."""

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
"""The dtype of the codes, and those that scales may have."""
BYTES: Final[frozenset[CodeKind]] = frozenset({"fp8", "int8"})
"""Kinds whose codes have eight bits."""
USUAL_ZEROS: Final[Mapping[CodeKind, int]] = {"int4": 8, "int8": 128}
"""The zero of codes with neither zero points nor minima; with minima it is 0."""
_TABLES: Final[Mapping[CodeKind, tuple[float, ...]]] = {
    "mxfp4": tables.E2M1,
    "nvfp4": tables.E2M1,
    "iq4nl": tables.IQ4_NL,
}


@dataclass(frozen=True)
class CodedMatrices:
    """[experts, outputs, inputs]: value = (value of the code - zero) · (scale · factor) + minimum · its factor."""

    kind: CodeKind
    codes: Tensor
    """uint8 [experts, outputs, inputs / 2], the low half of each byte first. Kinds in :data:`BYTES` have [experts,
    outputs, inputs], uint8 or for fp8 float8_e4m3fn."""
    scales: Tensor
    """[experts, outputs / rows, inputs / group], rounded up. mxfp4: uint8, exponents of two with a bias of 127 (the
    least stands for 0 here). nvfp4: float8_e4m3fn. int4, int8 and iq4nl: as stored. fp8: float32."""
    group: int
    """Inputs that share a scale."""
    rows: int = 1
    """Outputs that share a scale."""
    factors: Tensor | None = None
    """nvfp4: float32 [experts, outputs, 1]. Integer scales: float16 [experts, outputs, inputs / span], and with minima
    each is followed by the factor of the minima."""
    zeros: Tensor | None = None
    """The shape of the scales: uint8 for int4, int16 for int8. Without them see :data:`USUAL_ZEROS`."""
    mins: Tensor | None = None
    """The shape of the scales: float16, or uint8 if there are factors."""
    span: int = 0
    """Inputs that share a factor; 0: all."""

    @property
    def shape(self) -> tuple[int, int, int]:
        experts, outputs, width = self.codes.shape
        return experts, outputs, width if self.kind in BYTES else 2 * width

    @property
    def present(self) -> tuple[str, ...]:
        """The names of its tensors that are present."""
        return tuple(field.name for field in fields(self) if isinstance(getattr(self, field.name), Tensor))

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in self.present)

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def concat(cls, matrices: Sequence["CodedMatrices"]) -> "CodedMatrices":
        """Concatenates the outputs of matrices of one form in which each output has scales of its own."""
        first = matrices[0]
        planes: dict[str, Any] = {
            name: torch.cat([getattr(each, name) for each in matrices], dim=1) for name in first.present
        }
        return replace(first, **planes)

    def put_(self, expert: int, first: int, matrix: "CodedMatrices") -> None:
        """Copies a matrix of the same form, [1, outputs, inputs], to outputs [first, ...) of an expert."""
        for name in self.present:
            rows = getattr(matrix, name)[0]
            getattr(self, name)[expert, first : first + len(rows)].copy_(rows)

    def values(self, expert: int, dtype: torch.dtype) -> Tensor:
        """Returns one expert's matrix [outputs, inputs], computed in float32."""
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
    """Returns what :func:`.triton_weights.weights_at` reads: weights or codes, scales, factors, and zeros or minima."""
    if isinstance(weight, CodedMatrices):
        return weight.codes, weight.scales, weight.factors, weight.mins if weight.zeros is None else weight.zeros
    return weight, None, None, None


def code_form_of(weight: Tensor | CodedMatrices) -> tuple[str, int, int, str, int]:
    """Returns its kind of codes, the inputs (0: all) and the outputs that share a scale, whether it has ``zeros`` or
    ``mins``, and the inputs that share a factor (-1: none)."""
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
    """Returns uninitialised codes.

    ``scales`` is the dtype of the scales, for kinds that allow several. Integer scales have a factor for each ``span``
    of inputs.
    """
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
