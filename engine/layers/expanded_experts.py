"""Experts that files have in four and eight bits without a description, which are expanded while they load (Inkling 2
Mini)."""

from collections.abc import Iterable, Iterator
from typing import Final

import torch

from ..model_config.spec.model import ModelSpec
from ..quantization.formats import MX_BLOCK, FP4Format, FP8Format
from ..quantization.stored import StoredError, expand
from .linear.weights import WeightError

_NVFP4: Final = FP4Format("nvfp4", "modelopt")
_MXFP8: Final = FP8Format("block", block=(1, MX_BLOCK))
_MATRICES: Final = ("experts.w13_weight", "experts.w2_weight")
_BESIDE: Final = ("_scale", "_amax", "_outer_scale_denominator")
"""Endings behind a matrix of all experts: of its scales for groups, and in four bits of two numbers for each expert,
whose quotient multiplies it."""


def expanded_experts(
    model: ModelSpec, tensors: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors with bfloat16 in place of such experts. Raises :class:`WeightError` for parts that do not fit."""
    if not model.expands_experts:
        yield from tensors
        return
    waiting: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors:
        matrix = next((name.removesuffix(each) for each in _BESIDE if name.endswith(each)), name)
        coded = name != matrix or tensor.dtype in (torch.uint8, torch.float8_e4m3fn)
        if not matrix.endswith(_MATRICES) or not coded:
            yield name, tensor
            continue
        parts = waiting.setdefault(matrix, {})
        parts[name.removeprefix(matrix)] = tensor.clone()  # the file's pages are released before its partners come
        codes = parts.get("")
        if codes is not None and len(parts) == (4 if codes.dtype == torch.uint8 else 2):
            yield matrix, _expanded(matrix, waiting.pop(matrix))
    if waiting:
        raise WeightError(f"the checkpoint has only a part of {next(iter(waiting))} and its scales")


def _expanded(name: str, parts: dict[str, torch.Tensor]) -> torch.Tensor:
    """Codes [experts, outputs, inputs], two in a byte of uint8, and their scales → bfloat16, the same shape"""
    codes, scales = parts[""], parts["_scale"]
    packed = codes.dtype == torch.uint8
    if codes.dim() != 3 or any(each.shape[:1] != codes.shape[:1] for each in parts.values()):
        raise WeightError(f"{name} and its scales are of different numbers of experts")
    experts, outputs, inputs = codes.shape[0], codes.shape[1], codes.shape[2] * (2 if packed else 1)
    found = torch.empty(experts, outputs, inputs, dtype=torch.bfloat16)
    for expert in range(experts):
        stored = {"weight": codes[expert], "weight_scale": scales[expert]}
        if packed:
            stored["weight_scale_2"] = parts[_BESIDE[1]][expert].float() / parts[_BESIDE[2]][expert].float()
        try:
            found[expert] = expand(_NVFP4 if packed else _MXFP8, stored, outputs, inputs, torch.bfloat16)
        except StoredError as error:
            raise WeightError(f"{name}: {error}") from error
    return found
