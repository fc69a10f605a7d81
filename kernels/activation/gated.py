"""act(gate) · up, not quantised."""

import ctypes
from typing import Literal

import torch
from torch import Tensor

from ..guards import FLOATS, describe, native_unsupported_reason, triton_unsupported_reason
from ..launching.repeated import LaunchCache, Start
from ..native import by_dtype, threads
from ..variants import Choice, Variant, select_variant
from . import reference

ActivationKind = Literal["silu", "gelu_tanh", "gelu", "relu2", "quick_gelu", "relu"]
KINDS: dict[ActivationKind, int] = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "relu2": 3, "quick_gelu": 4, "relu": 5}

_P, _I = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (_P, _P, _I, _I, _I, ctypes.c_int32, _I)
_NATIVE = by_dtype("stentor_gated_activation", *_ARGUMENTS)
_STARTS: LaunchCache[Start] = LaunchCache()


def choose(gate_up: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`gated_activation` runs. Raises ValueError if a named one cannot run."""
    return select_variant(
        variant,
        triton=triton_unsupported_reason(gate_up, variant),
        native=native_unsupported_reason(_NATIVE.get(gate_up.dtype), gate_up),
    )


def gated_activation(gate_up: Tensor, kind: ActivationKind, *, variant: Choice = "auto") -> Tensor:
    """Returns act(gate) · up, computed in float32 and rounded once.

    Args:
        gate_up: [T, 2I]: gate in the first half of each row, up in the second; rows may be strided.
        kind: ``silu``, ``gelu_tanh`` (the tanh form), ``gelu`` (the error function), ``relu2`` (max(x, 0)²),
            ``quick_gelu`` (x · sigmoid(1.702 x)) or ``relu``.
        variant: forces an implementation.

    Returns:
        [T, I], a new contiguous tensor. A row does not depend on the others.

    Raises:
        ValueError: an unknown kind, an odd width, a dtype or a stride that does not fit.
    """
    key, start = _STARTS.find((gate_up,), kind, variant)
    if start is not None:
        out = gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))
        start(gate_up, out, None)
        return out
    check_gate_up("gated_activation", gate_up, kind)
    match choose(gate_up, variant):
        case "triton":
            from .triton import prepare_gated_activation  # late: heavy

            out = gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))
            start = prepare_gated_activation(gate_up, kind, out)
            _STARTS.keep(key, start)(gate_up, out, None)
            return out
        case "native":
            return _run_native(gate_up, kind)
        case "reference":
            return reference.gated_activation(gate_up, kind)


def _run_native(gate_up: Tensor, kind: ActivationKind) -> Tensor:
    rows, width = gate_up.shape
    out = torch.empty((rows, width // 2), dtype=gate_up.dtype)
    native = _NATIVE[gate_up.dtype]
    native(gate_up.data_ptr(), out.data_ptr(), rows, width // 2, gate_up.stride(0), KINDS[kind], threads())
    return out


def check_gate_up(operation: str, gate_up: Tensor, kind: ActivationKind) -> None:
    """Raises ValueError unless ``gate_up`` is [T, 2I] with contiguous rows and ``kind`` is a known one."""
    if kind not in KINDS:
        raise ValueError(f"{operation}: kind must be one of {', '.join(KINDS)}, not {kind!r}")
    if gate_up.dim() != 2 or gate_up.shape[1] % 2 or gate_up.dtype not in FLOATS:
        raise ValueError(f"{operation}: gate_up {describe(gate_up)} must be [T, 2I] of a float dtype")
    if gate_up.shape[1] > 1 and gate_up.stride(1) != 1:
        raise ValueError(f"{operation}: the rows of gate_up must be contiguous, strides are {gate_up.stride()}")
