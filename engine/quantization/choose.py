"""Chooses the kernel for a quantised weight: implementations in order of preference, with the reasons against each.

This is the only place for that decision. An implementation gives an unsupported reason (a clause; None for none); the
first without one is used, and start-up shows the other reasons.
"""

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec
import torch

from stentor.kernels.linear_coded.blocks import BLOCK_KINDS
from stentor.kernels.linear_packed import BLOCK, PACKED_BLOCKS

from .formats import (
    FP8_BLOCK,
    Format,
    FP4Format,
    FP8Format,
    GGUFFormat,
    GroupedInt8Format,
    GroupedIntFormat,
    Int4Format,
    Int8Format,
    OnlineFormat,
)
from .gguf_codes import CODED_BLOCKS

Backend = Literal["auto", "kernels", "packed", "expanded"]
"""``kernels``: as stored, multiplied by the kernel of its format. ``packed``: codes rearranged for a CPU's
instructions. ``expanded``: dequantised to plain weights."""

GGUF_KERNELS: frozenset[str] = frozenset(BLOCK_KINDS)
PACKED_GGUF: tuple[str, ...] = (*PACKED_BLOCKS, *CODED_BLOCKS)
INT4_GROUPS = (32, 64, 128)
CODED_GROUPS = (16, 32, 64, 128)


class LinearTraits(msgspec.Struct, frozen=True):
    """The properties of a linear layer that the choice depends on."""

    format: Format
    device: torch.device
    dtype: torch.dtype
    """Dtype of activations."""
    inputs: int
    outputs: tuple[int, ...]
    """Outputs of each part fused into the layer."""
    invariant: bool = False
    packed: bool = False
    """Whether weights can be packed for this CPU."""
    experts: bool = False
    """Whether it is one product of all of a layer's experts."""


class Selection(msgspec.Struct, frozen=True):
    """The chosen implementation, and the reasons against preferred ones."""

    name: Backend
    refusals: tuple[str, ...] = ()

    def describe(self, format: Format, dtype: torch.dtype) -> str:
        """One line for the operator, without the layer's name."""
        if self.name == "kernels":
            return f"weights in {format.name}: multiplied as they are stored"
        if self.name == "packed":
            return f"weights in {format.name}: packed for this CPU, multiplied by rounded inputs"
        plain = str(dtype).removeprefix("torch.")
        return f"weights in {format.name}: expanded to {plain}, since {'; '.join(self.refusals)}"


def select(layer: LinearTraits, wanted: Backend = "auto") -> Selection:
    """The implementation for a layer. Raises ValueError, with all reasons, if there is none.

    ``wanted`` other than ``auto`` skips preferred implementations; ``kernels`` also requests them on any device, where
    their torch versions run.
    """
    refusals: list[str] = []
    preference = list(_PREFERENCE)
    for name in preference if wanted == "auto" else preference[preference.index(wanted) :]:
        unsupported_reasons = _PREFERENCE[name]
        checks = unsupported_reasons[1:] if name == wanted == "kernels" else unsupported_reasons
        unsupported_reason = next((found for check in checks if (found := check(layer)) is not None), None)
        if unsupported_reason is None:
            return Selection(name, tuple(refusals))
        refusals.append(unsupported_reason)
    raise ValueError(f"nothing multiplies weights in {layer.format.name}: {'; '.join(refusals)}")


def _place(layer: LinearTraits) -> str | None:
    if layer.device.type != "cuda":
        return f"the kernels for it run on CUDA, not on {layer.device.type}"
    if layer.invariant:
        return "they are not batch-invariant"
    if layer.dtype not in (torch.bfloat16, torch.float16):
        return f"they take bfloat16 or float16, not {str(layer.dtype).removeprefix('torch.')}"
    return None


def _packed(layer: LinearTraits) -> str | None:
    if layer.device.type != "cpu":
        return f"packed weights are for the CPU, not {layer.device.type}"
    if not layer.packed:
        return "there are no CPU kernels"
    if layer.dtype != torch.bfloat16:
        return f"{str(layer.dtype).removeprefix('torch.')} asks for exact inputs, and packed weights round them"
    match layer.format:
        case GGUFFormat(kind=kind) if kind not in PACKED_GGUF:
            return f"they take {', '.join(PACKED_GGUF)}"
        case GroupedIntFormat(act_order=True):
            return "packed groups lie in the order of the inputs"
        case Int4Format():
            return _int4_shape(layer)
        case GroupedInt8Format(group=group) if group % BLOCK:
            return f"they take groups of multiples of {BLOCK}, not {group}"
        case FP8Format() | OnlineFormat(dtype="fp8"):
            return "they take int8, four bits and GGUF's blocks"
    return None


