"""Experts on a CPU with weights packed in the order of multiplication."""

import ctypes

import torch
from torch import Tensor

from ..guards import check_float32, describe, native_unsupported_reason
from ..linear_packed import PackedStruct, PackedWeight
from ..linear_packed.weight import TILE
from ..native import NativeFunction, threads
from ..variants import Choice, Variant, select_variant
from . import reference
from .checks import ACTIVATIONS, ExpertActivation, check_experts, check_gate
from .router import Routing

_P, _I = ctypes.c_void_p, ctypes.c_int64
_NATIVE = NativeFunction("stentor_packed_experts", _P, _I, _P, _I, _I, _P, _P, _I, _P, _I, restype=_I)
_FLOATS = (torch.float32, torch.bfloat16)


class _ExpertsStruct(ctypes.Structure):
    """``Experts`` of experts.h."""

    _fields_ = (
        *((name, _P) for name in ("gate_up", "down", "gate_up_bias", "down_bias")),
        *((name, _I) for name in ("inner", "hidden", "activation", "weight_input")),
    )


def packed_experts(
    gate_up: PackedWeight, down: PackedWeight, gate_up_bias: Tensor | None, down_bias: Tensor | None
) -> int:
    """Returns how many experts these weights hold, with or without a gate.

    Raises:
        ValueError: weights or biases that do not fit each other, or experts that begin inside a tile.
    """
    (rows, hidden), (outputs, inner) = gate_up.shape, down.shape
    experts = outputs // hidden
    if (
        experts * hidden != outputs
        or rows not in (experts * 2 * inner, experts * inner)
        or hidden % TILE
        or inner % TILE
    ):
        raise ValueError(
            f"packed experts: gate_up {gate_up.shape} and down {down.shape} do not fit; want [experts * 2 * inner, "
            f"hidden], or experts * inner, and [experts * hidden, inner], both sizes multiples of {TILE}"
        )
    for bias, shape in ((gate_up_bias, (experts, rows // experts)), (down_bias, (experts, hidden))):
        if bias is not None:
            check_float32("packed experts", "bias", bias, shape)
    return experts


def choose_packed(x: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`packed_experts_mlp` runs on ``x``. Raises ValueError if a named one cannot
    run."""
    return select_variant(variant, native=native_unsupported_reason(_NATIVE if x.dtype in _FLOATS else None, x))


def packed_experts_mlp(
    x: Tensor,
    routing: Routing,
    gate_up: PackedWeight,
    down: PackedWeight,
    activation: ExpertActivation,
    *,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    weight_input: bool = False,
    variant: Choice = "auto",
) -> Tensor:
    """Computes :func:`stentor.kernels.experts_mlp` with packed weights.

    Inputs of products are rounded as :func:`stentor.kernels.linear_packed.linear_packed` rounds them; everything else
    is in float32. In the native variant a token has the same bits whatever the other tokens and the number of threads.
    Weights of experts that no token has chosen are not read.

    Args:
        x: [tokens, hidden] float32 or bfloat16.
        routing: of these tokens; an expert -1 adds nothing.
        gate_up: of [experts · 2 · inner, hidden]: gates, then ups, of one expert after the other. Or of [experts ·
            inner, hidden]: ups alone, for experts without a gate.
        down: of [experts · hidden, inner].
        activation: see :data:`.ExpertActivation`.
        gate_up_bias: float32 [experts, outputs of one expert's gate_up] or None, contiguous.
        down_bias: float32 [experts, hidden] or None, contiguous; it is weighted too.
        weight_input: the weight multiplies the expert's input in place of its output (Llama 4). It is applied as a
            factor of the product with the input.
        variant: forces an implementation.

    Returns:
        [tokens, hidden], a new contiguous tensor of the dtype of ``x``.

    Raises:
        ValueError: an unknown activation, shapes or dtypes that do not fit.
        IndexError: an expert out of range.
        MemoryError: no room for the rounded rows.
    """
    check_experts("packed_experts_mlp", x, routing, activation)
    experts = packed_experts(gate_up, down, gate_up_bias, down_bias)
    hidden, inner = gate_up.shape[1], down.shape[1]
    check_gate("packed_experts_mlp", activation, gated=gate_up.shape[0] != experts * inner)
    if x.dtype not in _FLOATS or x.shape[1] != hidden:
        raise ValueError(f"packed_experts_mlp: x {describe(x)} does not fit weights of {hidden} inputs")
    if choose_packed(x, variant) == "reference":
        return reference.packed_experts_mlp(
            x, routing, experts, gate_up, down, activation, gate_up_bias, down_bias, weight_input
        )
    rows = x.float()
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    chosen, weights = routing.experts.contiguous(), routing.weights.contiguous()
    out = torch.empty(len(x), hidden)
    both: tuple[PackedStruct, PackedStruct] = gate_up.struct, down.struct
    struct = _ExpertsStruct(
        *(ctypes.addressof(each) for each in both),
        *(None if bias is None else bias.data_ptr() for bias in (gate_up_bias, down_bias)),
        inner,
        hidden,
        ACTIVATIONS.index(activation),
        weight_input,
    )
    failed = _NATIVE(
        ctypes.byref(struct),
        experts,
        rows.data_ptr(),
        rows.stride(0),
        len(x),
        chosen.data_ptr(),
        weights.data_ptr(),
        chosen.shape[1],
        out.data_ptr(),
        threads(),
    )
    if failed == 2:
        raise IndexError(f"packed_experts_mlp: an expert outside the {experts} that there are")
    if failed:
        raise MemoryError(f"packed_experts_mlp: no room for {len(x)} rows")
    return out.to(x.dtype)
