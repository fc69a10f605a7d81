# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Activations of values in registers, with and without a gate.

gelu's tanh form is x · sigmoid(2u) with u = √(2/π) · (x + 0.044715 x³), since (1 + tanh u) / 2 = sigmoid(2u).
"""

import triton
import triton.language as tl


@triton.jit
def activated(x, KIND: tl.constexpr):
    """Returns act(x), float32, for kinds that need no gate."""
    if KIND == "silu":
        return x * tl.sigmoid(x)
    elif KIND == "gelu_tanh":
        return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif KIND == "gelu":
        return x * (0.5 + 0.5 * tl.erf(x * 0.7071067811865476))
    elif KIND == "quick_gelu":
        return x * tl.sigmoid(1.702 * x)
    elif KIND == "relu":
        return tl.where(x < 0.0, 0.0, x)
    else:
        x = tl.where(x < 0.0, 0.0, x)
        return x * x


@triton.jit
def hyperbolic_tangent(x):
    """Returns tanh(x), float32; where 1 - e^-2|x| would cancel, by the first terms of its series."""
    size, square = tl.abs(x), x * x
    power = tl.exp(-2.0 * size)
    large = tl.where(x < 0.0, -1.0, 1.0) * (1.0 - power) / (1.0 + power)
    small = x * (1.0 + square * (-0.3333333333333333 + square * (0.13333333333333333 - square * 0.05396825396825397)))
    return tl.where(size < 0.2, small, large)


@triton.jit
def gated(gate, up, KIND: tl.constexpr):
    """Returns act(gate) · up, float32; see :data:`stentor.kernels.ExpertActivation`."""
    if KIND == "swiglu_10":
        gate = tl.where(gate > 10.0, 10.0, gate)
        up = tl.where(up > 10.0, 10.0, tl.where(up < -10.0, -10.0, up))
        return activated(gate, "silu") * up
    elif KIND == "silu_7":
        active = activated(gate, "silu")
        up = tl.where(up > 7.0, 7.0, tl.where(up < -7.0, -7.0, up))
        return tl.where(active > 7.0, 7.0, active) * up
    elif KIND == "situ":
        return 4.0 * hyperbolic_tangent(gate * 0.25) * tl.sigmoid(gate) * (25.0 * hyperbolic_tangent(up * 0.04))
    elif KIND != "swiglu_oai":
        return activated(gate, KIND) * up
    else:
        # a comparison with NaN is false, so NaN stays
        gate = tl.where(gate > 7.0, 7.0, gate)
        up = tl.where(up > 7.0, 7.0, tl.where(up < -7.0, -7.0, up))
        return gate * tl.sigmoid(1.702 * gate) * (up + 1.0)