def _shape(layer: LinearTraits) -> str | None:
    return _experts_shape(layer) if layer.experts else _SHAPES[type(layer.format)](layer)


def _expanded(layer: LinearTraits) -> str | None:
    if isinstance(layer.format, OnlineFormat):
        return "plain weights would gain nothing from being quantised first: leave --quantization out"
    return None


def _experts_shape(layer: LinearTraits) -> str | None:
    match layer.format:
        case FP4Format(group=group) | Int4Format(act_order=False, group=group) if group and layer.inputs % group:
            return f"their groups of {group} do not divide {layer.inputs} inputs"
        case FP8Format(granularity="block", block=(rows, _)) if any(size % rows for size in layer.outputs):
            return f"experts of {', '.join(map(str, layer.outputs))} outputs do not join at whole blocks of {rows}"
        case FP8Format(granularity="block", block=(_, group)) | Int4Format(act_order=False, group=group) if (
            group and group not in CODED_GROUPS
        ):
            return f"they take groups of {', '.join(map(str, CODED_GROUPS))} inputs, not {group}"
        case FP4Format() | Int4Format(act_order=False) | FP8Format() | Int8Format():
            return None
        case GroupedInt8Format():
            return _grouped_int8_shape(layer)
        case GGUFFormat():
            return _gguf_shape(layer)
    return "no kernel multiplies by such codes of experts"


def _fp8_shape(layer: LinearTraits) -> str | None:
    assert isinstance(layer.format, FP8Format)
    if layer.format.granularity != "block":
        return None
    if layer.format.block != (FP8_BLOCK, FP8_BLOCK):
        rows, columns = layer.format.block
        return f"they take blocks of {FP8_BLOCK}x{FP8_BLOCK}, not {rows}x{columns}"
    if any(size % FP8_BLOCK for size in layer.outputs[:-1]):
        return f"projections of {', '.join(map(str, layer.outputs))} outputs do not join at whole blocks"
    return None


def _int4_shape(layer: LinearTraits) -> str | None:
    assert isinstance(layer.format, Int4Format)
    group = layer.format.group
    if not layer.format.whole_groups:
        return "they take whole groups, of which several workers have inputs here"
    if group and group not in INT4_GROUPS:
        return f"they take groups of {', '.join(map(str, INT4_GROUPS))}, not {group}"
    return None


def _gguf_shape(layer: LinearTraits) -> str | None:
    assert isinstance(layer.format, GGUFFormat)
    if layer.format.kind not in GGUF_KERNELS:
        return f"they take {', '.join(sorted(GGUF_KERNELS))}"
    return None


def _fp4_shape(layer: LinearTraits) -> str | None:
    assert isinstance(layer.format, FP4Format)
    if layer.format.packing == "gpt-oss":
        return "they take those of experts alone"
    if layer.inputs % layer.format.group:
        return f"their groups of {layer.format.group} do not divide {layer.inputs} inputs"
    return None


def _grouped_int8_shape(layer: LinearTraits) -> str | None:
    assert isinstance(layer.format, GroupedInt8Format)
    if layer.format.act_order:
        return "they take groups in the order of the inputs"
    if layer.format.group and layer.format.group not in CODED_GROUPS:
        return f"they take groups of {', '.join(map(str, CODED_GROUPS))} inputs, not {layer.format.group}"
    return None


def _any_shape(layer: LinearTraits) -> str | None:
    return None


_SHAPES: Mapping[type[Format], Callable[[LinearTraits], str | None]] = {
    FP8Format: _fp8_shape,
    Int8Format: _any_shape,
    Int4Format: _int4_shape,
    GGUFFormat: _gguf_shape,
    FP4Format: _fp4_shape,
    GroupedInt8Format: _grouped_int8_shape,
    OnlineFormat: _any_shape,
}

_PREFERENCE: Mapping[Backend, tuple[Callable[[LinearTraits], str | None], ...]] = {
    "kernels": (_place, _shape),
    "packed": (_packed,),
    "expanded": (_expanded,),
}
